"""What else than computing makes a worker slow: one that waits for its data longer computes as its peers do."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from statistics import median

import numpy as np
import pyarrow as pa

from smon_rt.analysis.causes import Cause
from smon_rt.kinds import KIND_NAMES

#: Host work that is said of a worker when it is longer there than elsewhere by this part of what the worker costs.
_MOST_OF_THE_GAIN = 0.5
_KINDS = ("data_loading", "gc", "optimizer", "checkpoint_snapshot", "checkpoint_wait")


def with_host_work(cause: Cause, ops: pa.RecordBatch, steps: Sequence[int]) -> Cause:
    """The cause; of a worker with `host_work` and `host_work_excess_s` in its detail where that is most of its gain.

    The excess is the mean time a step that the worker spends in host work of that kind, beyond the median of the other
    workers of its stage (of all others where there is none).
    """
    where = cause.where
    if cause.cause != "worker" or len(cause.detail.get("workers", ())) > 1 or not cause.gain_s_per_step > 0:
        return cause
    if where.dp_rank is None or where.stage is None:
        return cause
    excess_s = {kind: _excess_s(ops, steps, kind, where.dp_rank, where.stage) for kind in _KINDS}
    kind = max(excess_s, key=lambda name: excess_s[name])
    if excess_s[kind] < _MOST_OF_THE_GAIN * cause.gain_s_per_step:
        return cause
    return dataclasses.replace(cause, detail=cause.detail | {"host_work": kind, "host_work_excess_s": excess_s[kind]})


def _excess_s(ops: pa.RecordBatch, steps: Sequence[int], kind: str, dp_rank: int, stage: int) -> float:
    chosen = np.asarray(ops["kind"]) == KIND_NAMES.index(kind)
    chosen &= np.isin(np.asarray(ops["step"]), np.asarray(steps))
    if not chosen.any():
        return 0.0
    ranks, stages = np.asarray(ops["dp_rank"]), np.asarray(ops["stage"])
    shape = (int(ranks.max()) + 1, int(stages.max()) + 1)
    spent_ns = np.zeros(shape)
    np.add.at(spent_ns, (ranks[chosen], stages[chosen]), np.asarray(ops["duration_ns"])[chosen])
    own_s = float(spent_ns[dp_rank, stage]) / 1e9 / len(steps)
    others = [float(value) for rank, value in enumerate(spent_ns[:, stage]) if rank != dp_rank]
    if not others:
        others = [float(value) for number, value in enumerate(spent_ns[dp_rank]) if number != stage]
    return own_s - (median(others) / 1e9 / len(steps) if others else 0.0)
