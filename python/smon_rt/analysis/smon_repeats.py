"""Step numbers that a process used more than once: it started recording again, or its job went back to a checkpoint."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np

from smon_rt.trace.rank_trace import RankTrace, StepColumns
from smon_rt.trace.spans import Array


def last_of_each_step(trace: RankTrace, left_out: Counter[str]) -> tuple[RankTrace, dict[int, int]]:
    """The trace with the steps that its last one went on from, and how often a step was run if more than once.

    A step after which a lower number, or its own, was run goes: numbers and time must have the same order, or the gaps
    between steps mean nothing. `left_out` counts, by words, the spans that go.
    """
    steps = trace.steps
    if (np.diff(steps.step) > 0).all():
        return trace, {}
    order = np.argsort(steps.start_ns, kind="stable")
    numbers, start_ns = steps.step[order], steps.start_ns[order]
    # The least number of those from each place on; after the last one comes none.
    least_from = np.append(np.minimum.accumulate(numbers[::-1])[::-1], np.iinfo(np.int64).max)
    rows = np.sort(order[numbers < least_from[1:]])
    kept = StepColumns(**{field.name: getattr(steps, field.name)[rows] for field in dataclasses.fields(StepColumns)})
    spans = trace.spans
    is_earlier = least_from[np.searchsorted(start_ns, spans.start_ns, side="right")] < spans.step
    is_earlier |= spans.start_ns < _last_starts(numbers, start_ns, spans.step)
    left_out["of steps that were run again"] += int(np.count_nonzero(is_earlier))
    values, counts = np.unique(numbers, return_counts=True)
    repeated = {int(number): int(count) for number, count in zip(values, counts, strict=True) if count > 1}
    return dataclasses.replace(trace, steps=kept, spans=spans.take(~is_earlier)), repeated


def _last_starts(numbers: Array, start_ns: Array, wanted: Array) -> Array:
    """When the last run of each wanted step began, of those that were run more than once; else before all time."""
    values, first_from_end, counts = np.unique(numbers[::-1], return_index=True, return_counts=True)
    place = np.minimum(np.searchsorted(values, wanted), len(values) - 1)
    is_repeated = (values[place] == wanted) & (counts[place] > 1)
    return np.where(is_repeated, start_ns[::-1][first_from_end][place], np.iinfo(np.int64).min)
