"""The report says what the engine found: keys, units, intervals, and never a number that JSON does not have."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from smon_rt._analysis import bootstrap_mean
from smon_rt.analysis.report import Report, ReportOptions
from smon_rt.report.json_output import json_schema
from tests.python.report_fixtures import IDEAL_S, make_cause, make_raw, make_trace

DOCS = Path(__file__).resolve().parents[2] / "docs" / "report.md"


def report_of(raw: dict[str, Any], **trace: Any) -> Report:
    return Report.from_raw(raw, make_trace(raw, **trace))  # type: ignore[arg-type]


def validate(report: Report) -> None:
    jsonschema.validate(json.loads(report.to_json()), json_schema(), cls=jsonschema.Draft202012Validator)


def test_the_schema_itself_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(json_schema())


@pytest.mark.parametrize(
    "raw",
    [
        make_raw(),
        make_raw(dp=1, pp=1, steps=[7]),
        make_raw(dp=1, pp=4, removed={"worker": 0.9}),
        make_raw(dp=12, pp=1, nodelay_s=1.0, delay_s=0.0),
        make_raw(nodelay_s=0.0, delay_s=0.0),
        make_raw(m_w=math.nan, m_w_exact=math.nan, m_s=math.inf, correlation=math.nan, forward_cv=math.nan),
    ],
    ids=["usual", "one step of one worker", "one dp rank", "nothing lost", "steps without time", "nan everywhere"],
)
def test_every_report_fits_the_schema_and_has_no_nan(raw: dict[str, Any]) -> None:
    report = report_of(raw)
    validate(report)
    for bad in ("nan", "inf"):
        assert bad not in report.verdict.text.lower().split()
        assert bad not in report.to_json().lower().replace("info", "")


def test_attributes_are_the_keys_of_the_schema_and_the_page() -> None:
    names = [field.name for field in dataclasses.fields(Report) if field.name != "source"]
    assert names == list(json_schema()["properties"])
    text = DOCS.read_text(encoding="utf-8")
    assert [name for name in names if f"`{name}" not in text] == []


@pytest.mark.parametrize(("dp", "cp", "is_shown"), [(1, 1, False), (1, 2, True), (2, 1, True)])
def test_groups_of_one_are_no_communication(dp: int, cp: int, is_shown: bool) -> None:
    raw = make_raw(dp=dp, pp=1, removed={"dp_communication": 0.9})
    trace = make_trace(raw)
    trace.job = dataclasses.replace(trace.job, cp_size=cp, world_size=dp * cp)
    report = Report.from_raw(raw, trace)  # type: ignore[arg-type]
    assert ("dp_communication" in {cause.cause for cause in report.causes}) == is_shown
    assert ("dp communication" in report.verdict.text) == is_shown


def test_ratios_come_from_step_times() -> None:
    report = report_of(make_raw(nodelay_s=2.0, delay_s=0.5))
    assert report.slowdown.value == pytest.approx(2.0)
    assert report.waste_ratio == pytest.approx(0.5)
    assert report.utilization_ratio == pytest.approx(IDEAL_S / 2.5)
    assert (report.mean_step_time_s.base, report.mean_step_time_s.ideal) == pytest.approx((2.5, IDEAL_S))
    assert report.step_count == 20
    assert set(report.step_time_s_by_step.nodelay) == {str(step) for step in range(20)}


def test_maps_are_in_the_order_of_their_numbers() -> None:
    raw = make_raw(dp=12)
    by = raw["slowdown_by"]["dp_rank"]
    raw["slowdown_by"]["dp_rank"] = {key: by[key] for key in sorted(by)}
    assert list(report_of(raw).slowdown_by_dp_rank) == [str(rank) for rank in range(12)]


def test_workers_are_named_by_dp_rank_and_stage() -> None:
    report = report_of(make_raw(dp=2, pp=3, worker=(1, 2), steps=[5, 6]))
    assert list(report.slowdown_by_worker) == ["0,0", "0,1", "0,2", "1,0", "1,1", "1,2"]
    assert report.slowdown_by_worker["1,2"] == pytest.approx(2.0)
    assert report.slowdown_by_worker_by_step["1,2"] == {"5": pytest.approx(2.0), "6": pytest.approx(2.0)}
    assert report.worker_rank["1,2"] == 5


def test_causes_are_sorted_by_what_they_give_back() -> None:
    removed = {"worker": 0.2, "stage": 0.3, "pp_communication": 0.4, "gc": -0.1}
    causes = report_of(make_raw(removed=removed, delay_s=0.1)).causes
    gains = {cause.cause: cause.gain_s_per_step for cause in causes}
    assert list(gains)[:2] == ["pp_communication", "stage"]
    expected = {**removed, "dp_communication": 0.0, "noise": 0.0, "host_launch_delay": 0.1}
    assert gains == pytest.approx(expected)
    shares = {cause.cause: cause.share for cause in causes}
    assert shares["pp_communication"] == pytest.approx(0.4 / 1.1)
    assert shares["gc"] == pytest.approx(-0.1 / 1.1)


def test_a_gain_in_some_steps_persists_in_those() -> None:
    raw = make_raw(steps=range(20))
    step_s = [value - (0.4 if index % 4 == 0 else 0.0) for index, value in enumerate(raw["step_time_s"]["base"])]
    raw["causes"] = [make_cause("gc", step_s)]
    cause = next(cause for cause in report_of(raw).causes if cause.cause == "gc")
    assert cause.gain_s_per_step == pytest.approx(0.1)
    assert cause.persistence_ratio == pytest.approx(0.25)
    assert cause.low is not None
    assert cause.high is not None
    assert 0 < cause.low < cause.gain_s_per_step < cause.high < 0.2


def test_one_step_gives_no_interval() -> None:
    report = report_of(make_raw(steps=[3]))
    assert {(cause.low, cause.high) for cause in report.causes} == {(None, None)}


def test_several_places_of_one_cause_are_several_causes() -> None:
    raw = make_raw(dp=4, pp=4)
    base = raw["step_time_s"]["base"]
    raw["causes"] = [
        make_cause("worker", [value - gain for value in base], dp_rank=dp_rank, stage=1, workers=[[dp_rank, 1]])
        for dp_rank, gain in ((0, 0.2), (3, 0.5))
    ]
    causes = report_of(raw).causes
    assert [(cause.where.dp_rank, cause.where.rank) for cause in causes] == [(3, 7), (0, 4)]
    assert [cause.gain_s_per_step for cause in causes] == pytest.approx([0.5, 0.2])


def test_a_link_has_two_ends() -> None:
    raw = make_raw(dp=4, pp=4)
    base = raw["step_time_s"]["base"]
    raw["causes"] = [
        make_cause("pp_communication", base, dp_rank=2, stage=1, peer_stage=2),
        make_cause("pp_communication", base, stage=0, peer_stage=1),
    ]
    one, every = (cause.where for cause in report_of(raw).causes)
    assert (one.rank, one.stage, one.peer_rank, one.peer_stage) == (6, 1, 10, 2)
    assert (every.rank, every.dp_rank, every.stage, every.peer_rank, every.peer_stage) == (None, None, 0, None, 1)


def test_the_same_report_comes_out_twice() -> None:
    raw = make_raw(nodelay_s=[2.0 + 0.1 * (index % 7) for index in range(40)], steps=range(40))
    assert report_of(raw).to_json() == report_of(raw).to_json()


def test_the_interval_of_a_constant_is_the_constant() -> None:
    assert bootstrap_mean([2.5] * 30, range(30)) == (2.5, 2.5)
    assert bootstrap_mean([2.5], [1]) is None


def width(values: list[float], steps: list[int]) -> float:
    interval = bootstrap_mean(values, steps)
    assert interval is not None
    assert interval[0] <= sum(values) / len(values) <= interval[1]
    return interval[1] - interval[0]


def test_correlated_steps_widen_the_interval() -> None:
    runs = [float(index // 5 % 2) for index in range(100)]
    mixed = [float(index % 2) for index in range(100)]
    steps = list(range(100))
    assert width(runs, steps) > 2 * width(mixed, steps)


def test_sampled_windows_are_drawn_whole() -> None:
    windows = [float(index // 4 % 2) for index in range(64)]
    apart = [index // 4 * 100 + index % 4 for index in range(64)]
    # Windows of four equal steps carry the information of one step each.
    assert width(windows, apart) > 1.5 * width([float(index % 2) for index in range(64)], apart)


def test_the_price_is_the_users() -> None:
    raw = make_raw()
    options = ReportOptions(gpu_hour_price=3.5, currency="EUR")
    verdict = Report.from_raw(raw, make_trace(raw), options).verdict  # type: ignore[arg-type]
    assert verdict.cost == pytest.approx(3.5 * verdict.gpu_hours_lost)
    assert verdict.currency == "EUR"
    assert "at 3.5 EUR per GPU-hour" in verdict.text


def test_a_notebook_shows_the_verdict_and_the_workers() -> None:
    fragment = report_of(make_raw(dp=3, pp=2), name="<b>")._repr_html_()
    assert "<pre" in fragment
    assert fragment.count("<td") == 6
    assert "<script" not in fragment


def test_a_prompt_shows_one_line() -> None:
    report = report_of(make_raw(dp=3, pp=2), name="job")
    assert repr(report) == f"<Report of {report.path}: {report.verdict.text.splitlines()[0]}>"
    assert report.verdict.text.startswith("slowdown ")


def test_context_parallel_ranks_may_be_numbered_within_dp_rank() -> None:
    raw = make_raw(dp=4, pp=2, worker=(3, 1), removed={"worker": 0.9}, m_w=0.9)
    trace = make_trace(raw)
    trace.job = dataclasses.replace(trace.job, dp_size=2, cp_size=2, tp_size=8, world_size=64)
    report = Report.from_raw(raw, trace)  # type: ignore[arg-type]
    validate(report)
    assert "its 8 tp members move together" in report.verdict.text
    assert report._repr_html_().count("<td") == 8
