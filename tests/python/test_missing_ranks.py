"""Ranks that were not recorded: nothing of a healthy job is blamed for them, and waits for a slow one are told."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from smon_rt.analysis import Report, analyze
from smon_rt.analysis.missing_words import together
from smon_rt.analysis.worker_words import ranges_words
from smon_rt.synth import JobSpec, Pauses, Plant, SlowGroup, SlowLink, make_job
from smon_rt.synth.plants import AnyPlant

#: Ranks 0 to 3 are the first stage of the four dp ranks.
SPEC = JobSpec(dp=4, pp=4, microbatches=8, steps=12, noise=0.02, comm_noise=0.05, seed=41)
OTHER_HOST = tuple(range(8, 16))


def report_of(folder: Path, missing: tuple[int, ...], *plants: AnyPlant, spec: JobSpec = SPEC) -> tuple[Report, float]:
    """The report without these ranks, and what the plant costs of a step, in seconds; 0 without one."""
    job = make_job(dataclasses.replace(spec, missing_ranks=missing, plants=plants))
    job.write(folder)
    facts = job.truth["plants"]
    return analyze(folder), facts[0]["gain_s_per_step"] if facts else 0.0


@pytest.mark.parametrize(
    "missing", [(6,), (0, 1, 2, 3), (12, 13, 14, 15), (0, 4, 8, 12), OTHER_HOST, tuple(range(8)), tuple(range(1, 16))]
)
def test_nothing_of_a_healthy_job_is_blamed_for_ranks_that_are_missing(
    tmp_path: Path, missing: tuple[int, ...]
) -> None:
    report, _ = report_of(tmp_path, missing, spec=dataclasses.replace(SPEC, noise=0.05))
    assert report.verdict.cause == "none"
    assert report.verdict.action == "nothing to repair"
    assert max(cause.gain_s_per_step for cause in report.causes) < 0.03 * report.mean_step_time_s.base
    assert report.fidelity.wait_for_missing_s_per_step == pytest.approx(0, abs=0.01 * report.mean_step_time_s.base)
    assert f"{ranges_words(missing)} missing" in report.verdict.text


@pytest.mark.parametrize(
    ("missing", "plant"),
    [
        ((1,), Plant(1, 1.6, dp_rank=1)),
        ((9,), Plant(1, 1.6, dp_rank=1)),
        ((12,), SlowLink(1, 30.0, 1)),
        ((1,), SlowGroup(0, 6.0)),
        ((3,), Pauses("data_loading", 100.0, 0.7, dp_rank=1, stage=0)),
        (OTHER_HOST, Plant(1, 1.6, dp_rank=1)),
    ],
    ids=str,
)
def test_a_cause_of_recorded_ranks_has_the_gain_that_it_has_with_all_of_them(
    tmp_path: Path, missing: tuple[int, ...], plant: AnyPlant
) -> None:
    report, gain_s = report_of(tmp_path, missing, plant)
    assert report.verdict.gain_s_per_step == pytest.approx(gain_s, rel=0.03)
    assert (report.verdict.where.dp_rank, report.verdict.where.stage) == (
        getattr(plant, "dp_rank", None),
        getattr(plant, "stage", None),
    )


def test_the_wait_for_a_slow_rank_that_was_not_recorded_is_told(tmp_path: Path) -> None:
    report, gain_s = report_of(tmp_path, (5,), Plant(1, 1.6, dp_rank=1))
    assert report.verdict.cause == "none"
    assert report.fidelity.wait_for_missing_s_per_step == pytest.approx(gain_s, rel=0.05)
    part = f"{100 * gain_s / report.mean_step_time_s.base:.0f} % of the step"
    lines = report.verdict.text.splitlines()
    assert lines[1] == f"cause    none among the recorded ranks: they wait {part} for rank 5, not recorded"
    assert lines[5] == "action   look at rank 5, or record all ranks and analyse again: the cause may be there"
    assert f"recorded ranks wait {part} for rank 5, which is not recorded: the cause may be there" in lines[6]


def test_where_all_recorded_ranks_wait_alike_there_is_no_all_clear(tmp_path: Path) -> None:
    spec = dataclasses.replace(SPEC, dp=16, pp=1)
    report, gain_s = report_of(tmp_path, OTHER_HOST, Plant(0, 1.4, dp_rank=12), spec=spec)
    assert report.slowdown.value < 1.1
    assert report.fidelity.wait_for_missing_s_per_step == pytest.approx(gain_s, rel=0.1)
    assert "but recorded ranks wait" in report.verdict.text.splitlines()[0]
    assert "nothing to repair" not in report.verdict.text


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ((), ""),
        ((5,), "rank 5"),
        ((5, 6), "ranks 5–6"),
        ((0, 2, 8, 9, 10), "ranks 0, 2 and 8–10"),
        (tuple(range(0, 20, 2)), "ranks 0, 2, 4, 6, 8, 10, …"),
    ],
)
def test_ranks_are_named_by_ranges(ranks: tuple[int, ...], words: str) -> None:
    assert ranges_words(ranks) == words


def test_what_is_said_of_several_ranks_is_said_once() -> None:
    killed, cut = "its process was killed", "its file is cut"
    lines = [
        "unreadable.smon: not a trace",
        f"rank 0: {killed}",
        f"rank 3: {cut}",
        f"rank 2: {killed}",
        f"rank 1: {killed}",
    ]
    assert together(lines) == ["unreadable.smon: not a trace", f"ranks 0–2, each: {killed}", f"rank 3: {cut}"]
