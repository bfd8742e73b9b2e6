"""Since when a cause shows is told from its gain in each step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import pytest

from smon_rt.analysis import analyze
from smon_rt.analysis.causes import Cause
from smon_rt.report.since import history_of


def words_of(gains: Sequence[float], first_step: int = 100) -> str:
    by_step = {str(first_step + index): gain for index, gain in enumerate(gains)}
    history = history_of(Cause("worker", fmean(gains), None, None, None, None, gain_s_by_step=by_step))
    assert history is not None
    return history.words


def test_a_cause_of_every_step_may_be_older_than_the_trace() -> None:
    assert words_of([1.0] * 8) == "in all 8 analysed steps: it was there in the first one, 100, and may be older"


def test_a_cause_that_begins_has_its_first_step_named() -> None:
    words = words_of([0.0, 0.01, -0.01, 0.0, 0.0, 1.0, 0.9, 1.1, 1.0])
    assert words == "since step 105: in 4 of the 4 steps from there, not in the 5 steps before"


def test_noise_before_the_beginning_does_not_move_it() -> None:
    assert words_of([0.0, 0.7, 0.0, 0.1, 0.0, 0.0, 1.0, 0.9, 1.1, 1.0]).startswith("since step 106:")


def test_a_cause_that_ends_has_its_last_step_named() -> None:
    assert words_of([1.0, 1.0, 1.0, 0.0, 0.0]) == "until step 102: in 3 of the 3 steps up to there, in none since"


def test_one_or_two_steps_are_no_beginning_and_no_end() -> None:
    gains = [0.0] * 9 + [1.0] + [0.0] * 9 + [1.0]
    assert words_of(gains) == "on and off: in 2 of 20 steps, first in step 109, last in step 119"
    assert words_of([1.0, 1.0] + [0.0] * 10).startswith("on and off: in 2 of 12 steps")
    assert words_of([0.0] + [1.0] * 5).startswith("on and off: in 5 of 6 steps")


def test_a_cause_that_comes_and_goes_is_said_to() -> None:
    assert words_of([0.0, 1.0] * 4) == "on and off: in 4 of 8 steps, first in step 101, last in step 107"


def test_a_single_quiet_step_does_not_make_it_come_and_go() -> None:
    gains = [1.0] * 20
    gains[7] = 0.1
    assert words_of(gains) == "throughout: in 19 of 20 steps, first in step 100"


def test_one_step_tells_nothing() -> None:
    assert words_of([1.0]) == "one step was analysed, 100: nothing tells since when"


@pytest.mark.parametrize("gains", [{}, {"1": 0.0}, {"1": -1.0, "2": 0.5}, {"1": float("nan")}])
def test_without_a_gain_there_is_no_history(gains: dict[str, float]) -> None:
    assert history_of(Cause("gc", 0.0, None, None, None, None, gain_s_by_step=gains)) is None


def test_the_steps_of_a_published_trace_give_its_gains(shared_traces: Path) -> None:
    report = analyze(shared_traces / "trace-AR.parquet")
    assert report.causes
    for cause in report.causes:
        assert list(cause.gain_s_by_step) == list(report.slowdown_by_step)
        assert fmean(cause.gain_s_by_step.values()) == pytest.approx(cause.gain_s_per_step)
