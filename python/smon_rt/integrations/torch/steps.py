"""Optimizers, and steps of loops that do not say theirs.

optimizer is the outermost `Optimizer.step`, beside what its closure computes: that is told by the forward and backward
that hooks see, since the closure stays the job's own object. Where the script has no `smon_rt.step`, a step begins with
the first forward and closes with the first optimizer's step; the next begins there.

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

__all__ = [
    *("after_step", "before_step", "begin_unless_explicit", "go_on", "interrupt", "on_optimizer_step", "reset"),
    "scaler_step",
]

_OPTIMIZER = KIND_NAMES.index("optimizer")
_OPTIMIZER_MASK = mask("optimizer")
#: Whoever has one of these open records what goes on otherwise.
_OTHERS_MASK = mask("optimizer", "forward_compute", "backward_compute", "forward_backward_combined", "eval")
_SAY_STEPS = "put `with smon_rt.step(k):` around each iteration, or steps are counted wrongly"


class _Implicit:
    """The steps that are made here."""

    is_open = False
    optimizer: Callable[[], Any] | None = None
    """The one whose step closes them."""


#: Thread → steps of optimizers that it is in, one inside the other: [identity of the optimizer, token]. Most often none
#: is in any, which a look at this costs less than one at what is a thread's own.
_running: dict[int, list[list[int]]] = {}
#: Called when something else than a forward begins.
on_other_work: list[Callable[[], None]] = []
#: Called when the outermost optimizer's step has returned.
on_optimizer_step: list[Callable[[], None]] = []


def begin_unless_explicit() -> None:
    """Begins the first step of a loop that has not said that it makes its own."""
    if not (switch.is_stepped_by_script or switch.is_stepped_by_framework or _Implicit.is_open):
        _Implicit.is_open = True
        state.begin_counted_step()


def before_step(optimizer: Any, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
    """torch calls it before any optimizer's step."""
    if not switch.is_on:
        return
    try:
        _begin(optimizer)
    except Exception as error:
        failed("torch.optimizer", error)


def _begin(optimizer: Any) -> None:
    if _running and any(identity == id(optimizer) for identity, _ in _inside()):
        _abort_all()  # its step before was left by an exception, of which torch does not tell
    entry = [id(optimizer), 0]
    inside = _running.setdefault(threading.get_ident(), [])
    inside.append(entry)
    if len(inside) > 1:  # an optimizer that wraps another
        return
    begin_unless_explicit()
    for other in on_other_work:
        other()
    if not native.find_open(_OPTIMIZER_MASK):
        entry[1] = native.begin(_OPTIMIZER)


def interrupt() -> None:
    """Something else begins, in the closure of an optimizer's step if there is one: the optimizer waits for it."""
    if _running and (inside := _inside()):
        entry = inside[0]
        token, entry[1] = entry[1], 0
        native.end(token)


def go_on() -> None:
    """That has ended: what is left of the optimizer's step is the optimizer's."""
    if _running and (inside := _inside()) and not native.find_open(_OTHERS_MASK):
        inside[0][1] = native.begin(_OPTIMIZER)


def after_step(optimizer: Any, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
    """torch calls it after the step of an optimizer that returned."""
    try:
        if inside := _inside():
            _end(optimizer, inside)
    except Exception as error:
        failed("torch.optimizer", error)


def _end(optimizer: Any, inside: list[list[int]]) -> None:
    while inside:
        identity, token = inside.pop()
        native.end(token)
        if identity == id(optimizer):
            break
    if inside:
        return
    _running.pop(threading.get_ident(), None)
    gradients.optimizer_stepped(optimizer)
    if switch.is_on:
        state.call_all(on_optimizer_step, "torch.optimizer")
    if switch.is_on and not (switch.is_stepped_by_script or switch.is_stepped_by_framework):
        _close_step(optimizer)


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


def _inside() -> list[list[int]]:
    """Of this thread."""
    return _running.get(threading.get_ident(), [])


def _abort_all() -> None:
    for _, token in _running.pop(threading.get_ident(), []):
        native.abort(token)


def step_ended() -> None:
    """What an exception has left open ends with its step."""
    if _running:
        _abort_all()


def reset() -> None:
    """For a new recording."""
    _Implicit.is_open = False
    _Implicit.optimizer = None
