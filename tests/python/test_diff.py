"""`smon diff A B` says what changed, and whether that is more than noise."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from smon_rt import cli
from smon_rt.analysis import analyze
from smon_rt.analysis.diff import Facts, compare
from smon_rt.synth import JobSpec, Plant, make_job
from tests.python.recorded_jobs import RecordedJob

WORKER = Plant(0, 1.6, dp_rank=1)


def spec(seed: int = 3, plants: tuple[Plant, ...] = (), **more: Any) -> JobSpec:
    return JobSpec(**{"dp": 2, "pp": 2, "microbatches": 4, "steps": 20, "noise": 0.03} | more, plants=plants, seed=seed)


def trace(folder: Path, name: str, job: JobSpec) -> Path:
    path = folder / f"{name}.parquet"
    make_job(job).write(path)
    return path


def diff(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = cli.run(["diff", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_new_straggler_is_more_than_noise_and_is_named_with_what_it_costs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = trace(tmp_path, "a", spec()), trace(tmp_path, "b", spec(4, (WORKER,)))
    code, out, _ = diff(capsys, a, b, "--json", tmp_path / "diff.json")
    assert code == 0
    first = out.splitlines()[0]
    assert first.startswith("slower ")
    assert "more than noise; new: worker (dp 1, stage 0), " in first
    found = json.loads((tmp_path / "diff.json").read_text())
    assert found["step_ratio"] > 1.1
    assert found["step_time_s"]["is_noise"] is False
    assert found["step_time_s"]["low"] <= found["step_time_s"]["difference"] <= found["step_time_s"]["high"]
    (worker,) = [cause for cause in found["causes"] if cause["cause"] == "worker"]
    assert (worker["status"], worker["dp_rank"], worker["stage"]) == ("new", 1, 0)
    # What it costs is what the step became longer by.
    assert worker["gain"]["difference"] == pytest.approx(found["step_time_s"]["difference"], rel=0.1)


def test_the_other_way_round_it_is_gone_and_the_job_is_faster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = trace(tmp_path, "a", spec(3, (WORKER,))), trace(tmp_path, "b", spec(4))
    _, out, _ = diff(capsys, a, b)
    assert out.startswith("faster ")
    assert "gone: worker (dp 1, stage 0)" in out


def test_the_first_line_names_what_changed_in_the_direction_of_the_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Once the slow stage is gone, fixing the worker that it hid gives back more: that is not why the job is faster.
    job = spec(plants=(WORKER, Plant(1, 1.3)), pp=4, dp=4)
    a, b = trace(tmp_path, "a", job), trace(tmp_path, "b", spec(plants=(WORKER,), pp=4, dp=4))
    _, out, _ = diff(capsys, a, b)
    assert "; gone: stage" in out.splitlines()[0]
    _, out, _ = diff(capsys, b, a)
    assert "; new: stage" in out.splitlines()[0]


@pytest.mark.parametrize("seed", range(5))
def test_two_recordings_of_one_job_are_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int) -> None:
    a, b = trace(tmp_path, "a", spec(10 + seed)), trace(tmp_path, "b", spec(20 + seed))
    code, out, _ = diff(capsys, a, b, "--fail-above", "1.01")
    assert (code, out.split()[0]) == (0, "same")
    assert "new:" not in out.splitlines()[0]


def test_a_trace_against_itself_changes_nothing(tmp_path: Path) -> None:
    report = analyze(trace(tmp_path, "a", spec(3, (WORKER,))))
    found = compare(report, report)
    assert (found.step_time_s.difference, found.step_ratio, found.step_time_s.is_noise) == (0, 1, True)
    assert {cause.status for cause in found.causes} == {"same"}
    assert (found.layout, found.settings) == ({}, {})
    assert found.is_identical
    assert found.text.splitlines()[0].endswith(" a step: identical, every step takes what it took")


def test_one_step_against_itself_is_identical_and_not_unclear(tmp_path: Path) -> None:
    report = analyze(trace(tmp_path, "a", spec(3, (WORKER,))), steps=[2])
    assert compare(report, report).text.startswith("same ")


def test_a_difference_that_rounds_to_nothing_is_neither_longer_nor_shorter(tmp_path: Path) -> None:
    before = analyze(trace(tmp_path, "a", spec()))
    times = {step: value * 1.0000001 for step, value in before.step_time_s_by_step.base.items()}
    after = dataclasses.replace(before, step_time_s_by_step=dataclasses.replace(before.step_time_s_by_step, base=times))
    first = compare(before, after).text.splitlines()[0]
    assert "nothing" not in first
    assert "longer" not in first
    assert not compare(before, after).is_identical


def test_a_group_of_workers_is_named_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow = (WORKER, Plant(0, 1.6, dp_rank=2))
    a, b = trace(tmp_path, "a", spec(dp=4)), trace(tmp_path, "b", spec(4, slow, dp=4))
    _, out, _ = diff(capsys, a, b, "--json", tmp_path / "diff.json")
    assert "; new: workers: ranks 1 and 2 (stage 0), 0" in out.splitlines()[0]
    causes = json.loads((tmp_path / "diff.json").read_text())["causes"]
    (group,) = [cause for cause in causes if cause["status"] == "new"]
    assert (group["cause"], group["place"]) == ("worker", "ranks 1 and 2 (stage 0)")
    assert (group["dp_rank"], group["stage"]) == (1, 0)


def test_of_several_runs_the_one_that_was_compared_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for run in ("first", "second"):
        RecordedJob(make_job(spec()), who={"run_id": run}).write(tmp_path / "b")
    RecordedJob(make_job(spec())).write(tmp_path / "a")
    code, out, _ = diff(capsys, tmp_path / "a", tmp_path / "b")
    assert code == 0
    (line,) = [line for line in out.splitlines() if line.startswith("runs ")]
    assert line.startswith(
        "runs     B is run second attempt 0, the newest of 2 there (others: run first attempt 0); for"
    )
    assert "runs " not in diff(capsys, tmp_path / "a", tmp_path / "a")[1]


def test_back_and_forth_are_each_other_s_negative(tmp_path: Path) -> None:
    a, b = (
        analyze(trace(tmp_path, name, spec(seed, plants))) for name, seed, plants in [("a", 3, ()), ("b", 4, (WORKER,))]
    )
    there, back = compare(a, b).step_time_s, compare(b, a).step_time_s
    assert there.difference == -back.difference
    assert (there.low, there.high) == pytest.approx((-(back.high or 0), -(back.low or 0)))


def test_a_single_step_cannot_tell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = trace(tmp_path, "a", spec(3, steps=1)), trace(tmp_path, "b", spec(4, (WORKER,), steps=1))
    code, out, _ = diff(capsys, a, b, "--fail-above", "1.1")
    assert code == 1
    assert out.startswith("unclear ")
    assert "a single step cannot tell" in out


def test_the_threshold_is_the_ratio_of_step_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = trace(tmp_path, "a", spec()), trace(tmp_path, "b", spec(4, (WORKER,)))
    assert diff(capsys, a, b, "--fail-above", "1.1")[0] == 1
    assert diff(capsys, a, b, "--fail-above", "5")[0] == 0
    assert diff(capsys, b, a, "--fail-above", "1.1")[0] == 0


def test_other_layouts_are_compared_by_name_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = trace(tmp_path, "a", spec(3, (WORKER,))), trace(tmp_path, "b", spec(4, (WORKER,), dp=4))
    _, out, _ = diff(capsys, a, b, "--json", tmp_path / "diff.json")
    assert "the steps are of different work" in out.splitlines()[0]
    assert "dp 2 → 4, world 4 → 8: causes are compared by name" in out
    causes = json.loads((tmp_path / "diff.json").read_text())["causes"]
    assert all((cause["dp_rank"], cause["stage"]) == (None, None) for cause in causes)


def test_hosts_gpus_and_versions_of_recorded_traces_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, torch, host in (("a", "2.14.0", "node1"), ("b", "2.15.0", "node7")):
        (tmp_path / name).mkdir()
        who = {"versions": {"torch": torch, "cuda": "13.0"}, "host": host, "gpu_uuid": f"GPU-{name}"}
        RecordedJob(make_job(spec()), who=who).write(tmp_path / name)
    code, out, _ = diff(capsys, tmp_path / "a", tmp_path / "b")
    assert code == 0
    assert "torch 2.14.0 → 2.15.0" in out
    assert "cuda" not in out
    assert "1 GPU left (GPU-a); 1 GPU came (GPU-b)" in out


def test_a_quoted_glob_is_a_job_on_several_nodes_and_a_missing_rank_is_incomplete(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        RecordedJob(make_job(spec())).write(tmp_path / name / "node0")
        (tmp_path / name / "node1").mkdir()
        last = max((tmp_path / name / "node0").iterdir())
        last.rename(tmp_path / name / "node1" / last.name)
    assert diff(capsys, tmp_path / "a" / "*", tmp_path / "b" / "*")[0] == 0
    assert diff(capsys, tmp_path / "a" / "*", tmp_path / "b" / "node0")[0] == 3


def test_names_from_a_file_cannot_move_the_cursor(tmp_path: Path) -> None:
    report = analyze(trace(tmp_path, "a", spec()))
    text = compare(report, report, Facts(("a",), (), {"x": "1"}), Facts(("\x1b[2J",), (), {"x": "\x1b[31m"})).text
    assert "\x1b" not in text


@pytest.mark.parametrize("arguments", [["no.parquet", "no.parquet"], ["one"], [], ["a", "b", "c"]])
def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    code, out, err = diff(capsys, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_json_on_stdout_is_alone_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = trace(tmp_path, "a", spec())
    code, out, err = diff(capsys, a, a, "--json", "-", "--quiet")
    assert code == 0
    assert set(json.loads(out)) >= {"a", "b", "step_time_s", "slowdown", "causes", "layout", "settings", "text"}
    assert err.count("\n") == 1
