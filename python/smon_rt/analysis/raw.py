"""The engine's answer as Python sees it: the dict that `smon_rt._analysis.analyze` returns, typed.

Times are seconds, kinds are snake_case, lists run over steps, nested lists are `[dp_rank][stage]`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict


class RawStepTimes(TypedDict):
    """Seconds per step: as recorded, without launch delays, and with every op at its ideal too."""

    base: Sequence[float]
    nodelay: Sequence[float]
    ideal: Sequence[float]


class RawInterval(TypedDict):
    """A value and its 95 % interval; no interval with a single step."""

    value: float
    low: float | None
    high: float | None


class RawGroups(TypedDict):
    """A slowdown for each kind, stage and dp rank."""

    kind: Mapping[str, float]
    stage: Mapping[str, float]
    dp_rank: Mapping[str, float]


class RawGroupsByStep(TypedDict):
    """`RawGroups`, one value a step."""

    kind: Mapping[str, Sequence[float]]
    stage: Mapping[str, Sequence[float]]
    dp_rank: Mapping[str, Sequence[float]]


class RawContribution(TypedDict):
    """What fixing a set of workers gives back (`ratio`), or adding only them takes (`added_ratio`)."""

    ratio: float
    added_ratio: float
    workers: Sequence[Sequence[int]]
    removed_s: float
    added_s: float


class RawCause(TypedDict):
    """One cause of lost time: step times of the job without it, gains are base minus these.

    `dp_rank`, `stage` and, of a link, `peer_stage` say where it is; -1: everywhere, or no such coordinate. Of several
    places they are the slowest one; `workers` (dp rank, stage) or `links` (dp rank, stage, peer stage) are all of them.
    """

    cause: str
    dp_rank: int
    stage: int
    peer_stage: int
    workers: Sequence[Sequence[int]]
    links: Sequence[Sequence[int]]
    detail: Mapping[str, float]
    step_s: Sequence[float]


class RawForwardBackward(TypedDict):
    """Do slow forwards have slow backwards, and how much do forwards vary?"""

    correlation: float
    forward_cv: float


class RawEarlyStarts(TypedDict):
    """Ops that start before what they wait for has ended."""

    count: int
    worst_s: float


class RawNegativeTransfers(TypedDict):
    """Communication that ends before the last of its group starts: clocks that disagree, or a wrong group."""

    count: int
    worst_s: float


class RawIdFidelity(TypedDict, total=False):
    """What is found by the rules of ids only: what the clocks of several hosts do to the times, and the error that is
    left when the host's gaps between ops are replayed as well.
    """

    unexplained_error_mean: float | None
    unexplained_error_worst: float | None
    negative_transfers: RawNegativeTransfers
    clock_tolerance_s: float


class RawFidelity(RawIdFidelity):
    """How far the replay is from the recorded steps."""

    simulation_error_mean: float
    simulation_error_worst: float
    early_starts: RawEarlyStarts


class RawLeftOutStep(TypedDict):
    """A step that is in none of the results, and the ops that contradict those of the other steps."""

    step: int
    reason: str


class RawCoverage(TypedDict, total=False):
    """What the rules of ids did without; empty and 0 by the reference rules, which refuse such traces.

    `absent_op_count`: computes and communication that a lane lacks and another one has. `wait_for_missing_s`: by how
    much a step is longer because the others wait for workers that were not recorded; None where all were.
    """

    left_out_steps: Sequence[RawLeftOutStep]
    absent_op_count: int
    wait_for_missing_s: float | None


class RawAnswer(TypedDict):
    """Step times of one question, before and after; `draw_count` is 0 where nothing was drawn."""

    steps: Sequence[int]
    before_s: Sequence[float]
    after_s: Sequence[float]
    dropped_dp_ranks: Sequence[int]
    dp_count: int
    draw_count: int


class RawResult(RawCoverage):
    """All that the engine returns.

    `worker_rank` is -1 for a worker without any op, its medians are NaN then.
    """

    steps: Sequence[int]
    dp_size: int
    pp_size: int
    op_count: int
    worker_rank: Sequence[Sequence[int]]
    step_time_s: RawStepTimes
    slowdown: RawInterval
    launch_slowdown: float
    slowdown_by_step: Sequence[float]
    launch_slowdown_by_step: Sequence[float]
    slowdown_by: RawGroups
    slowdown_by_by_step: RawGroupsByStep
    launch_slowdown_by: RawGroups
    launch_slowdown_by_by_step: RawGroupsByStep
    slowdown_by_worker: Sequence[Sequence[float]]
    slowdown_by_worker_by_step: Sequence[Sequence[Sequence[float]]]
    slowdown_by_worker_min: Sequence[Sequence[float]]
    m_w: RawContribution
    m_w_exact: RawContribution
    m_s: RawContribution
    causes: Sequence[RawCause]
    worker_median_s: Mapping[str, Sequence[Sequence[float]]]
    forward_backward: RawForwardBackward
    fidelity: RawFidelity
    timing_ms: Mapping[str, float]
