"""Step numbers that a process used more than once: it started recording again, or its job went back to a checkpoint."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np

from smon_rt.trace.rank_trace import RankTrace, StepColumns


def last_of_each_step(trace: RankTrace, left_out: Counter[str]) -> tuple[RankTrace, dict[int, int]]:
    """The trace with each step as it was run last, and how often a step was, for those that were more than once.

    What was run again is what the job went on from. `left_out` counts, by words, the spans that go.
    """
    steps = trace.steps
    if (np.diff(steps.step) > 0).all():
        return trace, {}
    order = np.argsort(steps.start_ns, kind="stable")
    numbers, first_from_end, counts = np.unique(steps.step[order][::-1], return_index=True, return_counts=True)
    last = order[::-1][first_from_end]  # its row, by number
    place = np.minimum(np.searchsorted(numbers, trace.spans.step), len(numbers) - 1)
    is_earlier = (numbers[place] == trace.spans.step) & (counts[place] > 1)
    is_earlier &= trace.spans.start_ns < steps.start_ns[last][place]
    left_out["of steps that were run again"] += int(np.count_nonzero(is_earlier))
    rows = np.sort(last)
    kept = StepColumns(**{field.name: getattr(steps, field.name)[rows] for field in dataclasses.fields(StepColumns)})
    repeated = {int(number): int(count) for number, count in zip(numbers, counts, strict=True) if count > 1}
    return dataclasses.replace(trace, steps=kept, spans=trace.spans.take(~is_earlier)), repeated
