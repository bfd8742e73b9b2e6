"""Advice with numbers: what a change of the job itself would give back, simulated.

Only where the cause that a change is for is named, or gives back 3 % of the step. Not every cause has such a change: a
slow machine is to be taken out, which the verdict says.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from smon_rt.analysis.engine import ask_engine
from smon_rt.analysis.garbage import interval_for_memory
from smon_rt.analysis.naming import is_named
from smon_rt.analysis.situation import NAMED_GAIN_RATIO
from smon_rt.analysis.stage_split import better_splits, fit_stages, moved_words
from smon_rt.analysis.units import counted, is_finite, percent, seconds, seconds_range
from smon_rt.errors import QuestionError
from smon_rt.kinds import KIND_NAMES

if TYPE_CHECKING:
    from smon_rt.analysis.causes import Cause
    from smon_rt.analysis.raw import RawAnswer
    from smon_rt.analysis.report import Report

__all__ = ["Advice", "check_layers", "with_advice"]

_PASSES = ("forward_compute", "backward_compute")
#: What a change must surely give back, as a part of the step, to be worth the trouble.
_WORTH_SAYING_RATIO = 0.01
#: From this part on what moved work gives back is said to be all that the repair does.
_ALL_OF_IT_RATIO = 0.98
_NS_PER_S = 1e9


@dataclass(frozen=True, slots=True)
class Advice:
    """A change of the job, and the mean seconds a step it gives back, with the 95 % interval of that.

    `action` is one of move_layers, move_stage_work, plan_gc, rebalance_sequences; `text` says it in one line; `detail`
    has its numbers (docs/what_if.md).
    """

    action: str
    text: str
    gain_s_per_step: float
    low: float | None
    high: float | None
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Gain:
    mean_s: float
    low: float | None
    high: float | None

    def words(self, of_s: float | None = None) -> str:
        """`of_s`: what the verdict says that the whole repair of the same stage gives back."""
        interval = "" if self.low is None else f" ({seconds_range(self.low, self.high)})"
        words = f"gives back {seconds(self.mean_s)} a step{interval}"
        if of_s is None or self.mean_s >= _ALL_OF_IT_RATIO * of_s:
            return words
        return f"{words} of these {seconds(of_s)}, as the others get slower"

    def is_worth_saying(self, base_s: float) -> bool:
        sure = self.mean_s if self.low is None else self.low
        return self.mean_s >= _WORTH_SAYING_RATIO * base_s and sure > 0


@dataclass(frozen=True, slots=True)
class _Plan:
    """Questions to the engine, and what their answers advise."""

    questions: list[dict[str, Any]]
    advice_of: Callable[[list[_Gain]], Advice | None]


def with_advice(report: Report) -> Report:
    """The report with its advice, which is about layers where the user or the job's record says how many there are.

    The engine is asked only where there is something to advise, once for all of it.
    """
    layers = report.source.options.layers or report.source.trace.job.layers
    plans = list(_plans(report, layers))
    questions = [question for plan in plans for question in plan.questions]
    gains = [_gain_of(raw) for raw in ask_engine(report.source.trace, questions)] if questions else []
    found: list[Advice] = []
    for plan in plans:
        own, gains = gains[: len(plan.questions)], gains[len(plan.questions) :]
        advice = plan.advice_of(own)
        if advice is not None:
            found.append(advice)
    return dataclasses.replace(report, advice=tuple(sorted(found, key=lambda each: -each.gain_s_per_step)))


def check_layers(layers: Sequence[int], pp: int) -> None:
    """Raises QuestionError for layers that are not one whole number above 0 for each of `pp` stages."""
    if len(layers) != pp:
        raise QuestionError(f"{counted(len(layers), 'number')} of layers for {counted(pp, 'stage')}: give one for each")
    if any(isinstance(count, bool) or not isinstance(count, int) or count < 1 for count in layers):
        raise QuestionError(f"layers of stages must be whole numbers above 0, not {list(layers)}")


def _plans(report: Report, layers: Sequence[int] | None) -> Iterator[_Plan]:
    base_s = report.mean_step_time_s.base
    for cause in report.causes:
        if not (is_named(cause, base_s) or cause.gain_s_per_step >= NAMED_GAIN_RATIO * base_s):
            continue
        if cause.cause == "stage" and cause.where.stage is not None:
            stage = cause.where.stage
            is_spared = _has_slow_member(report, stage) or _is_named_for_a_worker(report, stage)
            plan = None if is_spared else _stage_plan(report, cause, stage, layers)
        elif cause.cause == "gc":
            plan = _gc_plan(report, cause)
        elif cause.cause == "sequence_length" and report.source.dp_size > 1:
            plan = _sequence_plan(report)
        else:
            continue
        if plan is not None:
            yield plan


def _gain_of(raw: RawAnswer) -> _Gain:
    from smon_rt import _analysis

    gains = [before - after for before, after in zip(raw["before_s"], raw["after_s"], strict=True)]
    low, high = _analysis.bootstrap_mean(gains, raw["steps"]) or (None, None)
    return _Gain(fmean(gains), low, high)


def _has_slow_member(report: Report, stage: int) -> bool:
    """What a slow member costs is in the times of its stage, and moving work away from there mends nothing of it."""
    return any(place == stage for cause in report.causes for _, _, place in cause.detail.get("members", ()))


def _is_named_for_a_worker(report: Report, stage: int) -> bool:
    """Once the machine is out, that stage has less to do than it seems: moved work would have to come back."""
    return report.verdict.cause in ("worker", "tensor_parallel_member") and report.verdict.where.stage == stage


def _stage_plan(report: Report, cause: Cause, stage: int, layers: Sequence[int] | None) -> _Plan | None:
    """Work moves from the stage to the others: layers where they are known, else a share of it."""
    times = {kind: _stage_times(report, kind) for kind in _PASSES}
    if any(not (math.isfinite(value) and value > 0) for values in times.values() for value in values):
        return None
    is_verdict = report.verdict.cause == "stage" and report.verdict.where.stage == stage
    of_s = cause.gain_s_per_step if is_verdict else None
    return _move_layers(report, times, layers, of_s) if layers is not None else _move_work(report, times, stage, of_s)


def _stage_times(report: Report, kind: str) -> list[float]:
    """What a stage usually takes, by stage: the median over its dp ranks."""
    medians = report.worker_median_s.get(kind, {})
    by_stage: list[list[float]] = [[] for _ in range(report.job.pp)]
    for worker, value in medians.items():
        if is_finite(value):
            by_stage[int(worker.partition(",")[2])].append(value)
    return [median(values) if values else math.nan for values in by_stage]


def _scales(times: dict[str, list[float]], wanted: dict[str, list[float]]) -> list[tuple[str, int, int, float]]:
    return [
        (kind, -1, stage, wanted[kind][stage] / own)
        for kind, values in times.items()
        for stage, own in enumerate(values)
        if wanted[kind][stage] != own
    ]


def _move_work(report: Report, times: dict[str, list[float]], stage: int, of_s: float | None) -> _Plan | None:
    totals = [sum(values[each] for values in times.values()) for each in range(report.job.pp)]
    even = fmean(totals)
    if totals[stage] <= even:
        return None
    part = 1 - even / totals[stage]
    wanted = {
        kind: [own * even / total for own, total in zip(values, totals, strict=True)] for kind, values in times.items()
    }

    def advice_of(gains: list[_Gain]) -> Advice | None:
        [gain] = gains
        if not gain.is_worth_saying(report.mean_step_time_s.base):
            return None
        text = (
            f"move {percent(part)} of stage {stage}'s work to the other stages: {gain.words(of_s)}; with --layers"
            " (layers of each stage) this becomes a number of layers"
        )
        detail = {"stage": stage, "work_ratio": part, "stage_time_s": totals}
        return Advice("move_stage_work", text, gain.mean_s, gain.low, gain.high, detail)

    return _Plan([{"scales": _scales(times, wanted)}], advice_of)


def _move_layers(
    report: Report, times: dict[str, list[float]], layers: Sequence[int], of_s: float | None
) -> _Plan | None:
    fits = {kind: fit_stages(values, layers) for kind, values in times.items()}
    spared = [stage for stage in range(len(layers)) if _is_named_for_a_worker(report, stage)]
    splits = [
        split
        for split in better_splits(list(fits.values()), layers)
        if all(split[stage] >= layers[stage] for stage in spared)
    ]
    if not splits:
        return None
    questions = [
        {"scales": _scales(times, {kind: fit.times_of(split) for kind, fit in fits.items()})} for split in splits
    ]

    def advice_of(gains: list[_Gain]) -> Advice | None:
        best = max(range(len(splits)), key=lambda index: gains[index].mean_s)
        gain, split = gains[best], splits[best]
        if not gain.is_worth_saying(report.mean_step_time_s.base):
            return None
        text = f"{moved_words(layers, split)}: {gain.words(of_s)}"
        detail = {
            "layers": list(layers),
            "layers_after": list(split),
            "layer_s": {kind: fit.layer_s for kind, fit in fits.items()},
            "extra_s": {kind: list(fit.extra_s) for kind, fit in fits.items()},
        }
        return Advice("move_layers", text, gain.mean_s, gain.low, gain.high, detail)

    return _Plan(questions, advice_of)


def _gc_plan(report: Report, cause: Cause) -> _Plan | None:
    """All ranks collect at the same step: that step is as much longer as one collection takes now."""
    garbage = report.source.trace.recording.garbage if report.source.trace.recording is not None else None
    if garbage is not None and garbage.is_planned:
        return None  # what costs now comes beside the plan: the trust line has it
    durations = _collections(report)
    if not durations:
        return None
    # By their time: young collections of microseconds are many, and no reason to plan anything. Of all workers
    # together: in a short recording many have none that matters.
    squares = {worker: sum(value * value for value in values) for worker, values in durations.items()}
    totals = {worker: sum(values) for worker, values in durations.items()}
    if not any(squares.values()):
        return None
    count = sum(totals.values()) ** 2 / sum(squares.values())
    per_step = count / len(report.worker_rank) / report.step_count
    pause_s = max(square / totals[worker] for worker, square in squares.items() if square > 0)
    interval = as_now = max(1, round(1 / per_step))
    detail: dict[str, Any] = {"collection_s": pause_s, "collections_per_step": per_step}
    if garbage is not None and garbage.bytes_per_step is not None:
        interval = interval_for_memory(garbage.bytes_per_step, as_now)
        detail["garbage_bytes_per_step"] = garbage.bytes_per_step
    cost_s = pause_s * (per_step if interval == as_now else 1 / interval)
    gain = _Gain(
        cause.gain_s_per_step - cost_s,
        None if cause.low is None else cause.low - cost_s,
        None if cause.high is None else cause.high - cost_s,
    )

    def advice_of(_gains: list[_Gain]) -> Advice | None:
        if not gain.is_worth_saying(report.mean_step_time_s.base):
            return None
        how = "every step" if interval == 1 else f"every {interval:,} steps"
        text = f"collect garbage {how} at the same step on all ranks, smon_rt.gc.plan({interval}): {gain.words()}"
        return Advice("plan_gc", text, gain.mean_s, gain.low, gain.high, {"interval_steps": interval, **detail})

    return _Plan([], advice_of)


def _collections(report: Report) -> dict[tuple[int, int], list[float]]:
    """Seconds of each collection, by worker."""
    import pyarrow.compute as pc

    ops = report.source.trace.ops
    chosen = ops.filter(pc.equal(ops["kind"], KIND_NAMES.index("gc")))
    found: dict[tuple[int, int], list[float]] = {}
    columns = (chosen[name].to_pylist() for name in ("dp_rank", "stage", "duration_ns"))
    for dp_rank, stage, duration_ns in zip(*columns, strict=True):
        found.setdefault((dp_rank, stage), []).append(duration_ns / _NS_PER_S)
    return found


def _sequence_plan(report: Report) -> _Plan:
    def advice_of(gains: list[_Gain]) -> Advice | None:
        [gain] = gains
        if not gain.is_worth_saying(report.mean_step_time_s.base):
            return None
        text = (
            "deal the sequences of each step to the dp ranks by attention cost, the longest microbatch first to the"
            f" rank with the least to do: {gain.words()}"
        )
        return Advice("rebalance_sequences", text, gain.mean_s, gain.low, gain.high)

    return _Plan([{"microbatches": "rebalanced"}], advice_of)
