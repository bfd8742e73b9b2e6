"""A cause with a place is said with it: where, how much more than elsewhere, and what to do there."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from smon_rt.analysis import analyze
from smon_rt.analysis.report import Report
from smon_rt.synth import JobSpec, Pauses, SlowGroup, SlowLaunch, SlowLink, make_job
from smon_rt.synth.plants import AnyPlant
from tests.python.report_fixtures import make_cause, make_raw, make_trace

SPEC = JobSpec(dp=3, pp=4, microbatches=6, steps=8, noise=0.02, comm_noise=0.05, seed=5)


def report_of(name: str, detail: dict[str, float] | None = None, **place: Any) -> Report:
    """A job of dp 4, pp 4 where one cause gives back half a second of 2.1 s."""
    raw = make_raw()
    base = raw["step_time_s"]["base"]
    raw["causes"] = [make_cause(name, [value - 0.5 for value in base], detail=detail or {}, **place)]
    return Report.from_raw(raw, make_trace(raw))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("report", "cause", "scope", "action"),
    [
        (
            report_of("pp_communication", {"ratio": 20.4}, dp_rank=1, stage=0, peer_stage=1),
            "pp communication between rank 1 and rank 5 (dp 1, stage 0 to 1): 20.4x other links, 24 % of the step, in",
            ("link", "one link;"),
            "check the link between rank 1 and rank 5",
        ),
        (
            report_of("pp_communication", {"ratio": 3.0}, stage=2, peer_stage=3),
            "pp communication between stage 2 and stage 3: 3.0x other links",
            ("link", "the links between two stages (4 pipelines)"),
            "check the network between stages 2 and 3",
        ),
        (
            report_of("dp_communication", {"ratio": 4.0}, stage=2),
            "dp communication of stage 2: 4.0x the groups of other stages",
            ("link", "the data-parallel group of one stage (4 workers)"),
            "check the links among the ranks of stage 2",
        ),
        (
            report_of("gc", dp_rank=2, stage=1, workers=[[2, 1]]),
            "garbage collection on rank 6 (dp 2, stage 1): 24 % of the step",
            ("worker", "one worker;"),
            "look at what rank 6 allocates",
        ),
        (
            report_of("data_loading", {"ratio": 5.0}, dp_rank=2),
            "data loading of dp 2: 5.0x as long as elsewhere",
            ("dp_replica", "one dp rank (4 workers)"),
            "look at the loader, storage and CPUs of dp 2",
        ),
        (
            report_of("checkpoint"),
            "checkpoints: 24 % of the step",
            ("job", "the whole job"),
            "write checkpoints beside training",
        ),
        (
            report_of("host_launch_delay", dp_rank=0, stage=3, workers=[[0, 3]]),
            "host launch delay on rank 12 (dp 0, stage 3): 24 % of the step",
            ("worker", "one worker;"),
            "look at the host of rank 12",
        ),
    ],
    ids=lambda value: value.verdict.cause if isinstance(value, Report) else "",
)
def test_the_place_is_in_cause_scope_and_action(
    report: Report, cause: str, scope: tuple[str, str], action: str
) -> None:
    lines = dict(line.split(maxsplit=1) for line in report.verdict.text.splitlines())
    assert lines["cause"].startswith(cause)
    assert report.verdict.scope == scope[0]
    assert f"{lines['scope']};".startswith(scope[1])
    assert report.verdict.action.startswith(action)
    assert report.verdict.probable_cause


def test_a_slow_optimizer_is_no_slow_gpu() -> None:
    ratios = {"forward_compute_ratio": 1.0, "backward_compute_ratio": 1.01, "optimizer_ratio": 16.0}
    verdict = report_of("worker", ratios, dp_rank=1, stage=0, workers=[[1, 0]]).verdict
    assert "worker: rank 1 (dp 1, stage 0): optimizer 16.0x its peers" in verdict.text
    assert verdict.action == "look at the optimizer's step, memory and CPUs on rank 1"


def test_a_repair_may_beat_the_ideal_which_has_its_share_of_the_cause() -> None:
    raw = make_raw(removed={"worker": 1.5})
    report = Report.from_raw(raw, make_trace(raw))  # type: ignore[arg-type]
    assert "all of the loss: 2.10 → 0.6 s a step (the ideal, 1.00 s, has its share of it)" in report.verdict.text


def test_work_of_the_host_that_all_share_is_lost_although_it_is_no_slowdown() -> None:
    raw = make_raw(nodelay_s=1.02, delay_s=0.0)
    own = {"worker_s_per_step": 0.3}
    raw["causes"] = [make_cause("gc", [value - 0.3 for value in raw["step_time_s"]["base"]], detail=own)]
    verdict = Report.from_raw(raw, make_trace(raw)).verdict  # type: ignore[arg-type]
    assert "no straggler worth fixing" in verdict.text
    assert "but garbage collection takes 29 % of the step" in verdict.text
    assert "fixing it gives back all of the loss: 1.02 → 0.72 s a step" in verdict.text
    assert verdict.excess_s_per_step == pytest.approx(0.3)
    assert verdict.gpu_hours_lost == pytest.approx(0.3 * 20 * 16 / 3600)
    assert verdict.action.startswith("collect garbage less often")


@pytest.mark.parametrize(
    ("plant", "where"),
    [
        (SlowLink(1, 30.0, dp_rank=2), (2, 1, 2)),
        (SlowLink(1, 30.0), (None, 1, 2)),
        (SlowGroup(0, 6.0), (None, 0, None)),
        (Pauses("gc", 120.0, 0.8, dp_rank=1, stage=2), (1, 2, None)),
        (Pauses("gc", 120.0, every_steps=2), (None, None, None)),
        (Pauses("data_loading", 120.0, 0.8, dp_rank=1, stage=0), (1, 0, None)),
        (Pauses("data_loading", 90.0, 0.9), (None, None, None)),
        (SlowLaunch(6.0, dp_rank=2, stage=3), (2, 3, None)),
        (SlowLaunch(3.0), (None, None, None)),
    ],
    ids=str,
)
def test_a_planted_place_is_found_and_its_gain_is_right(
    tmp_path: Path, plant: AnyPlant, where: tuple[int | None, int | None, int | None]
) -> None:
    job = make_job(dataclasses.replace(SPEC, plants=(plant,)))
    job.write(tmp_path / "job")
    report = analyze(tmp_path / "job")
    found = report.verdict.where
    assert report.verdict.cause == plant.cause
    assert (found.dp_rank, found.stage, found.peer_stage) == where
    truth_s = job.truth["plants"][0]["gain_s_per_step"]
    assert report.verdict.gain_s_per_step == pytest.approx(truth_s, rel=0.03)
