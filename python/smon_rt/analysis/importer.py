"""Reads a trace with its job record, and checks all that can be checked without the dependency graph.

Example:
    >>> from smon_rt.analysis.importer import read_trace
    >>> trace = read_trace("traces/trace-AR.parquet")  # doctest: +SKIP
    >>> trace.job.world_size, trace.ops.num_rows  # doctest: +SKIP
    (64, 117216)
"""

from __future__ import annotations

import os
import time
from collections.abc import Container
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from smon_rt.analysis.artifact_parquet import read_ops
from smon_rt.analysis.input_file import open_input, shown
from smon_rt.analysis.job_meta import Job, find_meta, read_job, trace_label
from smon_rt.analysis.recording import Recording
from smon_rt.errors import TraceError

__all__ = ["Job", "Trace", "read_trace"]


@dataclass(frozen=True)
class Trace:
    """A trace as the engine takes it.

    `ops` has one row per op, in file order, and no nulls: dp_rank, stage, rank int32; step int64; kind uint8 (index
    into the engine's KIND_NAMES); start_ns, duration_ns int64; seq_id, chunk, global_chunk, microbatch int32 (-1 where
    not applicable); those of recorded traces also group_id, step_start_ns and is_waited (docs/trace_input.md). `path`
    is the path as given, `read_ms` the wall time of reading and checking. `recording` is what a recorded trace says
    besides.
    """

    job: Job
    ops: pa.RecordBatch
    path: str
    read_ms: float
    recording: Recording | None = None

    def recorded_sizes(self) -> dict[str, int]:
        """The job's sizes as the engine takes them: dp_size counts the dp ranks of the ops.

        Some recorders number the context-parallel ranks within dp_rank, which then has dp_size * cp_size values.
        """
        return self.job.sizes() | {"dp_size": pc.max(self.ops["dp_rank"]).as_py() + 1}


def read_trace(
    path: str | os.PathLike[str], meta: str | os.PathLike[str] | None = None, steps: Container[int] | None = None
) -> Trace:
    """Reads the published artifact's form of a trace: one parquet of ops and one YAML about the job.

    `path` and `meta` are local paths or fsspec URLs. Without `meta` the YAML is looked for beside the trace:
    meta-X.yaml for trace-X.parquet, X.yaml for X.parquet, or the only one in the folder whose trial_name is X. With
    `steps` (a set or a range) only these steps are kept.

    Times are float seconds on any common origin (start of the step, of the trace, or unix time) and become int64 ns.
    The finest float32 or float64 resolution survives; what a file rounds away in float32 is lost before it gets here.

    Raises:
        TraceError: the files cannot be read, are something else, hold values that no trace has, or contradict each
            other. The message is one line: file, what is wrong, what to do.
    """
    began_s = time.perf_counter()
    if steps is not None and (isinstance(steps, str | bytes) or not isinstance(steps, Container)):
        raise TypeError(f"steps must be a set or range of step numbers, not {type(steps).__name__}")
    trace_path = _as_text(path)
    with open_input(trace_path) as source:
        # The trace first: with a wrong path, "no such file" helps more than "no job record beside it".
        ops = read_ops(source, steps, _kind_names())
    meta_path = find_meta(trace_path) if meta is None else _as_text(meta)
    job = read_job(meta_path, trace_label(trace_path))
    _check_job(shown(trace_path), shown(meta_path), job, ops)
    return Trace(job=job, ops=ops, path=trace_path, read_ms=(time.perf_counter() - began_s) * 1e3)


def _kind_names() -> tuple[str, ...]:
    # Imported late: who only looks at a job record needs no engine.
    from smon_rt import _analysis

    return tuple(_analysis.KIND_NAMES)


def _as_text(path: str | os.PathLike[str]) -> str:
    return os.fsdecode(path)


def _check_job(trace: str, meta: str, job: Job, ops: pa.RecordBatch) -> None:
    """Raises TraceError where the recorded coordinates and the job record contradict each other."""
    todo = f"correct {meta}, or give the right one with --meta"
    dp_count = _check_numbered(trace, "dp_rank", pc.unique(ops["dp_rank"]).to_pylist())
    stage_count = _check_numbered(trace, "stage", pc.unique(ops["stage"]).to_pylist())
    # See Trace.recorded_sizes.
    if dp_count not in (job.dp_size, job.dp_size * job.cp_size):
        raise TraceError(f"{trace}: has {dp_count} dp ranks, but dp_size is {job.dp_size}; {todo}")
    if stage_count != job.pp_size:
        raise TraceError(f"{trace}: has {stage_count} stages, but pp_size is {job.pp_size}; {todo}")
    chunk_count = max(pc.max(ops["chunk"]).as_py() + 1, 1)
    if chunk_count != job.vpp_size:
        raise TraceError(f"{trace}: has {chunk_count} model chunks a stage, but vpp_size is {job.vpp_size}; {todo}")
    rank_count = pc.count_distinct(ops["rank"]).as_py()
    # Numbers above world_size - 1 are no contradiction: a part of a larger job keeps its ranks.
    if rank_count > job.world_size:
        raise TraceError(f"{trace}: has {rank_count} ranks, but world_size is {job.world_size}; {todo}")
    model_chunk_count = max(pc.max(ops["global_chunk"]).as_py() + 1, 1)
    if model_chunk_count > stage_count * chunk_count:
        sizes = f"pp_size * vpp_size is {stage_count * chunk_count}"
        raise TraceError(f"{trace}: gmc counts {model_chunk_count} model chunks, but {sizes}; correct the column")
    _check_workers(trace, ops, dp_count, stage_count)
    _check_messages(trace, ops, stage_count)


def _check_numbered(trace: str, column: str, found: list[int]) -> int:
    """The count of distinct values, which must be 0 .. count - 1."""
    missing = next((value for value, have in enumerate(sorted(found)) if value != have), None)
    if missing is not None:
        found_and_not = f"has ops of {column} {max(found)}, but none of {column} {missing}"
        raise TraceError(f"{trace}: {found_and_not}; record or export every {column}")
    return len(found)


def _check_workers(trace: str, ops: pa.RecordBatch, dp_count: int, stage_count: int) -> None:
    """Every (dp_rank, stage) has ops, and a rank belongs to one of them."""
    worker = pc.add(pc.multiply(ops["dp_rank"].cast(pa.int64()), stage_count), ops["stage"])
    # Fits int64: the job record bounds worker_count by its world_size, and that and every rank are below 2^31.
    worker_count = dp_count * stage_count
    pairs = pc.unique(pc.add(pc.multiply(ops["rank"].cast(pa.int64()), worker_count), worker)).to_pylist()
    workers = {pair % worker_count for pair in pairs}
    if len(workers) < worker_count:
        missing = next(index for index in range(worker_count) if index not in workers)
        where = f"dp_rank {missing // stage_count}, stage {missing % stage_count}"
        raise TraceError(f"{trace}: has no op of {where}; record or export every worker")
    workers_by_rank: dict[int, int] = {}
    for pair in pairs:
        rank, first = pair // worker_count, pair % worker_count
        other = workers_by_rank.setdefault(rank, first)
        if other != first:
            both = " and ".join(f"(dp_rank {w // stage_count}, stage {w % stage_count})" for w in (other, first))
            raise TraceError(f"{trace}: rank {rank} is recorded as {both}; give every rank one dp_rank and stage")


def _check_messages(trace: str, ops: pa.RecordBatch, stage_count: int) -> None:
    """Stages that exchange nothing would wait for nobody, and their waits would be called the host's."""
    names = _kind_names()
    recorded = {names[number] for number in pc.unique(ops["kind"]).to_pylist()}
    missing = [kind for kind in ("forward_send", "forward_recv") if kind not in recorded]
    if stage_count > 1 and missing:
        words = " and no ".join(kind.replace("_", "-") for kind in missing)
        raise TraceError(f"{trace}: has {stage_count} stages, but no {words}; record the messages between stages")
