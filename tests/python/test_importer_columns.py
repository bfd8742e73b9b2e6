"""The artifact's columns become the engine's, whatever widths and encodings a writer chose."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from smon_rt import _analysis
from smon_rt.analysis.importer import Trace, read_trace
from tests.python.importer_traces import check_valid, job_meta, job_rows, table_of, with_column, with_value, write_job


def ops_of(folder: Path, table: pa.Table, **options: Any) -> dict[str, list[int]]:
    trace = read_trace(write_job(folder, table, **options))
    check_valid(trace)
    result: dict[str, list[int]] = trace.ops.to_pydict()
    return result


def test_every_row_arrives_in_file_order(tmp_path: Path) -> None:
    rows = job_rows()
    ops = ops_of(tmp_path, table_of(rows))
    for index, row in enumerate(rows):
        assert ops["dp_rank"][index] == row["dp_rank"]
        assert ops["stage"][index] == row["stage"]
        assert ops["rank"][index] == row["rank"]
        assert ops["step"][index] == row["step"]
        assert _analysis.KIND_NAMES[ops["kind"][index]].replace("_", "-") == row["optype"]
        assert ops["start_ns"][index] == round(row["start_ts"] * 1e9)
        assert ops["duration_ns"][index] == round(row["duration"] * 1e9)
        assert ops["seq_id"][index] == row["seq_id"]
        assert ops["chunk"][index] == row["mc"]
        assert ops["global_chunk"][index] == row["gmc"]
        assert ops["microbatch"][index] == row["mb_id"]


def test_the_job_record_arrives_with_our_names(tmp_path: Path) -> None:
    meta = job_meta(tp_size=4, dsp_size=2, world_size=32)
    job = read_trace(write_job(tmp_path, meta=meta)).job
    assert job.name == "tiny"
    assert job.sizes() == {"dp_size": 2, "pp_size": 2, "tp_size": 4, "cp_size": 2, "vpp_size": 1, "world_size": 32}


INTEGER_TYPES = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]


@pytest.mark.parametrize("kind", INTEGER_TYPES, ids=str)
@pytest.mark.parametrize("name", ["dp_rank", "stage", "rank", "step", "seq_id"])
def test_integer_columns_may_have_any_width(tmp_path: Path, name: str, kind: pa.DataType) -> None:
    table = table_of(job_rows())
    assert ops_of(tmp_path, with_column(table, name, lambda value: value, kind)) == ops_of(tmp_path, table)


@pytest.mark.parametrize("kind", [*INTEGER_TYPES, pa.float32(), pa.float64()], ids=str)
@pytest.mark.parametrize(("name", "ours"), [("mc", "chunk"), ("mb_id", "microbatch"), ("gmc", "global_chunk")])
def test_a_missing_chunk_or_microbatch_is_not_applicable(
    tmp_path: Path, name: str, ours: str, kind: pa.DataType
) -> None:
    table = table_of(job_rows())
    nulled = with_column(table, name, lambda value: None if value < 0 else value, kind)
    assert ops_of(tmp_path, nulled)[ours] == table[name].to_pylist()


def test_nan_in_a_float_chunk_column_is_not_applicable(tmp_path: Path) -> None:
    table = table_of(job_rows())
    # What pandas makes of a nullable integer column.
    floats = with_column(table, "mc", lambda value: math.nan if value < 0 else float(value), pa.float64())
    assert ops_of(tmp_path, floats)["chunk"] == table["mc"].to_pylist()


def test_a_column_of_nothing_is_not_applicable(tmp_path: Path) -> None:
    table = with_column(table_of(job_rows()), "mb_id", lambda _: None, pa.null())
    assert set(ops_of(tmp_path, table)["microbatch"]) == {-1}


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())],
    ids=str,
)
@pytest.mark.parametrize("use_dictionary", [True, False])
def test_the_op_type_may_be_text_or_a_dictionary(tmp_path: Path, kind: pa.DataType, use_dictionary: bool) -> None:
    table = table_of(job_rows())
    texts = table["optype"].to_pylist()
    if pa.types.is_dictionary(kind):
        column = pa.array(texts).dictionary_encode()
    else:
        column = pa.array(texts).cast(kind)
    changed = table.set_column(table.column_names.index("optype"), "optype", column)
    assert ops_of(tmp_path, changed, use_dictionary=use_dictionary) == ops_of(tmp_path, table)


def test_a_category_that_no_row_uses_may_be_anything(tmp_path: Path) -> None:
    table = table_of(job_rows())
    texts = table["optype"].to_pylist()
    categories = ["first-op", *sorted(set(texts)), "never seen"]
    column = pa.DictionaryArray.from_arrays(pa.array([categories.index(text) for text in texts], pa.int8()), categories)
    changed = table.set_column(table.column_names.index("optype"), "optype", column)
    assert ops_of(tmp_path, changed) == ops_of(tmp_path, table)


def test_row_groups_with_dictionaries_of_their_own_arrive_as_one_batch(tmp_path: Path) -> None:
    table = table_of(job_rows())
    # Single-row groups: every dictionary has one entry.
    assert ops_of(tmp_path, table, row_group_size=1) == ops_of(tmp_path, table)


def test_extra_columns_are_ignored(tmp_path: Path) -> None:
    table = table_of(job_rows())
    extra = table.append_column("host", pa.array(["a"] * len(table))).append_column("step.x", table["step"])
    assert ops_of(tmp_path, extra) == ops_of(tmp_path, table)


def test_times_are_rounded_to_the_nearest_ns(tmp_path: Path) -> None:
    table = with_value(table_of(job_rows()), "start_ts", 0, 1.4999e-9)
    table = with_value(table, "start_ts", 1, 1.5001e-9)
    table = with_value(table, "duration", 0, 0.1234567894)
    table = with_value(table, "duration", 1, 0.1234567896)
    ops = ops_of(tmp_path, table)
    assert ops["start_ns"][:2] == [1, 2]
    assert ops["duration_ns"][:2] == [123456789, 123456790]


def test_float32_times_keep_all_their_digits(tmp_path: Path) -> None:
    table = with_column(table_of(job_rows()), "start_ts", lambda value: value, pa.float32())
    seconds = table["start_ts"].to_pylist()
    assert ops_of(tmp_path, table)["start_ns"] == [round(value * 1e9) for value in seconds]


def test_unix_seconds_lose_nothing_that_float64_held(tmp_path: Path) -> None:
    table = with_column(table_of(job_rows()), "start_ts", lambda value: 1.7e9 + value)
    for seconds, ns in zip(table["start_ts"].to_pylist(), ops_of(tmp_path, table)["start_ns"], strict=True):
        numerator, denominator = float(seconds).as_integer_ratio()
        # The exact value of the float64, in integers: its own resolution here is 238 ns.
        assert abs(ns * denominator - numerator * 10**9) <= denominator


def test_only_the_steps_asked_for_are_read(tmp_path: Path) -> None:
    steps = (3, 5, 8, 13)
    table = table_of(job_rows(steps=steps))
    for size in (7, 60, 1000):
        path = write_job(tmp_path, table, row_group_size=size)
        trace = read_trace(path, steps={5, 13, 99})
        check_valid(trace)
        expected = [row for row in job_rows(steps=steps) if row["step"] in (5, 13)]
        assert trace.ops["step"].to_pylist() == [row["step"] for row in expected]
        assert trace.ops["seq_id"].to_pylist() == [row["seq_id"] for row in expected]
        assert read_trace(path, steps=range(4, 10**15)).ops.num_rows == 3 * len(table) // 4


def test_a_bad_row_of_an_unwanted_step_does_not_matter(tmp_path: Path) -> None:
    table = with_value(table_of(job_rows(steps=(1, 2))), "duration", 0, math.nan)
    assert read_trace(write_job(tmp_path, table), steps={2}).ops.num_rows == len(table) // 2


def test_the_trace_says_where_it_is_from(tmp_path: Path) -> None:
    path = write_job(tmp_path)
    for given in (path, str(path)):
        trace = read_trace(given)
        assert isinstance(trace, Trace)
        assert trace.path == str(path)
        assert 0 < trace.read_ms < 60_000


@pytest.mark.parametrize(
    ("trace", "rows"),
    [
        ("trace-AR.parquet", 117216),
        ("trace-ST.parquet", 6784),
        ("edge/trace-D1.parquet", 3136),
        ("edge/trace-OV.parquet", 7040),
        ("edge/trace-P1.parquet", 960),
    ],
)
def test_the_published_traces_are_read(shared_traces: Path, trace: str, rows: int) -> None:
    read = read_trace(shared_traces / trace)
    check_valid(read)
    assert read.ops.num_rows == rows
    seconds = pq.read_table(shared_traces / trace, columns=["duration"])["duration"].to_pylist()
    assert read.ops["duration_ns"].to_pylist() == [round(value * 1e9) for value in seconds]
