"""The order of a pipeline schedule: which microbatch and chunk a stage computes when, and which messages it sends.

Nothing here knows times. `build_program` turns a `JobSpec` into the streams of every stage: what runs one after the
other, what waits for what, and which ops end together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from smon_rt.artifact_format import KINDS
from smon_rt.synth.spec import JobSpec

Direction = Literal["forward", "backward"]

COMPUTE_KINDS = frozenset({"forward_compute", "backward_compute", "optimizer", "gc"})
# Collectives that also wait for their counterparts on the other dp ranks.
DP_SYNC_KINDS = frozenset(
    {"params_all_gather", "grads_reduce_scatter", "separate_grads_all_reduce", "optimizer_clip_main_grad"}
)


class Compute(NamedTuple):
    """One forward or backward of one microbatch through one chunk of a stage."""

    direction: Direction
    microbatch: int
    chunk: int


@dataclass(slots=True)
class Op:
    """One op of every lane. `row` is its place in the arrays of times.

    `waits` are the rows of its own stage that must have ended, besides the op before it in its stream. Ops that share a
    `meeting` end together: at the latest start among them plus each one's own transfer. chunk, global_chunk and
    microbatch are -1 where the trace does not carry them.
    """

    row: int
    stage: int
    kind: str
    seq_id: int
    chunk: int = -1
    global_chunk: int = -1
    microbatch: int = -1
    is_no_op: bool = False
    meeting: tuple[object, ...] | None = None
    waits: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Program:
    """The whole job's ops, by row, and its streams: ops of one stream run one after the other."""

    ops: Sequence[Op]
    streams: Sequence[Sequence[Op]]
    meetings: dict[tuple[object, ...], list[Op]]

    def rows_of(self, *kinds: str) -> list[int]:
        """Rows of the ops of these kinds."""
        return [op.row for op in self.ops if op.kind in kinds]


def warmup_count(spec: JobSpec, stage: int) -> int:
    """Forwards that `stage` computes before its first forward-backward pair (all of them at most)."""
    total = spec.microbatches * spec.vpp
    if spec.vpp == 1:
        return min(spec.pp - stage - 1, total)
    return min((spec.pp - stage - 1) * 2 + (spec.vpp - 1) * spec.pp, total)


def _nth_compute(spec: JobSpec, direction: Direction, index: int) -> Compute:
    """The `index`-th forward (or backward) of any stage: chunk after chunk for a group of pp microbatches."""
    group, place = divmod(index, spec.pp * spec.vpp)
    chunk = place // spec.pp
    if direction == "backward":
        chunk = spec.vpp - 1 - chunk
    return Compute(direction, group * spec.pp + place % spec.pp, chunk)


def compute_order(spec: JobSpec, stage: int) -> list[Compute]:
    """The computes of a stage in launch order: warm-up forwards, then one forward one backward, then backwards."""
    total = spec.microbatches * spec.vpp
    warmup = warmup_count(spec, stage)
    order = [_nth_compute(spec, "forward", index) for index in range(warmup)]
    for index in range(total - warmup):
        order.append(_nth_compute(spec, "forward", warmup + index))
        order.append(_nth_compute(spec, "backward", index))
    order.extend(_nth_compute(spec, "backward", index) for index in range(total - warmup, total))
    return order


class _StageBuilder:
    """Collects the ops of one stage, then puts them into streams."""

    def __init__(self, spec: JobSpec, stage: int) -> None:
        self.spec = spec
        self.stage = stage
        self.order = compute_order(spec, stage)
        self.by_kind: dict[str, list[Op]] = {}

    def add(self, kind: str, chunk: int = -1, meeting: tuple[object, ...] | None = None) -> Op:
        ops = self.by_kind.setdefault(kind, [])
        op = Op(-1, self.stage, kind, seq_id=len(ops), chunk=chunk, meeting=meeting)
        ops.append(op)
        return op

    def add_computes(self) -> dict[Compute, Op]:
        """One op for each compute; the trace carries their chunk and microbatch."""
        computes = {}
        for compute in self.order:
            op = self.add(f"{compute.direction}_compute", chunk=compute.chunk)
            op.global_chunk = compute.chunk * self.spec.pp + self.stage
            op.microbatch = compute.microbatch
            computes[compute] = op
        return computes

    def add_messages(self, computes: dict[Compute, Op], direction: Direction) -> list[tuple[Op, list[Op]]]:
        """Receives and sends of a direction, with the ops each waits for; also hangs computes on their receives.

        A message is known by its microbatch and the global chunk that receives it. The two ends of the model have no
        peer: with one chunk a stage nothing is recorded there, interleaved schedules record an op that does nothing.
        """
        spec = self.spec
        ahead = 1 if direction == "forward" else -1
        waits: list[tuple[Op, list[Op]]] = []
        previous: Op | None = None
        for compute in (c for c in self.order if c.direction == direction):
            op = computes[compute]
            here = op.global_chunk
            from_peer = 0 <= here - ahead < spec.chunk_count
            to_peer = 0 <= here + ahead < spec.chunk_count
            left_out = spec.skip_first_recv and self.stage == 0 and direction == "forward" and previous is None
            if spec.pp > 1 and (from_peer or spec.vpp > 1) and not left_out:
                recv = self.add(f"{direction}_recv")
                recv.is_no_op = not from_peer
                recv.meeting = (direction, compute.microbatch, here) if from_peer else None
                waits.append((recv, [previous] if previous else []))
                waits.append((op, [recv]))
            if spec.pp > 1 and (to_peer or spec.vpp > 1):
                send = self.add(f"{direction}_send")
                send.is_no_op = not to_peer
                send.meeting = (direction, compute.microbatch, here + ahead) if to_peer else None
                waits.append((send, [op]))
            previous = op
        return waits

    def add_first_backward_waits(self, computes: dict[Compute, Op]) -> list[tuple[Op, list[Op]]]:
        """The first backward messages of a stage wait for the second-last forward before its first backward."""
        first = next(index for index, compute in enumerate(self.order) if compute.direction == "backward")
        if first < 2:
            return []
        forward = computes[self.order[first - 2]]
        return [
            (self.by_kind[kind][0], [forward]) for kind in ("backward_recv", "backward_send") if kind in self.by_kind
        ]

    def add_all_gathers(self, computes: dict[Compute, Op]) -> list[tuple[Op, list[Op]]]:
        """Parameters are gathered chunk after chunk from the step's start; a chunk's first forward waits for them."""
        waits = []
        for chunk in range(self.spec.vpp):
            gather = self.add("params_all_gather", chunk, meeting=("params_all_gather", self.stage, chunk))
            first = next(c for c in self.order if c.direction == "forward" and c.chunk == chunk)
            waits.append((computes[first], [gather]))
        return waits

    def add_reduce_scatters(self, computes: dict[Compute, Op]) -> list[tuple[Op, list[Op]]]:
        """Gradients are reduced once a chunk; overlapped, in the order in which the chunks' last backwards come."""
        last = {c.chunk: c for c in self.order if c.direction == "backward"}
        place = {compute: index for index, compute in enumerate(self.order)}
        chunks = list(range(self.spec.vpp))
        if self.spec.overlap:
            chunks.sort(key=lambda chunk: place[last[chunk]])
        waits = []
        for chunk in chunks:
            reduce = self.add("grads_reduce_scatter", chunk, meeting=("grads_reduce_scatter", self.stage, chunk))
            if self.spec.overlap:
                waits.append((reduce, [computes[last[chunk]]]))
        return waits

    def build(self) -> tuple[list[list[Op]], list[tuple[Op, list[Op]]]]:
        """The stage's streams and what their ops wait for besides."""
        spec = self.spec
        computes = self.add_computes()
        waits = self.add_messages(computes, "forward") + self.add_messages(computes, "backward")
        waits += self.add_first_backward_waits(computes)
        compute_stream = [computes[compute] for compute in self.order]
        dp_stream: list[Op] = []
        if spec.dp > 1:
            waits += self.add_all_gathers(computes) + self.add_reduce_scatters(computes)
            dp_stream = self.by_kind["params_all_gather"] + self.by_kind["grads_reduce_scatter"]
        gc = self.add("gc")
        layernorm = self.add("layernorm_grads_all_reduce")
        tail = [layernorm]
        if self.stage in (0, spec.pp - 1):
            tail.append(self.add("embedding_grads_all_reduce", meeting=("embedding",)))
        if spec.overlap:
            tail.append(self.add("separate_grads_all_reduce", meeting=("separate", self.stage)))
            waits.append((layernorm, [dp_stream[-1]]))
        elif spec.dp > 1:
            # Not overlapped, the reductions are part of the tail: after the embedding's, before the clip.
            waits.append((self.by_kind["grads_reduce_scatter"][0], [tail[-1]]))
        clip = self.add("optimizer_clip_main_grad", meeting=("clip",))
        if spec.dp > 1 and not spec.overlap:
            waits.append((clip, [dp_stream[-1]]))
        tail += [clip, self.add("optimizer")]
        messages = [self.by_kind[kind] for kind in KINDS[2:6] if kind in self.by_kind]
        waits.append((gc, [compute_stream[-1]]))
        waits.append((layernorm, [gc]))
        return [compute_stream, *messages, dp_stream, [gc], tail], waits


def build_program(spec: JobSpec) -> Program:
    """All stages' ops, streams and meetings. Rows are numbered stage by stage, kind by kind, in launch order."""
    ops: list[Op] = []
    streams: list[list[Op]] = []
    meetings: dict[tuple[object, ...], list[Op]] = {}
    for stage in range(spec.pp):
        builder = _StageBuilder(spec, stage)
        stage_streams, waits = builder.build()
        for kind in KINDS:
            for op in builder.by_kind.get(kind, []):
                op.row = len(ops)
                ops.append(op)
                if op.meeting is not None:
                    meetings.setdefault(op.meeting, []).append(op)
        for op, others in waits:
            op.waits.extend(other.row for other in others)
        streams.extend(stream for stream in stage_streams if stream)
    return Program(ops, streams, meetings)
