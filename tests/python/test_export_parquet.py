"""A recorded job exported to the artifact's parquet gives the analysis the same numbers as the job itself."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from smon_rt import cli
from smon_rt.analysis import analyze
from smon_rt.artifact_format import KINDS
from smon_rt.synth import JobSpec, Plant, make_job
from smon_rt.trace.kinds import FLAGS, KIND_NAMES
from tests.python.recorded_jobs import RecordedJob
from tests.python.smon_files import TestSpan, file_name, write_rank
from tests.python.synthetic_smon import write_synthetic

SPECS = {
    "1f1b": JobSpec(dp=2, pp=4, microbatches=6, steps=3, noise=0.1, plants=(Plant(1, 1.5, dp_rank=1),), seed=3),
    "interleaved": JobSpec(dp=2, pp=2, vpp=2, microbatches=4, steps=2, noise=0.1, overlap=True, seed=4),
    "one stage": JobSpec(dp=4, microbatches=3, steps=3, noise=0.1, seed=5),
}


def export(folder: Path, output: Path, *more: str) -> int:
    return cli.run(["export", str(folder), "--format", "parquet", "-o", str(output), *more])


def rounded(value: Any) -> Any:
    """What compares equal to a value whose times were cut to nanoseconds."""
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    if isinstance(value, list):
        return [rounded(part) for part in value]
    return pytest.approx(value, rel=1e-6, abs=1e-8, nan_ok=True) if isinstance(value, float) else value


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("hosts", [1, 2])
def test_a_recorded_job_gives_the_same_numbers_as_its_own_trace(tmp_path: Path, name: str, hosts: int) -> None:
    job = make_job(SPECS[name])
    (original, *_) = job.write(tmp_path / "original.parquet")
    folder = tmp_path / "traces"
    folder.mkdir()
    write_synthetic(job, folder, hosts=hosts)
    output = tmp_path / "recorded.parquet"
    assert export(folder, output) == 0
    report, expected = analyze(output).to_dict(), analyze(original).to_dict()
    for key in ("path", "timing_ms", "job"):
        assert report.pop(key)
        expected.pop(key)
    # An export knows more about its times than the job it was made from.
    expected["verdict"]["text"] += ", host time only"
    assert report == rounded(expected)


def test_a_file_that_lacks_a_worker_says_that_the_analysis_refuses_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    RecordedJob(make_job(JobSpec(dp=2, pp=2, microbatches=4, steps=2)), skip_ranks=[1, 2]).write(tmp_path / "traces")
    assert export(tmp_path / "traces", tmp_path / "job.parquet") == 3
    assert "`smon analyze` refuses it, for it needs every worker and (dp 1, stage 0) and 1 more was" in (
        capsys.readouterr().out
    )
    assert cli.run(["analyze", str(tmp_path / "job.parquet")]) == 2
    assert "has no op of dp_rank" in capsys.readouterr().err


def test_the_file_has_the_columns_and_the_record_of_the_artifact(tmp_path: Path) -> None:
    job = make_job(SPECS["1f1b"])
    write_synthetic(job, tmp_path)
    assert export(tmp_path, tmp_path / "out.parquet") == 0
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.column_names == job.table.column_names
    mine, theirs = (sorted(rows.to_pylist(), key=row_key) for rows in (table, job.table))
    assert [row_key(row) for row in mine] == [row_key(row) for row in theirs]
    assert [row["duration"] for row in mine] == pytest.approx([row["duration"] for row in theirs], abs=1e-9)
    record = yaml.safe_load((tmp_path / "out.yaml").read_text(encoding="utf-8"))
    assert record == {**job.meta, "trial_name": "job", "has_device_times": False}
    assert "host time only" in analyze(tmp_path / "out.parquet").verdict.text.splitlines()[-1]


def row_key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(value for name, value in row.items() if name not in ("start_ts", "duration"))


def with_spans(folder: Path, change: Any, **layout: int) -> Path:
    """Two ranks of dp, each with two plain steps of ops, changed."""
    for rank in range(2):
        spans = []
        for step in range(4):
            times = [(kind, index) for index in range(2) for kind in ("forward_compute", "backward_compute")]
            for place, (kind, index) in enumerate([*times, ("optimizer", 0)]):
                start_ns = 10_000 + 1_000 * step + 100 * place
                microbatch = index if kind != "optimizer" else -1
                spans.append(
                    TestSpan(
                        kind=kind, step=step, start_ns=start_ns, duration_ns=90, microbatch=microbatch, op_index=index
                    )
                )
        write_rank(
            folder, change(rank, spans), rank=rank, world_size=2, layout={"dp_size": 2, "dp_rank": rank} | layout
        )
    return folder


def exported_steps(folder: Path) -> list[int]:
    return sorted(set(pq.read_table(folder / "out.parquet")["step"].to_pylist()))


def test_steps_that_a_rank_lacks_are_left_out_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_spans(tmp_path, lambda rank, spans: [s for s in spans if rank == 0 or s.step != 2])
    assert export(tmp_path, tmp_path / "out.parquet") == 0
    assert exported_steps(tmp_path) == [0, 1, 3]
    assert "1 steps that not all ranks recorded alike (2)" in capsys.readouterr().out
    assert analyze(tmp_path / "out.parquet").slowdown.value == pytest.approx(1.0)


def test_warm_up_evaluation_and_other_kinds_are_left_out_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def change(_rank: int, spans: list[TestSpan]) -> list[TestSpan]:
        warm = [dataclasses.replace(s, flags=FLAGS["warmup"]) if s.step == 0 else s for s in spans]
        evaluation = dataclasses.replace(spans[5], flags=FLAGS["forward_only"], op_index=9)
        return [*warm, evaluation, TestSpan(kind="data_loading", step=1)]

    with_spans(tmp_path, change)
    assert export(tmp_path, tmp_path / "out.parquet") == 0
    assert exported_steps(tmp_path) == [1, 2, 3]
    said = capsys.readouterr().out
    for words in ("1 warm-up steps", "2 spans of other kinds", "2 spans of evaluation, recomputed or aborted"):
        assert words in said


def test_gc_is_an_op_only_where_every_step_has_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def change(rank: int, spans: list[TestSpan]) -> list[TestSpan]:
        return [*spans, *([TestSpan(kind="gc", step=1, start_ns=11_000, duration_ns=5)] if rank else [])]

    with_spans(tmp_path, change)
    assert export(tmp_path, tmp_path / "out.parquet") == 0
    assert exported_steps(tmp_path) == [0, 1, 2, 3]
    assert "1 gc spans, which are not in every step alike (the file cannot show gc)" in capsys.readouterr().out


def test_device_times_come_before_host_times(tmp_path: Path) -> None:
    def change(_rank: int, spans: list[TestSpan]) -> list[TestSpan]:
        return [
            dataclasses.replace(s, time_source=1, device_start_ns=s.start_ns + 7, device_duration_ns=50) for s in spans
        ]

    with_spans(tmp_path, change)
    assert export(tmp_path, tmp_path / "out.parquet") == 0
    table = pq.read_table(tmp_path / "out.parquet")
    assert set(table["duration"].to_pylist()) == {50e-9}
    assert min(table["start_ts"].to_pylist()) == 0.0


def test_a_worker_is_its_lowest_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kinds = ("forward_compute", "backward_compute", "optimizer")
    spans = [TestSpan(kind=kind, start_ns=10 * place, duration_ns=5) for place, kind in enumerate(kinds)]
    for rank in range(2):
        write_rank(tmp_path, spans, rank=rank, world_size=2, layout={"tp_size": 2, "tp_rank": rank})
    assert export(tmp_path, tmp_path / "out.parquet") == 0
    assert pq.read_table(tmp_path / "out.parquet")["rank"].to_pylist() == [0, 0, 0]
    assert "1 ranks whose worker has a lower rank" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "layout", "said"),
    [
        (lambda _, spans: spans, {"dp_size": 3}, "layout dp 3 * pp 1 * tp 1 * cp 1 is not its world size 2"),
        (lambda _, spans: [], {}, "no rank recorded an op of a training step"),
        (lambda rank, spans: spans[rank * 5 : rank * 5 + 5], {}, "no step was recorded alike by all ranks"),
        (lambda rank, spans: spans if rank else [], {}, "rank 0 recorded no op of a training step"),
        (
            lambda _, spans: [span for span in spans if span.kind != "optimizer"],
            {},
            "run job: stage 0 has no optimizer in dp rank 0's first step: every stage needs forwards, backwards and an "
            "optimizer; as a parquet `smon analyze` would refuse it: analyse the recorded files themselves, or",
        ),
        (lambda _, spans: spans, {"vpp_size": 2}, "run job: recorded 1 model chunks a stage, but has 2 (vpp); as a"),
    ],
)
def test_what_cannot_be_analysed_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Any, layout: dict[str, int], said: str
) -> None:
    with_spans(tmp_path, change, **layout)
    assert export(tmp_path, tmp_path / "out.parquet") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert sorted(path.name for path in tmp_path.iterdir()) == [file_name(0), file_name(1)]


def test_the_kinds_of_the_artifact_are_kinds() -> None:
    assert set(KINDS) <= set(KIND_NAMES)
