"""A line through bounds of a clock difference: the truth lies within what is stated, for any drift there can be."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from smon_rt.trace.clock_line import MOST_DRIFT_RATIO, ClockLine, fit_line

BEGIN_NS = 10**13


class Truth:
    """A difference of two clocks over time, and bounds of it as messages give them."""

    def __init__(self, seed: int, offset_ns: int, drift_ratio: float, span_ns: int, count: int) -> None:
        self.offset_ns, self.drift_ratio, self.span_ns = offset_ns, drift_ratio, span_ns
        draw = np.random.default_rng(seed)
        self.latency_ns = 10 ** draw.uniform(2, 7)
        self.times = [np.sort(BEGIN_NS + draw.integers(0, span_ns + 1, count)) for _ in range(2)]
        slack = [draw.exponential(self.latency_ns, count) for _ in range(2)]
        self.lower = np.floor(self.at(self.times[0]) - slack[0]).astype(np.int64)
        self.upper = np.ceil(self.at(self.times[1]) + slack[1]).astype(np.int64)

    def at(self, times_ns: np.ndarray) -> np.ndarray:
        return np.asarray(self.offset_ns + self.drift_ratio * (times_ns - BEGIN_NS))

    def line(self) -> ClockLine:
        ends = (BEGIN_NS, BEGIN_NS + self.span_ns)
        line = fit_line(self.times[0], self.lower, self.times[1], self.upper, *ends)
        assert line is not None
        return line

    def worst_ns(self, line: ClockLine) -> float:
        times = np.linspace(BEGIN_NS, BEGIN_NS + self.span_ns, 9).astype(np.int64)
        return float(np.abs(line.apply(times) - times - self.at(times)).max())


truths = st.builds(
    Truth,
    st.integers(0, 2**32),
    st.integers(-(10**15), 10**15),
    st.floats(-MOST_DRIFT_RATIO / 2, MOST_DRIFT_RATIO / 2),
    st.integers(0, 10**12),
    st.integers(1, 400),
)


@settings(max_examples=150, deadline=None)
@given(truths)
def test_the_truth_lies_within_the_bound(truth: Truth) -> None:
    line = truth.line()
    assert truth.worst_ns(line) <= line.bound_ns
    assert (line.violated_count, line.is_contradicted) == (0, False)


@settings(max_examples=100, deadline=None)
@given(truths, st.booleans(), st.integers(0, 2**32))
def test_few_lies_do_not_move_the_line(truth: Truth, clustered: bool, seed: int) -> None:
    count = len(truth.lower) // 60
    rows = np.random.default_rng(seed).choice(len(truth.lower), count, replace=False)
    # Far beyond what could still be true: what fits in between the others nobody can tell from the truth.
    rows = np.arange(count) if clustered else rows
    truth.lower[rows] += int(100 * truth.latency_ns) + int(2 * MOST_DRIFT_RATIO * truth.span_ns)
    line = truth.line()
    assert truth.worst_ns(line) <= line.bound_ns
    assert line.violated_count == count
    assert not line.is_contradicted


def test_more_bounds_of_the_same_kind_never_widen_the_result() -> None:
    few, many = Truth(1, 5_000, 1e-5, 10**11, 20), Truth(1, 5_000, 1e-5, 10**11, 20)
    more = Truth(2, 5_000, 1e-5, 10**11, 2_000)
    many.times = [np.concatenate(pair) for pair in zip(many.times, more.times, strict=True)]
    many.lower, many.upper = (
        np.concatenate([few.lower, more.lower]),
        np.concatenate([few.upper, more.upper]),
    )
    assert many.line().bound_ns <= few.line().bound_ns


def test_bounds_of_one_kind_alone_limit_nothing() -> None:
    times, values, none = np.array([BEGIN_NS]), np.array([5]), np.empty(0, np.int64)
    assert fit_line(times, values, none, none, BEGIN_NS, BEGIN_NS) is None
    assert fit_line(none, none, times, values, BEGIN_NS, BEGIN_NS) is None


def test_clocks_that_no_line_fits_get_a_wide_bound_that_is_called_an_estimate() -> None:
    truth = Truth(3, 0, 0.0, 10**11, 300)
    # A clock that was set forward half way, by far more than messages take.
    for times, values in zip(truth.times, (truth.lower, truth.upper), strict=True):
        values[times > BEGIN_NS + truth.span_ns // 2] += 10**9
    line = truth.line()
    assert line.is_contradicted
    assert line.bound_ns > 10**8


def test_bounds_that_no_clock_has_room_for_are_contradicted() -> None:
    """As of device times that lie 10 s before they can be: even the likely line keeps to none of them."""
    late = BEGIN_NS + 10**10
    lower, upper = np.array([10**10]), np.array([-(10**10)])
    line = fit_line(np.array([BEGIN_NS]), lower, np.array([late]), upper, BEGIN_NS, late)
    assert line is not None
    assert line.is_contradicted
    assert line.bound_ns > 9 * 10**9
