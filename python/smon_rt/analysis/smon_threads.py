"""Which ops are of threads that do not train: what those do holds nobody up, and need not be the same on all ranks."""

from __future__ import annotations

from collections import Counter

import numpy as np

from smon_rt.trace.kinds import FLAGS, KIND_NUMBERS
from smon_rt.trace.rank_trace import RankTrace
from smon_rt.trace.spans import Array

_OF_MAIN_THREAD = (KIND_NUMBERS["forward_compute"], KIND_NUMBERS["optimizer"])
_BACKWARD = KIND_NUMBERS["backward_compute"]
#: Of the autograd engine's thread all are, but for spans that were dropped; of any other as many as chance has it.
_ENGINE_RATIO = 0.95


def of_background(trace: RankTrace, is_op: Array, left_out: Counter[str]) -> Array:
    """Which of a rank's ops are data loading and collectives of background threads; `left_out` counts them by words."""
    spans = trace.spans
    elsewhere = is_op & _in_other_threads(trace)
    loading = elsewhere & (spans.kind == KIND_NUMBERS["data_loading"])
    # Where another thread has only seen the end, the thread that trains may have begun it.
    collectives = elsewhere & (spans.kind == KIND_NUMBERS["collective"]) & (spans.flags & FLAGS["other_thread"] == 0)
    collectives &= ~_of_engine(trace, collectives)
    left_out["of data loading in other threads"] += int(np.count_nonzero(loading))
    left_out["of collectives in other threads"] += int(np.count_nonzero(collectives))
    return np.asarray(loading | collectives)


def _in_other_threads(trace: RankTrace) -> Array:
    """Which spans are not of the thread that trains; none where no thread does.

    That is the one that most forwards and optimizers end on: a backward may end on the autograd engine's.
    """
    rings = trace.spans.ring_id[np.isin(trace.spans.kind, _OF_MAIN_THREAD)]
    if len(rings) == 0:
        return np.zeros(len(trace.spans), np.bool_)
    values, counts = np.unique(rings, return_counts=True)
    return np.asarray(trace.spans.ring_id != values[np.argmax(counts)])


def _of_engine(trace: RankTrace, chosen: Array) -> Array:
    """Which of the chosen spans are of a thread that the backward pass runs on: all it issues lies within one."""
    spans = trace.spans
    backwards = spans.kind == _BACKWARD
    order = np.argsort(spans.start_ns[backwards], kind="stable")
    begun_ns = spans.start_ns[backwards][order]
    ended_ns = np.maximum.accumulate(begun_ns + spans.duration_ns[backwards][order])
    last = np.searchsorted(begun_ns, spans.start_ns, side="right") - 1
    is_within = (last >= 0) & (spans.start_ns < np.append(ended_ns, 0)[last])
    found = np.zeros(len(spans), np.bool_)
    for ring in np.unique(spans.ring_id[chosen]).tolist():
        of_ring = chosen & (spans.ring_id == ring)
        found |= of_ring & bool(is_within[of_ring].mean() >= _ENGINE_RATIO)
    return found
