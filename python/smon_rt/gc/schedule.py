"""When to collect: from the step's number alone, so that all ranks agree without a message. And how to choose that.

No state, no clock, no process: what is here can be tested by its numbers.
"""

from __future__ import annotations

import json
import math
import sys
import sysconfig
from dataclasses import asdict, dataclass

__all__ = [
    *("DEFAULT", "HAS_FULL_ONLY", "MEASURED_STEPS", "YOUNG"),
    *("Measured", "Schedule", "halved", "must_repick", "pick", "young_generation"),
]

#: Steps from the freeze to the first measured collection.
MEASURED_STEPS = 20
#: A free-threaded build has no generations: each collection is a full one.
HAS_FULL_ONLY = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def young_generation(version: tuple[int, ...], has_full_only: bool) -> int:
    """What to ask Python for to have what is new collected.

    3.14.0 to 3.14.4 collect an increment of all objects where generation 1 is asked for; generation 0 is what is new.

    Example:
        >>> young_generation((3, 13, 1), False), young_generation((3, 14, 2), False), young_generation((3, 14, 5), True)
        (1, 0, 2)
    """
    if has_full_only:
        return 2
    return 0 if (3, 14, 0) <= version[:3] < (3, 14, 5) else 1


YOUNG = young_generation(tuple(sys.version_info[:3]), HAS_FULL_ONLY)

#: Longer intervals give back nothing more: the pause grows with what is new since the last one.
_MOST_STEPS = 500
#: A full collection now and then finds what young ones have missed; what it takes grows with what lives on.
_FULL_EVERY, _MOST_FULL_EVERY = 10, 100
#: Of the step: no planned pause of young objects is to be longer, and all full collections together no larger.
_PAUSE_RATIO = 0.25
#: Where each step leaves so much garbage, shorter pauses would only be more of them.
_LEAST_BY_PAUSE = 10.0
_COST_RATIO = 0.001
#: Of what is left up to the limit: what garbage may take between two collections.
_MEMORY_RATIO = 0.1


@dataclass(frozen=True)
class Schedule:
    """A young collection every `interval_steps`, a full one every `full_every` of these."""

    interval_steps: int
    full_every: int
    first_step: int = 0
    """Holds from here on; before it the one before holds."""
    why: str = ""

    def generation_at(self, step: int, last_step: int | None = None) -> int | None:
        """What this step begins with: a generation, or None. A multiple that lies between the last step and this one
        counts as well: numbers may go up by more than 1.

        Example:
            >>> [Schedule(2, 3).generation_at(step) for step in range(7)] == [2, None, YOUNG, None, YOUNG, None, 2]
            True
            >>> [Schedule(4, 3).generation_at(step, step - 5) == YOUNG for step in (11, 16, 21)]
            [True, False, True]
        """
        last = step - 1 if last_step is None or last_step >= step else last_step
        number, last_number = step // self.interval_steps, last // self.interval_steps
        if number == last_number:
            return None
        return YOUNG if number // self.full_every == last_number // self.full_every else 2

    def encode(self) -> str:
        """As it goes to other ranks."""
        return json.dumps(asdict(self))

    @staticmethod
    def decode(text: str) -> Schedule:
        """What `encode` made. Raises ValueError, KeyError or TypeError for anything else."""
        values = json.loads(text)
        interval_steps, full_every, first_step = (
            int(values[name]) for name in ("interval_steps", "full_every", "first_step")
        )
        found = Schedule(interval_steps, full_every, first_step, str(values["why"]))
        if found.interval_steps < 1 or found.full_every < 1:
            raise ValueError(f"no schedule: {text:.200}")
        return found


#: Until one has been measured, and where none can be told to the other ranks.
DEFAULT = Schedule(100, _FULL_EVERY, why="not measured")


@dataclass(frozen=True)
class Measured:
    """What the steps between two collections did, and the collections after them."""

    step_time_s: float
    garbage_bytes_per_step: float
    """Of what collections free; other growth is none of theirs."""
    freed_objects_per_step: float
    young_pause_s_per_step: float
    """A young collection takes as long as there is new since the last one."""
    full_pause_s: float
    headroom_bytes: float
    """Up to the limit; infinite without one."""


def pick(measured: Measured, first_step: int) -> Schedule:
    """The interval: at most 500 steps, as long as garbage stays within a tenth of the memory that is left and a young
    collection within a quarter of a step. Full ones every tenth, or so rarely that they cost 0.1 % of the time.

    Example:
        >>> pick(Measured(0.1, 0, 0, 0.00002, 0.0001, 8e9), 40).interval_steps
        500
    """
    bounds = {"more would gain nothing": float(_MOST_STEPS)}
    if measured.garbage_bytes_per_step > 0:
        bounds["bound by memory"] = measured.headroom_bytes * _MEMORY_RATIO / measured.garbage_bytes_per_step
    if measured.young_pause_s_per_step > 0:
        longest = _PAUSE_RATIO * measured.step_time_s / measured.young_pause_s_per_step
        bounds["bound by the pause"] = max(longest, _LEAST_BY_PAUSE)
    why, longest = min(bounds.items(), key=lambda item: item[1])
    interval = max(1, int(longest))
    if HAS_FULL_ONLY:
        return Schedule(interval, 1, first_step, why)
    full_every = 0.0
    if measured.step_time_s > 0:
        full_every = measured.full_pause_s / (_COST_RATIO * measured.step_time_s * interval)
    return Schedule(interval, math.ceil(min(max(full_every, _FULL_EVERY), _MOST_FULL_EVERY)), first_step, why)


def halved(schedule: Schedule, first_step: int) -> Schedule:
    """Where the guard had to help: garbage comes faster than it was measured to."""
    return Schedule(max(1, schedule.interval_steps // 2), schedule.full_every, first_step, "the guard had to collect")


def must_repick(measured: Measured, before: Measured, interval_steps: int) -> bool:
    """Whether garbage comes at another rate than what was picked for (twice as fast, or half), whether full collections
    take as many times as long, or garbage has no longer the room that it had.

    Example:
        >>> before = Measured(0.1, 1e6, 1e4, 0.0001, 0.001, 8e9)
        >>> must_repick(before, before, 500), must_repick(Measured(0.1, 3e6, 3e4, 0.0003, 0.001, 8e9), before, 500)
        (False, True)
    """
    if measured.garbage_bytes_per_step * interval_steps > 2 * _MEMORY_RATIO * measured.headroom_bytes:
        return interval_steps > 1
    floors = {"garbage_bytes_per_step": 64 * 1024.0, "freed_objects_per_step": 100.0, "full_pause_s": 0.001}
    return any(_is_other(getattr(measured, name), getattr(before, name), floor) for name, floor in floors.items())


def _is_other(now: float, before: float, floor: float) -> bool:
    """Floor: what is too little to matter."""
    now, before = max(now, floor), max(before, floor)
    return now > 2 * before or before > 2 * now
