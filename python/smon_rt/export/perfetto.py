"""Writes Perfetto's protobuf trace, slice by slice.

The messages and field numbers are those of protos/perfetto/trace in Perfetto's public schema. They are encoded by hand:
its Python package would bring 1.7 MB of generated schema and 0.2 s of import for a dozen fields, and is slower. The
tests read the files back with that package.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from smon_rt.export.timeline import ARGUMENTS, Argument, Counter, Lane, RankTimeline

_BEGIN, _END, _COUNTER = 1, 2, 4
_STATE_CLEARED, _NEEDS_STATE = 1, 2
_ORDERED_BY_RANK = 3  # TrackDescriptor.ChildTracksOrdering.EXPLICIT
_MOST_CACHED = 1 << 16


def write_perfetto(timelines: Iterable[RankTimeline], output: BinaryIO) -> None:
    """Writes one process a rank, with a track for each thread, stream and metric."""
    for timeline in timelines:
        writer = _RankWriter(timeline)
        for part in writer.packets():
            output.write(part)


def varint(value: int) -> bytes:
    """An unsigned number on the wire."""
    if value < len(_SMALL):
        return _SMALL[value]
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


# Lengths and tags are small; the table makes itself while it is shorter than the number asked for.
_SMALL: list[bytes] = []
_SMALL.extend([bytes((value,)) for value in range(0x80)])
_SMALL.extend([varint(value) for value in range(0x80, 0x800)])


def _timestamp(time_ns: int) -> bytes:
    """TracePacket.timestamp. Neighbours share all but the low 28 bits, which are spread over four bytes."""
    low = time_ns & 0x7F | (time_ns & 0x3F80) << 1 | (time_ns & 0x1F_C000) << 2 | (time_ns & 0xFE0_0000) << 3
    return b"\x40" + (low | 0x8080_8080).to_bytes(4, "little") + _high_bits(time_ns >> 28)


@functools.lru_cache(maxsize=256)
def _high_bits(value: int) -> bytes:
    return varint(value)


def _number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value & 0xFFFF_FFFF_FFFF_FFFF)


def _fixed64(field: int, value: int) -> bytes:
    return varint(field << 3 | 1) + value.to_bytes(8, "little")


def _double(field: int, value: float) -> bytes:
    return varint(field << 3 | 1) + struct.pack("<d", value)


def _bytes(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode("utf-8", "replace"))


class _RankWriter:
    """The packets of one rank: a sequence of their own, with names interned at its start."""

    def __init__(self, timeline: RankTimeline) -> None:
        self._timeline = timeline
        self._process_uuid = timeline.process_number + 1 << 32
        self._track_count = 0
        # TracePacket.trusted_packet_sequence_id: any number but 0.
        self._sequence = _number(10, timeline.process_number + 1)
        self._tail = self._sequence + _number(13, _NEEDS_STATE)
        self._name_ids = {name: number for number, name in enumerate(timeline.names, start=1)}
        self._argument_ids = {name: number for number, name in enumerate(ARGUMENTS, start=1)}
        self._arguments: dict[Argument, bytes] = {}

    def packets(self) -> Iterator[bytes]:
        yield self._packet(self._names() + _number(13, _STATE_CLEARED))
        yield self._track(self._process_uuid, _bytes(3, self._process()) + _number(11, _ORDERED_BY_RANK))
        for lane in self._timeline.lanes:
            yield from self._lane(lane)
        for counter in self._timeline.counters:
            yield from self._counter(counter)

    def _packet(self, content: bytes) -> bytes:
        return _bytes(1, content + self._sequence)

    def _names(self) -> bytes:
        """InternedData: event names and names of arguments."""
        events = (_bytes(2, _number(1, number) + _text(2, name)) for name, number in self._name_ids.items())
        arguments = (_bytes(3, _number(1, number) + _text(2, name)) for name, number in self._argument_ids.items())
        return _bytes(12, b"".join([*events, *arguments]))

    def _process(self) -> bytes:
        """ProcessDescriptor. Ranks of several hosts may share a pid, so the rank takes its place, from 1."""
        timeline = self._timeline
        return _number(1, timeline.process_number + 1) + _number(3, timeline.sort_index) + _text(6, timeline.title)

    def _track(self, uuid: int, description: bytes) -> bytes:
        return self._packet(_bytes(60, _number(1, uuid) + description))

    def _child_track(self, name: str, order: int, more: bytes = b"") -> tuple[int, bytes]:
        self._track_count += 1
        uuid = self._process_uuid + self._track_count
        parts = _number(5, self._process_uuid) + _text(2, name) + _number(12, order)
        return uuid, self._track(uuid, parts + more)

    def _event(self, timestamp_ns: int, event: bytes) -> bytes:
        body = b"".join((_timestamp(max(timestamp_ns, 0)), self._tail, b"\x5a", varint(len(event)), event))
        return b"".join((b"\x0a", varint(len(body)), body))

    def _lane(self, lane: Lane) -> Iterator[bytes]:
        uuid, descriptor = self._child_track(lane.name, lane.track_order)
        yield descriptor
        track = _number(11, uuid)
        begin, end = _number(9, _BEGIN) + track, _number(9, _END) + track
        # Ends and flows of the slices that are open.
        stack: list[tuple[int, bytes]] = []
        for piece in lane.slices:
            while stack and stack[-1][0] <= piece.start_ns:
                timestamp_ns, closing = stack.pop()
                yield self._event(timestamp_ns, closing)
            flow = _fixed64(47, piece.flow) if piece.flow else b""
            parts = [begin, _number(10, self._name_ids[piece.name]), *map(self._argument, piece.arguments)]
            # A receive may be posted before its send begins, but ends after: the arrow then points forward in time.
            yield self._event(piece.start_ns, b"".join([*parts, flow] if piece.is_send else parts))
            stack.append((piece.end_ns, end if piece.is_send else end + flow))
        while stack:
            timestamp_ns, closing = stack.pop()
            yield self._event(timestamp_ns, closing)

    def _argument(self, argument: Argument) -> bytes:
        """A DebugAnnotation; most repeat."""
        found = self._arguments.get(argument)
        if found is not None:
            return found
        name, value = argument
        if isinstance(value, bool):
            content = _number(2, int(value))
        elif isinstance(value, int):
            content = _number(4, value)
        else:
            content = _text(6, value)
        made = _bytes(4, _number(1, self._argument_ids[name]) + content)
        if len(self._arguments) < _MOST_CACHED:
            self._arguments[argument] = made
        return made

    def _counter(self, counter: Counter) -> Iterator[bytes]:
        uuid, descriptor = self._child_track(counter.name, 1 << 16, _bytes(8, b""))
        yield descriptor
        event = _number(9, _COUNTER) + _number(11, uuid)
        for time_ns, value in zip(counter.times_ns, counter.values, strict=True):
            yield self._event(time_ns, event + _double(44, value))
