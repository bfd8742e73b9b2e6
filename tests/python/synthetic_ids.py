"""Synthetic jobs as the importer of recorded traces hands them to the engine: with microbatches and groups on every op.

The ids come from what the generator knows, the schedule and who meets whom; nothing is matched here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from smon_rt import _analysis
from smon_rt.synth import SyntheticJob
from smon_rt.synth.schedule import DP_SYNC_KINDS, Op

_TYPES = {
    "dp_rank": pa.int32(), "stage": pa.int32(), "rank": pa.int32(), "step": pa.int64(), "kind": pa.uint8(),
    "start_ns": pa.int64(), "duration_ns": pa.int64(), "seq_id": pa.int32(), "chunk": pa.int32(),
    "global_chunk": pa.int32(), "microbatch": pa.int32(), "group_id": pa.int64(),
}  # fmt: skip
_STEP_GAP_NS = 1_000_000

Row = Mapping[str, Any]


def id_rows(job: SyntheticJob) -> list[dict[str, Any]]:
    """One row an op of every lane."""
    spec, ops, timeline = job.spec, list(job.program.ops), job.timeline
    computes = _computes_served(ops)
    meetings = {meeting: number for number, meeting in enumerate(job.program.meetings)}
    rows = []
    begin_ns = 0.0
    for step in range(spec.steps):
        for op in ops:
            of = computes.get(op.row, op)
            for dp_rank in range(spec.dp):
                start_ns, end_ns = (times[op.row, step, dp_rank] for times in (timeline.starts_ns, timeline.ends_ns))
                group = -1
                if op.meeting is not None:
                    group = meetings[op.meeting] * spec.dp + (0 if op.kind in DP_SYNC_KINDS else dp_rank)
                rows.append({
                    "dp_rank": dp_rank, "stage": op.stage, "rank": (op.stage * spec.dp + dp_rank) * spec.tp,
                    "step": step, "kind": _analysis.KIND_NAMES.index(op.kind), "start_ns": int(begin_ns + start_ns),
                    "duration_ns": int(end_ns - start_ns), "seq_id": op.seq_id, "chunk": of.chunk,
                    "global_chunk": of.global_chunk, "microbatch": of.microbatch, "group_id": group,
                })  # fmt: skip
        begin_ns += float(np.max(timeline.ends_ns[:, step])) + _STEP_GAP_NS
    return rows


def _computes_served(ops: list[Op]) -> dict[int, Op]:
    """Sends and receives, by row, with the compute whose ids they carry."""
    by_row = {op.row: op for op in ops}
    served = {}
    for op in ops:
        for row in op.waits:
            other = by_row[row]
            if op.kind.endswith("_compute") and other.kind == op.kind.replace("compute", "recv"):
                served[row] = op
            if op.kind.endswith("_send") and other.kind == op.kind.replace("send", "compute"):
                served[op.row] = other
    return served


def batch_of(rows: list[dict[str, Any]], keeps: Callable[[Row], bool] = lambda _: True) -> pa.RecordBatch:
    """The engine's record batch of those rows that `keeps` lets pass."""
    kept = [row for row in rows if keeps(row)]
    return pa.record_batch(
        [pa.array([row[name] for row in kept], kind) for name, kind in _TYPES.items()], names=list(_TYPES)
    )


def sizes_of(job: SyntheticJob) -> dict[str, int]:
    """`meta` of the engine."""
    spec = job.spec
    return {
        "dp_size": spec.dp, "pp_size": spec.pp, "tp_size": spec.tp, "cp_size": 1, "vpp_size": spec.vpp,
        "world_size": spec.world_size,
    }  # fmt: skip
