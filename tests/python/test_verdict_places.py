"""A cause with a place is said with it: where, how much more than elsewhere, and what to do there."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from smon_rt.analysis import analyze
from smon_rt.analysis.report import Report, ReportOptions
from smon_rt.analysis.worker_words import Machines, group_words
from smon_rt.cli import run
from smon_rt.report.tables import cause_table
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
            "look at what is allocated on rank 6",
        ),
        (
            report_of("data_loading", {"ratio": 5.0}, dp_rank=2),
            "data loading of dp 2: 5.0x as long as elsewhere",
            ("dp_replica", "one dp rank (4 workers)"),
            "look at the loader, storage and CPUs of dp rank 2",
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
    assert "no straggler" not in verdict.text
    assert "but garbage collection takes 29 % of the step, 300 ms, which the slowdown does not count" in verdict.text
    assert "fixing it gives back 300 ms a step: 1.02 → 0.72 s a step" in verdict.text
    assert verdict.excess_s_per_step == pytest.approx(0.3)
    assert verdict.gpu_hours_lost == pytest.approx(0.3 * 20 * 16 / 3600)
    assert verdict.action.startswith("collect garbage less often")


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([2, 3, 6, 10, 11, 12, 15], "ranks 2–3, 6, 10–12 and 15"),
        ([8, 0, 1, 2, 3, 4, 5], "ranks 0–5 and 8"),
        (range(0, 32, 2), "ranks 0, 2, 4, 6, 8, 10 and 10 more"),
    ],
)
def test_many_workers_are_named_by_ranges(ranks: Sequence[int], words: str) -> None:
    workers = [(0, rank) for rank in ranks]
    machines = Machines({f"0,{rank}": rank for rank in range(32)})
    assert group_words(workers, machines, pp=32) == f"{words} (dp 0)"
    unknown = group_words(workers, Machines(), pp=32)
    assert unknown.startswith("(dp 0, stage ")
    assert unknown.endswith(f" and {len(ranks) - 6} more")


@pytest.mark.parametrize(
    ("name", "cause", "action"),
    [
        ("worker", "workers: ", "take the machines of dp ranks 1 and 3 out (ranks 1, 3, 5, 7, 9, 11, 13 and 15), or"),
        ("gc", "garbage collection on ", "look at what is allocated on dp ranks 1 and 3"),
    ],
)
def test_whole_dp_ranks_are_called_that(name: str, cause: str, action: str) -> None:
    workers = [[dp_rank, stage] for stage in (2, 0, 1, 3) for dp_rank in (3, 1)]
    verdict = report_of(name, dp_rank=3, stage=2, workers=workers).verdict
    lines = dict(line.split(maxsplit=1) for line in verdict.text.splitlines())
    assert lines["cause"].startswith(f"{cause}all of dp ranks 1 and 3 (ranks 1, 3, 5, 7, 9, 11, 13 and 15): ")
    assert lines["scope"].startswith("2 dp ranks (8 workers)")
    assert verdict.scope == "dp_replica"
    assert verdict.action.startswith(action)


def test_work_of_the_host_on_several_workers_has_their_places() -> None:
    report = report_of("data_loading", {"ratio": 2813.1}, dp_rank=2, stage=1, workers=[[2, 1], [0, 0]])
    lines = dict(line.split(maxsplit=1) for line in report.verdict.text.splitlines())
    assert lines["cause"].startswith("data loading on ranks 0 and 6: next to none elsewhere, 24 % of the step, in 20")
    assert lines["scope"].startswith("2 of 16 workers together")
    assert report.verdict.action == (
        "look at the loader, storage and CPUs of ranks 0 and 6, or load its data further ahead"
    )


def test_several_links_are_named_by_their_ends() -> None:
    links = [[2, 2, 3], [0, 0, 1], [9, 1, 2]]
    report = report_of("pp_communication", {"ratio": 312.4}, dp_rank=2, stage=2, peer_stage=3, links=links)
    lines = dict(line.split(maxsplit=1) for line in report.verdict.text.splitlines())
    named = "ranks 10 and 14, ranks 0 and 4, and stages 1 and 2 of dp 9"
    assert lines["cause"].startswith(f"pp communication between {named}: 312x other links, 24 % of the step, in 20")
    assert (report.verdict.scope, lines["scope"].partition(";")[0]) == ("link", "3 links together")
    assert report.verdict.action == f"check the links between {named} (NICs, cables, switch ports)"
    assert cause_table(report).rows[0][1] == f"links between {named}"


@pytest.mark.parametrize(
    ("stage", "layers", "action"),
    [
        (3, (1, 1, 1, 1), "use fewer stages: stage 3 has one layer, which cannot move, or speed up the loss"),
        (0, (1, 1, 1, 1), "use fewer stages: stage 0 has one layer, which cannot move"),
        (3, (1, 1, 1, 2), "move layers from stage 3"),
        (3, None, "move layers from stage 3"),
    ],
)
def test_the_only_layer_of_a_stage_cannot_move(stage: int, layers: tuple[int, ...] | None, action: str) -> None:
    raw = make_raw(worker=(0, stage), removed={"stage": 0.9})
    report = Report.from_raw(raw, make_trace(raw), ReportOptions(layers=layers))  # type: ignore[arg-type]
    assert report.verdict.cause == "stage"
    assert report.verdict.action.startswith(action)


def test_late_data_of_a_dp_rank_is_no_all_clear(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plants = tuple(Pauses("data_loading", 100.0, 0.7, dp_rank=1, stage=stage) for stage in range(2))
    spec = JobSpec(dp=4, pp=2, microbatches=6, steps=12, noise=0.02, plants=plants, seed=9)
    make_job(spec).write(tmp_path / "job")
    assert run(["analyze", str(tmp_path / "job"), "--fail-above", "1.1", "--quiet"]) == 1
    assert run([str(tmp_path / "job"), "--fail-above", "1.1", "--quiet"]) == 1
    for line in capsys.readouterr().out.splitlines():
        assert "nothing is lost" not in line
        assert "but data loading takes " in line
    assert run(["analyze", str(tmp_path / "job"), "--fail-above", "1.6", "--quiet"]) == 0


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


def turns(cause: Literal["gc", "data_loading"], *places: tuple[int, int]) -> tuple[AnyPlant, ...]:
    return tuple(Pauses(cause, 100.0, 0.6, dp_rank=dp_rank, stage=stage) for dp_rank, stage in places)


@pytest.mark.parametrize(
    ("plants", "workers", "links"),
    [
        (turns("gc", (0, 0), (2, 1)), [[0, 0], [2, 1]], []),
        (turns("data_loading", (0, 0), (3, 1)), [[0, 0], [3, 1]], []),
        ((SlowLaunch(6.0, 0, 0), SlowLaunch(6.0, 2, 1)), [[0, 0], [2, 1]], []),
        ((SlowLink(0, 30.0, dp_rank=0), SlowLink(2, 30.0, dp_rank=2)), [], [(0, 0, 1), (2, 2, 3)]),
        ((SlowLink(1, 30.0, dp_rank=0), SlowLink(1, 30.0, dp_rank=2)), [], [(0, 1, 2), (2, 1, 2)]),
    ],
    ids=lambda value: str(value[0]) if isinstance(value, tuple) else "",
)
def test_two_planted_places_are_both_found_and_fixed_together(
    tmp_path: Path, plants: tuple[AnyPlant, ...], workers: list[list[int]], links: list[tuple[int, int, int]]
) -> None:
    job = make_job(dataclasses.replace(SPEC, dp=4, steps=20, plants=plants, seed=8122))
    job.write(tmp_path / "job")
    report = analyze(tmp_path / "job")
    cause = next(each for each in report.causes if each.cause == plants[0].cause)
    assert report.verdict.cause == cause.cause
    assert sorted(cause.detail.get("workers", [])) == workers
    assert sorted(cause.links) == links
    [pair] = job.truth["pairs"]
    assert report.verdict.gain_s_per_step == pytest.approx(pair["gain_s_per_step"], rel=0.05)
    answer = report.what_if([f"cause={cause.cause}"])
    assert answer.gain_s_per_step == pytest.approx(cause.gain_s_per_step, rel=1e-6)
