"""Optimizers, and steps of loops that do not say theirs.

optimizer is the outermost `Optimizer.step`. Where the script has no `smon_rt.step`, a step begins with the first
forward and closes with the first optimizer's step; the next begins there.

Threading: the job's own threads.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

from smon_rt._backend import native
from smon_rt.integrations import state
from smon_rt.integrations.state import failed, mask, say_once, switch
from smon_rt.integrations.torch import gradients
from smon_rt.kinds import KIND_NAMES

__all__ = ["after_step", "before_step", "begin_unless_explicit", "on_optimizer_step", "reset", "scaler_step"]

_OPTIMIZER = KIND_NAMES.index("optimizer")
_OPTIMIZER_MASK = mask("optimizer")
_SAY_STEPS = "put `with smon_rt.step(k):` around each iteration, or steps are counted wrongly"


class _Implicit:
    """The steps that are made here."""

    is_open = False
    optimizer: Callable[[], Any] | None = None
    """The one whose step closes them."""


class _Running(threading.local):
    """Steps of optimizers that this thread is in, one inside the other."""

    def __init__(self) -> None:
        self.inside: list[list[int]] = []  # [identity of the optimizer, token]


_running = _Running()
#: Called when something else than a forward begins.
on_other_work: list[Callable[[], None]] = []
#: Called when the outermost optimizer's step has returned.
on_optimizer_step: list[Callable[[], None]] = []


def begin_unless_explicit() -> None:
    """Begins the first step of a loop that has not said that it makes its own."""
    if not (switch.is_stepped_by_script or switch.is_stepped_by_framework or _Implicit.is_open):
        _Implicit.is_open = True
        state.begin_counted_step()


def before_step(optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """torch calls it before any optimizer's step; what it returns replaces the arguments."""
    if not switch.is_on:
        return None
    try:
        return _begin(optimizer, args, kwargs)
    except Exception as error:
        failed("torch.optimizer", error)
        return None


def _begin(optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    inside = _running.inside
    if any(identity == id(optimizer) for identity, _ in inside):
        _abort_all()  # its step before was left by an exception, of which torch does not tell
    entry = [id(optimizer), 0]
    inside.append(entry)
    if len(inside) > 1:  # an optimizer that wraps another
        return None
    begin_unless_explicit()
    for other in on_other_work:
        other()
    if native.find_open(_OPTIMIZER_MASK):
        return None
    closure = kwargs.get("closure") or (args[1] if len(args) > 1 else None)
    if not callable(closure):
        entry[1] = native.begin(_OPTIMIZER)
        return None
    recorded = _recorded_closure(closure, entry)
    if "closure" in kwargs:
        return args, kwargs | {"closure": recorded}
    return (args[0], recorded, *args[2:]), kwargs


def _recorded_closure(closure: Callable[[], Any], entry: list[int]) -> Callable[[], Any]:
    """A closure is forward and backward: the optimizer's time is what comes between and after its calls."""

    def recorded() -> Any:
        token, entry[1] = entry[1], 0
        native.end(token)
        result = closure()
        entry[1] = native.begin(_OPTIMIZER)
        return result

    return recorded


def after_step(optimizer: Any, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
    """torch calls it after the step of an optimizer that returned."""
    inside = _running.inside
    if not inside:
        return
    try:
        while inside:
            identity, token = inside.pop()
            native.end(token)
            if identity == id(optimizer):
                break
        if not inside:
            gradients.optimizer_stepped(optimizer)
            if switch.is_on:
                state.call_all(on_optimizer_step, "torch.optimizer")
            if switch.is_on and not (switch.is_stepped_by_script or switch.is_stepped_by_framework):
                _close_step(optimizer)
    except Exception as error:
        failed("torch.optimizer", error)


def _close_step(optimizer: Any) -> None:
    first = None if _Implicit.optimizer is None else _Implicit.optimizer()
    if first is None:
        _Implicit.optimizer = weakref.ref(optimizer)
    elif first is not optimizer:
        say_once(f"several optimizers: the first one's step closes a step; {_SAY_STEPS}")
        return
    state.end_step()
    state.begin_counted_step()


def scaler_step(original: Callable[..., Any]) -> Callable[..., Any]:
    """What `GradScaler.step` becomes: it leaves an optimizer's step out when gradients overflow."""

    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        is_stepped = switch.is_stepped_by_script or switch.is_stepped_by_framework
        if switch.is_on and not is_stepped and getattr(self, "_enabled", True):
            say_once(f"a GradScaler leaves out optimizer steps, which close a step; {_SAY_STEPS}")
        return original(self, *args, **kwargs)

    return step


def _abort_all() -> None:
    for _, token in _running.inside:
        native.abort(token)
    _running.inside.clear()


def step_ended() -> None:
    """What an exception has left open ends with its step."""
    if _running.inside:
        _abort_all()


def reset() -> None:
    """For a new recording."""
    _Implicit.is_open = False
    _Implicit.optimizer = None
