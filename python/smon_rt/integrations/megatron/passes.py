"""One call of a schedule is a pass: of several microbatches through this rank's chunks, forward and backward.

An iteration of the script is a step. It begins with its first pass that is not forward only, and ends where the next
one begins: a pass after an optimizer has stepped, or one of another number. Passes before that are further microbatches
of the same step. Forward-only passes are one span each, in the step that is open.
"""

from __future__ import annotations

import threading
from typing import Any

from smon_rt._backend import native
from smon_rt.integrations import state
from smon_rt.integrations.megatron import layout
from smon_rt.integrations.megatron.pass_ids import PassIds
from smon_rt.integrations.state import switch

__all__ = ["begin", "begin_unrecorded", "end", "forget", "optimizer_stepped", "running", "step_ended"]

#: So many passes in one step, and there is no optimizer to be seen, or the script's number does not move.
_MOST_PASSES = 16


#: Of computes that come without a pass.
_NO_PASS = PassIds(None, 0)


class Running(threading.local):
    """The pass that runs on this thread."""

    is_running = False
    ids: PassIds | None = _NO_PASS
    """Of its computes; None where they are not recorded one by one."""


running = Running()


class _Steps:
    """Of the thread that trains."""

    is_open = False
    """The step is one of ours."""
    number: int | None = None
    does_number_move = True
    has_optimizer_stepped = False
    is_optimizer_seen = False
    is_each_pass = False
    """There is no optimizer to be seen: a step is a pass."""
    passes = 0
    """In the step."""
    microbatches = 0
    """Of the passes before, in the step."""


def optimizer_stepped() -> None:
    """An optimizer has stepped: the next pass is one of another iteration."""
    _Steps.has_optimizer_stepped = _Steps.is_optimizer_seen = True
    _Steps.is_each_pass = False


def begin(schedule: str, call: dict[str, Any]) -> None:
    """A pass that trains begins. `call`: what the function `schedule` is called with."""
    running.is_running = True
    running.ids = _NO_PASS
    _begin_step()
    switch.models += 1  # they are recorded here: none need be looked for
    offset = _Steps.microbatches
    _Steps.passes += 1
    _Steps.microbatches += int(call["num_microbatches"])
    models = call["model"] if isinstance(call["model"], list) else [call["model"]]
    running.ids = PassIds(layout.describe(schedule, call), offset, models)


def begin_unrecorded() -> None:
    """One whose parts are not recorded: forward only, or inside a CUDA graph."""
    running.is_running = True
    running.ids = None


def end() -> None:
    """The pass has returned, or raised."""
    running.is_running = False
    running.ids = _NO_PASS


def step_ended() -> None:
    """Whoever ended the step: the next pass is one of another."""
    _Steps.passes = _Steps.microbatches = 0
    _Steps.has_optimizer_stepped = False


def forget() -> None:
    """Recording stops."""
    if _Steps.is_open and not switch.is_stepped_by_script:
        state.end_step()
    _Steps.is_open = _Steps.is_optimizer_seen = _Steps.is_each_pass = switch.is_stepped_by_framework = False
    _Steps.number = None
    _Steps.does_number_move = True
    step_ended()


def _begin_step() -> None:
    if switch.is_stepped_by_script:
        native.set_fact("hook.megatron.iteration", "")
        return
    number, reason = layout.iteration() if _Steps.does_number_move else (None, "")
    if _Steps.is_open and not _is_next(number):
        return
    if _Steps.is_open:
        state.end_step()
    else:
        native.set_fact("hook.megatron.iteration", reason)
    if not _Steps.does_number_move:
        number = None
    switch.is_stepped_by_framework = True
    _Steps.is_open, _Steps.number = True, number
    state.begin_step(number)


def _is_next(number: int | None) -> bool:
    """Whether this pass is of another iteration than the step that is open."""
    if number is not None and _Steps.number is not None and number != _Steps.number:
        return True
    if number is not None and number == _Steps.number:
        if not _Steps.has_optimizer_stepped or _Steps.passes < _MOST_PASSES:
            return False
        _Steps.does_number_move = False
        native.set_fact("hook.megatron.iteration", f"counted on, since the script's iteration stays at {number}")
        state.say_once(f"the script's iteration stays at {number}: steps are counted on from there")
        return True
    if _Steps.has_optimizer_stepped:
        return True
    if not (_Steps.is_optimizer_seen or _Steps.is_each_pass) and _Steps.passes >= _MOST_PASSES:
        state.say_once("no optimizer is seen: each pass of a schedule that trains is a step from here on")
        _Steps.is_each_pass = True
    return _Steps.is_each_pass
