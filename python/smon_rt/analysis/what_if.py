"""Questions to the simulator: what would the step take without this, or with other replicas?

All fixes of one question hold at once, in one replayed job: what they give back together is neither the sum nor the
largest of what each gives back alone.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from smon_rt.analysis.engine import ask_engine, kinds_in
from smon_rt.analysis.input_file import shown
from smon_rt.analysis.units import (
    counted,
    finite_or_none,
    hours,
    money,
    percent,
    price,
    seconds,
    seconds_change,
    seconds_range,
)
from smon_rt.analysis.what_if_causes import CAUSES, Fix, remove_cause
from smon_rt.errors import QuestionError
from smon_rt.kinds import MERGED_MESSAGE_KINDS

if TYPE_CHECKING:
    from smon_rt.analysis.report import Report

__all__ = ["Answer", "answer"]

_MOST_FIXES_COUNT = 1000
_LABEL_WIDTH = 9
_ROUNDING = 1e-9
_MOST_SHARE = 10.0
_SECONDS_PER_HOUR = 3600
_HOURS_PER_DAY = 24


@dataclass(frozen=True, slots=True, repr=False)
class Answer:
    """What the step would take. Attributes are the keys of the JSON (docs/what_if.md).

    Times are mean seconds a step; `low` and `high` are the 95 % interval of the gain, None with a single step. `share`
    is the gain over what the job loses (base − ideal), None where it loses nothing. `throughput_ratio` is samples per
    second after over before: fewer replicas do less in a step. `gpu_hours_per_day` are those that the same work would
    take less (negative: more), at `cost_per_day` in `currency`.
    """

    question: str
    fix: tuple[str, ...]
    drop_slowest_dp: int
    scale_dp: float
    before_s_per_step: float
    after_s_per_step: float
    gain_s_per_step: float
    low: float | None
    high: float | None
    share: float | None
    throughput_ratio: float | None
    gpu_hours_per_day: float | None
    cost_per_day: float | None
    currency: str
    dp_before: int
    dp_after: int
    dropped_dp_ranks: tuple[int, ...]
    draw_count: int
    assumed: tuple[str, ...]
    text: str

    def to_dict(self) -> dict[str, Any]:
        """The answer as JSON values."""
        values = dataclasses.asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    def to_json(self, indent: int | None = 2) -> str:
        """The answer as JSON text (docs/what_if.md, what_if_schema.json)."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<Answer to {self.question}: {self.before_s_per_step:.4g} → {self.after_s_per_step:.4g} s a step>"


def answer(report: Report, fix: Sequence[str], drop_slowest_dp: int, scale_dp: float) -> Answer:
    """Asks the engine that made `report` once more; see `Report.what_if`. Raises QuestionError, TraceError."""
    fixes = [fix] if isinstance(fix, str) else list(fix)
    dp = report.source.dp_size
    _check_replicas(report, fixes, drop_slowest_dp, scale_dp)
    combined = Fix()
    for text in fixes:
        combined.add(_parsed(report, text))
    parts = dict(combined.parts)
    if drop_slowest_dp:
        parts["dropped_dp_count"] = drop_slowest_dp
    if scale_dp != 1:
        parts["dp_count"] = _scaled(dp - drop_slowest_dp, scale_dp)
    [raw] = ask_engine(report.source.trace, [parts])
    gains = [before - after for before, after in zip(raw["before_s"], raw["after_s"], strict=True)]
    outcome = _Outcome.of(report, gains, raw["steps"], dp, raw["dp_count"])
    question = ", ".join(
        [*(f"fix {text}" for text in fixes)]
        + ([f"drop the slowest {_dp_ranks(drop_slowest_dp)}"] if drop_slowest_dp else [])
        + ([f"{scale_dp:g} times the dp ranks"] if scale_dp != 1 else [])
    )
    dropped = tuple(sorted(raw["dropped_dp_ranks"]))
    assumed = (
        *combined.assumed,
        *_assumed_of_replicas(report, dropped, raw["dp_count"], raw["draw_count"], dp),
        _assumed_of_delays(report, parts),
        *_assumed_of_missing(report),
    )
    return Answer(
        question=question,
        fix=tuple(fixes),
        drop_slowest_dp=drop_slowest_dp,
        scale_dp=float(scale_dp),
        before_s_per_step=report.mean_step_time_s.base,
        after_s_per_step=outcome.after_s,
        gain_s_per_step=outcome.gain_s,
        low=outcome.low,
        high=outcome.high,
        share=outcome.share,
        throughput_ratio=outcome.throughput_ratio,
        gpu_hours_per_day=outcome.gpu_hours_per_day,
        cost_per_day=outcome.cost_per_day,
        currency=report.source.options.currency,
        dp_before=dp,
        dp_after=raw["dp_count"],
        dropped_dp_ranks=dropped,
        draw_count=raw["draw_count"],
        assumed=assumed,
        text=_text(report, question, outcome, dp, raw["dp_count"], assumed),
    )


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The numbers of an answer."""

    before_s: float
    after_s: float
    gain_s: float
    low: float | None
    high: float | None
    share: float | None
    throughput_ratio: float | None
    gpu_hours_per_day: float | None
    cost_per_day: float | None

    @property
    def is_nothing(self) -> bool:
        """True where the step stays as it is, but for what adding up in another order does."""
        return abs(self.gain_s) <= _ROUNDING * self.before_s

    @classmethod
    def of(cls, report: Report, gains: Sequence[float], steps: Sequence[int], dp: int, dp_after: int) -> _Outcome:
        from smon_rt import _analysis

        base = report.mean_step_time_s.base
        gain = fmean(gains)
        low, high = _analysis.bootstrap_mean(gains, steps) or (None, None)
        loss = base - report.mean_step_time_s.ideal
        after = base - gain
        hours_saved = _HOURS_PER_DAY * report.job.world * gain / base if base > 0 else None
        return cls(
            before_s=base,
            after_s=after,
            gain_s=gain,
            low=low,
            high=high,
            share=finite_or_none(gain / loss) if loss > 0 else None,
            throughput_ratio=finite_or_none(dp_after / dp * base / after) if after > 0 else None,
            gpu_hours_per_day=finite_or_none(hours_saved),
            cost_per_day=None if hours_saved is None else hours_saved * report.source.options.gpu_hour_price,
        )


def _check_replicas(report: Report, fixes: Sequence[str], drop_slowest_dp: int, scale_dp: float) -> None:
    """Raises QuestionError for what cannot be asked of any replicas, or of these."""
    if not fixes and not drop_slowest_dp and scale_dp == 1:
        raise QuestionError("nothing is asked: name something to fix, replicas to drop, or more of them")
    if len(fixes) > _MOST_FIXES_COUNT:
        raise QuestionError(f"{len(fixes):,} fixes are more than one question can hold: at most {_MOST_FIXES_COUNT:,}")
    dp = report.source.dp_size
    if isinstance(drop_slowest_dp, bool) or not isinstance(drop_slowest_dp, int) or drop_slowest_dp < 0:
        raise QuestionError(f"how many dp ranks to drop must be a whole number from 0, not {drop_slowest_dp!r}")
    if drop_slowest_dp >= dp:
        raise QuestionError(
            f"dropping {drop_slowest_dp} of {counted(dp, 'dp rank')} leaves none: drop at most {dp - 1}"
        )
    if not (isinstance(scale_dp, int | float) and math.isfinite(scale_dp) and scale_dp > 0):
        raise QuestionError(f"how many times the dp ranks must be a number above 0, not {scale_dp!r}")


def _scaled(count: int, factor: float) -> int:
    return max(1, round(count * factor))


def _parsed(report: Report, text: str) -> Fix:
    """One `what=which` as parts of a question."""
    what, _, which = text.partition("=")
    if what == "worker":
        return _worker(report, which)
    if what == "stage":
        return _stage(report, which)
    if what == "kind":
        return _kind(report, which)
    if what == "cause":
        if which not in CAUSES:
            raise QuestionError(f"{shown(which)}: no such cause; one of {', '.join(CAUSES)}")
        return remove_cause(report, which)
    raise QuestionError(
        f"{shown(text)}: what to fix is worker=DP,STAGE, stage=STAGE, cause=NAME or kind=NAME, e.g. worker=1,0"
    )


def _worker(report: Report, which: str) -> Fix:
    match = re.fullmatch(r"\s*([0-9]{1,9})\s*,\s*([0-9]{1,9})\s*", which)
    if match is None:
        raise QuestionError(f"worker={shown(which)}: write the worker as DP,STAGE, e.g. worker=1,0")
    dp_rank, stage = int(match[1]), int(match[2])
    dp, pp = report.source.dp_size, report.job.pp
    if dp_rank >= dp or stage >= pp:
        raise QuestionError(
            f"worker {dp_rank},{stage} is outside the job: dp ranks 0 to {dp - 1}, stages 0 to {pp - 1}"
        )
    if dp * pp == 1:
        raise QuestionError("the job has one worker: there is no other one to be as fast as")
    if report.worker_rank[f"{dp_rank},{stage}"] < 0:
        raise QuestionError(f"worker {dp_rank},{stage} was not recorded: nothing is known of its speed")
    return Fix.of_workers([(dp_rank, stage)], has_peers=dp > 1)


def _stage(report: Report, which: str) -> Fix:
    pp = report.job.pp
    if re.fullmatch(r"\s*[0-9]{1,9}\s*", which) is None:
        raise QuestionError(f"stage={shown(which)}: write the number of a stage, e.g. stage=0")
    if int(which) >= pp:
        raise QuestionError(f"stage {int(which)} is outside the job: stages 0 to {pp - 1}")
    if pp == 1:
        raise QuestionError("the job has one stage: there is no other one to be as fast as")
    return Fix.of_stages([int(which)])


def _kind(report: Report, which: str) -> Fix:
    present = kinds_in(report.source.trace)
    kinds = [kind for kind in MERGED_MESSAGE_KINDS.get(which, (which,)) if kind in present]
    if not kinds:
        raise QuestionError(f"{shown(which)}: no such kind in this trace; it has {', '.join(sorted(present))}")
    return Fix.of_ideal_kinds(kinds, f"every {which} takes what it takes without stragglers")


def _assumed_of_replicas(
    report: Report, dropped: Sequence[int], dp_after: int, draw_count: int, dp: int
) -> tuple[str, ...]:
    assumed = []
    if dropped:
        which = ", ".join(str(rank) for rank in dropped)
        assumed.append(
            f"dp rank{'' if len(dropped) == 1 else 's'} {which} (the slowest alone) left: nobody waits for them"
        )
    remain = dp - len(dropped)
    if draw_count and dp_after > remain:
        assumed.append(
            f"a draw, {draw_count} times: the {remain} measured replicas and {dp_after - remain:,} of their steps;"
            " none is slower than any measured, collectives take as long as now, each replica has its own batch"
        )
    elif draw_count:
        assumed.append(f"a draw: {counted(dp_after, 'replica')} of the {remain} measured, anew each step")
    return tuple(assumed)


def _dp_ranks(count: int) -> str:
    return "dp rank" if count == 1 else f"{count:,} dp ranks"


def _assumed_of_delays(report: Report, parts: dict[str, Any]) -> str:
    if "launch_delays" in parts:
        return "all else stays as recorded"
    if report.source.trace.recording is None:
        return "launch delays count neither before nor after: in such traces they are partly waits"
    return "launch delays stay as recorded"


def _assumed_of_missing(report: Report) -> tuple[str, ...]:
    missing = len(report.fidelity.missing_ranks)
    assumed = []
    if missing:
        verb = "is" if missing == 1 else "are"
        assumed.append(f"{missing:,} of {counted(report.job.world, 'rank')} {verb} missing: what they did is not known")
    if report.fidelity.unfinished:
        assumed.append("some ranks were cut short: see `smon analyze`")
    return tuple(assumed)


def _text(report: Report, question: str, outcome: _Outcome, dp: int, dp_after: int, assumed: Sequence[str]) -> str:
    """The answer in labelled lines, like those of a verdict."""
    lines = [
        ("question", question),
        ("answer", _answer_line(outcome)),
        *([("replicas", _replicas_line(outcome, dp, dp_after))] if dp_after != dp else []),
        ("worth", _worth_line(report, outcome)),
        ("assumed", "; ".join(assumed)),
    ]
    return "\n".join(f"{label:<{_LABEL_WIDTH}}{line}" for label, line in lines)


def _answer_line(outcome: _Outcome) -> str:
    change = f"{seconds_change(outcome.before_s, outcome.after_s)} a step"
    if outcome.is_nothing:
        return f"{change}: changes nothing"
    verb = "gives back" if outcome.gain_s >= 0 else "takes"
    more = "" if outcome.gain_s >= 0 else " more"
    interval = ""
    if outcome.low is not None and outcome.high is not None:
        ends = (outcome.low, outcome.high) if outcome.gain_s >= 0 else (-outcome.high, -outcome.low)
        interval = f" ({seconds_range(*ends)})"
    # Where next to nothing is lost, a share of that says nothing.
    has_share = outcome.share is not None and outcome.gain_s > 0 and outcome.share <= _MOST_SHARE
    share = f", {percent(outcome.share)} of the loss" if has_share else ""
    return f"{change}: {verb} {seconds(abs(outcome.gain_s))}{more}{interval}{share}"


def _replicas_line(outcome: _Outcome, dp: int, dp_after: int) -> str:
    if outcome.throughput_ratio is None:
        return f"{dp_after:,} instead of {dp:,}"
    per_gpu = outcome.throughput_ratio * dp / dp_after
    return (
        f"{dp_after:,} instead of {dp:,}: {outcome.throughput_ratio:.2f} times the samples a second,"
        f" {percent(per_gpu)} of now per GPU"
    )


def _worth_line(report: Report, outcome: _Outcome) -> str:
    if outcome.gpu_hours_per_day is None or outcome.cost_per_day is None:
        return "unknown"
    if outcome.is_nothing:
        return "nothing"
    options = report.source.options
    verb = "saved" if outcome.gpu_hours_per_day >= 0 else "more"
    return (
        f"{hours(abs(outcome.gpu_hours_per_day))} GPU-hours a day {verb} for the same work,"
        f" {money(abs(outcome.cost_per_day), options.currency)} at"
        f" {price(options.gpu_hour_price, options.currency)} per GPU-hour"
    )
