"""The verdict names what the metrics show, and nothing when they show nothing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from smon_rt.analysis.report import Report, ReportOptions
from smon_rt.analysis.worker_words import Machines, group_words
from tests.python.report_fixtures import make_cause, make_raw, make_trace

LABELS = ["slowdown", "cause", "scope", "gain", "cost", "action", "trust"]


def report_of(raw: dict[str, Any], tp: int = 1, *, steps_chosen: bool = False) -> Report:
    options = ReportOptions(steps_chosen=steps_chosen)
    return Report.from_raw(raw, make_trace(raw, tp=tp), options)  # type: ignore[arg-type]


def lines_of(report: Report) -> dict[str, str]:
    lines = dict(line.split(maxsplit=1) for line in report.verdict.text.splitlines())
    assert list(lines) == LABELS
    return lines


def test_a_job_faster_than_its_ideal_is_not_called_healthy() -> None:
    """A few slow ops draw the means up: the ideal is then above what was recorded."""
    report = report_of(make_raw(nodelay_s=0.9, delay_s=0.01))
    lines = lines_of(report)
    assert report.verdict.cause == "none"
    assert lines["slowdown"].startswith("0.90 (0.89–0.91): below 1, so it tells nothing")
    assert lines["gain"] == "no single repair gives back 3 % of the step"
    assert lines["action"] == "no single repair helps: see the table by kind, and record more steps"


def test_a_cause_with_a_sure_gain_is_named_although_the_ideal_is_slower_than_the_job() -> None:
    report = report_of(make_raw(nodelay_s=0.9, delay_s=0.0, removed={"pp_communication": 0.09}))
    lines = lines_of(report)
    assert report.verdict.cause == "pp_communication"
    assert lines["slowdown"].endswith(
        "what is slow is in the ideal's means, and pp communication takes 10 % of the step"
    )
    assert lines["gain"].startswith("fixing it gives back all of the loss: 900 → 810 ms a step")
    assert report.verdict.excess_s_per_step == pytest.approx(0.09)


@pytest.mark.parametrize("name", ["data_loading", "gc", "sequence_length"])
def test_a_single_process_has_its_causes_although_its_ideal_is_its_mean(name: str) -> None:
    """A hair of rounding puts the ideal of one worker on either side of what was recorded."""
    report = report_of(make_raw(dp=1, pp=1, nodelay_s=1 - 1e-12, delay_s=0.0, removed={name: 0.3}))
    assert report.verdict.cause == name
    assert "none" not in report.verdict.text


def test_a_single_process_has_no_peers_and_that_is_said() -> None:
    raw = make_raw(dp=1, pp=1, nodelay_s=1.0, delay_s=0.0, removed={"noise": 0.7})
    raw["slowdown"] |= {"low": 0.27, "high": 1.97}  # how its steps vary, which is no slowdown
    lines = lines_of(report_of(raw))
    assert lines["slowdown"] == "1.00: one worker, which has no peers and waits for nobody"
    assert lines["cause"].startswith("none: there is nobody to compare it with")


def test_one_step_sends_nobody_to_a_machine_yet() -> None:
    raw = make_raw(steps=[1], worker=(1, 2), removed={"worker": 0.98}, worker_ratio=2.5)
    assert lines_of(report_of(raw))["action"].startswith("record more steps first: one may be chance; then take rank ")


def test_a_slow_worker_is_named_with_its_peers_and_its_price() -> None:
    report = report_of(make_raw(worker=(1, 2), removed={"worker": 0.98}, m_w_exact=0.98, worker_ratio=2.5), tp=4)
    verdict, lines = report.verdict, lines_of(report)
    assert (verdict.cause, verdict.scope, verdict.time_kind, verdict.transient) == (
        "worker",
        "worker",
        "compute",
        False,
    )
    assert (verdict.where.rank, verdict.where.dp_rank, verdict.where.stage) == (9, 1, 2)
    assert lines["slowdown"] == "2.00 (1.99–2.01): 50 % of 64 GPUs' time is lost, 1.00 s a step"
    assert lines["cause"].startswith(
        "worker: rank 9 (dp 1, stage 2): forward 2.5x, backward 2.5x its peers, in 20 of 20"
    )
    assert lines["scope"].startswith("one worker (its 4 tp members move together)")
    assert lines["gain"] == "fixing it gives back all of the loss: 2.10 → 1.12 s a step (ideal 1.00 s)"
    assert verdict.gpu_hours_lost == pytest.approx(1.0 * 20 * 64 / 3600)
    assert verdict.cost == pytest.approx(2 * verdict.gpu_hours_lost)
    assert lines["cost"].endswith(f"{24 * 64 * 0.5:.0f} GPU-hours a day at this rate")
    assert "take rank 9's machine out" in lines["action"]
    assert lines["trust"].startswith("20 of 20 steps, 16 of 16 workers, replay error 0.7 % (worst 2.0 %)")


def test_the_largest_gain_is_named_whatever_the_metrics_of_the_paper_say() -> None:
    raw = make_raw(removed={"worker": 0.6, "pp_communication": 0.7}, m_w=0.9, m_w_exact=0.9, m_s=0.9)
    assert report_of(raw).verdict.cause == "pp_communication"


def test_a_stage_that_loses_more_than_one_of_its_workers_is_named() -> None:
    raw = make_raw(worker=(0, 3), removed={"worker": 0.3, "stage": 0.95}, m_w=0.5, m_s=0.95)
    report = report_of(raw)
    assert (report.verdict.cause, report.verdict.where.stage, report.verdict.scope) == ("stage", 3, "stage")
    assert "it also computes the loss" in lines_of(report)["action"]


def test_a_middle_stage_is_named_by_its_gain() -> None:
    report = report_of(make_raw(worker=(0, 1), removed={"stage": 0.6}))
    assert (report.verdict.cause, report.verdict.where.stage) == ("stage", 1)
    assert "it also computes the loss" not in report.verdict.text


def test_with_one_dp_rank_a_worker_is_compared_with_the_other_stages() -> None:
    report = report_of(make_raw(dp=1, worker=(0, 1), removed={"worker": 0.9}))
    assert report.verdict.cause == "worker"
    assert "2.5x other stages" in lines_of(report)["cause"]


def test_several_slow_workers_are_named_together() -> None:
    raw = make_raw(dp=16, pp=16, removed={"worker": 0.9})
    worker = next(found for found in raw["causes"] if found["cause"] == "worker")
    worker["workers"] = [[rank, 2] for rank in range(1, 9)]
    report = report_of(raw)
    assert report.verdict.gain_s_per_step == pytest.approx(0.9)
    assert lines_of(report)["cause"].startswith(
        "workers: ranks 33–40 (stage 2): forward 2.5x, backward 2.5x their peers, in 20"
    )
    assert lines_of(report)["scope"].startswith("the slowest 8 of 256 workers together")


@pytest.mark.parametrize(
    ("workers", "place"),
    [
        ([[2, 1], [1, 0]], "workers: ranks 1 and 6: "),
        ([[2, 1], [1, 1], [3, 1]], "workers: ranks 5, 6 and 7 (stage 1): "),
        ([[2, 3], [2, 1]], "workers: ranks 6 and 14 (dp 2): "),
        ([[9, 9], [2, 1]], "workers: (dp 9, stage 9) and (dp 2, stage 1): "),
    ],
)
def test_all_workers_of_a_group_are_named(workers: list[list[int]], place: str) -> None:
    raw = make_raw(worker=(2, 1), removed={"worker": 0.9})
    next(found for found in raw["causes"] if found["cause"] == "worker")["workers"] = workers
    lines = lines_of(report_of(raw))
    assert lines["cause"].startswith(place)
    ranks = place.removeprefix("workers: ").removesuffix(": ").partition(" (s")[0].removesuffix(" (dp 2)")
    assert lines["action"] == f"take the machines of {ranks} out, or check their GPUs"


@pytest.mark.parametrize("stage", [-1, 2])
def test_all_workers_of_a_dp_rank_are_a_replica(stage: int) -> None:
    raw = make_raw(worker=(1, 2), removed={"worker": 0.9})
    worker = next(found for found in raw["causes"] if found["cause"] == "worker")
    worker |= {"stage": stage, "workers": [] if stage < 0 else [[1, 2], [1, 0], [1, 3], [1, 1]]}
    report = report_of(raw)
    lines = lines_of(report)
    assert report.verdict.scope == "dp_replica"
    assert report.causes[0].detail["slowdown"] == pytest.approx(2.0)
    assert lines["cause"].startswith(
        "workers: all of dp rank 1 (ranks 1, 5, 9 and 13): forward 2.5x, backward 2.5x their"
    )
    assert lines["scope"].startswith("one dp rank (4 workers);")
    assert lines["action"] == "take the machines of dp rank 1 out (ranks 1, 5, 9 and 13), or check their GPUs"


def test_the_hosts_of_a_group_are_named() -> None:
    workers = [(rank, 0) for rank in range(4)]
    machines = Machines({f"{rank},0": rank for rank in range(4)}, {"0,0": "node1", "1,0": "node1", "3,0": "node2"})
    assert group_words(workers, machines, pp=2) == "ranks 0, 1, 2 and 3 (stage 0) on node1 and node2"


def test_one_worker_a_stage_may_be_a_slow_gpu_as_well_as_more_work() -> None:
    alone = lines_of(report_of(make_raw(dp=1, worker=(0, 3), removed={"stage": 0.9})))["action"]
    assert alone.endswith("(it also computes the loss) to the other stages, or check rank 3's GPU")
    assert "GPU" not in lines_of(report_of(make_raw(dp=2, worker=(0, 3), removed={"stage": 0.9})))["action"]


def test_a_large_cause_in_too_few_steps_is_told_and_contradicted_nowhere() -> None:
    raw = make_raw(nodelay_s=1.01, delay_s=0.0)
    raw["causes"] = [make_cause("gc", [1.01 - (1.0 if index in (4, 5) else 0.0) for index in range(20)])]
    report = report_of(raw)
    lines = lines_of(report)
    assert report.verdict.cause == "none"
    assert report.causes[0].gain_s_per_step == pytest.approx(0.1)
    assert lines["cause"] == "none is sure: garbage collection is 10 % of the step, but in 2 of 20 steps only"
    assert lines["scope"] == "the whole job; gc gives back 100 ms a step"
    assert lines["gain"] == "100 ms a step on average, from too few steps to be sure"
    assert lines["action"] == "record more steps, to see whether garbage collection stays"


@pytest.mark.parametrize(
    ("name", "detail", "scope"),
    [
        ("gc", {"worker_s_per_step": 0.05}, "no single place: several workers, or all;"),
        ("gc", {"worker_s_per_step": 0.4}, "the whole job;"),
        ("host_launch_delay", {}, "no single place: several workers, or all;"),
        ("pp_communication", {}, "no single link;"),
        ("dp_communication", {}, "no single group;"),
    ],
)
def test_what_has_no_single_place_is_not_called_the_whole_job(name: str, detail: dict[str, float], scope: str) -> None:
    raw = make_raw(delay_s=0.0)
    raw["causes"] = [make_cause(name, [1.6] * 20, detail=detail), make_cause("gc", [2.0] * 20)]
    assert lines_of(report_of(raw))["scope"].startswith(scope.removesuffix(";"))


def test_sequence_lengths_are_named_by_how_much_they_vary() -> None:
    report = report_of(make_raw(removed={"sequence_length": 0.7, "gc": 0.6}))
    assert report.verdict.cause == "sequence_length"
    assert "vary by 21 %" in lines_of(report)["cause"]


@pytest.mark.parametrize("name", ["gc", "pp_communication", "dp_communication"])
def test_else_the_largest_gain_is_named(name: str) -> None:
    verdict = report_of(make_raw(removed={name: 0.4}, delay_s=0.2)).verdict
    assert verdict.cause == name
    assert verdict.gain_s_per_step == pytest.approx(0.4)


def test_launch_delays_are_named_and_priced() -> None:
    report = report_of(make_raw(nodelay_s=1.02, delay_s=1.0))
    lines = lines_of(report)
    assert (report.verdict.cause, report.verdict.time_kind) == ("host_launch_delay", "host")
    assert lines["slowdown"].endswith(
        "but launch delays take 50 % of the step, 1.00 s, which the slowdown does not count"
    )
    assert report.verdict.gpu_hours_lost == pytest.approx(1.02 * 20 * 16 / 3600)


def test_launch_delays_larger_than_a_dominant_worker_come_first() -> None:
    raw = make_raw(worker=(1, 2), removed={"worker": 0.98}, m_w_exact=0.98, worker_ratio=2.5)
    assert report_of(raw).verdict.cause == "worker"
    report = report_of(make_raw(worker=(1, 2), removed={"worker": 0.98}, m_w_exact=0.98, delay_s=2.1))
    assert report.verdict.cause == "host_launch_delay"
    assert "a step, and launch delays take 51 % of the step" in lines_of(report)["slowdown"]
    assert [cause.cause for cause in report.causes][:2] == ["host_launch_delay", "worker"]


def test_little_lost_changes_the_headline_and_hides_no_cause() -> None:
    report = report_of(make_raw(nodelay_s=1.08, delay_s=0.0, removed={"worker": 0.07}, m_w=0.9, m_w_exact=0.9))
    assert "no straggler worth fixing" in lines_of(report)["slowdown"]
    assert report.verdict.cause == "worker"
    assert report.causes[0].cause == "worker"


def test_noise_is_never_named() -> None:
    report = report_of(make_raw(delay_s=0.0, removed={"noise": 0.9}))
    assert report.verdict.cause == "none"
    assert lines_of(report)["cause"] == "none stands out: noise, which no repair gives back, is 45.0 % of the step"


def test_a_gain_that_is_not_surely_above_noise_is_not_named() -> None:
    raw = make_raw(delay_s=0.0)
    raw["causes"] = [make_cause("gc", [2.0 - (1.5 if index == 4 else 0.0) for index in range(20)])]
    report = report_of(raw)
    assert report.causes[0].cause == "gc"
    assert report.verdict.cause == "none"


def test_a_cause_in_few_steps_is_transient() -> None:
    raw = make_raw(delay_s=0.0)
    raw["causes"] = [make_cause("gc", [2.0 - (0.9 if index % 5 == 0 else 0.0) for index in range(20)])]
    verdict = report_of(raw).verdict
    assert (verdict.cause, verdict.transient) == ("gc", True)
    assert verdict.persistence_ratio == pytest.approx(0.2)
    assert "in 4 of 20 steps" in verdict.text


@pytest.mark.parametrize(
    "raw",
    [
        make_raw(steps=[1], nodelay_s=3.0, removed={"worker": 2.0}, m_w=1.0),
        make_raw(dp=1, pp=1, steps=[1]),
        make_raw(nodelay_s=1.0, delay_s=0.0, m_w=math.nan, m_w_exact=math.nan, m_s=math.nan),
        make_raw(nodelay_s=0.0, delay_s=0.0, m_w=math.nan),
        make_raw(nodelay_s=0.9, delay_s=-0.05, removed={"worker": -0.2, "gc": -0.1}),
        make_raw(worker_ratio=math.nan, removed={"worker": 0.9}, m_w=0.9),
        make_raw(nodelay_s=2e-5, delay_s=1e-6),
        make_raw(nodelay_s=5e4, delay_s=10.0, removed={"stage": 4e4}),
    ],
    ids=["one step", "one worker", "nothing lost", "no time", "negative", "no compute", "microseconds", "hours"],
)
def test_odd_jobs_get_a_sane_text(raw: dict[str, Any]) -> None:
    for steps_chosen in (False, True):
        report = report_of(raw, steps_chosen=steps_chosen)
        lines_of(report)
        words = report.verdict.text.lower().replace("(", " ").replace(",", " ").split()
        assert not {"nan", "inf", "-inf", "none"} & set(words) - ({"none"} if report.verdict.cause == "none" else set())
        assert report.verdict.gpu_hours_lost >= 0
        assert report.verdict.excess_s_per_step >= 0


def test_chosen_steps_are_not_called_all_steps() -> None:
    assert lines_of(report_of(make_raw(), steps_chosen=True))["trust"].startswith("20 steps, as chosen")


def test_late_dependencies_that_matter_are_in_the_trust_line() -> None:
    raw = make_raw()
    raw["fidelity"]["early_starts"] = {"count": 12, "worst_s": 1e-4}
    assert "dependencies" not in lines_of(report_of(raw))["trust"]
    raw["fidelity"]["early_starts"]["worst_s"] = 0.02
    assert "12 ops before their dependencies' end (worst 20.0 ms)" in lines_of(report_of(raw))["trust"]


def test_the_slow_worker_of_the_published_trace_is_found(shared_traces: Path) -> None:
    from smon_rt.analysis import analyze

    report = analyze(shared_traces / "trace-AR.parquet")
    lines = lines_of(report)
    assert lines["slowdown"].startswith("1.97 (1.9")
    assert lines["slowdown"].endswith("): 49 % of 64 GPUs' time is lost, 22.9 s a step")
    assert lines["cause"].startswith(
        "worker: rank 0 (dp 0, stage 0): forward 2.5x, backward 2.3x its peers, in 44 of 44"
    )
    assert lines["gain"].startswith("fixing it gives back all of the loss: 46.6 → ")
    assert lines["cost"] == (
        "17.9 GPU-hours, $35.75 at $2 per GPU-hour in these 44 steps; 758 GPU-hours a day at this rate"
    )
    assert lines["trust"].startswith("44 of 44 steps, 16 of 16 workers, replay error 0.7 % (worst 2.0 %)")


def test_the_slow_last_stage_of_the_published_trace_is_found(shared_traces: Path) -> None:
    from smon_rt.analysis import analyze

    report = analyze(shared_traces / "trace-ST.parquet")
    assert (report.verdict.cause, report.verdict.where.stage) == ("stage", 3)
    assert report.verdict.text.startswith("slowdown 1.18")


@pytest.mark.parametrize(("error", "is_doubted"), [(0.02, False), (0.12, True)])
def test_a_large_replay_error_casts_doubt_on_the_cause(error: float, is_doubted: bool) -> None:
    raw = make_raw(removed={"worker": 0.9}, m_w=0.9)
    raw["fidelity"]["simulation_error_mean"] = error
    lines = lines_of(report_of(raw))
    assert ("too large to trust" in lines["trust"]) == is_doubted
    assert lines["action"].startswith("check clocks and gaps first: the replay is too far off; then ") == is_doubted


@pytest.mark.parametrize(("unexplained", "is_doubted"), [(0.004, False), (0.12, True)])
def test_gaps_of_the_host_are_no_replay_error_and_are_told_apart(unexplained: float, is_doubted: bool) -> None:
    raw = make_raw(removed={"worker": 0.9}, m_w=0.9)
    raw["fidelity"]["simulation_error_mean"] = 0.14
    raw["fidelity"] |= {"unexplained_error_mean": unexplained, "unexplained_error_worst": 2 * unexplained}
    trust = lines_of(report_of(raw))["trust"]
    words = f"with the host's gaps {100 * unexplained:.1f} % (worst {200 * unexplained:.1f} %)"
    assert f"replay error 14.0 % (worst 2.0 %), {words}" in trust
    assert ("too large to trust" in trust) == is_doubted


@pytest.mark.parametrize(("unexplained", "is_doubted"), [(None, False), (0.004, False), (0.15, True)])
def test_late_launches_as_the_cause_excuse_only_an_error_that_gaps_may_be(
    unexplained: float | None, is_doubted: bool
) -> None:
    raw = make_raw(nodelay_s=1.2, delay_s=0.4)
    raw["fidelity"] |= {"simulation_error_mean": 0.16, "unexplained_error_mean": unexplained}
    report = report_of(raw)
    assert report.verdict.cause == "host_launch_delay"
    assert ("too large to trust" in lines_of(report)["trust"]) == is_doubted


def test_where_the_replay_is_far_off_no_cause_is_told_and_nothing_is_called_healthy() -> None:
    raw = make_raw(delay_s=0.0, removed={"gc": 0.05})
    raw["fidelity"]["simulation_error_mean"] = 1.007
    lines = lines_of(report_of(raw))
    assert lines["cause"].startswith("none can be told: the replay does not meet the recording")
    assert lines["action"].startswith("check that clocks agree and every op is recorded")


def test_a_job_without_a_pipeline_has_no_links_between_stages() -> None:
    raw = make_raw(pp=1, removed={"pp_communication": 0.4}, delay_s=0.0)
    report = report_of(raw)
    assert report.verdict.cause == "none"
    assert "pp_communication" not in [cause.cause for cause in report.causes]
