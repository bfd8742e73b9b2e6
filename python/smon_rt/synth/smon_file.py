"""Encodes columns of spans as the packets of a `.smon` file, in the words of trace.proto."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from smon_rt._proto import trace_pb2
from smon_rt.trace.kinds import HOST_TIME_SOURCES

Column = npt.NDArray[np.int64]

#: Spans of one packet; the recorder writes at most 2048.
_BATCH = 2000


@dataclass(frozen=True)
class SpanTable:
    """Spans of one thread in the order in which they ended, a column each; times are of the host's clock, in ns.

    Times of the device count where the time source is one: they are on the host's clock, too.
    """

    kind: Column
    step: Column
    start_ns: Column
    duration_ns: Column
    time_source: Column
    flags: Column
    microbatch: Column
    chunk: Column
    op_index: Column
    comm_id: Column
    comm_seq: Column
    peer: Column
    payload_bytes: Column
    device_start_ns: Column
    device_duration_ns: Column

    def __len__(self) -> int:
        return len(self.kind)

    def take(self, rows: npt.NDArray[Any] | slice) -> SpanTable:
        """The spans at these rows."""
        return SpanTable(*(getattr(self, field.name)[rows] for field in dataclasses.fields(self)))


def no_device_times(count: int) -> dict[str, Column]:
    """The columns of spans without any."""
    return dict.fromkeys(("device_start_ns", "device_duration_ns"), np.zeros(count, np.int64))


def packet(steps: tuple[int, int] | None = None, **content: Any) -> bytes:
    """One framed packet with its checksum."""
    message = trace_pb2.TracePacket(**content)
    if steps is not None:
        message.first_step, message.last_step = steps
    rest = message.SerializeToString()
    body = b"\x0d" + zlib.crc32(rest).to_bytes(4, "little") + rest
    return b"\x0a" + _varint(len(body)) + body


def _varint(value: int) -> bytes:
    text = bytearray()
    while value >= 0x80:
        text.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*text, value])


def span_packets(spans: SpanTable) -> Iterator[bytes]:
    """The spans as the packets of one ring."""
    for first in range(0, len(spans), _BATCH):
        yield _span_packet(spans.take(slice(first, first + _BATCH)), first)


def _span_packet(spans: SpanTable, first_index: int) -> bytes:
    count = len(spans)
    first_step = int(spans.step.min())
    same_kind = _before(spans.kind)
    is_same_step = (same_kind >= 0) & (spans.step[same_kind] == spans.step)
    same_kind = np.where(is_same_step, same_kind, -1)
    same_peer = np.where(spans.comm_id > 0, _before(spans.kind, spans.comm_id, spans.peer), -1)
    ends = spans.start_ns + spans.duration_ns
    columns = {
        "start_ns": spans.start_ns - np.concatenate([[0], ends[:-1]]),
        "duration_ns": spans.duration_ns,
        "kind": spans.kind,
        "step": np.diff(spans.step, prepend=first_step),
        "time_source": spans.time_source,
        "flags": spans.flags,
        "microbatch": spans.microbatch - _value_at(spans.microbatch, same_kind, -1),
        "chunk": spans.chunk,
        "op_index": spans.op_index - _value_at(spans.op_index, same_kind, -1),
        "track_id": np.ones(1, np.int64),
        "comm_id": spans.comm_id,
        "comm_seq": spans.comm_seq - _value_at(spans.comm_seq, same_peer, 0),
        "peer": spans.peer,
        "payload_bytes": spans.payload_bytes,
    }
    batch = trace_pb2.SpanBatch(span_count=count, ring_id=1, first_index=first_index)
    on_device = spans.take(np.isin(spans.time_source, HOST_TIME_SOURCES, invert=True))
    if len(on_device):
        device_ends = on_device.device_start_ns + on_device.device_duration_ns
        columns["device_start_ns"] = on_device.device_start_ns - np.concatenate(
            [on_device.start_ns[:1], device_ends[:-1]]
        )
        columns["device_duration_ns"] = on_device.device_duration_ns
    for name, values in columns.items():
        getattr(batch, name).extend(values.tolist())
    return packet((first_step, int(spans.step.max())), spans=batch)


def _before(*columns: Column) -> Column:
    """For each row the last one before it with the same values, -1 for the first such row."""
    order = np.lexsort((np.arange(len(columns[0])), *columns))
    is_same = np.ones(max(len(order) - 1, 0), np.bool_)
    for column in columns:
        is_same &= column[order][1:] == column[order][:-1]
    found = np.full(len(order), -1, np.int64)
    found[order[1:][is_same]] = order[:-1][is_same]
    return found


def _value_at(values: Column, rows: Column, default: int) -> Column:
    return np.where(rows >= 0, values[rows], default)


def numbers_among_equals(*columns: Column) -> Column:
    """For each row how many rows before it have the same values."""
    count = len(columns[0])
    order = np.lexsort((np.arange(count), *columns))
    is_first = np.ones(count, np.bool_)
    if count:
        is_first[1:] = np.any([column[order][1:] != column[order][:-1] for column in columns], axis=0)
    begins = np.maximum.accumulate(np.where(is_first, np.arange(count), 0))
    found = np.empty(count, np.int64)
    found[order] = np.arange(count) - begins
    return found


def step_packet(starts_ns: Column, durations_ns: Column) -> bytes:
    """The times of sampled steps 0, 1, …."""
    count = len(starts_ns)
    times = trace_pb2.StepTimes(sampled=[True])
    times.step.extend([0] + [1] * (count - 1))
    times.start_ns.extend(np.diff(starts_ns, prepend=0).tolist())
    times.duration_ns.extend(durations_ns.tolist())
    return packet((0, count - 1), step_times=times)
