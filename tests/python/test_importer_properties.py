"""Whatever the columns and the record hold, the importer gives a valid trace or one line; nothing else gets out."""

from __future__ import annotations

import math
import random
import string
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml
from hypothesis import given
from hypothesis import strategies as st

from smon_rt.analysis.importer import Trace, read_trace
from tests.python.importer_traces import (
    SCHEMA,
    job_meta,
    job_rows,
    table_of,
    trace_or_refusal,
    with_column,
    with_value,
    write_job,
)

COLUMNS = st.sampled_from(SCHEMA.names)
TYPES = st.sampled_from(
    [
        *(pa.int8(), pa.int32(), pa.int64(), pa.uint8(), pa.uint32(), pa.uint64(), pa.bool_(), pa.null()),
        *(pa.float32(), pa.float64(), pa.string(), pa.large_string(), pa.binary()),
        *(pa.timestamp("us"), pa.date32(), pa.list_(pa.int32()), pa.struct([("a", pa.int8())])),
        *(pa.decimal128(20, 3), pa.dictionary(pa.int8(), pa.int64()), pa.dictionary(pa.int32(), pa.string())),
    ]
)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.integers(-3, 3),
    st.floats(),
    st.text(max_size=20),
    st.binary(max_size=20),
    st.sampled_from(["forward-compute", "first-op", "optimizer"]),
)


@contextmanager
def job_folder() -> Iterator[Path]:
    """A folder of its own per example, which a function-scoped fixture is not."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def fits(value: Any, kind: pa.DataType) -> bool:
    try:
        pa.array([value], kind)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return False
    return True


def as_column(values: list[Any], kind: pa.DataType) -> pa.Array:
    """`values` as `kind`, null where one does not fit."""
    return pa.array([value if fits(value, kind) else None for value in values], kind)


@given(name=COLUMNS, kind=TYPES, data=st.data())
def test_a_column_of_any_type_and_values(name: str, kind: pa.DataType, data: st.DataObject) -> None:
    table = table_of(job_rows(dp=1, pp=1, steps=(1, 2)))
    values = data.draw(st.lists(VALUES, min_size=len(table), max_size=len(table)))
    keep = data.draw(st.integers(0, len(table)))
    values[:keep] = table[name].to_pylist()[:keep]
    changed = table.set_column(table.column_names.index(name), name, as_column(values, kind))
    with job_folder() as folder:
        path = write_job(folder, changed, job_meta(dp=1, pp=1))
        trace_or_refusal(lambda: read_trace(path))
        trace_or_refusal(lambda: read_trace(path, steps={1}))


@given(name=COLUMNS, row=st.integers(0, 51), value=VALUES)
def test_one_odd_value_in_a_good_table(name: str, row: int, value: Any) -> None:
    table = table_of(job_rows(dp=2, pp=2, steps=(1,)))
    kind = pa.string() if name == "optype" else pa.float64() if name in ("start_ts", "duration") else pa.int64()
    try:
        changed = with_value(table, name, row, value, kind)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return  # The column's type cannot hold it.
    with job_folder() as folder:
        path = write_job(folder, changed)
        trace_or_refusal(lambda: read_trace(path))


@given(seed=st.integers(0, 2**32), row_group_size=st.integers(1, 300))
def test_the_order_of_rows_changes_only_the_order_of_rows(seed: int, row_group_size: int) -> None:
    rows = job_rows()
    order = list(range(len(rows)))
    random.Random(seed).shuffle(order)
    with job_folder() as folder:
        plain = read_trace(write_job(folder, table_of(rows))).ops
        shuffled = read_trace(write_job(folder, table_of([rows[i] for i in order]), row_group_size=row_group_size)).ops
    assert shuffled.equals(plain.take(pa.array(order)))


@given(names=st.lists(st.text(max_size=8) | COLUMNS, min_size=11, max_size=11))
def test_columns_under_any_names(names: list[str]) -> None:
    table = table_of(job_rows(dp=1, pp=1))
    with job_folder() as folder:
        path = write_job(folder, table.rename_columns(names), job_meta(dp=1, pp=1))
        trace_or_refusal(lambda: read_trace(path))


@given(texts=st.lists(st.text(max_size=30), min_size=1, max_size=5))
def test_any_text_as_op_type(texts: list[str]) -> None:
    table = table_of(job_rows())
    old = table["optype"].to_pylist()
    changed = with_column(table, "optype", [*texts, *old[len(texts) :]], pa.string())
    with job_folder() as folder:
        path = write_job(folder, changed)
        result = trace_or_refusal(lambda: read_trace(path))
    assert isinstance(result, Trace) or "known op types: " in result


@given(
    starts=st.lists(st.floats(0, 4e9), min_size=18, max_size=18),
    durations=st.lists(st.floats(0, 1e7), min_size=18, max_size=18),
)
def test_any_times_in_range_arrive_to_the_ns(starts: list[float], durations: list[float]) -> None:
    table = table_of(job_rows(dp=1, pp=1))
    table = with_column(with_column(table, "start_ts", starts), "duration", durations)
    with job_folder() as folder:
        ops = read_trace(write_job(folder, table, job_meta(dp=1, pp=1))).ops
    for seconds, ns in zip(
        starts + durations, ops["start_ns"].to_pylist() + ops["duration_ns"].to_pylist(), strict=True
    ):
        numerator, denominator = seconds.as_integer_ratio()
        assert abs(ns * denominator - numerator * 10**9) <= denominator


@given(rows=st.integers(0, 40), data=st.data())
def test_small_random_tables(rows: int, data: st.DataObject) -> None:
    drawn = {
        "optype": st.sampled_from(["forward-compute", "gc", "optimizer"]),
        "start_ts": st.floats(0, 100) | st.just(math.nan),
        "duration": st.floats(-0.1, 100),
    }
    columns = {
        name: data.draw(st.lists(drawn.get(name, st.integers(-1, 2)), min_size=rows, max_size=rows))
        for name in SCHEMA.names
    }
    meta = {"dp_size": data.draw(st.integers(1, 3)), "pp_size": data.draw(st.integers(1, 3))}
    with job_folder() as folder:
        path = write_job(folder, pa.table(columns), meta)
        trace_or_refusal(lambda: read_trace(path))


def refuse_or_read_record(record: bytes) -> None:
    with job_folder() as folder:
        path = write_job(folder, table_of(job_rows(dp=1, pp=1)))
        (folder / "meta-tiny.yaml").write_bytes(record)
        trace_or_refusal(lambda: read_trace(path))


YAML_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 4) | st.integers() | st.floats() | st.text(max_size=10) | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(list(job_meta())) | st.text(max_size=10) | st.none() | st.floats(), YAML_VALUES))
def test_any_record(record: dict[Any, Any]) -> None:
    refuse_or_read_record(yaml.safe_dump(record, allow_unicode=True).encode())


@given(st.binary(max_size=200))
def test_any_bytes_as_record(record: bytes) -> None:
    refuse_or_read_record(record)


@given(
    st.lists(
        st.sampled_from(
            [
                "dp_size",
                ":",
                " ",
                "\n",
                "- ",
                "? ",
                "{",
                "}",
                "[",
                "]",
                "!!int",
                "&a",
                "*a",
                "<<",
                "'",
                '"',
                "|",
                ">",
                "#",
                "2",
                "~",
                "%",
                "---",
                "!",
                ",",
                "1:30",
                "0x",
                "2001-1-1",
            ]
        ),
        max_size=40,
    )
)
def test_any_yaml_tokens_as_record(tokens: list[str]) -> None:
    refuse_or_read_record("".join(tokens).encode())


@given(st.text(st.sampled_from(string.printable + "é\u202e\udcff\x00"), max_size=40))
def test_any_path_that_does_not_exist(name: str) -> None:
    with job_folder() as folder:
        result = trace_or_refusal(lambda: read_trace(f"{folder}/absent/{name}"))
    assert isinstance(result, str)
