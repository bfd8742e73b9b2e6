"""Reads `.smon` files, as far as they go.

Example:
    >>> from smon_rt.trace import read_file
    >>> trace = read_file("traces/rank-00000.job-0.smon")  # doctest: +SKIP
    >>> trace.identity.world_size, len(trace.spans)  # doctest: +SKIP
    (64, 117216)
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from smon_rt._proto import trace_pb2
from smon_rt.analysis.input_file import open_input, reason, shown
from smon_rt.errors import TraceError
from smon_rt.trace.packets import PacketReader
from smon_rt.trace.rank_builder import CONTENTS, IDENTITY, SNAPSHOT, RankBuilder
from smon_rt.trace.rank_trace import RankTrace
from smon_rt.trace.wire import DELIMITED, VARINT, WireError, fields

_FILE_NAME = re.compile(r"^rank-(\d{1,9})\.(.+?)-(\d{1,9})(?:-(\d{1,9}))?\.smon$")
_FIRST_STEP, _LAST_STEP = 2, 3
# The identity is a file's first packet, and a reading of the clocks comes soon after.
_HEAD_PACKETS = 16

#: What tells one process from another.
ProcessKey = tuple[str, int, int, int, str, int]


def read_file(path: str | os.PathLike[str], steps: range | None = None) -> RankTrace:
    """Reads the trace file of one rank: a path or an fsspec URL. With `steps`, only the spans of these.

    What is damaged or missing is in the result's `damage`, `is_cut` and `end_reason`. Raises TraceError when nothing
    can be read, and for files of several processes joined into one, which `read_files` takes.
    """
    traces = read_files([os.fsdecode(path)], steps)
    if len(traces) > 1:
        raise TraceError(f"{shown(os.fsdecode(path))}: holds {len(traces)} processes; read it with `read_files`")
    return traces[0]


def read_files(paths: list[str], steps: range | None = None) -> list[RankTrace]:
    """Reads files into one trace for each process in them. Raises TraceError for a file that gives nothing."""
    builders: dict[ProcessKey, RankBuilder] = {}
    for path in paths:
        _read_into(builders, path, steps)
    return [builder.finish() for builder in builders.values()]


@dataclass(frozen=True)
class FileHead:
    """What the beginning of a file says: who wrote it, and when (None if no clock was read yet)."""

    path: str
    identity: trace_pb2.Identity
    clock: trace_pb2.ClockSnapshot | None
    is_identified: bool  # by itself, not by its name

    @property
    def started_ns(self) -> int | None:
        """CLOCK_REALTIME when the process began to record."""
        return None if self.clock is None else self.clock.realtime_ns

    @property
    def realtime_offset_ns(self) -> int | None:
        """Realtime minus monotonic time."""
        return None if self.clock is None else self.clock.realtime_ns - self.clock.monotonic_ns


def read_head(path: str) -> FileHead:
    """Looks at the first packets of a file. Raises TraceError if they are no trace."""
    identity: trace_pb2.Identity | None = None
    clock: trace_pb2.ClockSnapshot | None = None
    with open_input(path) as source:
        reader = PacketReader(source)
        has_packets = False
        for count, packet in enumerate(reader):
            has_packets = True
            try:
                for number, data, _ in _content(packet.body):
                    if number == IDENTITY and identity is None:
                        identity = trace_pb2.Identity.FromString(data)
                    elif number == SNAPSHOT and clock is None:
                        clock = trace_pb2.ClockSnapshot.FromString(data)
            except (WireError, DecodeError):
                continue  # reading the whole file will say so
            if count >= _HEAD_PACKETS or (identity is not None and clock is not None):
                break
        is_identified = identity is not None
        if identity is None and has_packets:
            identity = _identity_from_name(path)
        if identity is None:
            raise _nothing_in(source.name, source.size_bytes)
        return FileHead(path, identity, clock, is_identified)


def _read_into(builders: dict[ProcessKey, RankBuilder], path: str, steps: range | None) -> None:
    with open_input(path) as source:
        reader = PacketReader(source)
        in_file: dict[ProcessKey, RankBuilder] = {}
        builder: RankBuilder | None = None

        def begin(identity: trace_pb2.Identity) -> RankBuilder:
            if identity.rank < 0:
                raise WireError(f"rank {identity.rank}")
            key = process_key(identity)
            begun = builders.setdefault(key, RankBuilder(identity, steps))
            in_file[key] = begun
            begun.begin_file(path, identity)
            return begun

        for packet in reader:
            try:
                for number, data, packet_steps in _content(packet.body):
                    if number == IDENTITY:
                        builder = begin(trace_pb2.Identity.FromString(data))
                        continue
                    if builder is None:
                        identity = _identity_from_name(path)
                        if identity is None:
                            reader.add_damage(packet.offset, "a packet before any identity says nothing")
                            continue
                        reader.add_damage(packet.offset, "no identity: run and rank are from the file's name")
                        builder = begin(identity)
                    builder.add(number, data, packet_steps, source.name, packet.offset)
            except (WireError, DecodeError) as error:
                reader.add_damage(packet.offset, f"packet with a right checksum that makes no sense: {reason(error)}")
        if not in_file:
            raise _nothing_in(source.name, source.size_bytes)
        for begun in in_file.values():
            begun.end_file(source.size_bytes, reader.damage, reader.is_cut)


def process_key(identity: trace_pb2.Identity) -> ProcessKey:
    """Files of one process have the same key."""
    process = identity.pid, identity.boot_id, identity.process_start_ticks
    return identity.run_id, identity.attempt, identity.rank, *process


def _content(body: bytes) -> Iterator[tuple[int, bytes, tuple[int, int] | None]]:
    """Field number, bytes and step range of what a packet holds: the last one, if it holds several."""
    first_step: int | None = None
    last_step: int | None = None
    found: tuple[int, bytes] | None = None
    for field in fields(body):
        if field.number == _FIRST_STEP and field.wire_type == VARINT:
            first_step = field.value & 0xFFFF_FFFF
        elif field.number == _LAST_STEP and field.wire_type == VARINT:
            last_step = field.value & 0xFFFF_FFFF
        elif field.number in CONTENTS and field.wire_type == DELIMITED:
            found = field.number, body[field.start : field.end]
    if found is not None:
        steps = (first_step, last_step) if first_step is not None and last_step is not None else None
        yield *found, steps


def _identity_from_name(path: str) -> trace_pb2.Identity | None:
    """What a file's name says about its writer: rank-00003.<run>-<attempt>[-<file index>].smon.

    A guess where the run's own name ends in numbers; it stands in for a destroyed identity, for want of better.
    """
    match = _FILE_NAME.match(path.replace("\\", "/").rpartition("/")[2])
    if match is None:
        return None
    rank, run_id, attempt, file_index = match.groups()
    if not run_id.isprintable():
        return None
    return trace_pb2.Identity(run_id=run_id, attempt=int(attempt), rank=int(rank), file_index=int(file_index or 0))


def _nothing_in(name: str, size_bytes: int) -> TraceError:
    if size_bytes == 0:
        return TraceError(f"{name}: is empty; nothing was recorded yet, or its process died at once")
    return TraceError(f"{name}: is no trace of smon_rt, or its beginning is destroyed; give a .smon file")
