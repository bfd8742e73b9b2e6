"""In a notebook a report shows its verdict and its workers: short, without scripts, on light and dark ground alike."""

from __future__ import annotations

import dataclasses
import re

from smon_rt.analysis.report import Report
from tests.python.report_fixtures import make_raw, make_trace

HOSTILE = "<img src=x onerror=alert(1)>\x1b"


def fragment_of(report: Report) -> str:
    return report._repr_html_()


def report_of(**raw: object) -> Report:
    built = make_raw(**raw)  # type: ignore[arg-type]
    return Report.from_raw(built, make_trace(built))  # type: ignore[arg-type]


def test_it_has_no_scripts_and_no_hostile_markup() -> None:
    report = report_of(removed={"worker": 0.9})
    verdict = dataclasses.replace(report.verdict, text=f"slowdown {HOSTILE}\naction {HOSTILE}")
    hostile = dataclasses.replace(report, verdict=verdict, worker_host={"0,0": f'"{HOSTILE}'})
    fragment = fragment_of(hostile)
    assert "<script" not in fragment
    assert "<img" not in fragment
    assert "\x1b" not in fragment
    assert "slowdown &lt;img src=x onerror=alert(1)&gt;�\naction" in fragment


def test_every_ground_comes_with_its_letters() -> None:
    fragment = fragment_of(report_of())
    styles = re.findall(r'style="([^"]*)"', fragment)
    grounds = [style for style in styles if "background" in style]
    assert len(grounds) == 16
    assert all(re.search(r"background:#[0-9a-f]{6};color:#[0-9a-f]{6}", style) for style in grounds)
    others = [style for style in styles if "background" not in style]
    assert all("color:inherit" in style for style in others if "color" in style)


def test_a_large_job_stays_short_and_says_that_cells_are_shared() -> None:
    fragment = fragment_of(report_of(dp=625, pp=16, steps=range(3), worker=(123, 3)))
    assert len(fragment) < 200_000
    assert "each cell the worst of 10 workers" in fragment
    assert 'title="dp 120–129, stage 3, worst of 10 workers: 2.00"' in fragment


def test_an_unknown_slowdown_is_a_dash() -> None:
    report = report_of(dp=2, pp=1, steps=[1])
    unknown = dataclasses.replace(report, slowdown_by_worker={"0,0": float("nan"), "1,0": 1.0})
    assert ">–</td>" in fragment_of(unknown)
