"""`smon analyze` ends every bad input with exit code 2 and one line, and never touches what it was given."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pytest

from smon_rt.analysis import is_recorded
from tests.python.importer_traces import job_meta, job_rows, table_of, with_column, with_value, write_job

LIMIT_S = 60


def smon(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs the real command in a child process; a hang fails the test."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SMON_RT_")}
    # What the console script does, also where it is not on the path.
    command = [sys.executable, "-c", "from smon_rt.cli import main; main()", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=environment, check=False)


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every regular file below `folder` with its bytes and time of change."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def refused(folder: Path, *arguments: str | Path) -> str:
    """The one line with which the command refuses `arguments`."""
    before = contents(folder)
    result = smon("analyze", *arguments)
    assert result.returncode == 2, result.stderr + result.stdout
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("smon: ")
    assert "Traceback" not in lines[0]
    assert lines[0].isprintable()
    assert contents(folder) == before
    return lines[0]


def wrong_columns(folder: Path) -> Path:
    return write_job(folder, table_of(job_rows()).rename_columns([f"c{index}" for index in range(11)]))


def another_schema(folder: Path) -> Path:
    return write_job(folder, pa.table({"name": ["aten::mm"], "ts": [1], "dur": [2], "tid": [3]}))


def kineto_json(folder: Path) -> Path:
    path = folder / "trace-tiny.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [{"ph": "X", "name": "gemm", "ts": 1, "dur": 2}]}))
    return path


def csv_table(folder: Path) -> Path:
    table = with_column(table_of(job_rows()), "optype", lambda text: text, pa.string())
    pyarrow.csv.write_csv(table, folder / "trace-tiny.csv")
    return folder / "trace-tiny.csv"


def empty_file(folder: Path) -> Path:
    path = write_job(folder)
    path.write_bytes(b"")
    return path


def no_rows(folder: Path) -> Path:
    return write_job(folder, table_of([]))


def nan_duration(folder: Path) -> Path:
    return write_job(folder, with_value(table_of(job_rows()), "duration", 5, math.nan))


def infinite_start(folder: Path) -> Path:
    return write_job(folder, with_value(table_of(job_rows()), "start_ts", 5, math.inf))


def negative_start(folder: Path) -> Path:
    return write_job(folder, with_column(table_of(job_rows()), "start_ts", lambda value: value - 0.05))


def negative_duration(folder: Path) -> Path:
    return write_job(folder, with_value(table_of(job_rows()), "duration", 5, -0.001))


def text_steps(folder: Path) -> Path:
    return write_job(folder, with_column(table_of(job_rows()), "step", lambda step: f"step {step}", pa.string()))


def unknown_op(folder: Path) -> Path:
    return write_job(folder, with_value(table_of(job_rows()), "optype", 5, "magic\nop", pa.string()))


def cyclic_dependencies(folder: Path) -> Path:
    """Stage 0 runs its first backward before its first forward, which that backward needs through stage 1."""
    rows = job_rows()
    for row in rows:
        if (row["stage"], row["optype"], row["seq_id"]) == (0, "backward-compute", 0):
            row["start_ts"] = 0.0
    return write_job(folder, table_of(rows))


def no_forwards(folder: Path) -> Path:
    return write_job(folder, table_of([row for row in job_rows() if row["optype"] != "forward-compute"]))


def no_optimizer(folder: Path) -> Path:
    return write_job(folder, table_of([row for row in job_rows() if row["optype"] != "optimizer"]))


def no_backwards(folder: Path) -> Path:
    return write_job(folder, table_of([row for row in job_rows() if row["optype"] != "backward-compute"]))


def a_step_that_lacks_an_op(folder: Path) -> Path:
    return write_job(folder, table_of(job_rows()[:-1]))


def an_op_recorded_twice(folder: Path) -> Path:
    rows = job_rows()
    return write_job(folder, table_of([*rows, rows[3]]))


def text_file(folder: Path) -> Path:
    path = folder / "notes.txt"
    path.write_text("step time went up on tuesday\n")
    return path


def cut_file(folder: Path) -> Path:
    path = write_job(folder)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


def damaged_footer(folder: Path) -> Path:
    path = write_job(folder)
    content = path.read_bytes()
    path.write_bytes(content[:-200] + bytes(192) + content[-8:])
    return path


def no_record(folder: Path) -> Path:
    path = write_job(folder)
    (folder / "meta-tiny.yaml").unlink()
    return path


def broken_record(folder: Path) -> Path:
    path = write_job(folder)
    (folder / "meta-tiny.yaml").write_text("dp_size: [1,\n  2: {")
    return path


def wrong_dp_size(folder: Path) -> Path:
    return write_job(folder, meta=job_meta(dp_size=4, world_size=8))


def wrong_pp_size(folder: Path) -> Path:
    return write_job(folder, meta=job_meta(pp_size=1, world_size=2))


def wrong_world_size(folder: Path) -> Path:
    return write_job(folder, meta=job_meta(world_size=64))


def missing_file(folder: Path) -> Path:
    return folder / "trace-absent.parquet"


def path_through_a_file(folder: Path) -> Path:
    return write_job(folder) / "trace.parquet"


def dangling_link(folder: Path) -> Path:
    (folder / "link.parquet").symlink_to(folder / "gone.parquet")
    return folder / "link.parquet"


def pipe_without_writer(folder: Path) -> Path:
    os.mkfifo(folder / "pipe.parquet")
    return folder / "pipe.parquet"


def name_with_a_newline(folder: Path) -> Path:
    return folder / "two\nlines\x1b[31m.parquet"


def too_long_name(folder: Path) -> Path:
    return folder / ("x" * 5000)


BAD_INPUTS: list[tuple[Callable[[Path], Path], str]] = [
    (wrong_columns, "lacks columns dp_rank, "),
    (another_schema, "(it has: name, ts, dur, tid)"),
    (kineto_json, "is a Chrome or Kineto profiler JSON"),
    (csv_table, "is a CSV or TSV table"),
    (empty_file, "is empty"),
    (no_rows, "has no rows"),
    (nan_duration, "column duration is nan in row 5"),
    (infinite_start, "column start_ts is inf in row 5"),
    (negative_start, "column start_ts is -0.05 in row 0"),
    (negative_duration, "column duration is -0.001 in row 5"),
    (text_steps, "column step holds string, expected integers"),
    (unknown_op, "column optype is 'magic\\nop' in row 5; known op types: "),
    (cyclic_dependencies, "wait for each other"),
    (no_forwards, "forward_compute"),
    (no_optimizer, "optimizer"),
    (no_backwards, "backward_compute"),
    (a_step_that_lacks_an_op, "optimizer"),
    (an_op_recorded_twice, ""),
    (text_file, "is a text file"),
    (cut_file, "is cut short"),
    (damaged_footer, "damaged parquet"),
    (no_record, "no job record beside it"),
    (broken_record, "not valid YAML"),
    (wrong_dp_size, "has 2 dp ranks, but dp_size is 4"),
    (wrong_pp_size, "has 2 stages, but pp_size is 1"),
    (wrong_world_size, "world_size is 64, but "),
    (missing_file, "no such file"),
    (path_through_a_file, "cannot be read (Not a directory)"),
    (dangling_link, "is a link to a missing file"),
    (pipe_without_writer, "is a pipe, not a file"),
    (name_with_a_newline, "two\\nlines\\x1b[31m.parquet: no such file"),
    (too_long_name, "cannot be read (File name too long)"),
]


@pytest.mark.parametrize(("make", "said"), BAD_INPUTS, ids=[make.__name__ for make, _ in BAD_INPUTS])
def test_bad_input_is_one_line_and_exit_code_2(tmp_path: Path, make: Callable[[Path], Path], said: str) -> None:
    line = refused(tmp_path, make(tmp_path))
    assert said in line
    assert str(tmp_path)[:100] in line


def test_a_directory_without_recorded_traces_is_refused(tmp_path: Path) -> None:
    write_job(tmp_path)
    assert f"{tmp_path}: holds no .smon file" in refused(tmp_path, tmp_path)
    assert is_recorded("/")
    assert is_recorded(f"{tmp_path}//")
    assert not is_recorded("")


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null"])
def test_a_device_is_refused(tmp_path: Path, device: str) -> None:
    assert f"{device}: is a device, not a file" in refused(tmp_path, device)


def test_no_path_and_an_empty_path_are_refused(tmp_path: Path) -> None:
    refused(tmp_path)
    assert "no file given" in refused(tmp_path, "")


@pytest.mark.parametrize("steps", ["x", "5-1", "1-2-3", "", "99-100", "-5"])
def test_steps_that_mean_nothing_are_refused(tmp_path: Path, steps: str) -> None:
    assert "step" in refused(tmp_path, write_job(tmp_path), f"--steps={steps}")


def test_a_record_that_is_no_record_is_refused(tmp_path: Path) -> None:
    path = write_job(tmp_path)
    assert "no such file" in refused(tmp_path, path, "--meta", tmp_path / "absent.yaml")
    assert "not valid YAML" in refused(tmp_path, path, "--meta", path)


def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("permission bits do not bind root: run the tests as another user")
    path = write_job(tmp_path)
    path.chmod(0)
    result = smon("analyze", path)
    assert result.returncode == 2
    assert "Permission denied" in result.stderr


@pytest.mark.parametrize(
    ("dp", "pp", "steps"),
    [(2, 2, (7,)), (1, 1, (1, 2, 3)), (1, 1, (5,)), (1, 2, (5, 6)), (3, 1, (5, 6))],
    ids=["one_step", "one_rank", "one_step_of_one_rank", "no_data_parallelism", "no_pipeline"],
)
def test_a_job_however_small_gets_a_verdict(tmp_path: Path, dp: int, pp: int, steps: tuple[int, ...]) -> None:
    path = write_job(tmp_path, table_of(job_rows(dp=dp, pp=pp, steps=steps)), job_meta(dp=dp, pp=pp))
    before = contents(tmp_path)
    result = smon("analyze", path)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert result.stdout.startswith(("slowdown ", "no straggler"))
    assert contents(tmp_path) == before
