"""A job whose ranks do not all have the same: the plant is found with what there is, and what is not there is said."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from smon_rt.analysis import Report, analyze
from smon_rt.synth import JobSpec, Plant, make_job
from tests.python.recorded_jobs import RecordedJob
from tests.python.smon_files import TestSpan

PLANT = Plant(1, 1.6, dp_rank=1)
SPEC = JobSpec(dp=2, pp=3, microbatches=6, steps=8, noise=0.05, plants=(PLANT,), seed=3)
#: Of stage 1, dp rank 1.
PLANTED_RANK = 3


def report_of(job: RecordedJob, folder: Path) -> Report:
    job.write(folder)
    report = analyze(folder)
    assert (report.verdict.cause, report.verdict.where.rank) == ("worker", PLANTED_RANK)
    return report


def whole_gain_s(folder: Path) -> float:
    return report_of(RecordedJob(make_job(SPEC)), folder).verdict.gain_s_per_step


def test_microbatch_counts_that_ramp_up(tmp_path: Path) -> None:
    job = RecordedJob(make_job(JobSpec(dp=2, pp=3, microbatches=3, steps=4, noise=0.05, plants=(PLANT,), seed=4)))
    job.then = make_job(SPEC)
    report = report_of(job, tmp_path)
    assert report.step_count == 12
    assert report.fidelity.simulation_error_mean < 0.01
    assert report.fidelity.early_starts.count == 0
    assert any("ops that some steps or workers lack" in line for line in report.fidelity.left_out)


def test_ops_that_are_lost_here_and_there(tmp_path: Path) -> None:
    draw = random.Random(1)

    def lose(_rank: int, spans: list[TestSpan]) -> list[TestSpan]:
        return [span for span in spans if draw.random() > 0.01]

    gain_s = whole_gain_s(tmp_path / "whole")
    report = report_of(RecordedJob(make_job(SPEC), change=lose), tmp_path / "lost")
    assert report.verdict.gain_s_per_step == pytest.approx(gain_s, rel=0.1)
    assert any("ops that some steps or workers lack" in line for line in report.fidelity.left_out)


@pytest.mark.parametrize("lost", ["params_all_gather", "grads_reduce_scatter"])
def test_a_lost_collective_shifts_no_other(tmp_path: Path, lost: str) -> None:
    """Chunks of one communicator, told apart by nothing but their numbers in it."""
    spec = JobSpec(dp=3, pp=2, vpp=2, microbatches=4, steps=6, noise=0.05, seed=2)

    def without_chunk(rank: int, spans: list[TestSpan]) -> list[TestSpan]:
        kept = [TestSpan(**(vars(span) | ({"chunk": -1} if span.kind == lost else {}))) for span in spans]
        first = next(span for span in kept if span.kind == lost and span.step == 2)
        return [span for span in kept if rank != 2 or span is not first]

    RecordedJob(make_job(spec), change=without_chunk).write(tmp_path)
    report = analyze(tmp_path)
    assert report.step_count == 6
    assert report.fidelity.early_starts.count == 0
    assert [line for line in report.fidelity.left_out if "lack" in line] == ["1 ops that some steps or workers lack"]


def test_a_rank_that_joined_late(tmp_path: Path) -> None:
    report = report_of(RecordedJob(make_job(SPEC), absent_steps={2: range(3)}), tmp_path)
    assert list(report.slowdown_by_step) == ["3", "4", "5", "6", "7"]
    assert "3 steps that not all ranks sampled and finished" in report.verdict.text


def test_a_rank_that_joined_when_half_was_over_does_not_cost_the_others_their_steps(tmp_path: Path) -> None:
    # Of another stage than the plant: of one worker nobody can tell whether it is slow or its stage is.
    report = report_of(RecordedJob(make_job(SPEC), absent_steps={4: range(5)}), tmp_path)
    assert report.step_count == 8
    assert "rank 4, which joined late (3 steps)" in report.verdict.text
    assert "5 of 6 workers" in report.verdict.text


def test_a_rank_that_was_killed(tmp_path: Path) -> None:
    job = RecordedJob(make_job(SPEC), absent_steps={5: (7,)})
    # The last step's spans are in the file, without its times and without an end.
    job.write(tmp_path)
    (path,) = tmp_path.glob("rank-00005*")
    path.write_bytes(path.read_bytes()[:-20])
    report = analyze(tmp_path)
    assert (report.verdict.cause, report.verdict.where.rank) == ("worker", PLANTED_RANK)
    assert any("rank 5" in line or "rank-00005" in line for line in report.fidelity.unfinished)


def test_steps_that_only_some_ranks_have(tmp_path: Path) -> None:
    report = report_of(RecordedJob(make_job(SPEC), absent_steps={0: (2,), 4: (5,)}), tmp_path)
    assert list(report.slowdown_by_step) == ["0", "1", "3", "4", "6", "7"]
    assert "2 steps that not all ranks sampled and finished" in report.verdict.text
