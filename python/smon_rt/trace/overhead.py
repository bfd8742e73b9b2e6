"""What recording costs a job, from the times of its own steps: sampled ones against those around them.

csrc/record/overhead.h finds the same in the process that records, which warns; it says why windows are compared with
their neighbours.

Example:
    >>> from smon_rt.trace import read_file
    >>> from smon_rt.trace.overhead import overhead_of
    >>> overhead_of(read_file("traces/rank-00000.job-0.smon").steps)  # doctest: +SKIP
    Overhead(ratio=0.0011, low=-0.0006, high=0.0028, window_count=26, sampled_mean_s=0.4, unsampled_mean_s=0.4)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from smon_rt.trace.rank_trace import StepColumns

#: From here on recording costs more than it may.
ALARM_RATIO = 0.01

_FEWEST_WINDOWS = 8


@dataclass(frozen=True)
class Overhead:
    """How much longer sampled steps are than the steps around them: a ratio with its 95 % interval."""

    ratio: float
    low: float
    high: float
    window_count: int
    sampled_mean_s: float
    unsampled_mean_s: float

    @property
    def is_alarming(self) -> bool:
        """True if recording surely costs more than it may."""
        return self.low > ALARM_RATIO


def overhead_of(steps: StepColumns) -> Overhead | None:
    """None where there are too few windows of sampled steps with others on both sides to say anything."""
    counted = ~steps.is_warmup
    is_sampled, duration_s = steps.is_sampled[counted], steps.duration_ns[counted] / 1e9
    if len(duration_s) == 0:
        return None
    starts = np.flatnonzero(np.r_[True, is_sampled[1:] != is_sampled[:-1]])
    means = np.add.reduceat(duration_s, starts) / np.diff(np.r_[starts, len(duration_s)])
    # Runs of steps take turns. A window counts once the next one has begun: then what follows it is complete.
    windows = np.flatnonzero(is_sampled[starts])
    windows = windows[(windows > 0) & (windows + 2 < len(starts))]
    if len(windows) < _FEWEST_WINDOWS:
        return None
    sampled, others = means[windows], (means[windows - 1] + means[windows + 1]) / 2
    base = float(others.mean())
    if base <= 0:
        return None
    difference = sampled - others
    freedom = len(windows) - 1
    # Student's t at 97.5 %, within 0.01 from 7 degrees of freedom on.
    error = (1.96 + 2.8 / freedom) * float(difference.std(ddof=1)) / math.sqrt(len(windows))
    middle = float(difference.mean())
    low, high = ((middle + sign * error) / base for sign in (-1, 1))
    return Overhead(middle / base, low, high, len(windows), float(sampled.mean()), base)
