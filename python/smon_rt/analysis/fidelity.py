"""What a report says about its own trace: how far to trust the numbers, and where workers ran."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from smon_rt.analysis.causes import Cause
from smon_rt.analysis.raw import RawResult
from smon_rt.analysis.recording import Member, Recording

_MOST_NAMED = 4


@dataclass(frozen=True, slots=True)
class EarlyStarts:
    """Ops that start before what they wait for has ended."""

    count: int
    worst_s: float


@dataclass(frozen=True, slots=True)
class Coverage:
    """Share of the layout's ranks that were recorded, of the sampled steps asked for that were analysed, and of the
    computes in these that have times of a GPU, None where the trace does not tell.
    """

    ranks: float
    steps: float
    device_times: float | None = None


@dataclass(frozen=True, slots=True)
class RecorderOverhead:
    """What recording costs the job: how much longer sampled steps are than the steps around them, as a ratio."""

    ratio: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Fidelity:
    """How far to trust the numbers."""

    simulation_error_mean: float
    simulation_error_worst: float
    unexplained_error_mean: float | None
    unexplained_error_worst: float | None
    early_starts: EarlyStarts
    clock_bound_s: float | None
    device_bound_s: float | None
    dropped_spans: dict[str, int]
    missing_ranks: tuple[int, ...]
    coverage: Coverage
    time_sources: dict[str, int]
    clocks: str
    unfinished: tuple[str, ...]
    left_out: tuple[str, ...]
    is_live: bool
    recorder_overhead: RecorderOverhead | None = None
    wait_for_missing_s_per_step: float | None = None


def completed(recording: Recording | None, raw: RawResult) -> Recording | None:
    """The facts of a recording with what the engine did without."""
    if recording is None:
        return None
    steps = raw.get("left_out_steps", ())
    words = [f"step {step['step']} ({step['reason']})" for step in steps[:_MOST_NAMED]]
    if len(steps) > _MOST_NAMED:
        words.append(f"{len(steps) - _MOST_NAMED:,} more steps that contradict the others")
    if absent := raw.get("absent_op_count", 0):
        words.append(f"{absent:,} ops that some steps or workers lack")
    return dataclasses.replace(recording, step_count=len(raw["steps"]), left_out=(*recording.left_out, *words))


def fidelity_of(raw: RawResult, recording: Recording | None) -> Fidelity:
    """The artifact's traces carry no drops, clock bounds or time sources; the engine refuses incomplete layouts."""
    replayed = raw["fidelity"]
    coverage = Coverage(ranks=1.0, steps=1.0)
    if recording is not None:
        ranks = 1 - len(recording.missing_ranks) / recording.world_size
        steps = recording.step_count / max(recording.recorded_step_count, 1)
        coverage = Coverage(ranks, steps, recording.device_time_ratio)
    return Fidelity(
        simulation_error_mean=replayed["simulation_error_mean"],
        simulation_error_worst=replayed["simulation_error_worst"],
        unexplained_error_mean=replayed.get("unexplained_error_mean"),
        unexplained_error_worst=replayed.get("unexplained_error_worst"),
        early_starts=EarlyStarts(replayed["early_starts"]["count"], replayed["early_starts"]["worst_s"]),
        clock_bound_s=None if recording is None else recording.clock_bound_s,
        device_bound_s=None if recording is None else recording.device_bound_s,
        dropped_spans={} if recording is None else recording.dropped_spans,
        missing_ranks=() if recording is None else recording.missing_ranks,
        coverage=coverage,
        time_sources={"as_recorded": raw["op_count"]} if recording is None else recording.time_sources,
        clocks="as recorded" if recording is None else recording.clock_words,
        unfinished=() if recording is None else recording.unfinished,
        left_out=() if recording is None else recording.left_out,
        is_live=recording is not None and recording.is_live,
        recorder_overhead=None if recording is None else _overhead(recording),
        wait_for_missing_s_per_step=raw.get("wait_for_missing_s"),
    )


def _overhead(recording: Recording) -> RecorderOverhead | None:
    found = recording.recorder_overhead
    return None if found is None else RecorderOverhead(found.ratio, found.low, found.high)


def located(cause: Cause, recording: Recording | None, worker_size: int) -> Cause:
    """The cause with what is known about its machine: that of the worker's lowest rank, or of its slow member.

    A worker has `worker_size` ranks, all of which are meant where the lowest does not stand for them.
    """
    where = cause.where
    if recording is None or where.dp_rank is None or where.stage is None:
        return cause
    members = recording.members.get((where.dp_rank, where.stage))
    if not members:
        return cause
    if cause.cause == "tensor_parallel_member":
        return _located_member(cause, recording, members)
    lowest = min(members, key=lambda member: member.rank)
    place = dataclasses.replace(
        where, host=lowest.host or None, gpu_uuid=lowest.gpu_uuid or None, local_rank=lowest.local_rank
    )
    return _of_all_members(dataclasses.replace(cause, where=place), recording, members, worker_size)


def _of_all_members(cause: Cause, recording: Recording, members: list[Member], worker_size: int) -> Cause:
    """With all ranks and hosts of a slow worker, where its lowest rank does not stand for the others.

    It does where they were seen to move together on one host.
    """
    hosts = sorted({member.host for member in members if member.host})
    stands_for_all = (cause.where.dp_rank, cause.where.stage) in recording.compared and len(hosts) <= 1
    is_one = cause.cause == "worker" and len(cause.detail.get("workers", ())) <= 1
    if not is_one or worker_size <= 1 or stands_for_all:
        return cause
    missing = max(worker_size - len(members), 0)
    host = hosts[0] if len(hosts) == 1 and not missing else None
    where = dataclasses.replace(cause.where, host=host, gpu_uuid=None, local_rank=None)
    detail = {**cause.detail, "ranks": sorted(member.rank for member in members), "hosts": hosts}
    if missing:
        detail["unrecorded_ranks"] = missing
    return dataclasses.replace(cause, where=where, detail=detail)


def _located_member(cause: Cause, recording: Recording, members: list[Member]) -> Cause:
    """The rank of a worker for which the others wait, and how that shows."""
    workers = [(dp_rank, stage) for dp_rank, stage in cause.detail["workers"]]
    slow = [(worker, member) for worker in workers for member in recording.slow_members.get(worker, ())]
    if not slow:
        return cause
    first = slow[0][1]
    own = next(member for member in members if member.rank == first.rank)
    has_tp, has_cp = (len({getattr(member, name) for member in members}) > 1 for name in ("tp_rank", "cp_rank"))
    where = dataclasses.replace(
        cause.where,
        rank=own.rank,
        tp_rank=own.tp_rank if has_tp else None,
        cp_rank=own.cp_rank if has_cp else None,
        host=own.host or None,
        gpu_uuid=own.gpu_uuid or None,
        local_rank=own.local_rank,
    )
    ratios = {"forward_compute_ratio": first.forward_ratio, "backward_compute_ratio": first.backward_ratio}
    detail = {
        **cause.detail,
        **{name: value for name, value in ratios.items() if value is not None},
        "wait_ratio": first.wait_ratio,
        "last_ratio": first.last_ratio,
        "late_s": first.late_s,
        "members": [[member.rank, *worker] for worker, member in slow],
    }
    return dataclasses.replace(cause, where=where, detail=detail)
