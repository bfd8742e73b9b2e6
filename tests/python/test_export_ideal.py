"""`smon export --ideal` adds the timeline without stragglers beside the recorded one, and exports parquets too."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from smon_rt import cli
from smon_rt.analysis import analyze
from smon_rt.analysis.importer import read_trace
from smon_rt.analysis.smon_importer import read_smon
from smon_rt.export.ideal import ideal_ops, recorded_ops
from smon_rt.synth import JobSpec, Plant, make_job
from tests.python.clock_jobs import HostClock
from tests.python.recorded_jobs import RecordedJob
from tests.python.test_export_timeline import Slices

SLOW = JobSpec(dp=2, pp=2, microbatches=4, steps=4, noise=0.05, plants=(Plant(0, 1.8, dp_rank=1),), seed=3)


def recorded(folder: Path, spec: JobSpec = SLOW, **more: Any) -> Path:
    RecordedJob(make_job(spec), **more).write(folder)
    return folder


def parquet(folder: Path, spec: JobSpec = SLOW) -> Path:
    make_job(spec).write(folder / "job.parquet")
    return folder / "job.parquet"


def export(source: Path, output_format: str, output: Path, *more: str) -> int:
    return cli.run(["export", str(source), "--format", output_format, "-o", str(output), *more])


def step_ends(slices: list[dict[str, Any]]) -> dict[int, tuple[int, int]]:
    """When each step begins and ends, over all processes."""
    found: dict[int, tuple[int, int]] = {}
    for piece in slices:
        step = piece["args"]["step"]
        begin, end = found.get(step, (piece["start_ns"], piece["end_ns"]))
        found[step] = (min(begin, piece["start_ns"]), max(end, piece["end_ns"]))
    return found


@pytest.mark.parametrize("make", [recorded, parquet])
def test_ideal_ends_are_the_ideal_step_times_of_the_report(tmp_path: Path, make: Any) -> None:
    source = make(tmp_path / "run") if make is recorded else make(tmp_path)
    report = analyze(source)
    trace = read_smon([source]) if make is recorded else read_trace(source)
    ideal, actual = ideal_ops(trace), recorded_ops(trace)
    assert len(ideal) == len(actual) == trace.ops.num_rows
    for step, expected_s in report.step_time_s_by_step.ideal.items():
        rows, of_step = ideal.step == int(step), actual.step == int(step)
        begin_ns = actual.start_ns[of_step].min()
        assert ideal.start_ns[rows].min() == begin_ns
        assert (ideal.end_ns[rows].max() - begin_ns) / 1e9 == pytest.approx(expected_s, abs=2e-9)


def test_perfetto_has_a_process_for_each_worker_s_ideal_right_behind_its_rank(tmp_path: Path) -> None:
    source, output = recorded(tmp_path / "run"), tmp_path / "out.pftrace"
    assert export(source, "perfetto", output, "--ideal") == 0
    drawn = Slices(output)
    processes = sorted(
        (track.process for track in drawn.tracks.values() if track.HasField("process")),
        key=lambda process: process.legacy_sort_index,
    )
    titles = [process.process_name for process in processes]
    assert [title.endswith(" ideal") for title in titles] == [False, True] * 4
    assert all(ideal.startswith(title) for title, ideal in zip(titles[::2], titles[1::2], strict=True))
    assert len({process.pid for process in processes}) == 8
    ops = [piece for piece in drawn.slices if piece["name"] != "step"]
    kinds = [Counter(p["name"] for p in ops if p["process"].endswith(" ideal") is ideal) for ideal in (False, True)]
    assert kinds[0] == kinds[1]
    ideal = step_ends([piece for piece in ops if piece["process"].endswith(" ideal")])
    actual = step_ends([piece for piece in ops if not piece["process"].endswith(" ideal")])
    for step, (begin, end) in actual.items():
        assert ideal[step][0] == begin
        assert ideal[step][1] < end


def test_without_it_nothing_of_the_ideal_is_there(tmp_path: Path) -> None:
    output = tmp_path / "out.pftrace"
    assert export(recorded(tmp_path / "run"), "perfetto", output) == 0
    assert not any("ideal" in piece["process"] for piece in Slices(output).slices)


def test_several_hosts_are_on_one_axis_with_their_ideal(tmp_path: Path) -> None:
    source = recorded(tmp_path / "run", clocks=[HostClock(), HostClock(offset_ns=77_000_000_000)])
    output = tmp_path / "out.pftrace"
    assert export(source, "perfetto", output, "--ideal") == 0
    slices = [piece for piece in Slices(output).slices if piece["name"] != "step"]
    ideal = step_ends([piece for piece in slices if piece["process"].endswith(" ideal")])
    for step, (begin, _) in step_ends([p for p in slices if not p["process"].endswith(" ideal")]).items():
        assert abs(ideal[step][0] - begin) < 1_000_000


def test_a_parquet_is_drawn_as_recorded_and_ideal(tmp_path: Path) -> None:
    source, output = parquet(tmp_path), tmp_path / "out.pftrace"
    assert export(source, "perfetto", output, "--ideal") == 0
    slices = [piece for piece in Slices(output).slices if piece["name"] != "step"]
    assert len(slices) == 2 * pq.read_metadata(source).num_rows
    assert {piece["process"] for piece in slices} >= {"rank 0 (dp 0, stage 0)", "rank 0 (dp 0, stage 0) ideal"}
    assert min(piece["start_ns"] for piece in slices) == 0


def test_chrome_has_the_same_processes_in_order(tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    assert export(recorded(tmp_path / "run"), "chrome", output, "--ideal") == 0
    events = json.loads(output.read_text())["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    order = {event["args"]["sort_index"]: event["pid"] for event in events if event["name"] == "process_sort_index"}
    assert len(names) == len(order) == 8
    assert [names[order[index]].endswith(" ideal") for index in range(8)] == [False, True] * 4


@pytest.mark.parametrize("make", [recorded, parquet])
def test_csv_says_of_each_row_which_timeline_it_is_of(tmp_path: Path, make: Any) -> None:
    source = make(tmp_path / "run") if make is recorded else make(tmp_path)
    output = tmp_path / "out.csv"
    assert export(source, "csv", output, "--ideal") == 0
    with output.open() as stream:
        rows = list(csv.DictReader(stream))
    assert {row["timeline"] for row in rows} == {"recorded", "ideal"}
    ideal = [row for row in rows if row["timeline"] == "ideal"]
    forwards = {int(row["duration_ns"]) for row in ideal if row["kind"] == "forward_compute"}
    # One duration a kind, rounded to whole ns at both ends.
    assert max(forwards) - min(forwards) <= 1
    assert {(row["rank"], row["stage"]) for row in ideal} <= {(row["rank"], row["stage"]) for row in rows}


def test_csv_without_it_has_the_columns_it_had(tmp_path: Path) -> None:
    output = tmp_path / "out.csv"
    assert export(recorded(tmp_path / "run"), "csv", output) == 0
    assert "timeline" not in output.read_text().partition("\n")[0]


def test_parquet_gains_two_columns_and_is_analysed_as_before(tmp_path: Path) -> None:
    source = recorded(tmp_path / "run")
    plain, with_ideal = tmp_path / "plain.parquet", tmp_path / "ideal.parquet"
    assert export(source, "parquet", plain) == 0
    assert export(source, "parquet", with_ideal, "--ideal") == 0
    table = pq.read_table(with_ideal)
    assert table.drop_columns(["ideal_start_ts", "ideal_duration"]).equals(pq.read_table(plain))
    assert table["ideal_start_ts"].null_count == 0
    rows = table.to_pylist()
    lasts = {
        name: max(row[start] + row[duration] for row in rows if row["step"] == 0)
        for name, start, duration in (
            ("actual", "start_ts", "duration"),
            ("ideal", "ideal_start_ts", "ideal_duration"),
        )
    }
    expected = analyze(source).step_time_s_by_step.ideal["0"]
    assert lasts["ideal"] == pytest.approx(expected, abs=1e-6)
    assert lasts["ideal"] < lasts["actual"]
    assert analyze(with_ideal).slowdown == analyze(plain).slowdown


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--format", "parquet", "-o", "new.parquet"], "is a parquet of ops"),
        (["--format", "csv", "-o", "{source}"], "is what is exported"),
        (["--format", "csv", "-o", "{record}"], "is what is exported"),
    ],
)
def test_what_makes_no_sense_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    source = parquet(tmp_path)
    arguments = [argument.format(source=source, record=source.with_suffix(".yaml")) for argument in more]
    assert cli.run(["export", str(source), *arguments]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_a_trace_that_cannot_be_replayed_is_one_line_and_leaves_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    recorded(folder, change=lambda _rank, _spans: [])
    assert export(folder, "perfetto", tmp_path / "out.pftrace", "--ideal") == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "out.pftrace").exists()
