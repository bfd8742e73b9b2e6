"""What changed between two traces: the step, its causes, and what the jobs ran on.

Example:
    >>> from smon_rt.analysis import analyze
    >>> from smon_rt.analysis.diff import compare
    >>> print(compare(analyze("monday"), analyze("tuesday")).text)  # doctest: +SKIP
    slower   398 → 437 ms a step, 9.7 % longer (+32.1 to +45.2 ms): more than noise; new: worker (dp 1, stage 0), 69 ms
    ...
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any

from smon_rt.analysis.cause_words import where_words
from smon_rt.analysis.diff_text import text_of
from smon_rt.analysis.units import finite_or_none
from smon_rt.analysis.worker_words import Machines

if TYPE_CHECKING:
    from smon_rt.analysis.causes import Cause
    from smon_rt.analysis.report import Interval, Report

#: Shares of a step from which on a cause counts as there, and below which it counts as not there.
_THERE_RATIO = 0.03
_NOT_THERE_RATIO = 0.01
_LAYOUT = ("dp", "pp", "tp", "cp", "vpp", "world")


@dataclass(frozen=True, slots=True)
class Facts:
    """What a trace says of its job besides times. Of a parquet only the layout is known.

    `settings` are versions and environment, by name. `runs`: the run that was analysed, and those that lie beside it.
    """

    hosts: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    recorder_ratio: float | None = None
    runs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """A value before and after; `low` and `high` are the 95 % interval of the difference, None where unknown."""

    before: float
    after: float
    low: float | None = None
    high: float | None = None

    @property
    def difference(self) -> float:
        """After minus before."""
        return self.after - self.before

    @property
    def is_noise(self) -> bool | None:
        """True where the difference may be none at all; None where that is unknown (a single step)."""
        if self.low is None or self.high is None:
            return None
        return self.low <= 0 <= self.high


@dataclass(frozen=True, slots=True)
class CauseChange:
    """Seconds a step that fixing a cause gives back. `status`: new, gone, more, less, same.

    `dp_rank` and `stage` are None where the cause has no such place, or the layouts differ; of several places they are
    the first one's. `place` is all of it in words, empty where there is none.
    """

    cause: str
    dp_rank: int | None
    stage: int | None
    gain: Change
    status: str
    place: str = ""


@dataclass(frozen=True, slots=True)
class Diff:
    """What changed from trace `a` to trace `b`. Attributes are the keys of the JSON (docs/cli.md).

    Times are mean seconds a step as recorded. `hosts` and `gpus` are those that left and those that came; `settings`
    and `layout` hold [before, after] of what differs, None where one trace does not say. `runs`: of each trace the run
    that was analysed, then others beside it. `is_identical`: every step takes what it took.
    """

    a: str
    b: str
    step_time_s: Change
    slowdown: Change
    causes: tuple[CauseChange, ...]
    layout: dict[str, tuple[int, int]]
    hosts: tuple[tuple[str, ...], tuple[str, ...]]
    gpus: tuple[tuple[str, ...], tuple[str, ...]]
    settings: dict[str, tuple[str | None, str | None]]
    recorder_ratio: tuple[float | None, float | None]
    knows_settings: bool
    runs: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    is_identical: bool = False
    text: str = ""

    @property
    def step_ratio(self) -> float | None:
        """Step time of b over that of a."""
        before = self.step_time_s.before
        return finite_or_none(self.step_time_s.after / before) if before > 0 else None

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        values = dataclasses.asdict(self)
        values["step_ratio"] = self.step_ratio
        for each, change in [(values["step_time_s"], self.step_time_s), (values["slowdown"], self.slowdown)]:
            each |= {"difference": change.difference, "is_noise": change.is_noise}
        for each, cause in zip(values["causes"], self.causes, strict=True):
            each["gain"]["difference"] = cause.gain.difference
        result: dict[str, Any] = _plain(values)
        return result

    def to_json(self, indent: int | None = 2) -> str:
        """As JSON text."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    def __str__(self) -> str:
        return self.text


def compare(before: Report, after: Report, facts_before: Facts | None = None, facts_after: Facts | None = None) -> Diff:
    """Compares two reports, of one job at two times or of two jobs.

    Where layouts differ, causes are compared by name and not by place, and the step times are of different work.
    """
    first, second = facts_before or Facts(), facts_after or Facts()
    layout = {
        name: (getattr(before.job, name), getattr(after.job, name))
        for name in _LAYOUT
        if getattr(before.job, name) != getattr(after.job, name)
    }
    names = sorted({*first.settings, *second.settings})
    diff = Diff(
        a=before.path,
        b=after.path,
        step_time_s=_step_change(before.step_time_s_by_step.base, after.step_time_s_by_step.base),
        slowdown=_interval_change(before.slowdown, after.slowdown),
        causes=tuple(_causes(before, after, by_place=not layout)),
        layout=layout,
        hosts=_left_and_came(first.hosts, second.hosts),
        gpus=_left_and_came(first.gpus, second.gpus),
        settings={
            name: (first.settings.get(name), second.settings.get(name))
            for name in names
            if first.settings.get(name) != second.settings.get(name)
        },
        recorder_ratio=(first.recorder_ratio, second.recorder_ratio),
        knows_settings=bool(first.settings or first.hosts) and bool(second.settings or second.hosts),
        runs=(first.runs, second.runs),
        is_identical=before.step_time_s_by_step.base == after.step_time_s_by_step.base,
    )
    return dataclasses.replace(diff, text=text_of(diff))


def _step_change(before: Mapping[str, float], after: Mapping[str, float]) -> Change:
    from smon_rt import _analysis

    values = [list(each.values()) for each in (before, after)]
    steps = [[int(step) for step in each] for each in (before, after)]
    intervals = [_analysis.bootstrap_mean(each, of) for each, of in zip(values, steps, strict=True)]
    low, high = _difference(
        (fmean(values[0]), *(intervals[0] or (None, None))), (fmean(values[1]), *(intervals[1] or (None, None)))
    )
    return Change(fmean(values[0]), fmean(values[1]), low, high)


def _interval_change(before: Interval, after: Interval) -> Change:
    low, high = _difference((before.value, before.low, before.high), (after.value, after.low, after.high))
    return Change(before.value, after.value, low, high)


def _difference(
    before: tuple[float, float | None, float | None], after: tuple[float, float | None, float | None]
) -> tuple[float | None, float | None]:
    """The interval of a difference of two means that know nothing of each other, from their own block bootstraps.

    Each may be off towards the other by its own half interval (Zou and Donner 2008, "MOVER").
    """
    (mean_a, low_a, high_a), (mean_b, low_b, high_b) = before, after
    if low_a is None or high_a is None or low_b is None or high_b is None:
        return None, None
    difference = mean_b - mean_a
    return (
        difference - math.hypot(mean_b - low_b, high_a - mean_a),
        difference + math.hypot(high_b - mean_b, mean_a - low_a),
    )


#: Name and place: dp rank, stage, and all places in words.
_Key = tuple[str, int | None, int | None, str]


def _causes(before: Report, after: Report, *, by_place: bool) -> list[CauseChange]:
    """Those that cost at least a hundredth of the step in one of the traces, the largest change first."""
    gains = [_gains(report, by_place) for report in (before, after)]
    bases = [report.mean_step_time_s.base for report in (before, after)]
    nothing = (0.0, 0.0, 0.0)
    changes = []
    for key in dict.fromkeys([*gains[0], *gains[1]]):
        first, second = gains[0].get(key, nothing), gains[1].get(key, nothing)
        shares = [gain[0] / base if base > 0 else 0.0 for gain, base in zip((first, second), bases, strict=True)]
        if max(shares) < _NOT_THERE_RATIO:
            continue
        change = Change(max(first[0], 0.0), max(second[0], 0.0), *_difference(first, second))
        cause, dp_rank, stage, place = key
        changes.append(CauseChange(cause, dp_rank, stage, change, _status(shares, change), place))
    return sorted(changes, key=lambda cause: -abs(cause.gain.difference))


def _gains(report: Report, by_place: bool) -> dict[_Key, tuple[float, float | None, float | None]]:
    """Gain and interval of each cause; of several with one name and place the sum, whose interval is unknown."""
    machines = Machines(report.worker_rank)
    found: dict[_Key, tuple[float, float | None, float | None]] = {}
    for cause in report.causes:
        if cause.cause == "noise":
            continue
        key = _key(cause, where_words(cause, report.job.pp, machines)) if by_place else (cause.cause, None, None, "")
        known = found.get(key)
        if known is None:
            found[key] = (cause.gain_s_per_step, cause.low, cause.high)
        else:
            found[key] = (known[0] + cause.gain_s_per_step, None, None)
    return found


def _key(cause: Cause, place: str) -> _Key:
    """A group is its members, whichever of them is the slowest this time."""
    is_group = len(cause.detail.get("workers", ())) > 1 or len(cause.links) > 1
    if is_group:
        dp_rank, stage = min(cause.detail.get("workers") or [link[:2] for link in cause.links])
        return cause.cause, dp_rank, stage, place
    return cause.cause, cause.where.dp_rank, cause.where.stage, place


def _status(shares: Sequence[float], change: Change) -> str:
    if shares[0] < _NOT_THERE_RATIO and shares[1] >= _THERE_RATIO:
        return "new"
    if shares[1] < _NOT_THERE_RATIO and shares[0] >= _THERE_RATIO:
        return "gone"
    if change.is_noise is not False:
        return "same"
    return "more" if change.difference > 0 else "less"


def _left_and_came(before: Sequence[str], after: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if not before or not after:
        return (), ()
    return tuple(sorted(set(before) - set(after))), tuple(sorted(set(after) - set(before)))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return finite_or_none(value) if isinstance(value, float) else value
