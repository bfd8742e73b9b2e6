"""What one worker did between the last op of a step and its next step, while the others waited in that one."""

from __future__ import annotations

import numpy as np

from smon_rt.analysis.smon_spans import OpColumns
from smon_rt.trace.spans import Array

_NEVER = np.iinfo(np.int64).max


def starts_after_tails(ops: OpColumns, step_start_ns: Array) -> Array:
    """When the step of each op began on its worker, `step_start_ns`, or earlier: where the one before had no op left.

    A loop that saves or logs something at a step's end, on one worker alone, begins the next step there late, and the
    others wait in that one. Of what nothing was recorded it is the delay of the next step's first op, so it counts
    from the end of the last op on. Only as far as the worker began later than the first of all: who waited to begin
    together with the others held up nobody. What all of them spent between two steps is of neither.
    """
    steps, column = np.unique(ops.step, return_inverse=True)
    workers, row = np.unique(ops.worker, return_inverse=True)
    starts = np.full((len(workers), len(steps)), _NEVER)
    ends = np.full_like(starts, -_NEVER)
    np.minimum.at(starts, (row, column), step_start_ns)
    np.maximum.at(ends, (row, column), ops.end_ns)
    is_known = starts < _NEVER
    follows = is_known[:, 1:] & is_known[:, :-1] & (np.diff(steps) == 1)
    gaps = np.where(follows, starts[:, 1:] - np.where(follows, ends[:, :-1], 0), _NEVER)
    shared = np.maximum(gaps.min(axis=0, initial=_NEVER), 0)
    late = np.where(follows, starts[:, 1:], 0) - starts[:, 1:].min(axis=0, initial=_NEVER)
    starts[:, 1:] -= np.where(follows, np.clip(np.minimum(gaps - shared, late), 0, None), 0)
    return np.asarray(starts[row, column])
