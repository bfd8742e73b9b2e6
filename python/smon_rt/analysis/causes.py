"""Causes of lost time, from the paper's metrics: what would fixing each one give back?

A cause's gain is simulated: the step time without launch delays, minus the step time when that cause's ops also take
their ideal duration. The ideal is the mean over all workers, which contains the straggler itself, so the gain of a
worker in a small job is somewhat understated; shares overlap and need not sum to 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from smon_rt.analysis.raw import RawResult

#: Slow forwards with slow backwards are evidence for sequence lengths only where forwards also vary this much.
SEQUENCE_CORRELATION = 0.9
SEQUENCE_FORWARD_CV = 0.10
#: One worker stands for the whole set of slowest workers when it alone gives back this much of the set's gain.
SINGLE_WORKER_SHARE = 0.8
_COMPUTE_KINDS = ("forward_compute", "backward_compute")


@dataclass(frozen=True, slots=True)
class Where:
    """A place in the job; None where the cause has no such coordinate or the trace does not carry it."""

    rank: int | None = None
    dp_rank: int | None = None
    stage: int | None = None
    tp_rank: int | None = None
    host: str | None = None
    gpu_uuid: str | None = None
    local_rank: int | None = None


@dataclass(frozen=True, slots=True)
class Cause:
    """What one cause costs: mean seconds a step its repair gives back, with the 95 % interval `low`..`high` of that.

    `gain_s_by_step` is the same for every step, by step number: since when it shows, and in which steps.
    """

    cause: str
    gain_s_per_step: float
    share: float | None
    low: float | None
    high: float | None
    persistence_ratio: float | None
    where: Where = field(default_factory=Where)
    detail: dict[str, Any] = field(default_factory=dict)
    gain_s_by_step: dict[str, float] = field(default_factory=dict)


def find_causes(raw: RawResult) -> tuple[Cause, ...]:
    """All causes that the trace can show, largest gain first; small and negative gains stay in the list."""
    base, nodelay, ideal = (raw["step_time_s"][key] for key in ("base", "nodelay", "ideal"))
    loss_s = fmean(base) - fmean(ideal)
    # Imported late: reports are also read where the engine is not installed.
    from smon_rt import _analysis

    def cause(name: str, gains: Sequence[float], where: Where, detail: dict[str, Any]) -> Cause:
        gain = fmean(gains)
        low, high = _analysis.bootstrap_mean(gains, raw["steps"]) or (None, None)
        share = gain / loss_s if loss_s > 0 and math.isfinite(gain / loss_s) else None
        by_step = {str(step): value for step, value in zip(raw["steps"], gains, strict=True)}
        return Cause(name, gain, share, low, high, _persistence(gains, gain), where, detail, by_step)

    def gains_of(removal: str) -> list[float]:
        return [before - after for before, after in zip(nodelay, raw["removals"][removal], strict=True)]

    causes = []
    dp_size, pp_size = raw["dp_size"], raw["pp_size"]
    if dp_size * pp_size > 1 and "worker" in raw["removals"]:
        causes.append(cause("worker", *_worker(raw, gains_of)))
    if pp_size > 1 and "stage" in raw["removals"]:
        stage = raw["removal_where"]["stage"]
        gains = gains_of("stage")
        if dp_size > 1 and raw["removal_where"]["worker"][1] == stage:
            # What its worst worker alone gives back is the worker's, not the stage's.
            gains = [whole - own for whole, own in zip(gains, gains_of("worker"), strict=True)]
        causes.append(cause("stage", gains, Where(stage=stage), _stage_detail(raw, stage)))
    if "sequence_length" in raw["removals"]:
        # Evening out the microbatches of a worker removes plain noise as well: without evidence it is called noise.
        name = "sequence_length" if has_sequence_evidence(raw) else "noise"
        causes.append(cause(name, gains_of("sequence_length"), Where(), dict(raw["forward_backward"])))
    plain = [name for name in ("gc", "data_loading", "pp_communication", "dp_communication") if name in raw["removals"]]
    if pp_size == 1:
        # Sends and receives without a neighbour, as some recorders write, are nobody's links.
        plain = [name for name in plain if name != "pp_communication"]
    causes += [cause(name, gains_of(name), Where(), {}) for name in plain]
    launch_gains = [before - after for before, after in zip(base, nodelay, strict=True)]
    causes.append(cause("host_launch_delay", launch_gains, Where(), {"launch_slowdown": raw["launch_slowdown"]}))
    return tuple(sorted(causes, key=lambda found: -found.gain_s_per_step))


def has_sequence_evidence(raw: RawResult) -> bool:
    """True where forward and backward times move together and forwards vary enough for lengths to be the reason."""
    pair = raw["forward_backward"]
    return pair["correlation"] >= SEQUENCE_CORRELATION and pair["forward_cv"] >= SEQUENCE_FORWARD_CV


def _persistence(gains: Sequence[float], mean_gain: float) -> float | None:
    """Share of steps whose gain is at least half of the mean gain; None where there is no gain to persist."""
    if not mean_gain > 0:
        return None
    return sum(gain >= mean_gain / 2 for gain in gains) / len(gains)


def _worker(raw: RawResult, gains_of: Callable[[str], list[float]]) -> tuple[list[float], Where, dict[str, Any]]:
    """Gains, place and evidence of the worst worker, or of the slowest 3 % where one does not stand for them."""
    dp_rank, stage = raw["removal_where"]["worker"]
    workers = [[dp_rank, stage]]
    gains = gains_of("worker")
    if "worker_top" in raw["removals"]:
        top_gains = gains_of("worker_top")
        if fmean(gains) < SINGLE_WORKER_SHARE * fmean(top_gains):
            gains, workers = top_gains, [list(worker) for worker in raw["m_w_exact"]["workers"]]
    peers = "same_stage" if raw["dp_size"] > 1 else "other_stages"
    detail: dict[str, Any] = {
        "workers": workers,
        "slowdown": raw["slowdown_by_worker"][dp_rank][stage],
        "peers": peers,
    }
    for kind in _COMPUTE_KINDS:
        medians = raw["worker_median_s"].get(kind)
        if medians is None:
            continue
        if peers == "same_stage":
            others = [row[stage] for index, row in enumerate(medians) if index != dp_rank]
        else:
            others = [value for index, value in enumerate(medians[0]) if index != stage]
        detail[f"{kind}_ratio"] = _ratio_to_median(medians[dp_rank][stage], others)
    rank = raw["worker_rank"][dp_rank][stage]
    return gains, Where(rank=rank if rank >= 0 else None, dp_rank=dp_rank, stage=stage), detail


def _stage_detail(raw: RawResult, stage: int) -> dict[str, Any]:
    """How much slower than the other stages the stage computes, by the medians over its dp ranks."""
    detail: dict[str, Any] = {
        "slowdown": raw["slowdown_by"]["stage"].get(str(stage)),
        "is_last_stage": stage == raw["pp_size"] - 1,
    }
    for kind in _COMPUTE_KINDS:
        medians = raw["worker_median_s"].get(kind)
        if medians is None:
            continue
        by_stage = [_finite_median([row[index] for row in medians]) for index in range(raw["pp_size"])]
        others = [value for index, value in enumerate(by_stage) if index != stage]
        detail[f"{kind}_ratio"] = _ratio_to_median(by_stage[stage], others)
    return detail


def _finite_median(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return median(finite) if finite else math.nan


def _ratio_to_median(value: float, others: Sequence[float]) -> float | None:
    middle = _finite_median(others)
    return value / middle if math.isfinite(value) and math.isfinite(middle) and middle > 0 else None
