"""Planned garbage collection: all ranks collect at the same step, and at no other.

A full collection of Python's stops one rank for some tenths of a second, at a step of its own on each rank, and all
others wait for it each time. A plan freezes what is there once the job has warmed up, switches automatic collections
off, and collects what is new at steps that follow from the step's number alone.

Example:
    >>> import smon_rt
    >>> plan = smon_rt.gc.plan(100)
    >>> smon_rt.gc.status().state
    'warming up'
    >>> smon_rt.gc.stop()
"""

from __future__ import annotations

import atexit
import operator
import os
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from smon_rt._memory import anonymous_bytes
from smon_rt.environment import is_disabled
from smon_rt.errors import RecordingError
from smon_rt.gc.optimizer_steps import OptimizerSteps
from smon_rt.gc.plan_data import Options
from smon_rt.gc.planner import Planner
from smon_rt.gc.schedule import HAS_FULL_ONLY, Schedule
from smon_rt.integrations import garbage, state

__all__ = ["Plan", "PlanStatus", "plan", "status", "stop"]


@dataclass(frozen=True)
class PlanStatus:
    """What a plan is doing, or did until it stopped."""

    state: str
    """"off", "warming up", "planning", "left to others", "stopped" or "disabled"."""
    interval_steps: int = 0
    """Steps between two planned collections."""
    full_every: int = 0
    """Every how-manieth of them is a full one."""
    why: str = ""
    """What a measured interval is bound by."""
    first_step: int | None = None
    """The step at which what was there was frozen."""
    planned: int = 0
    """Collections of the plan."""
    unplanned: int = 0
    """Others of this process meanwhile."""
    guard: int = 0
    """Of the memory guard, by this rank alone."""
    skipped: int = 0
    """Left out inside the capture of a CUDA graph."""
    late: int = 0
    """Intervals that this rank heard of after they had begun."""
    freed_objects: int = 0
    longest_pause_s: float = 0.0
    memory_bytes: int = 0
    """RssAnon, now."""
    memory_limit_bytes: int | None = None
    """The guard's; None: no limit is known."""
    conflicts: tuple[str, ...] = ()
    """Who else has a say, and what came of it."""


class Plan:
    """What `plan` gives: `stop` it, or leave its `with` block. One that came while another ran does nothing."""

    def __init__(self, planner: Planner | None) -> None:
        self._planner = planner

    def stop(self) -> None:
        """Ends this plan: Python collects again as it did before. Twice is once."""
        if self._planner is not None and self._planner is _Active.planner:
            stop()

    def __enter__(self) -> Plan:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.stop()


class _Active:
    """The plan of this process."""

    planner: Planner | None = None
    last: Planner | None = None
    """To tell of when it has stopped."""
    optimizer_steps: OptimizerSteps | None = None


def plan(
    interval: int | str = "auto",
    *,
    full_every: int = 10,
    warmup_steps: int = 2,
    memory_limit_bytes: int | None = None,
    checkpoint_steps: int | Callable[[int], bool] | None = None,
) -> Plan:
    """Plans Python's garbage collection from here on. All ranks must call it, before the same step.

    After the warm-up: `gc.collect(); gc.freeze(); gc.disable()`. Then, as a step begins, a young collection every
    `interval` steps and a full one every `full_every` of these, from the step's number alone: the steps of
    `smon_rt.step`, those that are recorded by themselves, or else calls of the first optimizer's `step`.

    Does nothing beside another plan of this process, with SMON_RT_DISABLE=1, or where Megatron (`--manual-gc`) or
    torchtitan plan already; `status().conflicts` says what it met. Works whether or not steps are recorded.

    Args:
        interval: steps, 1 or more. "auto": rank 0 measures how fast garbage comes and how long pauses are in the 20
            steps after the warm-up, again whenever that changes, and tells the others, from a step to come on, over the
            store of torch.distributed.
        full_every: of the planned collections; with "auto" it is measured.
        warmup_steps: as Python collects, 0 or more. After 2 the first collection, of everything, comes in the last step
            of the recorder's warm-up, which no analysis counts.
        memory_limit_bytes: RssAnon before which a rank collects at once, alone. Without: what is there after the
            warm-up, and half of what the machine can still give to each of its processes.
        checkpoint_steps: steps at whose end a checkpoint is written, which begin with a full collection: every so many,
            or a function of the number. Megatron's `--save-interval` is found.

    Raises:
        RecordingError: an argument is out of its range.

    Example:
        >>> import smon_rt
        >>> with smon_rt.gc.plan(50, warmup_steps=0):
        ...     with smon_rt.step(0):
        ...         print(smon_rt.gc.status().state)
        planning
    """
    options = _options(interval, full_every, warmup_steps, memory_limit_bytes, checkpoint_steps)
    if is_disabled():
        return Plan(None)
    running = _Active.planner
    if running is not None:
        running.conflict("another plan was asked for: the first one holds")
        return Plan(None)
    is_first = _Active.last is None
    planner = _Active.planner = _Active.last = Planner(options)
    garbage.attach("plan")
    if is_first:
        atexit.register(_exits)  # what is frozen could not be torn down at exit, of which some libraries complain
        os.register_at_fork(after_in_child=_forked)
    state.on_step_begun.append(_step_begun)
    state.on_stop.append(_recording_stops)
    _Active.optimizer_steps = OptimizerSteps(_own_step)
    _Active.optimizer_steps.attach()
    return Plan(planner)


def stop() -> None:
    """Ends the plan: what it froze is unfrozen, and Python collects again if it did before. Nothing without one."""
    _stop(is_exit=False)


def _exits() -> None:
    _stop(is_exit=True)


def _stop(is_exit: bool) -> None:
    planner, _Active.planner = _Active.planner, None
    if planner is None:
        return
    try:
        _detach()
    finally:
        planner.stop(is_exit)


def status() -> PlanStatus:
    """Of the plan that runs, else of the last one."""
    planner = _Active.last
    if planner is None:
        return PlanStatus("disabled" if is_disabled() else "off")
    counts = planner.counts
    return PlanStatus(
        state=planner.state,
        interval_steps=planner.schedule.interval_steps,
        full_every=planner.schedule.full_every,
        why=planner.schedule.why,
        first_step=planner.first_step,
        planned=counts.planned,
        unplanned=counts.unplanned,
        guard=counts.guard,
        skipped=counts.skipped,
        late=counts.late,
        freed_objects=counts.freed_objects,
        longest_pause_s=counts.longest_pause_s,
        memory_bytes=anonymous_bytes(),
        memory_limit_bytes=planner.guard.limit_bytes,
        conflicts=tuple(counts.conflicts),
    )


def _options(
    interval: Any, full_every: Any, warmup_steps: Any, memory_limit_bytes: Any, checkpoint_steps: Any
) -> Options:
    every = _in_range("full_every", full_every, 1)
    every = 1 if HAS_FULL_ONLY else every
    is_measured = isinstance(interval, str) and interval == "auto"  # an array would compare by element
    fixed = None if is_measured else Schedule(_in_range("interval", interval, 1, 'or "auto"'), every)
    saves: Callable[[int], bool] | None = checkpoint_steps if callable(checkpoint_steps) else None
    if saves is None and checkpoint_steps is not None:
        save_every = _in_range("checkpoint_steps", checkpoint_steps, 1)

        def saves(step: int) -> bool:
            return step > 0 and step % save_every == 0

    return Options(
        fixed=fixed,
        warmup_steps=_in_range("warmup_steps", warmup_steps, 0),
        memory_limit_bytes=None
        if memory_limit_bytes is None
        else _in_range("memory_limit_bytes", memory_limit_bytes, 1),
        saves=saves,
    )


def _in_range(name: str, value: Any, least: int, otherwise: str = "") -> int:
    try:
        number = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        expected = f"{least} or more {otherwise}".strip()
        raise RecordingError(f"gc.plan: {name} is {value!r:.80}, expected a whole number, {expected}")
    return number


def _step_begun(step: int) -> None:
    planner = _Active.planner
    if planner is None:
        return
    if _Active.optimizer_steps is not None:  # somebody says the steps
        _Active.optimizer_steps.detach()
        _Active.optimizer_steps = None
    try:
        planner.step_begun(step)
    except Exception as error:
        _failed(planner, error)


def _own_step(step: int) -> None:
    """A step that nobody else counts."""
    planner = _Active.planner
    if planner is None:
        return
    try:
        planner.step_begun(step)
    except Exception as error:
        _failed(planner, error)


def _failed(planner: Planner, error: Exception) -> None:
    """It would collect nothing any more."""
    state.failed("gc_plan", error)
    planner.conflict("the plan failed and has stopped")
    stop()


def _recording_stops() -> None:
    if _Active.planner is not None:
        _Active.planner.tell_counts()


def _detach() -> None:
    if _step_begun in state.on_step_begun:
        state.on_step_begun.remove(_step_begun)
    if _recording_stops in state.on_stop:
        state.on_stop.remove(_recording_stops)
    if _Active.optimizer_steps is not None:
        _Active.optimizer_steps.detach()
        _Active.optimizer_steps = None
    garbage.detach("plan")


def _forked() -> None:
    planner, _Active.planner = _Active.planner, None
    if planner is not None:
        _detach()
        planner.forked()
