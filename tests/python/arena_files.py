"""Writes arenas as csrc/format/in_flight.h lays them out, by offsets of its own."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from smon_rt._proto import trace_pb2
from smon_rt.trace.kinds import KIND_NUMBERS, METRIC
from tests.python.smon_files import TestSpan

HEADER_BYTES = 1280
STEP_BYTES = 24
RECORD_BYTES = 192
SLOT_BYTES = 80
SPAN_BYTES = 64
DEAD_PID = 2**22 + 5  # above what Linux gives out


@dataclass
class Ring:
    """A thread's ring: the spans from `read` to `write`, and its open spans."""

    spans: Sequence[TestSpan] = ()
    ring_id: int = 1
    capacity: int = 8
    read: int = 0
    write: int | None = None
    open_spans: Sequence[TestSpan] = ()
    state: int = 1


@dataclass
class Arena:
    """An arena: ticks are nanoseconds divided by `ns_per_tick`, counted from an origin of their own."""

    rings: Sequence[Ring] = field(default_factory=list)
    pid: int = DEAD_PID
    start_ticks: int = 1
    ns_per_tick: float = 0.5
    is_complete: int = 1
    dropped_by_kind: dict[int, int] = field(default_factory=dict)
    #: Times that were not written, as those of `step_packet`; the log has room for 8.
    steps: Sequence[tuple[int, int, int, bool, bool]] = ()
    steps_read: int = 0

    def content(self, identity: trace_pb2.Identity) -> bytes:
        records_offset = HEADER_BYTES
        body_offset = records_offset + RECORD_BYTES * len(self.rings)
        records, body = b"", b""
        for ring in self.rings:
            ring_offset = body_offset + len(body)
            body += self._ring(ring)
            slots_offset = body_offset + len(body)
            body += b"".join(self._slot(span) for span in ring.open_spans)
            write = ring.read + len(ring.spans) if ring.write is None else ring.write
            head = struct.pack(
                "<Ii16sIIQQII",
                *(ring.state, 77, b"main", ring.ring_id, ring.capacity),
                *(ring_offset, slots_offset, len(ring.open_spans), 0),
            )
            records += head.ljust(64, b"\0") + struct.pack("<Q", write).ljust(64, b"\0")
            records += struct.pack("<Q", ring.read).ljust(64, b"\0")
        steps_offset = body_offset + len(body)
        body += self._step_log()
        header = struct.pack(
            "<8sQIIIIIIIIQQiiiIQ64s64s40s512s",
            *(b"smonshm1", body_offset + len(body), HEADER_BYTES, SPAN_BYTES, SLOT_BYTES, RECORD_BYTES),
            *(len(self.rings), 128, 0, self.is_complete, records_offset, 0),
            *(self.pid, identity.rank, identity.world_size, identity.attempt, self.start_ticks),
            *(identity.run_id.encode(), identity.host.encode(), identity.boot_id.encode(), b""),
        )
        header += struct.pack("<IIqqqd", 2, 1, 10_000, 1_000_000, 0, self.ns_per_tick)
        header += struct.pack("<qqqqqIIQ", 5, 6, 7, 12, 13, 1, 1, 3)
        header += struct.pack("<32Q6Q", *(self.dropped_by_kind.get(kind, 0) for kind in range(32)), *[0] * 6)
        header += struct.pack("<QIIQQ", steps_offset, 8, STEP_BYTES, self.steps_read + len(self.steps), self.steps_read)
        return header.ljust(HEADER_BYTES, b"\0") + records + body

    def ticks(self, time_ns: int) -> int:
        return 10_000 + round((time_ns - 1_000_000) / self.ns_per_tick)

    def _step_log(self) -> bytes:
        entries = [b"\0" * STEP_BYTES] * 8
        for place, (step, start_ns, duration_ns, is_sampled, is_warmup) in enumerate(self.steps):
            ticks = self.ticks(start_ns), self.ticks(start_ns + duration_ns)
            entries[(self.steps_read + place) % 8] = struct.pack(
                "<I4?qq", step, is_sampled, is_warmup, False, False, *ticks
            )
        return b"".join(entries)

    def _ring(self, ring: Ring) -> bytes:
        entries = [b"\0" * SPAN_BYTES] * ring.capacity
        for place, span in enumerate(ring.spans):
            entries[(ring.read + place) % ring.capacity] = self._span(span)
        return b"".join(entries)

    def _slot(self, span: TestSpan) -> bytes:
        return struct.pack("<IIII", 4 | 1, 2, 1, 0) + self._span(span)

    def _span(self, span: TestSpan) -> bytes:
        kind = KIND_NUMBERS[span.kind]
        tail = struct.pack("<d", span.metric_value) if kind == METRIC else struct.pack("<Ii", span.comm_seq, span.peer)
        return (
            struct.pack("<qqqq", self.ticks(span.start_ns), self.ticks(span.start_ns + span.duration_ns), 3, 4)
            + struct.pack("<IBBHhhHH", span.step, kind, 1, span.flags, span.microbatch, span.chunk, span.op_index, 1)
            + struct.pack("<HHI", span.comm_id or span.name_id, span.payload_bytes >> 32, span.payload_bytes % 2**32)
            + tail
        )


def write_arena(folder: Path, arena: Arena, identity: trace_pb2.Identity) -> Path:
    """An arena under its name in what stands for /dev/shm."""
    path = folder / f"smon-0-{identity.run_id}-{identity.attempt}-{identity.rank}"
    path.write_bytes(arena.content(identity))
    return path
