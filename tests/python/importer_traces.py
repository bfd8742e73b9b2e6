"""A tiny job in the published artifact's form, and its variations, for the tests of what reads traces.

pp = 1 or 2, two microbatches, all forwards before all backwards, times by hand: an engine finds nothing odd in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from smon_rt.analysis.importer import Trace, read_trace
from smon_rt.errors import TraceError

Row = dict[str, Any]

SCHEMA = pa.schema(
    [
        ("dp_rank", pa.int8()),
        ("stage", pa.int8()),
        ("rank", pa.int16()),
        ("step", pa.int64()),
        ("optype", pa.dictionary(pa.int8(), pa.string())),
        ("start_ts", pa.float64()),
        ("duration", pa.float64()),
        ("seq_id", pa.int32()),
        ("mc", pa.int8()),
        ("mb_id", pa.int8()),
        ("gmc", pa.int16()),
    ]
)
_MS = 1e-3

# optype, seq_id, start, end in ms; stage by stage of a job with and without a pipeline.
_ALONE = [
    ("params-all-gather", 0, 0, 2),
    ("forward-compute", 0, 2, 12),
    ("forward-compute", 1, 12, 22),
    ("backward-compute", 0, 22, 42),
    ("backward-compute", 1, 42, 62),
    ("gc", 0, 62, 63),
    ("layernorm-grads-all-reduce", 0, 63, 64),
    ("embedding-grads-all-reduce", 0, 64, 65),
    ("grads-reduce-scatter", 0, 65, 68),
    ("optimizer-clip-main-grad", 0, 68, 69),
    ("optimizer", 0, 69, 72),
]
_FIRST_OF_TWO = [
    ("params-all-gather", 0, 0, 2),
    ("forward-compute", 0, 2, 12),
    ("forward-send", 0, 12, 13),
    ("forward-compute", 1, 12, 22),
    ("forward-send", 1, 22, 24),
    ("backward-recv", 0, 12, 55),
    ("backward-compute", 0, 55, 75),
    ("backward-recv", 1, 75, 76),
    ("backward-compute", 1, 76, 96),
    ("gc", 0, 96, 97),
    ("layernorm-grads-all-reduce", 0, 97, 98),
    ("embedding-grads-all-reduce", 0, 98, 99),
    ("grads-reduce-scatter", 0, 99, 102),
    ("optimizer-clip-main-grad", 0, 102, 103),
    ("optimizer", 0, 103, 106),
]
_LAST_OF_TWO = [
    ("params-all-gather", 0, 0, 2),
    ("forward-recv", 0, 0, 13),
    ("forward-compute", 0, 13, 23),
    ("forward-recv", 1, 23, 24),
    ("forward-compute", 1, 24, 34),
    ("backward-compute", 0, 34, 54),
    ("backward-send", 0, 54, 55),
    ("backward-compute", 1, 54, 74),
    ("backward-send", 1, 74, 76),
    ("gc", 0, 74, 75),
    ("layernorm-grads-all-reduce", 0, 75, 76),
    ("embedding-grads-all-reduce", 0, 76, 99),
    ("grads-reduce-scatter", 0, 99, 102),
    ("optimizer-clip-main-grad", 0, 102, 103),
    ("optimizer", 0, 103, 106),
]


def job_rows(*, dp: int = 2, pp: int = 2, steps: Sequence[int] = (10, 11)) -> list[Row]:
    """The ops of a whole job."""
    stages = [_ALONE] if pp == 1 else [_FIRST_OF_TWO, _LAST_OF_TWO]
    rows: list[Row] = []
    for step_index, step in enumerate(steps):
        for dp_rank in range(dp):
            for stage, ops in enumerate(stages):
                for optype, seq_id, start_ms, end_ms in ops:
                    if dp == 1 and optype in ("params-all-gather", "grads-reduce-scatter"):
                        continue  # Nobody to communicate with.
                    computes = optype.endswith("-compute")
                    chunked = computes or optype in ("params-all-gather", "grads-reduce-scatter")
                    rows.append(
                        {
                            "dp_rank": dp_rank,
                            "stage": stage,
                            "rank": dp_rank * pp + stage,
                            "step": step,
                            "optype": optype,
                            "start_ts": start_ms * _MS,
                            # Steps differ a little, so that no statistic over them is degenerate.
                            "duration": (end_ms - start_ms) * _MS * (1 + step_index / 1000),
                            "seq_id": seq_id,
                            "mc": 0 if chunked else -1,
                            "mb_id": seq_id if computes else -1,
                            "gmc": stage if chunked else -1,
                        }
                    )
    return rows


def job_meta(*, dp: int = 2, pp: int = 2, **changes: Any) -> dict[str, Any]:
    """The job record that belongs to `job_rows`."""
    record = {"trial_name": "tiny", "run_id": 0, "dp_size": dp, "pp_size": pp, "tp_size": 1, "dsp_size": 1}
    return record | {"vpp_size": 1, "world_size": dp * pp} | changes


def table_of(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def with_column(table: pa.Table, name: str, values: Any, kind: pa.DataType | None = None) -> pa.Table:
    """`table` with one column replaced; `values` are a list or a function of the old value."""
    old = table[name].to_pylist()
    new = [values(value) for value in old] if callable(values) else values
    return table.set_column(table.column_names.index(name), name, pa.array(new, kind or table.schema.field(name).type))


def with_value(table: pa.Table, name: str, row: int, value: Any, kind: pa.DataType | None = None) -> pa.Table:
    values = table[name].to_pylist()
    values[row] = value
    return with_column(table, name, values, kind)


def write_job(folder: Path, table: pa.Table | None = None, meta: dict[str, Any] | None = None, **options: Any) -> Path:
    """Writes trace-tiny.parquet and meta-tiny.yaml; returns the trace's path."""
    path = folder / "trace-tiny.parquet"
    pq.write_table(table_of(job_rows()) if table is None else table, path, **options)
    (folder / "meta-tiny.yaml").write_text(yaml.safe_dump(job_meta() if meta is None else meta))
    return path


def refusal(path: Any, **arguments: Any) -> str:
    """The message with which `path` is refused, checked to be one printable line."""
    with pytest.raises(TraceError) as caught:
        read_trace(path, **arguments)
    return checked_line(str(caught.value))


def checked_line(message: str) -> str:
    assert message.isprintable(), message
    assert 0 < len(message) < 2000
    return message


def trace_or_refusal(read: Callable[[], Trace]) -> Trace | str:
    """What a property may see: a valid trace, or one line."""
    try:
        trace = read()
    except TraceError as error:
        return checked_line(str(error))
    check_valid(trace)
    return trace


def check_valid(trace: Trace) -> None:
    """What the engine is promised of any trace."""
    ops = trace.ops
    ops.validate(full=True)
    assert ops.num_rows > 0
    assert {name: str(kind) for name, kind in zip(ops.schema.names, ops.schema.types, strict=True)} == {
        **dict.fromkeys(("dp_rank", "stage", "rank", "seq_id", "chunk", "global_chunk", "microbatch"), "int32"),
        **dict.fromkeys(("step", "start_ns", "duration_ns"), "int64"),
        "kind": "uint8",
    }
    assert all(column.buffers()[0] is None for column in ops.columns)
    for name in ("dp_rank", "stage", "rank", "step", "start_ns", "duration_ns", "seq_id"):
        assert min(ops[name].to_pylist()) >= 0
    job = trace.job
    assert job.world_size == job.dp_size * job.pp_size * job.tp_size * job.cp_size
    assert len(set(ops["stage"].to_pylist())) == job.pp_size
