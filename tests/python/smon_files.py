"""Writes `.smon` files span by span, in the words of trace.proto: slow, plain, and apart from the reader."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smon_rt._proto import trace_pb2
from smon_rt.trace.kinds import HOST_TIME_SOURCES, KIND_NUMBERS, METRIC


@dataclass(frozen=True)
class TestSpan:
    """One span, with the schema's defaults."""

    __test__ = False

    kind: str = "user"
    step: int = 0
    start_ns: int = 0
    duration_ns: int = 0
    device_start_ns: int = 0
    device_duration_ns: int = 0
    time_source: int = 0
    flags: int = 0
    microbatch: int = -1
    chunk: int = -1
    op_index: int = 0
    track_id: int = 0
    name_id: int = 0
    comm_id: int = 0
    comm_seq: int = 0
    peer: int = -1
    payload_bytes: int = 0
    metric_value: float = 0.0

    @property
    def has_device_times(self) -> bool:
        return self.time_source not in HOST_TIME_SOURCES


def signed(value: int, bits: int = 32) -> int:
    """A difference modulo 2^bits as a signed number."""
    return (value + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)


def packet(steps: tuple[int, int] | None = None, **content: Any) -> bytes:
    """One framed packet with its checksum."""
    message = trace_pb2.TracePacket(**content)
    if steps is not None:
        message.first_step, message.last_step = steps
    return frame(message.SerializeToString())


def frame(rest: bytes) -> bytes:
    """What follows the checksum of a packet, as field 1 of a Trace."""
    body = b"\x0d" + zlib.crc32(rest).to_bytes(4, "little") + rest
    return b"\x0a" + varint(len(body)) + body


def varint(value: int) -> bytes:
    text = bytearray()
    while value >= 0x80:
        text.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*text, value])


def span_packet(
    spans: Sequence[TestSpan], *, ring_id: int = 1, first_index: int = 0, shapes: bool = True, short: bool = True
) -> bytes:
    """Spans of one ring as one packet: with a table of shapes or not, with the shorthands of columns or not."""
    first_step = min(span.step for span in spans)
    batch = trace_pb2.SpanBatch(span_count=len(spans), ring_id=ring_id, first_index=first_index)
    _add_times(batch, spans)
    rows = [_row(spans, index, first_step) for index in range(len(spans))]
    table = rows
    if shapes:
        table = list(dict.fromkeys(rows))
        batch.shape.extend(table.index(row) for row in rows)
    for column, name in enumerate(_SHAPED):
        values = [row[column] for row in table]
        absent = {
            "microbatch": all(span.microbatch == -1 for span in spans),
            "op_index": not any(s.op_index for s in spans),
        }
        if short and absent.get(name, all(value == _DEFAULTS.get(name, 0) for value in values)):
            continue
        constant = short and len(set(values)) == 1
        getattr(batch, name).extend(values[:1] if constant else values)
    metrics = [span.metric_value for span in spans if KIND_NUMBERS[span.kind] == METRIC]
    if any(metrics) or (metrics and not short):
        batch.metric_value.extend(metrics[:1] if short and len(set(metrics)) == 1 else metrics)
    return packet((first_step, max(span.step for span in spans)), spans=batch)


_SHAPED = (
    *("kind", "step", "time_source", "flags", "microbatch", "chunk", "op_index", "track_id", "name_id", "comm_id"),
    *("comm_seq", "peer", "payload_bytes"),
)
_DEFAULTS = {"chunk": -1, "peer": -1}


def _add_times(batch: trace_pb2.SpanBatch, spans: Sequence[TestSpan]) -> None:
    end = 0
    device_end: int | None = None
    for span in spans:
        batch.start_ns.append(signed(span.start_ns - end, 64))
        batch.duration_ns.append(span.duration_ns)
        end = span.start_ns + span.duration_ns
        if span.has_device_times:
            gap = span.device_start_ns - (span.start_ns if device_end is None else device_end)
            batch.device_start_ns.append(signed(gap, 64))
            batch.device_duration_ns.append(span.device_duration_ns)
            device_end = span.device_start_ns + span.device_duration_ns


def _row(spans: Sequence[TestSpan], index: int, first_step: int) -> tuple[int, ...]:
    """The shaped columns of one span, differences taken."""
    span = spans[index]
    before = spans[:index]
    same_kind = _last(before, lambda other: other.kind == span.kind)
    in_step = same_kind if same_kind is not None and same_kind.step == span.step else None
    same_peer = _last(
        before, lambda other: (other.kind, other.comm_id, other.peer) == (span.kind, span.comm_id, span.peer)
    )
    sequence_before = same_peer.comm_seq if same_peer is not None and span.comm_id else 0
    return (
        KIND_NUMBERS[span.kind],
        signed(span.step - (before[-1].step if before else first_step)),
        span.time_source,
        span.flags,
        signed(span.microbatch - (in_step.microbatch if in_step else -1)),
        span.chunk,
        signed(span.op_index - (in_step.op_index if in_step else -1)),
        span.track_id,
        span.name_id,
        span.comm_id,
        span.comm_seq - sequence_before,
        span.peer,
        span.payload_bytes,
    )


def _last(spans: Sequence[TestSpan], fits: Callable[[TestSpan], bool]) -> TestSpan | None:
    return next((span for span in reversed(spans) if fits(span)), None)


@dataclass(frozen=True)
class TestCommOp:
    """One operation of NCCL, with the schema's defaults."""

    __test__ = False

    number: int = 0
    step: int = 0
    start_ns: int = 0
    enqueue_ns: int = 0
    flags: int = 0
    communicator: int = 1
    function: int = 0
    datatype: int = 0
    algorithm: int = 0
    protocol: int = 0
    channel_count: int = 0
    peer: int = -1
    payload_bytes: int = 0
    comm_id: int = 0
    comm_seq: int = 0
    library_seq: int = 0
    transfer_count: int = 0
    open_transfer_count: int = 0
    first_transfer_ns: int = 0
    transfer_ns: int = 0
    kernel_count: int = 0
    open_kernel_count: int = 0
    kernel_start_device_ns: int = 0
    kernel_duration_device_ns: int = 0
    slowest_channel: int = 0


_PLAIN_OF_OPS = (
    *("flags", "communicator", "function", "datatype", "algorithm", "protocol", "channel_count", "peer"),
    *("payload_bytes", "comm_id", "transfer_count", "open_transfer_count", "kernel_count", "open_kernel_count"),
)


def comm_ops_packet(ops: Sequence[TestCommOp], *, shapes: bool = True, short: bool = True) -> bytes:
    """Operations of NCCL as one packet: with few shapes or one for each, with the shorthands of columns or not."""
    steps = [op.step for op in ops]
    batch = trace_pb2.CommOps(first_number=ops[0].number)
    start_ns = kernel_start_ns = 0
    for op in ops:
        batch.start_ns.append(op.start_ns - start_ns)
        batch.enqueue_ns.append(op.enqueue_ns)
        start_ns = op.start_ns
        if op.transfer_count:
            batch.first_transfer_ns.append(op.first_transfer_ns - op.start_ns)
            batch.transfer_ns.append(op.transfer_ns)
        if op.kernel_count:
            batch.kernel_start_device_ns.append(op.kernel_start_device_ns - kernel_start_ns)
            batch.kernel_duration_device_ns.append(op.kernel_duration_device_ns)
            batch.slowest_channel.append(op.slowest_channel)
            kernel_start_ns = op.kernel_start_device_ns
    rows = [_op_row(ops, index, min(steps)) for index in range(len(ops))]
    table = list(dict.fromkeys(rows)) if shapes else rows
    batch.shape.extend(table.index(row) if shapes else index for index, row in enumerate(rows))
    for column, name in enumerate(("number_gap", "step", "comm_seq", "library_seq", *_PLAIN_OF_OPS)):
        values = [row[column] for row in table]
        if short and set(values) == {_DEFAULTS.get(name, 0)}:
            continue
        getattr(batch, name).extend(values[:1] if short and len(set(values)) == 1 else values)
    return packet((min(steps), max(steps)), comm_ops=batch)


def _op_row(ops: Sequence[TestCommOp], index: int, first_step: int) -> tuple[int, ...]:
    op, before = ops[index], ops[:index]
    alike = [
        other
        for other in before
        if (other.communicator, other.function, other.peer) == (op.communicator, op.function, op.peer)
    ]
    return (
        op.number - before[-1].number - 1 if before else 0,
        op.step - (before[-1].step if before else first_step),
        op.comm_seq - (alike[-1].comm_seq if alike else 0),
        op.library_seq - (alike[-1].library_seq if alike else 0),
        *(getattr(op, name) for name in _PLAIN_OF_OPS),
    )


def step_packet(rows: Sequence[tuple[int, int, int, bool, bool]], *, short: bool = True) -> bytes:
    """Steps: number, start, duration, sampled, warm-up."""
    times = trace_pb2.StepTimes()
    step = start_ns = 0
    for row in rows:
        times.step.append(signed(row[0] - step))
        times.start_ns.append(row[1] - start_ns)
        times.duration_ns.append(row[2])
        step, start_ns = row[0], row[1]
    for name, column in (("sampled", 3), ("warmup", 4)):
        flags = [row[column] for row in rows]
        if short and len(set(flags)) == 1:
            flags = flags[:1] if flags[0] else []
        getattr(times, name).extend(flags)
    return packet((min(row[0] for row in rows), max(row[0] for row in rows)), step_times=times)


def identity(rank: int = 0, world_size: int = 1, **more: Any) -> trace_pb2.Identity:
    """Who recorded: one host, one boot, the layout given as a dict."""
    layout = {"dp_size": 1, "pp_size": 1, "tp_size": 1, "cp_size": 1, "vpp_size": 1} | more.pop("layout", {})
    defaults: dict[str, Any] = {
        "run_id": "job",
        "host": "node0",
        "boot_id": "boot-of-node0",
        "time_namespace": 4026531834,
        "pid": 1000 + rank,
        "clock_source": trace_pb2.CLOCK_SOURCE_TSC,
        "memory": "tmpfs",
    }
    return trace_pb2.Identity(rank=rank, world_size=world_size, layout=trace_pb2.Layout(**layout), **(defaults | more))


def snapshot(monotonic_ns: int = 1_000, realtime_ns: int = 1_700_000_000_000_001_000) -> bytes:
    """A reading of the clocks."""
    clock = trace_pb2.ClockSnapshot(
        ticks=3 * monotonic_ns, monotonic_ns=monotonic_ns, realtime_ns=realtime_ns, width_ns=80
    )
    return packet(clock_snapshot=clock)


def end(reason: str = "stop") -> bytes:
    """What stop() writes last."""
    return packet(end=trace_pb2.End(reason=reason))


def file_name(rank: int = 0, run_id: str = "job", attempt: int = 0, file_index: int = 0) -> str:
    """The name of a trace file."""
    return f"rank-{rank:05d}.{run_id}-{attempt}{f'-{file_index}' if file_index else ''}.smon"


def write_rank(
    folder: Path,
    spans: Sequence[TestSpan] = (),
    *,
    packets: Sequence[bytes] = (),
    clock: bytes | None = None,
    closed: bool = True,
    **who: Any,
) -> Path:
    """A whole file of one rank: identity, clocks, then packets, then the spans in batches."""
    writer = identity(**who)
    path = folder / file_name(writer.rank, writer.run_id, writer.attempt, writer.file_index)
    parts = [packet(identity=writer), clock or snapshot(), *packets]
    parts += [span_packet(spans[first : first + 100], first_index=first) for first in range(0, len(spans), 100)]
    path.write_bytes(b"".join([*parts, *([end()] if closed else [])]))
    return path
