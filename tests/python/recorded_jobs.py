"""A synthetic job as its ranks would record it: ids, communicators and numbers as the integrations write them."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smon_rt._proto import trace_pb2
from smon_rt.synth import JobSpec, SyntheticJob
from smon_rt.synth.schedule import Op
from smon_rt.trace.kinds import FLAGS, TIME_SOURCE_NAMES
from tests.python.clock_jobs import BEGIN_NS, REALTIME_NS, HostClock
from tests.python.smon_files import TestSpan, packet, snapshot, step_packet, write_rank

WAIT_RETURN = TIME_SOURCE_NAMES.index("wait_return")
_STEP_GAP_NS = 1_000_000
_DP_KINDS = ("params_all_gather", "grads_reduce_scatter", "separate_grads_all_reduce")

#: What an op is, whatever file it is in: rank, step, kind, op_index.
OpKey = tuple[int, int, str, int]


@dataclass
class RecordedJob:
    """Options of writing, and after `write` what was written: `groups` are the partners of each op that has some."""

    job: SyntheticJob
    clocks: list[HostClock] = field(default_factory=lambda: [HostClock()])
    ids_on_messages: bool = True
    has_communicators: bool = True
    skew_ns: int = 0
    skip_ranks: Collection[int] = ()
    change: Callable[[int, list[TestSpan]], list[TestSpan]] = lambda _rank, spans: spans
    warmup_steps: int = 0
    # Steps that a rank does not have: it joined late, or was gone early.
    absent_steps: Mapping[int, Collection[int]] = field(default_factory=dict)
    # The job goes on so, with other microbatch counts for one; its steps are numbered on.
    then: SyntheticJob | None = None
    who: dict[str, Any] = field(default_factory=dict)
    closed: bool = True
    groups: dict[OpKey, Any] = field(default_factory=dict)

    @property
    def spec(self) -> JobSpec:
        return self.job.spec

    def rank_of(self, stage: int, dp_rank: int, tp_rank: int = 0) -> int:
        """Megatron's order: tp fastest, then dp, then pp."""
        return (stage * self.spec.dp + dp_rank) * self.spec.tp + tp_rank

    def write(self, folder: Path) -> list[Path]:
        """One file a rank; ranks are dealt to the hosts in blocks."""
        folder.mkdir(parents=True, exist_ok=True)
        self._place_steps(BEGIN_NS)
        if self.then is not None:
            self._rest = RecordedJob(self.then, ids_on_messages=self.ids_on_messages)
            self._rest._place_steps(self._ends[-1] + _STEP_GAP_NS)
        return [
            self._write_rank(folder, stage, dp_rank, tp_rank)
            for stage in range(self.spec.pp)
            for dp_rank in range(self.spec.dp)
            for tp_rank in range(self.spec.tp)
            if self.rank_of(stage, dp_rank, tp_rank) not in self.skip_ranks
        ]

    def _place_steps(self, first_ns: int) -> None:
        ends = self.job.timeline.span_ns()[1]
        self._begins = [first_ns + round(float(ends[:step].sum())) + step * _STEP_GAP_NS for step in range(len(ends))]
        self._ends = [begin + round(float(end)) for begin, end in zip(self._begins, ends, strict=True)]

    def _write_rank(self, folder: Path, stage: int, dp_rank: int, tp_rank: int) -> Path:
        spec, rank = self.spec, self.rank_of(stage, dp_rank, tp_rank)
        host = rank * len(self.clocks) // spec.world_size
        clock = self.clocks[host]
        spans = self._spans(stage, dp_rank, tp_rank)
        times = list(zip(self._begins, self._ends, strict=True))
        if self.then is not None:
            rest = self._rest._spans(stage, dp_rank, tp_rank)
            spans += [dataclasses.replace(span, step=span.step + len(times)) for span in rest]
            times += zip(self._rest._begins, self._rest._ends, strict=True)
        absent = self.absent_steps.get(rank, ())
        spans = self.change(rank, [span for span in spans if span.step not in absent])
        shown = []
        for span in spans:
            start_ns, end_ns = clock.at(span.start_ns), clock.at(span.start_ns + span.duration_ns)
            shown.append(dataclasses.replace(span, start_ns=start_ns, duration_ns=end_ns - start_ns))
        shown.sort(key=lambda span: span.start_ns + span.duration_ns)
        steps = [
            (step, clock.at(begin), clock.at(end) - clock.at(begin), True, step < self.warmup_steps)
            for step, (begin, end) in enumerate(times)
            if step not in absent
        ]
        layout = {
            "dp_size": spec.dp,
            "pp_size": spec.pp,
            "tp_size": spec.tp,
            "vpp_size": spec.vpp,
            "dp_rank": dp_rank,
            "stage": stage,
            "tp_rank": tp_rank,
            "microbatch_count": spec.microbatches,
        }
        who: dict[str, Any] = {
            "rank": rank,
            "world_size": spec.world_size,
            "layout": layout,
            "local_rank": rank % 8,
            "host": f"node{host}",
            "boot_id": f"boot-of-node{host}",
        }
        names = trace_pb2.Names(
            track=[trace_pb2.Track(id=1, thread_id=100, thread_name="main", device=-1)],
            communicator=self._communicators(stage, dp_rank, tp_rank) if self.has_communicators else [],
        )
        return write_rank(
            folder,
            shown,
            packets=[packet(names=names), step_packet(steps)],
            clock=snapshot(clock.at(BEGIN_NS), REALTIME_NS),
            closed=self.closed,
            **(who | self.who),
        )

    def _communicators(self, stage: int, dp_rank: int, tp_rank: int) -> list[trace_pb2.Communicator]:
        spec = self.spec
        return [
            trace_pb2.Communicator(id=number, name=name, dimension=name, member_ranks=ranks)
            for number, name, ranks in (
                (1, "pp", [self.rank_of(other, dp_rank, tp_rank) for other in range(spec.pp)]),
                (2, "dp", [self.rank_of(stage, other, tp_rank) for other in range(spec.dp)]),
                (3, "embedding", [self.rank_of(other, dp_rank, tp_rank) for other in sorted({0, spec.pp - 1})]),
                (4, "tp", [self.rank_of(stage, dp_rank, other) for other in range(spec.tp)]),
            )
        ]

    def _spans(self, stage: int, dp_rank: int, tp_rank: int) -> list[TestSpan]:
        timeline = self.job.timeline
        rank = self.rank_of(stage, dp_rank, tp_rank)
        draw = random.Random(rank)
        sequences: dict[Any, int] = {}
        spans = []
        for step, begin_ns in enumerate(self._begins):
            ops = [op for op in self.job.program.ops if op.stage == stage and not op.is_no_op]
            indices: dict[str, int] = {}
            for op in sorted(ops, key=lambda op: (timeline.starts_ns[op.row, step, dp_rank], op.seq_id)):
                start_ns = begin_ns + round(float(timeline.starts_ns[op.row, step, dp_rank]))
                end_ns = begin_ns + round(float(timeline.ends_ns[op.row, step, dp_rank]))
                start_ns -= draw.randrange(self.skew_ns + 1) if tp_rank else 0
                end_ns -= min(draw.randrange(self.skew_ns + 1) if tp_rank else 0, end_ns - start_ns)
                index = indices[op.kind] = indices.get(op.kind, -1) + 1
                ids = self._ids(op, rank, dp_rank, tp_rank, sequences)
                at: dict[str, Any] = {"step": step, "start_ns": start_ns, "duration_ns": end_ns - start_ns}
                spans.append(TestSpan(kind=op.kind, op_index=index, track_id=1, **at, **ids))
                partners = self._partners(op, dp_rank)
                if partners is not None:
                    self.groups[rank, step, op.kind, index] = (step, *partners)
        return spans

    def _ids(self, op: Op, rank: int, dp_rank: int, tp_rank: int, sequences: dict[Any, int]) -> dict[str, int]:
        spec = self.spec
        ids = {"microbatch": op.microbatch, "chunk": op.chunk}
        if op.kind.endswith(("_send", "_recv")):
            assert op.meeting is not None
            direction, microbatch, target = op.meeting
            ahead = 1 if direction == "forward" else -1
            here = int(str(target)) - (ahead if op.kind.endswith("_send") else 0)
            other = here + (ahead if op.kind.endswith("_send") else -ahead)
            peer = self.rank_of(other % spec.pp, dp_rank, tp_rank)
            if self.ids_on_messages:
                ids = {"microbatch": int(str(microbatch)), "chunk": here // spec.pp}
            ids |= {"peer": peer, "comm_id": 1}
        elif op.kind in _DP_KINDS:
            ids |= {"comm_id": 2}
        elif op.kind == "embedding_grads_all_reduce":
            ids |= {"comm_id": 3}
        elif op.kind == "layernorm_grads_all_reduce":
            ids |= {"comm_id": 4}
        if not self.has_communicators:
            ids.pop("comm_id", None)
        if "comm_id" in ids:
            key = (ids["comm_id"], op.kind, ids.get("peer"))
            ids["comm_seq"] = sequences[key] = sequences.get(key, 0) + 1
            # A message counts as received when the receiver has waited for it; who sends does not wait.
            ids["time_source"] = 0 if op.kind.endswith("_send") else WAIT_RETURN
            # What overlaps the computes is not waited for by their thread.
            overlaps = op.kind in _DP_KINDS and (self.spec.overlap or self.spec.vpp > 1)
            # Nor are messages: they arrive beside the computes, as soon as they can.
            overlaps |= op.kind.endswith("_recv")
            ids["flags"] = FLAGS["other_thread"] if overlaps else 0
        return ids

    def _partners(self, op: Op, dp_rank: int) -> tuple[object, ...] | None:
        """What tells the groups of a step apart; None where an op has no partner."""
        if op.meeting is None or len(self.job.program.meetings[op.meeting]) == 1 == self.spec.dp:
            return None
        if op.kind in (*_DP_KINDS, "optimizer_clip_main_grad"):
            return op.meeting
        return None if len(self.job.program.meetings[op.meeting]) == 1 else (*op.meeting, dp_rank)
