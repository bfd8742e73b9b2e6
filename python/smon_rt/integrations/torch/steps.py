"""Optimizers, and steps of loops that do not say theirs.

optimizer is the outermost `Optimizer.step`, beside what its closure computes: that is told by the forward and backward
that hooks see, since the closure stays the job's own object. Where the script has no `smon_rt.step`, a step begins with
the first forward and closes with the first optimizer's step; the next begins there.

What torch calls before and after an optimizer's step is in csrc/bindings/optimizer_calls.cc; here is what that asks for
seldom, or in loops that do not say their steps.

Threading: the job's own threads.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from smon_rt._backend import native
from smon_rt.integrations import state
from smon_rt.integrations.state import say_once, switch
from smon_rt.integrations.torch import gradients

__all__ = ["begin_unless_explicit", "on_optimizer_step", "reset", "scaler_step"]

_SAY_STEPS = "put `with smon_rt.step(k):` around each iteration, or steps are counted wrongly"


class _Implicit:
    """The steps that are made here."""

    optimizer: Callable[[], Any] | None = None
    """The one whose step closes them."""


#: Called when the outermost optimizer's step has returned.
on_optimizer_step: list[Callable[[], None]] = []


def begin_unless_explicit() -> None:
    """Begins the first step of a loop that has not said that it makes its own."""
    if not (switch.is_stepped_by_script or switch.is_stepped_by_framework or switch.is_counting_steps):
        switch.is_counting_steps = True
        state.begin_counted_step()


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


def reset() -> None:
    """For a new recording."""
    switch.is_counting_steps = False
    _Implicit.optimizer = None


native.learn_optimizers(
    lambda: begin_unless_explicit(),
    lambda optimizer: gradients.optimizer_stepped(optimizer),
    on_optimizer_step,
    lambda: state.call_all(on_optimizer_step, "torch.optimizer"),
    lambda optimizer: _close_step(optimizer),
)
