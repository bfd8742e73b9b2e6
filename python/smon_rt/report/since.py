"""Since when a cause shows: what its gain, step by step, says about its beginning and its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean

from smon_rt.analysis.causes import Cause
from smon_rt.analysis.units import counted, is_finite

#: A cause has begun (or ended) at a step when the mean gain on one side is at most this part of that on the other …
_QUIET_GAIN = 0.25
#: … and it shows in at most this part of the steps there, and in the rest of them here.
_QUIET_STEPS = 0.25
_THROUGHOUT = 0.9
#: So many steps on one side and on the other tell that something has begun: fewer may be chance.
_LEAST_SHOWN_STEPS = 3
_LEAST_QUIET_STEPS = 2


@dataclass(frozen=True, slots=True)
class History:
    """A cause by step: its gain in seconds, whether it shows (at least half of its mean gain), and that in words."""

    steps: tuple[str, ...]
    gains: tuple[float, ...]
    shows: tuple[bool, ...]
    words: str


def history_of(cause: Cause) -> History | None:
    """The history of a cause; None where it gives nothing back, so that nothing can begin."""
    known = [(step, gain) for step, gain in cause.gain_s_by_step.items() if is_finite(gain)]
    if not known or not fmean(gain for _, gain in known) > 0:
        return None
    steps, gains = zip(*known, strict=True)
    threshold = fmean(gains) / 2
    shows = tuple(gain >= threshold for gain in gains)
    return History(steps, gains, shows, _words(steps, gains, shows))


def _words(steps: Sequence[str], gains: Sequence[float], shows: Sequence[bool]) -> str:
    count, total = sum(shows), len(steps)
    if total == 1:
        return f"one step was analysed, {steps[0]}: nothing tells since when"
    if count == total:
        return f"in all {total:,} analysed steps: it was there in the first one, {steps[0]}, and may be older"
    split = _turn(gains)
    before, after = sum(shows[:split]), sum(shows[split:])
    left, right = fmean(gains[:split]), fmean(gains[split:])
    if _is_quiet(left, right, before, split, after, total - split):
        rest = f"not in the {counted(split, 'step')} before" if not before else f"in {before:,} of the {split:,} before"
        return f"since step {steps[split]}: in {after:,} of the {counted(total - split, 'step')} from there, {rest}"
    if _is_quiet(right, left, after, total - split, before, split):
        rest = "in none since" if not after else f"in {after:,} of the {total - split:,} since"
        return f"until step {steps[split - 1]}: in {before:,} of the {counted(split, 'step')} up to there, {rest}"
    first = steps[shows.index(True)]
    if count >= _THROUGHOUT * total:
        return f"throughout: in {count:,} of {total:,} steps, first in step {first}"
    last = steps[total - 1 - list(reversed(shows)).index(True)]
    return f"on and off: in {count:,} of {total:,} steps, first in step {first}, last in step {last}"


def _turn(gains: Sequence[float]) -> int:
    """Where two constants fit the gains best: the first index of the second part."""
    total, sums = len(gains), list(accumulate(gains))
    mean = sums[-1] / total

    def explained(split: int) -> float:
        return (sums[split - 1] - split * mean) ** 2 / (split * (total - split))

    return max(range(1, total), key=explained)


def _is_quiet(gain: float, other: float, shown: int, size: int, other_shown: int, other_size: int) -> bool:
    """True where the cause is absent from the first part's steps and present in the other's."""
    if size < _LEAST_QUIET_STEPS or other_size < _LEAST_SHOWN_STEPS:
        return False
    return (
        gain <= _QUIET_GAIN * other and shown <= _QUIET_STEPS * size and other_shown >= (1 - _QUIET_STEPS) * other_size
    )
