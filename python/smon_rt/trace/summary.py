"""What is in the trace of a job, in numbers: what `smon info` shows."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from smon_rt._proto import trace_pb2
from smon_rt.analysis.input_file import shown
from smon_rt.analysis.units import counted
from smon_rt.trace.arena import OpenSpan
from smon_rt.trace.gpu_facts import gpu_uuids, lost_with_its_process
from smon_rt.trace.job_trace import JobReader, JobTrace
from smon_rt.trace.kinds import CLOCK_SOURCE_NAMES, PHASE_NAMES, kind_name, name_of
from smon_rt.trace.nccl_summary import NcclSummary, NcclTotals
from smon_rt.trace.overhead import Overhead, overhead_of
from smon_rt.trace.packets import Damage
from smon_rt.trace.rank_trace import OPEN_SPANS_RING, RankTrace
from smon_rt.trace.unseen import hooks_of

_LOSS_NAMES = (
    *("foreign_tokens", "stale_tokens", "threads_without_ring", "unwritten_spans", "overwritten_spans"),
    *("late_requests", "uncounted_sequences", "reclaimed_spans", "saturated_steps", "misused_calls"),
    *("host_only_spans", "overwritten_comm_ops"),
)


@dataclass(frozen=True)
class KindSummary:
    """The spans of one kind, in all ranks: `total_s` by the device where it has their times."""

    kind: str
    span_count: int
    total_s: float
    device_span_count: int


@dataclass(frozen=True)
class Losses:
    """What was not recorded. `missing_spans` were taken by a ring and are in no file."""

    dropped_by_kind: dict[str, int]
    counts: dict[str, int]
    missing_spans: int
    sink_errors: list[str]

    @property
    def any(self) -> bool:
        """True if anything is lost."""
        return bool(self.dropped_by_kind or any(self.counts.values()) or self.missing_spans or self.sink_errors)


@dataclass(frozen=True)
class HookSummary:
    """A place that could be hooked, and the ranks that say this about it."""

    name: str
    is_installed: bool
    reason: str
    rank_count: int


@dataclass(frozen=True)
class RankSummary:
    """One process. `state`: closed, recording, cut, killed, open (killed or recording elsewhere)."""

    rank: int
    dp_rank: int
    stage: int
    tp_rank: int
    cp_rank: int
    host: str
    pid: int
    gpu_uuid: str
    gpu_uuids: list[str]  # of all that the process used, `gpu_uuid` first
    state: str
    end_reason: str
    files: list[str]
    file_bytes: int
    memory: str
    clock_source: str
    device_clock_bound_ns: int | None
    step_count: int
    sampled_step_count: int
    warmup_step_count: int
    first_step: int | None
    last_step: int | None
    mean_step_s: float | None
    span_count: int
    dropped_span_count: int
    missing_span_count: int
    repeated_span_count: int
    merged_span_count: int
    recorder_cpu_ratio: float | None
    event_query_count: int  # how often events of a GPU were asked for
    longest_event_lag_s: float  # from recording one until it was known to be ready, at most
    overhead: Overhead | None
    sample_ratio: float
    memory_step: int | None  # where the process was, as its memory says
    memory_phase: str
    open_spans: list[OpenSpan]
    damage: list[Damage]


@dataclass
class JobSummary:
    """A job's trace in numbers; `incomplete` says what is missing, a line each."""

    run_id: str
    attempt: int
    world_size: int
    layout: dict[str, Any]
    hosts: list[str]
    missing_ranks: list[tuple[int, int]]
    missing_text: str
    ranks: list[RankSummary]
    kinds: list[KindSummary]
    losses: Losses
    nccl: NcclSummary | None
    hooks: list[HookSummary]
    versions: dict[str, list[str]]
    environment: dict[str, list[str]]
    sampling: dict[str, Any]
    other_runs: list[dict[str, Any]]
    unreadable: list[str]
    incomplete: list[str]

    def to_dict(self) -> dict[str, Any]:
        """For JSON: numbers that are not finite become None."""
        result = dataclasses.asdict(self)
        result.pop("missing_text")
        return {key: _plain(value) for key, value in result.items()}


class _Totals:
    """What is summed over ranks while each is in memory."""

    def __init__(self) -> None:
        self.spans: Counter[int] = Counter()
        self.device_spans: Counter[int] = Counter()
        self.total_ns: Counter[int] = Counter()
        self.dropped: Counter[str] = Counter()
        self.losses: Counter[str] = Counter()
        self.missing_spans = 0
        self.sink_errors: list[str] = []
        self.nccl = NcclTotals()
        self.hooks: Counter[tuple[str, bool, str]] = Counter()
        self.versions: dict[str, set[str]] = {}
        self.environment: dict[str, set[str]] = {}

    def add(self, trace: RankTrace) -> None:
        spans = trace.spans
        if len(spans):
            counts = np.bincount(spans.kind, minlength=256)
            on_device = np.bincount(spans.kind, weights=spans.has_device_times, minlength=256)
            # On a device the launch is next to nothing of it.
            took_ns = np.where(spans.has_device_times, spans.device_duration_ns, spans.duration_ns)
            times = np.bincount(spans.kind, weights=took_ns, minlength=256)
            for kind in np.flatnonzero(counts).tolist():
                self.spans[kind] += int(counts[kind])
                self.device_spans[kind] += int(on_device[kind])
                self.total_ns[kind] += int(times[kind])
        self.dropped.update(dropped_by_kind(trace))
        for name in _LOSS_NAMES:
            self.losses[name] += getattr(trace.losses, name)
        self.missing_spans += trace.missing_span_count
        if trace.losses.sink_error:
            self.sink_errors.append(f"rank {trace.rank}: {trace.losses.sink_error}")
        self.nccl.add(trace)
        self.hooks.update(hooks_of(trace))
        for store, messages in (
            (self.versions, trace.identity.versions),
            (self.environment, trace.identity.environment),
        ):
            for name, text in messages.items():
                store.setdefault(name, set()).add(text)


def summarize(reader: JobReader) -> JobSummary:
    """Reads a job rank by rank and keeps the numbers alone. Raises TraceError when no rank can be read."""
    totals = _Totals()
    ranks = []
    reasons: list[str] = []
    layout: dict[str, Any] = {}
    sampling: dict[str, Any] = {}
    for trace in reader:
        totals.add(trace)
        ranks.append(_summarize_rank(trace))
        reasons += incomplete_reasons(trace)
        layout = layout or _layout(trace)
        sampling = sampling or {
            descriptor.name: getattr(trace.identity.sampling, descriptor.name)
            for descriptor in trace.identity.sampling.DESCRIPTOR.fields
        }
    job = reader.job
    return JobSummary(
        run_id=job.run_id,
        attempt=job.attempt,
        world_size=job.world_size,
        layout=layout,
        hosts=sorted({rank.host for rank in ranks}),
        missing_ranks=job.missing_ranges(),
        missing_text=job.missing_text(),
        ranks=ranks,
        kinds=[
            KindSummary(kind_name(kind), count, totals.total_ns[kind] / 1e9, totals.device_spans[kind])
            for kind, count in sorted(totals.spans.items())
        ],
        losses=Losses(dict(totals.dropped), dict(totals.losses), totals.missing_spans, totals.sink_errors),
        nccl=totals.nccl.summary(),
        hooks=[HookSummary(*key, count) for key, count in sorted(totals.hooks.items())],
        versions={name: sorted(texts) for name, texts in sorted(totals.versions.items())},
        environment={name: sorted(texts) for name, texts in sorted(totals.environment.items())},
        sampling=sampling,
        other_runs=[dataclasses.asdict(other) for other in job.other_runs],
        unreadable=list(job.unreadable),
        incomplete=missing_reasons(job) + reasons,
    )


def dropped_by_kind(trace: RankTrace) -> dict[str, int]:
    """Spans that were dropped when they ended. What a killed process left in memory is newer than its file."""
    dropped = {kind_name(kind): count for kind, count in trace.losses.dropped_by_kind.items() if count}
    if trace.arena is not None:
        for kind, count in trace.arena.dropped_by_kind.items():
            dropped[kind] = max(dropped.get(kind, 0), count)
    return dropped


def state_of(trace: RankTrace) -> str:
    """How a trace ends: see RankSummary."""
    if trace.end_reason is not None:
        return "closed"
    if trace.arena is not None:
        return "recording" if trace.arena.is_alive else "killed"
    if trace.leftover is not None:
        return "killed"
    return "cut" if trace.is_cut else "open"


def incomplete_reasons(trace: RankTrace) -> list[str]:
    """What is missing in a rank's trace, a line each."""
    state = state_of(trace)
    words = {
        "cut": "its file is cut",
        "killed": "its process was killed",
        "open": "its file was not closed: its process was killed, could not write on (a full disk?), or still records",
    }
    if trace.leftover is not None and trace.arena is None:
        words["killed"] += f"; its last spans were put into its file by {_merged_by(trace.leftover)}"
    if state == "killed" and (count := lost_with_its_process(trace)):
        words["killed"] += f"; the GPU's times of its last {counted(count, 'span')} died with it: they have the host's"
    if trace.lacks_next_file:
        words["open"] = (
            f"the file after {shown(Path(trace.files[-1]).name)} is missing: it is elsewhere, or could not be made"
        )
    if trace.losses.sink_error:
        words["open"] = f"its file was not closed: {trace.losses.sink_error}"
    reasons = [f"rank {trace.rank}: {words[state]}"] if state in words else []
    damage = [part for part in trace.damage if not (trace.is_cut and part.what.startswith("cut"))]
    if damage:
        more = f" (and {len(damage) - 1} more)" if len(damage) > 1 else ""
        reasons.append(f"rank {trace.rank}: {damage[0]}{more}")
    if trace.missing_span_count:
        reasons.append(f"rank {trace.rank}: {trace.missing_span_count:,} spans were recorded but are in no file")
    return reasons


def _merged_by(leftover: trace_pb2.Leftover) -> str:
    when = datetime.fromtimestamp(leftover.realtime_ns // 1_000_000_000, timezone.utc)
    return f"process {leftover.merged_by_pid} at {when:%Y-%m-%d %H:%M:%S} UTC"


def _last_place(trace: RankTrace) -> tuple[int | None, str, list[OpenSpan]]:
    """Step, phase and open spans where the process is, or was when it was killed."""
    if trace.arena is not None:
        return trace.arena.step, trace.arena.phase, trace.arena.open_spans
    if trace.leftover is not None and trace.end_reason is None:
        return trace.leftover.step, name_of(trace.leftover.phase, PHASE_NAMES, "phase"), _open_in_file(trace)
    return None, "", []


def _open_in_file(trace: RankTrace) -> list[OpenSpan]:
    """The spans that were open when the process was killed, as its file has them; threads are not known any more."""
    spans = trace.spans
    spans = spans.take(spans.ring_id == OPEN_SPANS_RING)
    rows = zip(
        spans.kind.tolist(), spans.step.tolist(), spans.microbatch.tolist(), spans.start_ns.tolist(), strict=True
    )
    return [OpenSpan(kind_name(kind), step, microbatch, "", start_ns) for kind, step, microbatch, start_ns in rows]


def missing_reasons(job: JobTrace) -> list[str]:
    """Ranks and files that could not be read, a line each."""
    if job.missing_count == 1:
        return [f"rank {job.missing_text()}: no file", *job.unreadable]
    if job.missing_count:
        words = f"ranks {job.missing_text()}: no files ({job.missing_count:,} of {job.world_size:,} ranks)"
        return [words, *job.unreadable]
    return list(job.unreadable)


def _layout(trace: RankTrace) -> dict[str, Any]:
    layout = trace.identity.layout
    names = ("dp_size", "pp_size", "tp_size", "cp_size", "vpp_size", "microbatch_count", "schedule")
    return {name: getattr(layout, name) for name in names}


def _summarize_rank(trace: RankTrace) -> RankSummary:
    identity, steps, gpus = trace.identity, trace.steps, gpu_uuids(trace)
    # From the first to the last sign of life: the recorder's threads also run between steps.
    moments = np.concatenate([steps.start_ns, steps.start_ns + steps.duration_ns, trace.clocks.monotonic_ns])
    recorded_ns = int(moments.max() - moments.min()) if len(moments) else 0
    memory_step, memory_phase, open_spans = _last_place(trace)
    cpu_ns = trace.cost.drain_cpu_ns + trace.cost.reporter_cpu_ns + trace.cost.watchdog_cpu_ns
    return RankSummary(
        rank=trace.rank,
        dp_rank=identity.layout.dp_rank,
        stage=identity.layout.stage,
        tp_rank=identity.layout.tp_rank,
        cp_rank=identity.layout.cp_rank,
        host=identity.host,
        pid=identity.pid,
        gpu_uuid=next(iter(gpus), ""),
        gpu_uuids=gpus,
        state=state_of(trace),
        end_reason=trace.end_reason or "",
        files=trace.files,
        file_bytes=trace.file_bytes,
        memory=identity.memory,
        clock_source=name_of(identity.clock_source, CLOCK_SOURCE_NAMES, "clock"),
        device_clock_bound_ns=max((clock.bound_ns for clock in trace.clock_maps), default=None),
        step_count=len(steps),
        sampled_step_count=int(np.count_nonzero(steps.is_sampled)),
        warmup_step_count=int(np.count_nonzero(steps.is_warmup)),
        first_step=int(steps.step.min()) if len(steps) else None,
        last_step=int(steps.step.max()) if len(steps) else None,
        mean_step_s=float(steps.duration_ns[~steps.is_warmup].mean()) / 1e9 if (~steps.is_warmup).any() else None,
        span_count=len(trace.spans),
        dropped_span_count=sum(dropped_by_kind(trace).values()),
        missing_span_count=trace.missing_span_count,
        repeated_span_count=trace.repeated_span_count,
        merged_span_count=trace.arena.merged_span_count if trace.arena is not None else 0,
        recorder_cpu_ratio=cpu_ns / recorded_ns if recorded_ns > 0 and cpu_ns else None,
        event_query_count=trace.cost.event_queries,
        longest_event_lag_s=trace.cost.longest_event_lag_ns / 1e9,
        overhead=overhead_of(steps),
        sample_ratio=identity.sampling.sample_ratio,
        memory_step=memory_step,
        memory_phase=memory_phase,
        open_spans=open_spans,
        damage=trace.damage,
    )


def _plain(value: Any) -> Any:
    """What JSON can say: no numbers that are not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value
