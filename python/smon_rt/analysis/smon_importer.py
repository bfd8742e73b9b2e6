"""Reads the `.smon` files of a job as the engine takes them: one row an op of a worker, clocks on one axis.

Example:
    >>> from smon_rt.analysis.smon_importer import read_smon
    >>> trace = read_smon(["node0/traces", "node1/traces"])  # doctest: +SKIP
    >>> trace.job.world_size, trace.ops.num_rows, trace.recording.missing_ranks  # doctest: +SKIP
    (16, 20480, ())
"""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections import Counter
from collections.abc import Container, Mapping, Sequence

import numpy as np
import pyarrow as pa

from smon_rt.analysis.communication import Communication
from smon_rt.analysis.garbage import GarbageCount
from smon_rt.analysis.importer import Trace
from smon_rt.analysis.input_file import shown
from smon_rt.analysis.recording import Recording
from smon_rt.analysis.smon_communication import NumberedOps, RankClocks, measure_communication
from smon_rt.analysis.smon_device import DeviceClocks
from smon_rt.analysis.smon_groups import (
    Groups,
    Layout,
    end_sends_with_receives,
    find_groups,
    is_inside_a_worker,
)
from smon_rt.analysis.smon_layout import JobLayout
from smon_rt.analysis.smon_member_times import MemberTimes, member_times
from smon_rt.analysis.smon_members import MemberSkew, member_skew
from smon_rt.analysis.smon_nccl import NcclOps
from smon_rt.analysis.smon_repeats import last_of_each_step
from smon_rt.analysis.smon_spans import (
    COLLECTIVE,
    COMPUTES,
    HOST_WORK,
    WITHOUT_TIMES,
    OpColumns,
    behind_device,
    rank_ops,
    ranks_of_launches,
)
from smon_rt.analysis.smon_steps import StepChoice
from smon_rt.analysis.smon_tails import starts_after_tails
from smon_rt.analysis.smon_waits import receive_when_waited
from smon_rt.analysis.smon_workers import WorkerOps, merge_members, numbers_in_communicators, running_numbers
from smon_rt.analysis.units import counted
from smon_rt.analysis.worker_words import ranges_words
from smon_rt.errors import TraceError
from smon_rt.trace.clock_line import ClockLine
from smon_rt.trace.clocks import ClockAlignment, ClockEvidence, HostKey
from smon_rt.trace.device_order import is_device_work
from smon_rt.trace.job_trace import JobReader
from smon_rt.trace.kinds import KIND_NUMBERS, TIME_SOURCE_NAMES, name_of
from smon_rt.trace.overhead import Overhead, overhead_of
from smon_rt.trace.partners import Communicators, dense
from smon_rt.trace.rank_trace import RankTrace
from smon_rt.trace.spans import Array
from smon_rt.trace.summary import dropped_by_kind, incomplete_reasons, state_of
from smon_rt.trace.unseen import is_schedule_unseen, unseen_data

_OF_A_CHUNK = (*COMPUTES, KIND_NUMBERS["params_all_gather"], KIND_NUMBERS["grads_reduce_scatter"])


def read_smon(
    paths: Sequence[str | os.PathLike[str]],
    steps: Container[int] | None = None,
    *,
    run_id: str | None = None,
    attempt: int | None = None,
    layout: Mapping[str, int] | None = None,
) -> Trace:
    """Reads the newest attempt of the newest run in directories, files or globs; several for several nodes.

    Runs may be live, finished, or killed. Steps are those that all ranks sampled, without warm-up, and of `steps` if
    given. Times are ns from the first op. `layout` has sizes by dimension (dp, pp, tp, cp), the outermost first, for
    ranks that recorded none. What is missing or left out is in the result's `recording`.

    Raises TraceError, one line, where nothing can be analysed or ranks contradict each other.
    """
    began_s = time.perf_counter()
    if steps is not None and (isinstance(steps, str | bytes) or not isinstance(steps, Container)):
        raise TypeError(f"steps must be a set or range of step numbers, not {type(steps).__name__}")
    # What a loop does before a step is recorded with the step before.
    wanted = range(max(steps.start - 1, 0), steps.stop) if isinstance(steps, range) and steps.step == 1 else None
    reader = JobReader(paths, run_id=run_id, attempt=attempt, steps=wanted)
    trace = _JobImporter(reader, layout).read(steps)
    return Trace(trace.job, trace.ops, _named(paths), (time.perf_counter() - began_s) * 1e3, trace.recording)


def _named(paths: Sequence[str | os.PathLike[str]]) -> str:
    return " ".join(map(os.fsdecode, paths))


class _JobImporter:
    """Collects a job rank by rank; only ops stay in memory."""

    def __init__(self, reader: JobReader, layout: Mapping[str, int] | None) -> None:
        self._reader = reader
        self._layout = JobLayout(layout)
        self._clocks = ClockEvidence()
        self._communicators = Communicators()
        self._nccl = NcclOps()
        self._steps = StepChoice()
        self._left_out: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()
        self._parts: list[tuple[tuple[str, str, int], OpColumns]] = []
        self._unfinished: list[str] = []
        self._missing_span_count = 0
        self._compute_count = 0
        self._has_steps = False
        self._devices = DeviceClocks()
        self._among_members: list[NumberedOps] = []
        self._gpu_ranks: list[int] = []
        self._is_live = False
        self._overheads: list[Overhead] = []
        self._garbage = GarbageCount()
        self._unseen_data: dict[int, str] = {}
        self._launches: dict[int, int] = {}
        self._is_schedule_unseen = False

    def read(self, steps: Container[int] | None) -> Trace:
        for trace in self._reader:
            self._add(trace)
        # Waits of the host alone, such as collections while the job was set up, are no step.
        if all(np.isin(ops.kind, HOST_WORK).all() for _, ops in self._parts):
            raise TraceError(self._nothing_recorded() if steps is None else self._none_of_these())
        if self._only_evaluates():
            raise TraceError(self._nothing_recorded())
        self._launches = ranks_of_launches(ops for _, ops in self._parts)
        self._left_out[WITHOUT_TIMES] += sum(self._launches.values())
        self._clocks.leave_out(self._launches)
        self._steps.choose(shown(self._reader.job.run_id), steps)
        alignment = self._clocks.align()
        return self._build(alignment, *self._ranks_ops(alignment))

    def _add(self, trace: RankTrace) -> None:
        worker = self._layout.add(trace)
        trace, repeated = last_of_each_step(trace, self._left_out)
        ops = rank_ops(trace, worker, self._communicators, self._nccl, self._left_out)
        self._clocks.add(trace)
        self._steps.add(trace, ops, repeated)
        self._parts.append((trace.host_key, ops))
        self._dropped.update(dropped_by_kind(trace))
        self._missing_span_count += trace.missing_span_count
        self._compute_count += int(np.count_nonzero(np.isin(trace.spans.kind, COMPUTES)))
        self._has_steps |= len(trace.steps) > 0
        self._is_live |= state_of(trace) == "recording"
        if (overhead := overhead_of(trace.steps)) is not None:
            self._overheads.append(overhead)
        self._garbage.add(trace)
        self._unfinished += incomplete_reasons(trace)
        if how_much := unseen_data(trace):
            self._unseen_data[trace.rank] = how_much
        self._is_schedule_unseen |= is_schedule_unseen(trace)
        self._devices.add(trace)

    def _only_evaluates(self) -> bool:
        """Whether nothing was trained: collectives beside evaluations make no step."""
        if self._has_steps or not self._left_out["of evaluation"]:
            return False
        return all(np.isin(ops.kind, (*HOST_WORK, COLLECTIVE)).all() for _, ops in self._parts)

    def _none_of_these(self) -> str:
        run = f"{shown(self._reader.heads[0].path)}: run {shown(self._reader.job.run_id)}"
        return f"{run} has none of the steps asked for; `smon info` says which it has"

    def _nothing_recorded(self) -> str:
        job = self._reader.job
        where = f"{shown(self._reader.heads[0].path)}: run {shown(job.run_id)} recorded"
        if self._compute_count and not self._has_steps:
            computes = counted(self._compute_count, "compute")
            return f"{where} {computes} but no step: put each iteration into `with smon_rt.step(k):`"
        if self._only_evaluates():
            evaluations = counted(self._left_out["of evaluation"], "span")
            return f"{where} no step, only evaluation ({evaluations}): record some steps of training"
        left_out = ", ".join(f"{count:,} {words}" for words, count in self._left_out.items() if count)
        besides = f" (besides {left_out})" if left_out else ""
        warmup = ", warm-up steps left out" if self._steps.warmup else ""
        return (
            f"{where} no op of a training step{besides}{warmup}: mark them with smon_rt.span, or attach an integration;"
            " `smon info` says what is there"
        )

    def _ranks_ops(self, alignment: ClockAlignment) -> tuple[OpColumns, MemberTimes]:
        """Ops of all ranks that count, in the steps that count, on one axis; and how members of workers met."""
        worker_of_rank = self._worker_of_rank()
        parts: list[OpColumns] = []
        meetings: list[MemberTimes] = []
        row_count = 0
        without = {*self._steps.cut_short, *self._launches}
        for host, ops in self._parts:
            if len(ops) == 0 or int(ops.rank[0]) in without:
                continue
            keeps = np.isin(ops.step, self._steps.steps)
            inside = is_inside_a_worker(ops, self._communicators, worker_of_rank)
            chosen = ops.take(keeps & ~inside)
            if len(chosen) == 0:
                continue
            line = alignment.hosts[host].line
            parts.append(receive_when_waited(behind_device(_on_axis(chosen, line))))
            among_members = _on_axis(ops.take(keeps & inside), line)
            meetings.append(member_times(parts[-1], among_members, row_count))
            if is_device_work(chosen.time_source, chosen.kind).any():
                self._gpu_ranks.append(int(chosen.rank[0]))
            self._among_members.append(NumberedOps.of(among_members, np.array(self._gpu_ranks)))
            met = int(np.count_nonzero(meetings[-1].comm >= 0))
            self._left_out["of collectives within a worker"] += len(among_members) - met
            row_count += len(parts[-1])
        if all(np.isin(ops.kind, HOST_WORK).all() for ops in parts):
            raise TraceError(self._nothing_recorded())
        return OpColumns.concatenate(parts), MemberTimes.concatenate(meetings)

    def _worker_of_rank(self) -> Array:
        table = np.full(self._layout.world_size, -1, np.int64)
        for (dp_rank, stage), members in self._layout.workers.items():
            for member in members:
                table[member.rank] = dp_rank * self._layout.sizes["pp_size"] + stage
        return table

    def _build(self, alignment: ClockAlignment, ranks: OpColumns, meetings: MemberTimes) -> Trace:
        sizes = self._layout.sizes
        lowest = np.full(sizes["dp_size"] * sizes["pp_size"], -1, np.int64)
        # Ranks come in order, each in one piece.
        firsts = np.flatnonzero(np.diff(ranks.rank, prepend=-1))[::-1]
        lowest[ranks.worker[firsts]] = ranks.rank[firsts]
        merged = merge_members(ranks, lowest)
        vpp_size = max(self._layout.vpp_size, int(merged.ops.chunk.max()) + 1, 1)
        layout = Layout(sizes["pp_size"], vpp_size, self._worker_of_rank())
        groups = find_groups(ranks, merged, layout)
        self._layout.vpp_size = vpp_size
        job = self._layout.job(shown(self._reader.job.run_id))
        skew = self._skew(ranks, merged, meetings)
        ops = merged.ops.replace(end_ns=end_sends_with_receives(merged.ops, groups.group_id))
        batch = self._batch(dataclasses.replace(merged, ops=ops), groups, layout, skew)
        recording = self._recording(alignment, merged, groups, set(np.unique(ranks.rank).tolist()), skew)
        bound_ns = self._devices.bound_ns
        recording = dataclasses.replace(
            recording,
            device_bound_s=None if bound_ns is None or not self._devices.bounds_ns else bound_ns / 1e9,
            device_time_ratio=self._device_time_ratio(ranks),
            communication=self._measured(ranks, layout, alignment),
        )
        return Trace(job, batch, "", 0.0, recording)

    def _device_time_ratio(self, ranks: OpColumns) -> float:
        """The part of the computes that have times of a device."""
        is_compute = np.isin(ranks.kind, COMPUTES)
        timed = int(np.count_nonzero(is_compute & is_device_work(ranks.time_source, ranks.kind)))
        return timed / max(int(np.count_nonzero(is_compute)) + self._left_out[WITHOUT_TIMES], 1)

    def _measured(self, ranks: OpColumns, layout: Layout, alignment: ClockAlignment) -> Communication | None:
        of_workers = NumberedOps.of(ranks, np.array(self._gpu_ranks))
        ops = NumberedOps.concatenate([of_workers, *self._among_members])
        host_of_rank = {int(part.rank[0]): host for host, part in self._parts if len(part)}
        clocks = RankClocks(host_of_rank, alignment.hosts)
        return measure_communication(ops, self._communicators, self._nccl, layout, clocks, len(self._steps.steps))

    def _skew(self, ranks: OpColumns, merged: WorkerOps, meetings: MemberTimes) -> MemberSkew:
        """What slow members of workers cost; said where members are missing."""
        pp_size = self._layout.sizes["pp_size"]
        hosts: dict[int, set[HostKey]] = {}
        for host, ops in self._parts:
            if len(ops):
                hosts.setdefault(int(ops.worker[0]), set()).add(host)
        skew = member_skew(
            ranks,
            merged,
            meetings,
            self._communicators.members(),
            math.prod(self._layout.sizes[name] for name in ("tp_size", "cp_size")),
            {worker for worker, on in hosts.items() if len(on) > 1},
        )
        for worker in sorted(skew.unknown):
            dp_rank, stage = divmod(worker, pp_size)
            words = f"of the members of worker (dp {dp_rank}, stage {stage}), which were not all recorded"
            of_worker = ranks.worker[meetings.row] == worker
            self._left_out[words] += int(np.count_nonzero(of_worker & (meetings.comm >= 0)))
        return skew

    def _batch(self, merged: WorkerOps, groups: Groups, layout: Layout, skew: MemberSkew) -> pa.RecordBatch:
        """The engine's columns, sorted by step, worker and start."""
        ops = merged.ops
        stage, dp_rank = ops.worker % layout.pp_size, ops.worker // layout.pp_size
        is_compute = np.isin(ops.kind, COMPUTES)
        chunk = np.where((ops.chunk < 0) & (layout.vpp_size == 1) & np.isin(ops.kind, _OF_A_CHUNK), 0, ops.chunk)
        chunk = np.where(chunk < 0, np.where(is_compute, 0, -1), chunk)
        own = dense(ops.step, ops.worker, ops.kind)
        seq_id = running_numbers(own, ops.op_index, ops.start_ns)
        step_start_ns = starts_after_tails(ops, _least(ops.step_start_ns, dense(ops.step, ops.worker)))
        origin_ns = int(step_start_ns.min())
        order = np.lexsort((ops.start_ns, stage, dp_rank, ops.step))
        columns = {
            "dp_rank": (dp_rank, pa.int32()),
            "stage": (stage, pa.int32()),
            "rank": (ops.rank, pa.int32()),
            "step": (ops.step, pa.int64()),
            "kind": (ops.kind, pa.uint8()),
            "start_ns": (ops.start_ns - origin_ns, pa.int64()),
            "duration_ns": (np.maximum(ops.end_ns - ops.start_ns, 0), pa.int64()),
            "seq_id": (seq_id, pa.int32()),
            "chunk": (chunk, pa.int32()),
            "global_chunk": (np.where(is_compute, chunk * layout.pp_size + stage, -1), pa.int32()),
            "microbatch": (ops.microbatch, pa.int32()),
            "group_id": (groups.group_id, pa.int64()),
            "step_start_ns": (step_start_ns - origin_ns, pa.int64()),
            "is_waited": (ops.waited, pa.uint8()),
            "communicator": (ops.own_comm, pa.int32()),
            "communicator_number": (numbers_in_communicators(ops), pa.int32()),
            "member_excess_ns": (skew.excess_ns, pa.int64()),
        }
        arrays = [pa.array(values[order]).cast(kind) for values, kind in columns.values()]
        return pa.record_batch(arrays, names=list(columns))

    def _recording(
        self, alignment: ClockAlignment, merged: WorkerOps, groups: Groups, analysed: set[int], skew: MemberSkew
    ) -> Recording:
        job = self._reader.job
        pp_size = self._layout.sizes["pp_size"]
        workers = {
            place: [member for member in members if member.rank in analysed]
            for place, members in self._layout.workers.items()
        }
        missing = [rank for first, last in job.missing_ranges() for rank in range(first, last + 1)]
        sources = np.bincount(merged.ops.time_source, minlength=256)
        bound_ns, device_bound_ns = alignment.bound_ns, self._devices.pair_bound_ns
        left_out = [f"{counted(count, 'span')} {words}" for words, count in self._left_out.items() if count]
        if self._devices.lost_count:
            left_out.append(f"the GPU's times of {counted(self._devices.lost_count, 'span')}")
        if self._launches:
            left_out.append(f"{ranges_words(sorted(self._launches))}, without any times of a GPU")
        if job.other_runs:
            files = sum(other.file_count for other in job.other_runs)
            left_out.append(f"{counted(files, 'file')} of other runs (--run, --attempt)")
        return Recording(
            members={place: members for place, members in workers.items() if members},
            missing_ranks=tuple(missing),
            world_size=self._layout.world_size,
            clock_bound_s=None if bound_ns is None or device_bound_ns is None else (bound_ns + device_bound_ns) / 1e9,
            clock_words=alignment.words(),
            clock_violated_count=alignment.violated_count,
            clock_is_contradicted=alignment.is_contradicted,
            step_count=len(self._steps.steps),
            recorded_step_count=self._steps.recorded_count,
            time_sources={
                name_of(source, TIME_SOURCE_NAMES, "time_source"): int(sources[source])
                for source in np.flatnonzero(sources).tolist()
            },
            dropped_spans=dict(self._dropped),
            missing_span_count=self._missing_span_count,
            mismatched_message_count=groups.mismatched_count,
            unfinished=(*job.unreadable, *self._unfinished),
            left_out=(*self._steps.left_out(), *left_out),
            is_live=self._is_live,
            origin_ns=int(merged.ops.step_start_ns.min()),
            recorder_overhead=max(self._overheads, key=lambda found: found.low, default=None),
            garbage=self._garbage.total(),
            slow_members={divmod(worker, pp_size): members for worker, members in skew.slow.items()},
            compared=frozenset(divmod(worker, pp_size) for worker in skew.compared),
            unseen_data={rank: how_much for rank, how_much in self._unseen_data.items() if rank in analysed},
            is_schedule_unseen=self._is_schedule_unseen,
        )


def _on_axis(ops: OpColumns, line: ClockLine) -> OpColumns:
    return ops.replace(**{name: line.apply(getattr(ops, name)) for name in ("start_ns", "end_ns", "step_start_ns")})


def _least(values: Array, group: Array) -> Array:
    """The least value of each row's group."""
    least = np.full(int(group.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(least, group, values)
    return np.asarray(least[group])
