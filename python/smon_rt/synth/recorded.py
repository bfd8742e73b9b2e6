"""Writes a synthetic job as the recorders of its ranks would have: a directory with a `.smon` file a rank.

Ids, communicators and numbers are those that the integrations write; times are the host's, on clocks that differ from
host to host as the spec says. What a rank does is known from the schedule, nothing is matched.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from smon_rt._proto import trace_pb2
from smon_rt.report.output_file import write_atomically
from smon_rt.synth.draws import Draws, microbatch_of
from smon_rt.synth.durations import CLOCKS, DROPS, NS_PER_MS, generator, payload_bytes
from smon_rt.synth.gpu_times import clock_map_packet, step_times, with_gpu_times
from smon_rt.synth.members import has_rounds, meetings_ns
from smon_rt.synth.plants import SynthError
from smon_rt.synth.schedule import Op
from smon_rt.synth.smon_file import (
    Column,
    SpanTable,
    no_device_times,
    numbers_among_equals,
    packet,
    span_packets,
    step_packet,
)
from smon_rt.synth.spec import JobSpec
from smon_rt.synth.timeline import Timeline
from smon_rt.trace.kinds import FLAGS, KIND_NUMBERS, TIME_SOURCE_NAMES

#: When the job begins, on a clock that is right.
BEGIN_NS = 7_000_000_000_000
REALTIME_NS = 1_700_000_000_000_000_000
STEP_GAP_NS = 1_000_000
_MESSAGE_BYTES = 4096
_RANKS_OF_A_HOST = 8
_WAIT_RETURN = TIME_SOURCE_NAMES.index("wait_return")
_GROUPS = {"pp": 1, "dp": 2, "embedding": 3, "tp": 4}
_GROUP_OF = {
    **dict.fromkeys(("forward_send", "forward_recv", "backward_send", "backward_recv"), "pp"),
    **dict.fromkeys(("params_all_gather", "grads_reduce_scatter", "separate_grads_all_reduce"), "dp"),
    "embedding_grads_all_reduce": "embedding",
    "layernorm_grads_all_reduce": "tp",
}


@dataclass(frozen=True)
class HostClock:
    """What a host's monotonic clock shows at a true time: so much more, and drifting from the job's begin on."""

    offset_ns: int = 0
    drift_ratio: float = 0.0

    def at(self, true_ns: Column) -> Column:
        drifted = np.rint((true_ns - BEGIN_NS) * self.drift_ratio).astype(np.int64)
        return np.asarray(true_ns + self.offset_ns + drifted)


def host_clocks(spec: JobSpec) -> list[HostClock]:
    """One clock a host; the first is right."""
    drawn = generator(spec, CLOCKS).uniform(-1, 1, (spec.hosts, 2))
    drawn[0] = 0
    return [
        HostClock(round(offset * spec.clock_offset_ms * NS_PER_MS), float(drift * spec.clock_drift_ppm * 1e-6))
        for offset, drift in drawn.tolist()
    ]


def write_directory(spec: JobSpec, draws: Draws, timeline: Timeline, truth: dict[str, Any], folder: Path) -> list[Path]:
    """Write one file for each rank that is not missing, and truth.json; returns their paths.

    Raises SynthError where the directory cannot be made, or has trace files already.
    """
    with _removed_unless_whole(folder) as paths:
        writer = _JobWriter(spec, draws, timeline)
        for rank in sorted(set(range(spec.world_size)) - set(spec.missing_ranks)):
            paths.append(folder / f"rank-{rank:05d}.{writer.run_id}-0.smon")
            paths[-1].write_bytes(writer.file_of(rank))
        write_atomically(str(folder / "truth.json"), [json.dumps(truth, indent=2) + "\n"])
    return [*paths, folder / "truth.json"]


@contextlib.contextmanager
def _removed_unless_whole(folder: Path) -> Iterator[list[Path]]:
    """Makes the directory; an error, a signal too, takes it away again with the files that are named in the list.

    Raises SynthError where it cannot be written, or has trace files already.
    """
    paths: list[Path] = []
    is_new = not folder.exists()
    try:
        folder.mkdir(exist_ok=True)
        if any(folder.glob("*.smon")):
            raise SynthError(f"{folder}: has .smon files already: choose an empty directory")
        yield paths
    except BaseException as error:
        with contextlib.suppress(OSError):
            for path in paths:
                path.unlink(missing_ok=True)
            if is_new:
                folder.rmdir()
        if not isinstance(error, OSError):
            raise
        raise SynthError(f"{folder}: cannot write: {error.strerror or error}; choose another output") from None


@dataclass(frozen=True)
class _StageOps:
    """The ops of a stage that a recorder sees, a column each; the peer as the difference of stages, 0 for none."""

    rows: Column
    seq_id: Column
    kind: Column
    microbatch: Column
    chunk: Column
    stages_to_peer: Column
    group: Column
    payload_bytes: Column


class _JobWriter:
    """Everything that the files of a job share."""

    def __init__(self, spec: JobSpec, draws: Draws, timeline: Timeline) -> None:
        self.spec, self.draws, self.timeline = spec, draws, timeline
        ends = np.rint(timeline.span_ns()[1]).astype(np.int64)
        self.step_ns = ends
        # A GPU goes on at once; its host has launched the next step long before.
        gap_ns = 0 if spec.gpu_times else STEP_GAP_NS
        self.begins_ns = BEGIN_NS + np.concatenate([[0], np.cumsum(ends + gap_ns)[:-1]])
        self.clocks = host_clocks(spec)
        self.run_id = spec.name if re.fullmatch(r"[A-Za-z0-9_]{1,64}", spec.name) else "synthetic"

    @cached_property
    def stages(self) -> list[_StageOps]:
        return [self._stage_ops(stage) for stage in range(self.spec.pp)]

    def _stage_ops(self, stage: int) -> _StageOps:
        ops = [op for op in self.timeline.program.ops if op.stage == stage and not op.is_no_op]
        places = [self._place(op) for op in ops]

        def column(values: list[int]) -> Column:
            return np.array(values, np.int64)

        return _StageOps(
            rows=column([op.row for op in ops]),
            seq_id=column([op.seq_id for op in ops]),
            kind=column([KIND_NUMBERS[op.kind] for op in ops]),
            microbatch=column([-1 if (found := microbatch_of(op)) is None else found for op in ops]),
            chunk=column([chunk for chunk, _ in places]),
            stages_to_peer=column([distance for _, distance in places]),
            group=column([_GROUPS[_GROUP_OF[op.kind]] if op.kind in _GROUP_OF else 0 for op in ops]),
            payload_bytes=column([payload_bytes(self.spec, op) for op in ops]),
        )

    def _place(self, op: Op) -> tuple[int, int]:
        """The chunk of an op, and how many stages on the peer of a message is, modulo pp."""
        if _GROUP_OF.get(op.kind) != "pp" or op.meeting is None:
            return op.chunk, 0
        direction, _, target = op.meeting
        ahead = 1 if direction == "forward" else -1
        is_send = op.kind.endswith("_send")
        here = int(str(target)) - (ahead if is_send else 0)
        return here // self.spec.pp, ahead if is_send else -ahead

    def rank_of(self, stage: int, dp_rank: int, tp_rank: int = 0) -> int:
        """Megatron's order: tp fastest, then dp, then pp."""
        return (stage % self.spec.pp * self.spec.dp + dp_rank) * self.spec.tp + tp_rank

    def file_of(self, rank: int) -> bytes:
        """The whole file of one rank."""
        spec = self.spec
        place, tp_rank = divmod(rank, spec.tp)
        stage, dp_rank = divmod(place, spec.dp)
        host = rank * spec.hosts // spec.world_size
        clock = self.clocks[host]
        spans, losses = self._dropped(rank, self._spans(stage, dp_rank, tp_rank, clock))
        starts_ns = clock.at(self.begins_ns)
        steps = starts_ns, clock.at(self.begins_ns + self.step_ns) - starts_ns
        (begin_ns,) = clock.at(np.array([BEGIN_NS])).tolist()
        identity = self._identity(rank, (stage, dp_rank, tp_rank), host)
        device = -1
        parts = [packet(identity=identity)]
        if spec.gpu_times:
            is_late = spec.is_launched_late(stage, dp_rank)
            device, spans = identity.local_rank, _as_ended([with_gpu_times(spec, spans, rank, is_late=is_late)])
            steps = step_times(spans, spec.steps)
            end_ns = begin_ns + int(self.begins_ns[-1] + self.step_ns[-1]) - BEGIN_NS
            parts.append(clock_map_packet(spec, identity.gpu_uuid, begin_ns, end_ns))
        reading = trace_pb2.ClockSnapshot(ticks=begin_ns, monotonic_ns=begin_ns, realtime_ns=REALTIME_NS, width_ns=80)
        names = trace_pb2.Names(
            track=[trace_pb2.Track(id=1, thread_id=100, thread_name="main", device=device)],
            communicator=self._communicators(stage, dp_rank, tp_rank),
        )
        parts += [packet(clock_snapshot=reading), packet(names=names), step_packet(*steps), *span_packets(spans)]
        if losses:
            parts.append(packet(losses=trace_pb2.Losses(dropped_by_kind=losses)))
        return b"".join([*parts, packet(end=trace_pb2.End(reason="stop"))])

    def _identity(self, rank: int, place: tuple[int, int, int], host: int) -> trace_pb2.Identity:
        spec = self.spec
        stage, dp_rank, tp_rank = place
        sizes = {"dp_size": spec.dp, "pp_size": spec.pp, "tp_size": spec.tp, "cp_size": 1, "vpp_size": spec.vpp}
        layout = trace_pb2.Layout(
            dp_rank=dp_rank,
            stage=stage,
            tp_rank=tp_rank,
            microbatch_count=spec.microbatches,
            schedule=spec.resolved_schedule,
            **sizes,
        )
        return trace_pb2.Identity(
            run_id=self.run_id,
            rank=rank,
            world_size=spec.world_size,
            local_rank=rank % _RANKS_OF_A_HOST,
            layout=layout,
            host=f"node{host}",
            boot_id=f"boot-of-node{host}",
            time_namespace=4026531834,
            pid=1000 + rank,
            gpu_uuid=f"GPU-{host:04x}-{rank % _RANKS_OF_A_HOST}" if spec.gpu_times else "",
            clock_source=trace_pb2.CLOCK_SOURCE_CLOCK_GETTIME,
            sampling=trace_pb2.Sampling(sample_ratio=1.0),
            memory="tmpfs",
        )

    def _communicators(self, stage: int, dp_rank: int, tp_rank: int) -> list[trace_pb2.Communicator]:
        spec = self.spec
        ranks = {
            "pp": [self.rank_of(other, dp_rank, tp_rank) for other in range(spec.pp)],
            "dp": [self.rank_of(stage, other, tp_rank) for other in range(spec.dp)],
            "embedding": [self.rank_of(other, dp_rank, tp_rank) for other in sorted({0, spec.pp - 1})],
            "tp": [self.rank_of(stage, dp_rank, other) for other in range(spec.tp)],
        }
        return [
            trace_pb2.Communicator(id=_GROUPS[name], name=name, dimension=name, member_ranks=members)
            for name, members in ranks.items()
        ]

    def _spans(self, stage: int, dp_rank: int, tp_rank: int, clock: HostClock) -> SpanTable:
        """Ops and pauses of one rank as its host's clock shows them, in the order in which they ended."""
        spec, ops = self.spec, self.stages[stage]
        shape = (spec.steps, len(ops.rows))
        step = np.repeat(np.arange(spec.steps), shape[1])

        def each(column: Column) -> Column:
            return np.tile(column, spec.steps)

        def times(array: np.ndarray[Any, Any]) -> Column:
            offsets = np.rint(array[ops.rows, :, dp_rank].T).astype(np.int64).ravel()
            return np.asarray(offsets + self.begins_ns[step])

        start_ns, end_ns = times(self.timeline.starts_ns), times(self.timeline.ends_ns)
        order = np.lexsort((each(ops.seq_id), start_ns, step))
        if self.draws.is_present is not None:
            order = order[self.draws.is_present[ops.rows, :, dp_rank].T.ravel()[order]]
        kind, group, step = each(ops.kind)[order], each(ops.group)[order], step[order]
        distance = each(ops.stages_to_peer)[order]
        peer_stage = (stage + distance) % spec.pp
        peer = np.where(distance != 0, (peer_stage * spec.dp + dp_rank) * spec.tp + tp_rank, -1)
        is_send = np.isin(kind, [KIND_NUMBERS["forward_send"], KIND_NUMBERS["backward_send"]])
        # What overlaps the computes is not waited for by their thread: messages arrive as soon as they can.
        overlaps = (group == _GROUPS["dp"]) & (spec.overlap or spec.vpp > 1)
        overlaps |= (group == _GROUPS["pp"]) & ~is_send
        shown_ns = clock.at(start_ns[order])
        table = SpanTable(
            kind=kind,
            step=step,
            start_ns=shown_ns,
            duration_ns=clock.at(end_ns[order]) - shown_ns,
            # A message counts as received when the receiver has waited for it; who sends does not wait.
            time_source=np.where((group > 0) & ~is_send, _WAIT_RETURN, 0),
            flags=np.where(overlaps, FLAGS["other_thread"], 0),
            microbatch=each(ops.microbatch)[order],
            chunk=each(ops.chunk)[order],
            op_index=np.zeros_like(kind),
            comm_id=group,
            comm_seq=np.where(group > 0, numbers_among_equals(kind, group, peer) + 1, 0),
            peer=peer,
            payload_bytes=each(ops.payload_bytes)[order],
            **no_device_times(len(order)),
        )
        tables = [table, self._pauses(stage, dp_rank, tp_rank, clock)]
        if spec.tp_collectives:
            tables.append(self._meetings(stage, dp_rank, tp_rank, clock))
        return _as_ended(tables)

    def _meetings(self, stage: int, dp_rank: int, tp_rank: int, clock: HostClock) -> SpanTable:
        """The collectives of a rank with the other tp members of its worker, inside the computes."""
        spec, ops = self.spec, [op for op in self.timeline.program.ops if op.stage == stage]
        parts: list[tuple[Column, ...]] = []
        for op in ops:
            if not has_rounds(spec, op):
                continue
            start_ns, end_ns = meetings_ns(spec, self.draws, op, dp_rank, tp_rank)
            is_there = np.ones(spec.steps, np.bool_)
            if self.draws.is_present is not None:
                is_there = self.draws.is_present[op.row, :, dp_rank]
            step = np.repeat(np.flatnonzero(is_there), spec.tp_collectives)
            begin_ns = self.begins_ns[step] + np.rint(self.timeline.starts_ns[op.row, step, dp_rank]).astype(np.int64)
            times = [begin_ns + np.rint(each[is_there].ravel()).astype(np.int64) for each in (start_ns, end_ns)]
            microbatch = np.full(len(step), -1 if (found := microbatch_of(op)) is None else found)
            parts.append((step, *times, microbatch, np.full(len(step), op.chunk)))
        columns: list[Column] = [np.concatenate(column) for column in zip(*parts, strict=True)]
        order = np.argsort(columns[1], kind="stable")
        step, began_ns, ended_ns, microbatch, chunk = (column[order] for column in columns)
        shown_ns = clock.at(began_ns)
        none, zero = np.full(len(step), -1, np.int64), np.zeros(len(step), np.int64)
        return SpanTable(
            kind=np.full(len(step), KIND_NUMBERS["collective"]),
            step=step,
            start_ns=shown_ns,
            duration_ns=clock.at(ended_ns) - shown_ns,
            time_source=np.full(len(step), _WAIT_RETURN),
            flags=zero,
            microbatch=microbatch,
            chunk=chunk,
            op_index=zero,
            comm_id=np.full(len(step), _GROUPS["tp"]),
            comm_seq=np.arange(1, len(step) + 1),
            peer=none,
            payload_bytes=np.full(len(step), _MESSAGE_BYTES),
            **no_device_times(len(step)),
        )

    def _pauses(self, stage: int, dp_rank: int, tp_rank: int, clock: HostClock) -> SpanTable:
        """Pauses of a rank. A collection inside a compute is one of the worker's first rank: the others wait for it."""
        found = [
            pause
            for pause in self.draws.pauses
            if (pause.stage, pause.dp_rank) == (stage, dp_rank) and (pause.row is None or tp_rank == 0)
        ]
        found.sort(key=lambda pause: (pause.step, pause.kind, pause.offset_ns))
        step = np.array([pause.step for pause in found], np.int64)
        after = [
            0.0 if pause.row is None else float(self.timeline.starts_ns[pause.row, pause.step, dp_rank])
            for pause in found
        ]
        offsets = np.array([begin + pause.offset_ns for begin, pause in zip(after, found, strict=True)], np.float64)
        start_ns = self.begins_ns[step] + np.rint(offsets).astype(np.int64)
        end_ns = start_ns + np.array([round(pause.duration_ns) for pause in found], np.int64)
        kind = np.array([KIND_NUMBERS[pause.kind] for pause in found], np.int64)
        none, zero = np.full(len(found), -1, np.int64), np.zeros(len(found), np.int64)
        shown_ns = clock.at(start_ns)
        return SpanTable(
            kind=kind,
            step=step,
            start_ns=shown_ns,
            duration_ns=clock.at(end_ns) - shown_ns,
            time_source=zero,
            flags=zero,
            microbatch=none,
            chunk=none,
            op_index=zero,
            comm_id=zero,
            comm_seq=zero,
            peer=none,
            payload_bytes=zero,
            **no_device_times(len(found)),
        )

    def _dropped(self, rank: int, spans: SpanTable) -> tuple[SpanTable, dict[int, int]]:
        """What stays when rings were full now and then, and how many spans of each kind did not."""
        if not self.spec.drop_ratio:
            return spans, {}
        keeps = generator(self.spec, DROPS, rank).random(len(spans)) >= self.spec.drop_ratio
        kinds, counts = np.unique(spans.kind[~keeps], return_counts=True)
        return spans.take(keeps), dict(zip(kinds.tolist(), counts.tolist(), strict=True))


def _as_ended(tables: list[SpanTable]) -> SpanTable:
    """All spans in the order in which they ended; `op_index` counts those of a kind and step as they began."""
    columns = zip(*(vars(table).values() for table in tables), strict=True)
    spans = SpanTable(*(np.concatenate(parts) for parts in columns))
    spans = spans.take(np.argsort(spans.start_ns, kind="stable"))
    spans = dataclasses.replace(spans, op_index=numbers_among_equals(spans.kind, spans.step))
    return spans.take(np.argsort(spans.start_ns + spans.duration_ns, kind="stable"))
