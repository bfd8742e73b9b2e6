"""Times of steps that take turns, so that the machine's moods hit all of them alike, and what is surely between them.

In each round every arm runs some steps. What an arm adds is found within rounds, as a share of the base's step there;
the median over rounds is given, and an interval by resampling them (bootstrap). A single disturbed step moves neither.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass

__all__ = ["FEWEST_ROUNDS", "Added", "Round", "StepTimes", "added", "times_of", "typical_s"]

#: From here on the median lies between the least and the greatest with 95 %; before, no interval can say so.
FEWEST_ROUNDS = 6
_RESAMPLES = 2000
#: Of the resampled medians 95 % lie between these.
_LOW, _HIGH = 0.025, 0.975


@dataclass(frozen=True)
class Added:
    """What is added to a step, as a share of it: 0.01 is 1 %. Between `low` and `high` it lies with 95 %.

    Fewer than six rounds tell no interval: then both are infinite.
    """

    value: float
    low: float
    high: float

    @property
    def is_noise(self) -> bool:
        """True if it may as well be nothing."""
        return self.low <= 0.0 <= self.high

    @property
    def has_interval(self) -> bool:
        """False if there were too few rounds to say between what it lies."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    def to_json(self) -> dict[str, float | None]:
        """Plain values; the ends are None where there is no interval."""
        return {name: value if math.isfinite(value) else None for name, value in asdict(self).items()}

    def __str__(self) -> str:
        if not self.has_interval:
            return f"{100 * self.value:+.2f} % (no interval from so few rounds)"
        return f"{100 * self.value:+.2f} % ({100 * self.low:+.2f} to {100 * self.high:+.2f})"


@dataclass(frozen=True)
class StepTimes:
    """Times of an arm's steps, all rounds together."""

    step_count: int
    median_s: float
    p99_s: float


@dataclass(frozen=True)
class Round:
    """Times of an arm's steps in one round, in seconds; steps of different sorts (traced, not traced) apart."""

    steps_s: tuple[tuple[float, ...], ...]

    @property
    def typical_s(self) -> float:
        """Of its steps: each sort has its median, and as much weight as steps."""
        count = sum(map(len, self.steps_s))
        return sum(len(sort) * statistics.median(sort) for sort in self.steps_s if sort) / count


def times_of(rounds: Sequence[Round]) -> StepTimes:
    """Median and 99th percentile (nearest rank) of all steps.

    Example:
        >>> times_of([Round(((0.1, 0.3),)), Round(((0.2,),))])
        StepTimes(step_count=3, median_s=0.2, p99_s=0.3)
    """
    steps = sorted(step_s for one in rounds for sort in one.steps_s for step_s in sort)
    return StepTimes(len(steps), statistics.median(steps), steps[min(len(steps) - 1, len(steps) * 99 // 100)])


def typical_s(rounds: Sequence[Round]) -> float:
    """The step that is usual in these rounds."""
    return statistics.median(one.typical_s for one in rounds)


def added(arm: Sequence[Round], bases: Sequence[Sequence[Round]]) -> Added:
    """What an arm's steps add to those of the bases in the same rounds, of which there may be several a round.

    Example:
        >>> base, arm = [Round(((1.0,),))] * 8, [Round(((1.5,),))] * 8
        >>> added(arm, [base])
        Added(value=0.5, low=0.5, high=0.5)
    """
    shares = []
    for own, *others in zip(arm, *bases, strict=True):
        base_s = statistics.fmean(other.typical_s for other in others)
        shares.append(own.typical_s / base_s - 1.0)
    return _with_interval(shares)


def _with_interval(values: list[float]) -> Added:
    if len(values) < FEWEST_ROUNDS:
        return Added(statistics.median(values), -math.inf, math.inf)
    draw = random.Random(0).choices  # the same interval for the same values
    medians = sorted(statistics.median(draw(values, k=len(values))) for _ in range(_RESAMPLES))
    low, high = (medians[round(part * (_RESAMPLES - 1))] for part in (_LOW, _HIGH))
    return Added(statistics.median(values), low, high)
