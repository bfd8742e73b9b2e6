"""The offset and drift between two clocks, from bounds of their difference over time: a line between two hulls."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Array = npt.NDArray[Any]

#: Two clocks that NTP slews move apart by at most 500 ppm each.
MOST_DRIFT_RATIO = 1e-3
#: This part of the bounds may contradict the others (a wait that returned early, a wrong pairing) and is left out.
MOST_VIOLATED_RATIO = 0.01

# Only the tightest bounds of each part of the time decide; those behind them stand in when they are left out.
_BINS = 128
_KEPT_IN_BIN = 32
_GOLDEN = (math.sqrt(5) - 1) / 2
_GOLDEN_STEPS = 60
_SMALLEST_NS = 1e-3
_THINNED = 2048
_NS_PER_S = 1e9


@dataclass(frozen=True)
class ClockLine:
    """What to add to one clock to get another: `offset_ns` at `origin_ns`, and a drift from there.

    `bound_ns`: how far the result may be off, anywhere from the first to the last time it was made for.
    `violated_count` bounds of `bound_count` contradicted the others and were left out. `is_contradicted`: more than the
    allowed part did, so the line fits them as well as it can, and the bound is no more than an estimate.
    """

    origin_ns: int = 0
    offset_ns: int = 0
    drift_ratio: float = 0.0
    bound_ns: int = 0
    bound_count: int = 0
    violated_count: int = 0
    is_contradicted: bool = False

    def apply(self, times_ns: Array) -> Array:
        """Times of the one clock, int64, as times of the other."""
        moved = times_ns + self.offset_ns
        if self.drift_ratio:
            moved = moved + np.rint((times_ns - self.origin_ns) * self.drift_ratio).astype(np.int64)
        return np.asarray(moved)

    def shifted(self, shift_ns: int) -> ClockLine:
        """The same, and `shift_ns` on top."""
        return ClockLine(
            self.origin_ns,
            self.offset_ns + shift_ns,
            self.drift_ratio,
            self.bound_ns,
            self.bound_count,
            self.violated_count,
            self.is_contradicted,
        )


def fit_line(
    lower_times_ns: Array, lower_ns: Array, upper_times_ns: Array, upper_ns: Array, first_ns: int, last_ns: int
) -> ClockLine | None:
    """The line that keeps to all bounds of a difference: at `lower_times_ns` it is at least `lower_ns`, and so on.

    Its bound is half of the room that the bounds leave, for any drift up to MOST_DRIFT_RATIO, anywhere from `first_ns`
    to `last_ns`. All times int64 ns. None without bounds of both kinds: then nothing limits the difference.
    """
    if len(lower_ns) == 0 or len(upper_ns) == 0:
        return None
    # Float64 must hold what is left to the nanosecond.
    base_ns = (int(lower_ns.max()) + int(upper_ns.min())) // 2
    origin_ns = (first_ns + last_ns) // 2
    lower = _Bounds((lower_times_ns - origin_ns) / _NS_PER_S, (lower_ns - base_ns).astype(np.float64), 1.0)
    upper = _Bounds((upper_times_ns - origin_ns) / _NS_PER_S, (upper_ns - base_ns).astype(np.float64), -1.0)
    slope, _ = _likely_line(lower.thinned(), upper.thinned())
    tight_lower, tight_upper = lower.tightest(slope), upper.tightest(slope)
    count = len(lower_ns) + len(upper_ns)
    half_span_s = (last_ns - first_ns) / 2 / _NS_PER_S
    whole = _Room(tight_lower, tight_upper)
    room = whole
    if whole.widest < 0:
        # What the likely line does not keep to goes.
        line_of_most = _likely_line(tight_lower, tight_upper)
        room = _Room(tight_lower.kept_by(*line_of_most), tight_upper.kept_by(*line_of_most))
    # Of bounds that no line is near to, none may be left that keep to one.
    lacks_ns = max(0.0, -room.widest)
    line = _middle_of(room.widened(lacks_ns), half_span_s)
    violated = lower.violated_by(line) + upper.violated_by(line)
    is_contradicted = lacks_ns > 1 or violated > count * MOST_VIOLATED_RATIO
    if is_contradicted:
        line = _middle_of(whole.widened(-whole.widest), half_span_s)
        violated = lower.violated_by(line) + upper.violated_by(line)
    return ClockLine(
        origin_ns=origin_ns,
        offset_ns=base_ns + round(line.middle_ns),
        drift_ratio=line.slope / _NS_PER_S,
        # One more for what rounding to whole nanoseconds takes.
        bound_ns=int(np.ceil(line.bound_ns)) + 1,
        bound_count=count,
        violated_count=violated,
        is_contradicted=is_contradicted,
    )


class _Middle(NamedTuple):
    middle_ns: float
    slope: float  # ns per s
    bound_ns: float


def _middle_of(room: _Room, half_span_s: float) -> _Middle:
    """The line half way between the extremes at both ends of the time: in between it is no further from either."""
    ends = [room.range_at(-half_span_s), room.range_at(half_span_s)]
    first, last = ((low + high) / 2 for low, high in ends)
    slope = (last - first) / (2 * half_span_s) if half_span_s > 0 else 0.0
    return _Middle((first + last) / 2, slope, max(high - low for low, high in ends) / 2)


def _likely_line(lower: _Bounds, upper: _Bounds) -> tuple[float, float]:
    """Slope and value of the line that exceeds the bounds least, summed over all.

    Few wrong ones, however wrong, do not move it.
    """

    def excess(slope: float) -> tuple[float, float]:
        low, high = lower.values - slope * lower.times, upper.values - slope * upper.times
        # Here as many lower bounds lie above as upper ones below.
        middle = float(np.partition(np.concatenate([low, high]), len(low) - 1)[len(low) - 1])
        return float(np.maximum(low - middle, 0).sum() + np.maximum(middle - high, 0).sum()), middle

    # Golden section: the excess is convex in the slope.
    least, most = -MOST_DRIFT_RATIO * _NS_PER_S, MOST_DRIFT_RATIO * _NS_PER_S
    inner = [most - _GOLDEN * (most - least), least + _GOLDEN * (most - least)]
    values = [excess(slope) for slope in inner]
    for _ in range(_GOLDEN_STEPS):
        if values[0] <= values[1]:
            most, inner[1], values[1] = inner[1], inner[0], values[0]
            inner[0] = most - _GOLDEN * (most - least)
            values[0] = excess(inner[0])
        else:
            least, inner[0], values[0] = inner[0], inner[1], values[1]
            inner[1] = least + _GOLDEN * (most - least)
            values[1] = excess(inner[1])
    (_, middle), slope = min(zip(values, inner, strict=True))
    return slope, middle


class _Bounds:
    """Bounds of one kind; `sign` is 1 for lower ones, -1 for upper ones. `bins` are parts of the time, or none yet."""

    def __init__(self, times_s: Floats, values: Floats, sign: float, bins: Array | None = None) -> None:
        self.times, self.values, self._sign = times_s, values, sign
        self._bins = np.zeros(len(times_s), np.int64) if bins is None else bins

    def thinned(self) -> _Bounds:
        """A few thousand of them."""
        each = len(self.times) // _THINNED + 1
        return _Bounds(self.times[::each], self.values[::each], self._sign)

    def tightest(self, slope: float) -> _Bounds:
        """Of each part of the time the ones that a line of about this slope meets first, sorted so."""
        first, last = float(self.times.min()), float(self.times.max())
        width = (last - first) / _BINS or 1.0
        bins = np.minimum(((self.times - first) / width).astype(np.int64), _BINS - 1)
        order = np.lexsort(((slope * self.times - self.values) * self._sign, bins))
        place = np.arange(len(order)) - np.searchsorted(bins[order], bins[order])
        order = order[place < _KEPT_IN_BIN]
        return _Bounds(self.times[order], self.values[order], self._sign, bins[order])

    def kept_by(self, slope: float, value: float) -> _Bounds:
        """The bounds that the line value + slope * t keeps to; at least one."""
        over = self._excess(slope, value)
        keeps = over <= max(float(over.min()), _SMALLEST_NS)
        return _Bounds(self.times[keeps], self.values[keeps], self._sign, self._bins[keeps])

    def tops(self) -> tuple[Floats, Floats]:
        """Times and values of the tightest bound of each part, by time."""
        is_first = np.ones(len(self._bins), np.bool_)
        is_first[1:] = self._bins[1:] != self._bins[:-1]
        return self.times[is_first], self.values[is_first]

    def violated_by(self, line: _Middle) -> int:
        """How many no line within this one's bound keeps to."""
        return int(np.count_nonzero(self._excess(line.slope, line.middle_ns) > line.bound_ns + 1))

    def _excess(self, slope: float, value: float) -> Floats:
        return np.asarray((self.values - slope * self.times - value) * self._sign)


class _Room:
    """All lines v + slope * t above the lower and below the upper bounds.

    For a slope, v may be from `low` to `high`: a convex and a concave function of the slope, linear between the slopes
    of the edges of the two hulls. So the widest room, and the extremes of the line at any time, lie at such slopes.
    """

    def __init__(self, lower: _Bounds, upper: _Bounds) -> None:
        most = MOST_DRIFT_RATIO * _NS_PER_S
        lower_t, lower_v = lower.tops()
        upper_t, upper_v = upper.tops()
        edges = [_hull_slopes(lower_t, -lower_v) * -1.0, _hull_slopes(upper_t, upper_v)]
        slopes = np.concatenate([*edges, np.array([-most, 0.0, most])])
        self.slopes = np.unique(np.clip(slopes, -most, most))
        low = lower_v[None, :] - self.slopes[:, None] * lower_t[None, :]
        high = upper_v[None, :] - self.slopes[:, None] * upper_t[None, :]
        self.low, self.high = low.max(axis=1), high.min(axis=1)
        self.widest = float((self.high - self.low).max())

    def widened(self, by_ns: float) -> _Room:
        """The room when each bound gives way by so much."""
        self.low, self.high = self.low - by_ns, self.high + by_ns
        self.widest += 2 * by_ns
        return self

    def range_at(self, time_s: float) -> tuple[float, float]:
        """Least and largest value of a line of this room at a time."""
        width = self.high - self.low
        fits = width >= 0
        slopes, low, high = [self.slopes[fits]], [self.low[fits]], [self.high[fits]]
        # Where the room closes between two slopes.
        for inner, outer in zip(*_borders(fits), strict=True):
            part = width[inner] / (width[inner] - width[outer])
            slopes.append(self.slopes[[inner]] + part * (self.slopes[[outer]] - self.slopes[[inner]]))
            value = self.low[[inner]] + part * (self.low[[outer]] - self.low[[inner]])
            low.append(value)
            high.append(value)
        by_slope = np.concatenate(slopes) * time_s
        return float((np.concatenate(low) + by_slope).min()), float((np.concatenate(high) + by_slope).max())


def _borders(fits: Array) -> tuple[list[int], list[int]]:
    """Indices of slopes that fit and whose neighbour, the index beside them, does not."""
    rises = np.flatnonzero(fits[1:] & ~fits[:-1])
    falls = np.flatnonzero(fits[:-1] & ~fits[1:])
    return [*(rises + 1).tolist(), *falls.tolist()], [*rises.tolist(), *(falls + 1).tolist()]


def _hull_slopes(times_s: Floats, values: Floats) -> Floats:
    """Slopes of the edges of the lower hull of some points, which are sorted by time."""
    hull: list[tuple[float, float]] = []
    for time, value in zip(times_s.tolist(), values.tolist(), strict=True):
        while len(hull) > 1:
            (t0, v0), (t1, v1) = hull[-2:]
            if (v1 - v0) * (time - t1) < (value - v1) * (t1 - t0):
                break
            hull.pop()
        if hull and hull[-1][0] == time:
            if hull[-1][1] <= value:
                continue
            hull.pop()
        hull.append((time, value))
    points = np.array(hull)
    return np.asarray(np.diff(points[:, 1]) / np.diff(points[:, 0]), np.float64)
