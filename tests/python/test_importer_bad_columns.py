"""A column with what no trace has is refused in one line that names the column, the row and the value."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.python.importer_traces import job_rows, refusal, table_of, with_column, with_value, write_job


@pytest.mark.parametrize("name", table_of([]).column_names)
def test_a_missing_column_is_named(tmp_path: Path, name: str) -> None:
    message = refusal(write_job(tmp_path, table_of(job_rows()).drop_columns([name])))
    assert f"lacks column {name} (it has: " in message


def test_a_table_of_another_schema_lists_what_it_has(tmp_path: Path) -> None:
    message = refusal(write_job(tmp_path, pa.table({"name": ["aten::mm"], "ts": [1], "dur": [2]})))
    assert "lacks columns dp_rank, stage, rank, step, optype, " in message
    assert "(it has: name, ts, dur)" in message


def test_a_table_without_columns_is_refused(tmp_path: Path) -> None:
    assert "lacks column" in refusal(write_job(tmp_path, pa.table({})))


def test_a_table_without_rows_is_refused(tmp_path: Path) -> None:
    assert "has no rows" in refusal(write_job(tmp_path, table_of([])))


def test_a_column_given_twice_is_refused(tmp_path: Path) -> None:
    table = table_of(job_rows())
    assert "has column step twice" in refusal(write_job(tmp_path, table.append_column("step", table["step"])))


@pytest.mark.parametrize("name", ["step", "dp_rank", "stage", "rank", "seq_id", "mc", "mb_id", "gmc"])
@pytest.mark.parametrize(
    "kind", [pa.string(), pa.bool_(), pa.timestamp("ns"), pa.decimal128(10, 2), pa.list_(pa.int64())], ids=str
)
def test_integers_of_another_type_are_refused(tmp_path: Path, name: str, kind: pa.DataType) -> None:
    values: Any = {"string": "7", "bool": True}.get(str(kind), [7] if pa.types.is_list(kind) else 7)
    message = refusal(write_job(tmp_path, with_column(table_of(job_rows()), name, lambda _: values, kind)))
    assert f"column {name} holds " in message
    assert "expected integers" in message


@pytest.mark.parametrize("name", ["start_ts", "duration"])
@pytest.mark.parametrize("kind", [pa.int64(), pa.string(), pa.timestamp("ns"), pa.duration("ns")], ids=str)
def test_times_that_are_not_float_seconds_are_refused(tmp_path: Path, name: str, kind: pa.DataType) -> None:
    value = "0.5" if pa.types.is_string(kind) else 5
    message = refusal(write_job(tmp_path, with_column(table_of(job_rows()), name, lambda _: value, kind)))
    assert f"column {name} holds " in message
    assert "expected float seconds" in message


def test_an_op_type_that_is_not_text_is_refused(tmp_path: Path) -> None:
    message = refusal(write_job(tmp_path, with_column(table_of(job_rows()), "optype", lambda _: 3, pa.int32())))
    assert "column optype holds int32, expected text" in message


@pytest.mark.parametrize(
    ("name", "value", "kind", "said"),
    [
        ("duration", math.nan, pa.float64(), "is nan in row 17, expected finite seconds"),
        ("duration", math.inf, pa.float32(), "is inf in row 17"),
        ("start_ts", -math.inf, pa.float64(), "is -inf in row 17"),
        ("start_ts", -0.25, pa.float64(), "is -0.25 in row 17, expected 0 or later"),
        ("duration", -1e-9, pa.float64(), "is -1e-09 in row 17, expected 0 or later"),
        ("duration", 1e8, pa.float64(), "is 100000000.0 in row 17, expected seconds up to 1e+07"),
        ("start_ts", 1e300, pa.float64(), "is 1e+300 in row 17, expected seconds up to"),
        ("start_ts", 1.7e18, pa.float64(), "in row 17, expected seconds up to"),
        ("start_ts", 1e9, pa.float32(), "reaches 1000000000 s, where float32 is coarser than 10 ms"),
        ("start_ts", None, pa.float64(), "has no value in row 17"),
        ("step", None, pa.int64(), "has no value in row 17"),
        ("rank", None, pa.int64(), "has no value in row 17"),
        ("optype", None, pa.string(), "has no value in row 17"),
        ("step", -1, pa.int64(), "is -1 in row 17, expected 0 to 9223372036854775807"),
        ("step", 1 << 63, pa.uint64(), "is 9223372036854775808 in row 17"),
        ("dp_rank", -1, pa.int64(), "is -1 in row 17, expected 0 to 2147483647"),
        ("seq_id", 1 << 31, pa.int64(), "is 2147483648 in row 17"),
        ("mb_id", 1 << 31, pa.uint32(), "is 2147483648 in row 17"),
        ("mc", -2, pa.int64(), "is -2 in row 17, expected -1 to 2147483647"),
        ("gmc", 0.5, pa.float64(), "is 0.5 in row 17, expected a whole number"),
        ("gmc", math.inf, pa.float64(), "is inf in row 17"),
        ("optype", "forward", pa.string(), "is 'forward' in row 17; known op types: step, forward-compute, "),
        ("optype", "forward_compute", pa.string(), "is 'forward_compute' in row 17; known op types: "),
        ("optype", "", pa.string(), "is '' in row 17"),
        ("optype", "a\nb\x1b[31m", pa.string(), "is 'a\\nb\\x1b[31m' in row 17"),
        ("optype", "x" * 5000, pa.string(), "xxx' in row 17"),
        ("optype", b"\xff\xfe", pa.binary(), "is '\\\\xff\\\\xfe' in row 17"),
    ],
)
def test_a_bad_value_is_named_with_its_row(tmp_path: Path, name: str, value: Any, kind: pa.DataType, said: str) -> None:
    table = table_of(job_rows())
    if name == "mb_id":
        table = with_column(table, name, lambda old: max(old, 0))
    if kind == pa.binary():
        table = with_column(table, name, lambda old: old.encode(), kind)
    message = refusal(write_job(tmp_path, with_value(table, name, 17, value, kind)))
    assert f"trace-tiny.parquet: column {name} " in message
    assert said in message


@pytest.mark.parametrize("row_group_size", [7, 1000])
def test_the_row_is_the_file_s_even_when_steps_are_selected(tmp_path: Path, row_group_size: int) -> None:
    table = table_of(job_rows(steps=(1, 2, 3)))
    row = 2 * len(table) // 3 + 5
    path = write_job(tmp_path, with_value(table, "duration", row, math.nan), row_group_size=row_group_size)
    assert f"is nan in row {row}," in refusal(path, steps={1, 3})


def test_steps_that_are_not_there_are_refused_with_those_that_are(tmp_path: Path) -> None:
    message = refusal(write_job(tmp_path, table_of(job_rows(steps=(3, 5, 8)))), steps={4, 6})
    assert "has none of the steps asked for (it has 3 steps, 3 to 8)" in message


def test_a_gap_in_the_stages_is_refused(tmp_path: Path) -> None:
    table = with_column(table_of(job_rows()), "stage", lambda value: value * 2)
    assert "has ops of stage 2, but none of stage 1" in refusal(write_job(tmp_path, table))


def test_a_worker_without_ops_is_refused(tmp_path: Path) -> None:
    rows = [row for row in job_rows() if (row["dp_rank"], row["stage"]) != (1, 0)]
    assert "has no op of dp_rank 1, stage 0" in refusal(write_job(tmp_path, table_of(rows)))


def test_a_rank_at_two_places_is_refused(tmp_path: Path) -> None:
    message = refusal(write_job(tmp_path, with_column(table_of(job_rows()), "rank", lambda _: 0)))
    assert "rank 0 is recorded as (dp_rank 0, stage 0) and (dp_rank 0, stage 1)" in message
