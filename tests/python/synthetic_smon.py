"""A synthetic job as `.smon` files, one a rank, as a recorder of that job would have written them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from smon_rt._proto import trace_pb2
from smon_rt.synth import SyntheticJob
from tests.python.smon_files import TestSpan, packet, snapshot, step_packet, write_rank

#: Where the job's time starts on the first host's monotonic clock.
START_NS = 5_000_000_000_000
#: The clock of each host is so much ahead of that of the host before.
SKEW_NS = 77_000_000_000
REALTIME_NS = 1_700_000_000_000_000_000


def write_synthetic(job: SyntheticJob, folder: Path, *, hosts: int = 1, **more: Any) -> list[Path]:
    """One file for each recorded rank of the job, dealt to hosts whose monotonic clocks differ."""
    spec = job.spec
    rows_of: dict[int, list[dict[str, Any]]] = {}
    for row in job.table.to_pylist():
        rows_of.setdefault(row["rank"], []).append(row)
    names = trace_pb2.Names(
        track=[trace_pb2.Track(id=1, thread_id=100, thread_name="main", device=0, stream=7)],
        communicator=[trace_pb2.Communicator(id=1, name="pp", dimension="pp")],
    )
    paths = []
    for rank, rows in rows_of.items():
        host = rank * hosts // spec.world_size
        origin_ns = START_NS + host * SKEW_NS
        spans = [_span(row, origin_ns, spec.dp * spec.tp) for row in rows]
        spans.sort(key=lambda span: span.start_ns + span.duration_ns)
        layout = {
            "dp_size": spec.dp,
            "pp_size": spec.pp,
            "tp_size": spec.tp,
            "vpp_size": spec.vpp,
            "dp_rank": rows[0]["dp_rank"],
            "stage": rows[0]["stage"],
            "microbatch_count": spec.microbatches,
            "schedule": spec.resolved_schedule,
        }
        steps = [_step(spans, step) for step in range(spec.steps)]
        who: dict[str, Any] = {"rank": rank, "world_size": spec.world_size, "layout": layout} | more
        paths.append(
            write_rank(
                folder,
                spans,
                packets=[packet(names=names), step_packet(steps)],
                clock=snapshot(origin_ns, REALTIME_NS),
                host=f"node{host}",
                boot_id=f"boot-of-node{host}",
                **who,
            )
        )
    return paths


def _step(spans: list[TestSpan], step: int) -> tuple[int, int, int, bool, bool]:
    """A sampled step from its first span to its last."""
    starts = [span.start_ns for span in spans if span.step == step]
    ends = [span.start_ns + span.duration_ns for span in spans if span.step == step]
    return step, min(starts), max(ends) - min(starts), True, False


def _span(row: dict[str, Any], origin_ns: int, ranks_of_stage: int) -> TestSpan:
    kind = row["optype"].replace("-", "_")
    span = TestSpan(
        kind=kind,
        step=row["step"],
        start_ns=origin_ns + round(row["start_ts"] * 1e9),
        duration_ns=round(row["duration"] * 1e9),
        microbatch=row["mb_id"],
        chunk=row["mc"],
        op_index=row["seq_id"],
        track_id=1,
    )
    if not kind.endswith(("_send", "_recv")):
        return span
    # The n-th message that a stage sends is the n-th that its neighbour receives.
    ahead = 1 if kind in ("forward_send", "backward_recv") else -1
    return dataclasses.replace(
        span,
        comm_id=1,
        comm_seq=1000 * row["step"] + row["seq_id"] + 1,
        peer=row["rank"] + ahead * ranks_of_stage,
        payload_bytes=4096,
    )
