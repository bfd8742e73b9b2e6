"""Writes a synthetic job in the columns of the artifact: parquet, and its metadata as YAML beside it.

Rows are sorted by step, rank, kind and seq_id; times are seconds in float64, whole nanoseconds apart. One row group a
step (several steps when they are short), so that a large job is never held as one table.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import yaml

from smon_rt.artifact_format import KINDS, SCHEMA, job_record, optype_column, write_tables
from smon_rt.report.output_file import write_atomically
from smon_rt.synth.plants import SynthError
from smon_rt.synth.schedule import Op
from smon_rt.synth.spec import JobSpec
from smon_rt.synth.timeline import Timeline

_NS_PER_S = 1e9
_STEP_GAP_NS = 1e6  # between the end of a step and the start of the next, as between two training steps


def job_meta(spec: JobSpec) -> dict[str, Any]:
    """The record of a synthetic job."""
    sizes = {"dp_size": spec.dp, "pp_size": spec.pp, "tp_size": spec.tp, "cp_size": 1, "vpp_size": spec.vpp}
    return job_record(spec.name, 0, **sizes, world_size=spec.world_size)


@dataclass(frozen=True)
class _StepColumns:
    """What is the same in every step: which op each row of a step is, and on which dp rank it ran."""

    op_rows: npt.NDArray[np.int64]
    dp_ranks: npt.NDArray[np.int64]
    fixed: dict[str, pa.Array]


def _step_columns(spec: JobSpec, ops: list[Op]) -> _StepColumns:
    """Rows of one step: stage by stage (ranks grow with the stage), dp rank by dp rank, ops in program order."""
    stages = np.array([op.stage for op in ops])
    order = [np.flatnonzero(stages == stage) for stage in range(spec.pp)]
    op_rows = np.concatenate([np.tile(rows, spec.dp) for rows in order])
    dp_ranks = np.concatenate([np.repeat(np.arange(spec.dp), len(rows)) for rows in order])

    def column(name: str, per_op: list[int]) -> pa.Array:
        return pa.array(np.array(per_op)[op_rows], type=SCHEMA.field(name).type)

    codes = np.array([KINDS.index(op.kind) for op in ops], dtype=np.int8)[op_rows]
    fixed = {
        "dp_rank": pa.array(dp_ranks, type=pa.int32()),
        "stage": column("stage", [op.stage for op in ops]),
        # Megatron's order: tp fastest, then dp, then pp. A worker records the first of its tp ranks.
        "rank": pa.array((stages[op_rows] * spec.dp + dp_ranks) * spec.tp, type=pa.int32()),
        "optype": optype_column(codes),
        "seq_id": column("seq_id", [op.seq_id for op in ops]),
        "mc": column("mc", [op.chunk for op in ops]),
        "mb_id": column("mb_id", [op.microbatch for op in ops]),
        "gmc": column("gmc", [op.global_chunk for op in ops]),
    }
    return _StepColumns(op_rows, dp_ranks, fixed)


def step_tables(spec: JobSpec, timeline: Timeline) -> Iterator[pa.Table]:
    """The trace, one table a step; steps follow each other in time."""
    columns = _step_columns(spec, list(timeline.program.ops))
    offset_ns = 0.0
    step_ends_ns = timeline.span_ns()[1]
    for step in range(spec.steps):
        starts_ns = timeline.starts_ns[columns.op_rows, step, columns.dp_ranks]
        ends_ns = timeline.ends_ns[columns.op_rows, step, columns.dp_ranks]
        arrays = {
            **columns.fixed,
            "step": pa.array(np.full(len(starts_ns), step, dtype=np.int64)),
            "start_ts": pa.array((starts_ns + offset_ns) / _NS_PER_S),
            "duration": pa.array((ends_ns - starts_ns) / _NS_PER_S),
        }
        yield pa.Table.from_arrays([arrays[name] for name in SCHEMA.names], schema=SCHEMA)
        offset_ns += step_ends_ns[step] + _STEP_GAP_NS


def _cannot_write(path: Path, error: Exception) -> str:
    # The number's own text: pyarrow puts a sentence of its own, with the temporary name, into the error.
    number = getattr(error, "errno", None)
    reason = os.strerror(number) if number else str(error)
    return f"cannot write {path}: {reason}; choose another output"


def write_parquet(spec: JobSpec, timeline: Timeline, path: Path) -> None:
    """Write the trace; raises SynthError if `path` cannot be written, and leaves no half-written trace behind.

    It is written under a name of its own, so that two commands that write the same trace do not meet.
    """
    part: Path | None = None
    try:
        # A link keeps pointing where it points; its target is what gets replaced.
        target = path.resolve()
        descriptor, name = tempfile.mkstemp(prefix=f".{target.name[:64]}.", dir=target.parent)
        part = Path(name)
        # By descriptor: pyarrow takes no name that is not UTF-8.
        with open(descriptor, "wb") as stream:  # noqa: PTH123
            write_tables(stream, step_tables(spec, timeline))
        mask = os.umask(0)
        os.umask(mask)
        part.chmod(0o666 & ~mask)
        part.replace(target)
    except (OSError, ValueError, RuntimeError) as error:
        raise SynthError(_cannot_write(path, error)) from None
    finally:
        if part is not None:
            part.unlink(missing_ok=True)


def write_sidecars(path: Path, meta: dict[str, Any], truth: dict[str, Any]) -> list[Path]:
    """Write `job.yaml` and `job.truth.json` beside `job.parquet`; returns their paths."""
    texts = {
        path.with_suffix(".yaml"): yaml.safe_dump(meta, sort_keys=False),
        path.with_suffix(".truth.json"): json.dumps(truth, indent=2) + "\n",
    }
    for name, text in texts.items():
        write_atomically(str(name), [text])
    return list(texts)
