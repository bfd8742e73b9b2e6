"""What "auto" looks at: how fast garbage comes, and what collections take."""

from __future__ import annotations

import dataclasses
import time

from smon_rt.gc.schedule import HAS_FULL_ONLY, MEASURED_STEPS, Measured, must_repick
from smon_rt.integrations.garbage import Collection

__all__ = ["Measuring"]

#: A change must be seen in as many intervals, one after the other.
_MUST_AGREE = 2
#: Memory that malloc keeps for later does not show: the least that an object takes.
_LEAST_OBJECT_BYTES = 64.0


class Measuring:
    """The steps between two collections, again and again."""

    def __init__(self) -> None:
        self.has_measured = False
        self._first_step = 0
        self._step = 0
        self._began_s = 0.0
        self._object_bytes = _LEAST_OBJECT_BYTES
        self._full_pause_s = 0.0
        """Of the last full collection."""
        self._changes = 0
        self._picked: Measured | None = None
        self._now: Measured | None = None

    def begin(self, step: int) -> None:
        """What is there has been frozen."""
        self._first_step = step
        self._restart(step)

    def is_due(self, step: int) -> bool:
        """The first measured collection, whatever the schedule says; the same step on all ranks."""
        return step == self._first_step + MEASURED_STEPS and not self.has_measured

    def first(self, step: int, young: Collection, full: Collection) -> None:
        """A young and a full collection, one right after the other."""
        self.has_measured = True
        freed = young.freed_objects + full.freed_objects
        if freed:
            gave_back = young.memory_before_bytes - full.memory_after_bytes
            self._object_bytes = max(gave_back / freed, _LEAST_OBJECT_BYTES)
        steps = self._steps_until(step)
        self._full_pause_s = full.pause_s
        self._now = Measured(
            step_time_s=self._step_time_s(steps, young.pause_s + full.pause_s),
            garbage_bytes_per_step=freed * self._object_bytes / steps,
            freed_objects_per_step=freed / steps,
            young_pause_s_per_step=young.pause_s / steps,
            full_pause_s=full.pause_s,
            headroom_bytes=0.0,
        )
        self._restart(step)

    def later(self, step: int, done: Collection, interval_steps: int, headroom_bytes: float) -> None:
        """A collection of the schedule."""
        before = self._picked
        if before is None and not self.has_measured and step > self._first_step + MEASURED_STEPS:
            # The step of the first one was left out, in a capture, or has another number: this one must do.
            nothing = dataclasses.replace(done, freed_objects=0, memory_before_bytes=done.memory_after_bytes)
            self.first(step, done, nothing)
            return
        if before is not None:
            steps = self._steps_until(step)
            is_full = done.generation == 2 and not HAS_FULL_ONLY
            self._full_pause_s = done.pause_s if is_full else self._full_pause_s
            measured = Measured(
                step_time_s=self._step_time_s(steps, done.pause_s),
                garbage_bytes_per_step=done.freed_objects * self._object_bytes / steps,
                freed_objects_per_step=done.freed_objects / steps,
                young_pause_s_per_step=before.young_pause_s_per_step if is_full else done.pause_s / steps,
                full_pause_s=self._full_pause_s,
                headroom_bytes=headroom_bytes,
            )
            self._changes = self._changes + 1 if must_repick(measured, before, interval_steps) else 0
            self._now = measured if self._changes >= _MUST_AGREE else None
        self._restart(step)

    def take(self, headroom_bytes: float) -> Measured | None:
        """What to choose an interval by, once, if one is to be chosen."""
        if self._now is None:
            return None
        self._picked, self._now, self._changes = dataclasses.replace(self._now, headroom_bytes=headroom_bytes), None, 0
        return self._picked

    def mean_step_s(self) -> float:
        """Of the steps that the interval was picked by; 0 before."""
        return self._picked.step_time_s if self._picked is not None else 0.0

    def _steps_until(self, step: int) -> int:
        return max(step - self._step, 1)

    def _step_time_s(self, steps: int, pause_s: float) -> float:
        return max(time.perf_counter() - self._began_s - pause_s, 0.0) / steps

    def _restart(self, step: int) -> None:
        self._step = step
        self._began_s = time.perf_counter()
