"""Causes of lost time: what would fixing each one give back?

The engine takes the times of ops robustly apart (csrc/analysis/compute_factors.h: stage, worker, microbatch, noise;
likewise links, groups and work of the host) and replays the job with one cause's own factor divided out, everything
else as recorded. So a straggler is not in its own yardstick, and what one cause does is not said of another. Causes
overlap where one hides behind another: shares need not sum to 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from smon_rt.analysis.raw import RawCause, RawResult


@dataclass(frozen=True, slots=True)
class Where:
    """A place in the job; None where the cause has no such coordinate or the trace does not carry it.

    A link between pipeline stages has its other end in `peer_stage` and `peer_rank`.
    """

    rank: int | None = None
    dp_rank: int | None = None
    stage: int | None = None
    tp_rank: int | None = None
    host: str | None = None
    gpu_uuid: str | None = None
    local_rank: int | None = None
    peer_stage: int | None = None
    peer_rank: int | None = None
    cp_rank: int | None = None


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

    @property
    def links(self) -> list[tuple[int, int, int]]:
        """Several slow links, (dp rank, stage, stage at the other end), slowest first; none where one is the place."""
        return [(dp_rank, stage, peer_stage) for dp_rank, stage, peer_stage in self.detail.get("links", ())]


def find_causes(raw: RawResult, cp_size: int = 1) -> tuple[Cause, ...]:
    """All causes that the trace can show, largest gain first; small and negative gains stay in the list.

    Several have the same name where several places are worth a line: two slow workers, two links. Gradients are reduced
    over the context-parallel ranks, too.
    """
    base = raw["step_time_s"]["base"]
    loss_s = fmean(base) - fmean(raw["step_time_s"]["ideal"])
    # Imported late: reports are also read where the engine is not installed.
    from smon_rt import _analysis

    def cause(found: RawCause) -> Cause:
        gains = [before - after for before, after in zip(base, found["step_s"], strict=True)]
        gain = fmean(gains)
        low, high = _analysis.bootstrap_mean(gains, raw["steps"]) or (None, None)
        share = gain / loss_s if loss_s > 0 and math.isfinite(gain / loss_s) else None
        by_step = {str(step): value for step, value in zip(raw["steps"], gains, strict=True)}
        where, detail = _where(raw, found), _detail(raw, found)
        return Cause(found["cause"], gain, share, low, high, _persistence(gains, gain), where, detail, by_step)

    # Sends and receives without a neighbour, as some recorders write, are nobody's links; reductions in groups of one
    # are work of the host.
    sizes = {"pp_communication": raw["pp_size"], "dp_communication": raw["dp_size"] * cp_size}
    causes = [cause(found) for found in raw["causes"] if sizes.get(found["cause"], 2) > 1]
    return tuple(sorted(causes, key=lambda found: -found.gain_s_per_step))


def _persistence(gains: Sequence[float], mean_gain: float) -> float | None:
    """Share of steps whose gain is at least half of the mean gain; None where there is no gain to persist."""
    if not mean_gain > 0:
        return None
    return sum(gain >= mean_gain / 2 for gain in gains) / len(gains)


def _where(raw: RawResult, found: RawCause) -> Where:
    dp_rank, stage, peer_stage = (_place(found[key]) for key in ("dp_rank", "stage", "peer_stage"))

    def rank_of(at_stage: int | None) -> int | None:
        return None if dp_rank is None or at_stage is None else _place(raw["worker_rank"][dp_rank][at_stage])

    return Where(
        rank=rank_of(stage),
        dp_rank=dp_rank,
        stage=stage,
        peer_stage=peer_stage,
        peer_rank=rank_of(peer_stage),
    )


def _place(number: int) -> int | None:
    return number if number >= 0 else None


def _detail(raw: RawResult, found: RawCause) -> dict[str, Any]:
    """The engine's evidence, and what the paper's metrics say of the same place."""
    detail: dict[str, Any] = dict(found["detail"])
    if found["workers"]:
        detail["workers"] = [list(worker) for worker in found["workers"]]
    if found.get("links"):
        detail["links"] = [list(link) for link in found["links"]]
    dp_rank, stage = found["dp_rank"], found["stage"]
    if found["cause"] == "worker":
        by_dp_rank = raw["slowdown_by"]["dp_rank"]
        is_replica = stage < 0  # all workers of the dp rank
        detail["slowdown"] = by_dp_rank.get(str(dp_rank)) if is_replica else raw["slowdown_by_worker"][dp_rank][stage]
        detail["peers"] = "same_stage" if raw["dp_size"] > 1 else "other_stages"
    elif found["cause"] == "stage":
        detail["slowdown"] = raw["slowdown_by"]["stage"].get(str(stage))
        detail["is_last_stage"] = stage == raw["pp_size"] - 1
    elif found["cause"] == "host_launch_delay" and not found["workers"]:
        detail["launch_slowdown"] = raw["launch_slowdown"]
    return detail
