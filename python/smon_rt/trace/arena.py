"""The memory that a killed process left in /dev/shm: the last spans, which no file holds, and the spans still open.

The layout is csrc/format/in_flight.h. The memory is copied first, then nothing in it is believed: it may be torn, of
another version, or written by someone else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import math
import os
import stat
import struct
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from smon_rt.analysis.input_file import is_url, local_path, shown
from smon_rt.trace.arena_layout import (
    FIRST_HEADER_BYTES,
    HEADER,
    MAGIC,
    SLOT,
    SLOT_OPEN,
    SLOT_STATE_MASK,
    SPAN,
    STEP,
    THREAD,
)
from smon_rt.trace.kinds import PHASE_NAMES, RECVS, SENDS, kind_name, name_of
from smon_rt.trace.rank_builder import first_of_each
from smon_rt.trace.rank_trace import RankTrace, StepColumns
from smon_rt.trace.spans import Array, SpanColumns

#: Where arenas live. Tests point it elsewhere.
SHARED_MEMORY = Path("/dev/shm")

# 4 MiB a rank is what the recorder takes at most.
_LARGEST_ARENA_BYTES = 64 << 20
_MOST_RECORDS = 4096
_MOST_OPEN_SPANS = 4096
_METRIC_KIND = 23
_LARGEST_NS = 1 << 61
_SAME_START_NS = 1_000_000
# struct flock where off_t has 64 bits: type, whence, start, length, pid.
_FLOCK = "hhqqi4x"


@dataclass(frozen=True)
class OpenSpan:
    """A span that had begun and not ended."""

    kind: str
    step: int
    microbatch: int
    thread: str
    start_ns: int | None


@dataclass(eq=False)
class ArenaView:
    """What the memory of one process says. `is_alive`: the process still runs, so its last spans are on their way."""

    path: str
    pid: int
    is_alive: bool
    step: int
    phase: str
    finished_step_count: int
    drain_beat_ns: int
    open_spans: list[OpenSpan] = field(default_factory=list)
    unread: SpanColumns = field(default_factory=lambda: SpanColumns.concatenate([]))
    merged_span_count: int = 0
    dropped_by_kind: dict[str, int] = field(default_factory=dict)
    steps: StepColumns = field(default_factory=lambda: _no_steps())


def _no_steps() -> StepColumns:
    empty = np.empty(0, np.int64)
    return StepColumns(empty, empty, empty, empty.astype(np.bool_), empty.astype(np.bool_))


def merge_memory(trace: RankTrace, steps: range | None) -> None:
    """Adds to an unfinished trace what its process left in this node's memory, each span once."""
    if trace.end_reason is not None or is_url(trace.files[0]):
        return
    view = _find(trace)
    if view is None:
        return
    trace.arena = view
    if view.is_alive:
        return
    trace.steps = _with_last_steps(trace.steps, view.steps)
    if len(view.unread) == 0:
        return
    spans = view.unread
    ends = np.array([trace.ring_ends.get(int(ring), 0) for ring in spans.ring_id], np.int64)
    spans = spans.take(spans.ring_index >= ends)
    for ring_id in np.unique(spans.ring_id):
        first = int(spans.ring_index[spans.ring_id == ring_id].min())
        trace.missing_span_count += first - trace.ring_ends.get(int(ring_id), 0)
    if steps is not None:
        spans = spans.take((spans.step >= steps.start) & (spans.step < steps.stop))
    view.merged_span_count = len(spans)
    trace.spans = SpanColumns.concatenate([trace.spans, spans])


def _with_last_steps(steps: StepColumns, last: StepColumns) -> StepColumns:
    """Steps of the memory that the file lacks. Killed in between, the process had them in both: then their starts
    differ by what a single reading of the clocks is worth."""
    known = {int(step): int(start_ns) for step, start_ns in zip(steps.step, steps.start_ns, strict=True)}
    is_new = np.array(
        [
            int(step) not in known or abs(known[int(step)] - int(start_ns)) > _SAME_START_NS
            for step, start_ns in zip(last.step, last.start_ns, strict=True)
        ],
        np.bool_,
    )
    if not is_new.any():
        return steps
    names = [field.name for field in dataclasses.fields(StepColumns)]
    return StepColumns(*(np.concatenate([getattr(steps, name), getattr(last, name)[is_new]]) for name in names))


def read_arena(path: str, content: bytes) -> ArenaView | None:
    """What the bytes of an arena say; None if they are none."""
    header = _header(content)
    return None if header is None else _view(path, content, header)


def _find(trace: RankTrace) -> ArenaView | None:
    """The arena of a trace's process: same run, attempt, rank and pid, and owned by who owns the trace file."""
    name = f"smon-*-{trace.identity.attempt}-{trace.rank}"
    with contextlib.suppress(OSError, ValueError):
        owner = local_path(trace.files[0]).stat().st_uid
        # With an ending where somebody else's file had the name, or put aside after the process was dead.
        for path in sorted([*SHARED_MEMORY.glob(name), *SHARED_MEMORY.glob(f"{name}.*")]):
            content, is_locked = _copy(path, owner)
            header = None if content is None else _header(content)
            if content is not None and header is not None and _belongs(header, trace):
                return _view(shown(path), content, header, is_locked=is_locked)
    return None


def _copy(path: Path, owner: int) -> tuple[bytes | None, bool]:
    """The bytes of a regular file of this user, and whether a process has its lock; no link is followed, and no pipe
    waited for."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None, False
    with open(descriptor, "rb") as handle:  # noqa: PTH123
        status = os.fstat(handle.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_uid != owner or status.st_size > _LARGEST_ARENA_BYTES:
            return None, False
        try:
            return handle.read(_LARGEST_ARENA_BYTES), _is_locked(handle.fileno())
        except OSError:
            return None, False


def _is_locked(descriptor: int) -> bool:
    """Whether an open file description has the arena's lock: its owner lives, in whatever pid namespace
    (csrc/record/arena_owner.h). A process that only merges it has the lock for a moment, too."""
    lock = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    try:
        found = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, lock)
    except (OSError, AttributeError):  # not Linux, or a kernel without such locks
        return False
    return bool(struct.unpack(_FLOCK, found)[0] != fcntl.F_UNLCK)


def _header(content: bytes) -> np.void | None:
    if len(content) < HEADER.itemsize or not content.startswith(MAGIC):
        return None
    header: np.void = np.frombuffer(content, HEADER, 1)[0]
    if header["header_bytes"] < HEADER.itemsize:
        header = np.frombuffer(content[:FIRST_HEADER_BYTES].ljust(HEADER.itemsize, b"\0"), HEADER, 1)[0]
    sizes_fit = (
        header["is_complete"] == 1
        and FIRST_HEADER_BYTES <= header["header_bytes"] <= len(content)
        and header["span_bytes"] >= SPAN.itemsize
        and header["slot_bytes"] >= SLOT.itemsize
        and header["thread_record_bytes"] >= THREAD.itemsize
        and header["thread_record_count"] <= _MOST_RECORDS
    )
    return header if sizes_fit else None


def _belongs(header: np.void, trace: RankTrace) -> bool:
    identity = trace.identity
    return (
        int(header["pid"]) == identity.pid
        and int(header["rank"]) == identity.rank
        and int(header["attempt"]) == identity.attempt
        and identity.process_start_ticks in (0, int(header["process_start_ticks"]))
        and _text(header["run_id"]) == identity.run_id.encode()[:63].decode("utf-8", "replace")
        and _text(header["boot_id"]) == identity.boot_id[:39]
    )


def _text(value: bytes) -> str:
    return bytes(value).partition(b"\0")[0].decode("utf-8", "replace")


def _view(path: str, content: bytes, header: np.void, *, is_locked: bool = False) -> ArenaView:
    losses = header["losses"]["dropped_by_kind"]
    view = ArenaView(
        path=path,
        pid=int(header["pid"]),
        is_alive=is_locked or _runs(int(header["pid"]), int(header["process_start_ticks"])),
        step=int(header["step"]),
        phase=name_of(int(header["phase"]), PHASE_NAMES, "phase"),
        finished_step_count=int(header["finished_steps"]),
        drain_beat_ns=int(header["drain_beat_ns"]),
        dropped_by_kind={kind_name(int(kind)): int(losses[kind]) for kind in np.flatnonzero(losses)},
    )
    threads = _records(
        content,
        int(header["thread_records_offset"]),
        THREAD,
        int(header["thread_record_bytes"]),
        int(header["thread_record_count"]),
    )
    parts = []
    # Rings that lie over each other would make more spans than there are bytes.
    budget = len(content) // SPAN.itemsize
    for thread in threads:
        if thread["state"] == 0:
            continue
        part = _unread(content, thread, header)
        budget -= 0 if part is None else len(part)
        if part is not None and budget >= 0:
            parts.append(part)
        view.open_spans += _open_spans(content, thread, header)[: _MOST_OPEN_SPANS - len(view.open_spans)]
    view.steps = _last_steps(content, header)
    spans = SpanColumns.concatenate(parts)
    view.unread = spans.take(first_of_each(spans.ring_id, spans.ring_index))
    return view


def _last_steps(content: bytes, header: np.void) -> StepColumns:
    """The steps whose times had not been written."""
    capacity = int(header["step_log_capacity"])
    write, read = int(header["step_write_index"]), int(header["step_read_index"])
    log = _records(content, int(header["step_log_offset"]), STEP, int(header["step_ticks_bytes"]), capacity)
    if len(log) == 0 or write >= 1 << 62 or not 0 < write - read <= capacity:
        return _no_steps()
    rows = log[np.arange(read, write) % capacity]
    start_ns, end_ns = _to_ns(rows["start"], header), _to_ns(rows["end"], header)
    if start_ns is None or end_ns is None:
        return _no_steps()
    fits = (end_ns >= start_ns) & (end_ns < _LARGEST_NS) & (start_ns > -_LARGEST_NS)
    rows, start_ns, end_ns = rows[fits], start_ns[fits], end_ns[fits]
    step = rows["step"].astype(np.int64)
    return StepColumns(step, start_ns, end_ns - start_ns, rows["is_sampled"] != 0, rows["is_warmup"] != 0)


def _records(content: bytes, offset: int, kind: np.dtype[np.void], size: int, count: int) -> Array:
    """`count` records, `size` bytes apart, as far as they lie inside the memory."""
    if count <= 0 or offset < 0 or offset + size * count > len(content) or kind.itemsize > size:
        return np.empty(0, kind)
    rows = np.frombuffer(content, np.uint8, size * count, offset).reshape(count, size)[:, : kind.itemsize]
    return np.ascontiguousarray(rows).view(kind).reshape(count)


def _to_ns(ticks: Array, header: np.void) -> Array | None:
    """Ticks as CLOCK_MONOTONIC ns by the last reading of the clocks; None if that makes no sense."""
    clock = header["clock"]
    ns_per_tick = float(clock["ns_per_tick"])
    if not (math.isfinite(ns_per_tick) and 0 < ns_per_tick < 1e6):
        return None
    away = (ticks.astype(np.float64) - float(clock["ticks"])) * ns_per_tick
    away[~(np.abs(away) < _LARGEST_NS)] = _LARGEST_NS
    if ns_per_tick == 1.0:
        exact = ticks - clock["ticks"]
        away = np.where(np.abs(away) < _LARGEST_NS, exact, _LARGEST_NS)
    return np.asarray(away.astype(np.int64) + int(clock["monotonic_ns"]) % (1 << 61))


def _unread(content: bytes, thread: np.void, header: np.void) -> SpanColumns | None:
    """What a ring holds that the drain thread had not taken."""
    capacity, write, read = int(thread["ring_capacity"]), int(thread["write_index"]), int(thread["read_index"])
    if capacity == 0 or capacity & (capacity - 1) or write >= 1 << 62 or not 0 < write - read <= capacity:
        return None
    ring = _records(content, int(thread["ring_offset"]), SPAN, int(header["span_bytes"]), capacity)
    if len(ring) == 0:
        return None
    index = np.arange(read, write, dtype=np.int64)
    rows = ring[index % capacity]
    start_ns, end_ns = _to_ns(rows["start"], header), _to_ns(rows["end"], header)
    if start_ns is None or end_ns is None:
        return None
    spans = _columns(rows, start_ns, end_ns, int(thread["ring_id"]), index)
    return spans.take((spans.duration_ns >= 0) & (spans.duration_ns < _LARGEST_NS) & (np.abs(start_ns) < _LARGEST_NS))


def _columns(rows: Array, start_ns: Array, end_ns: Array, ring_id: int, index: Array) -> SpanColumns:
    kind = rows["kind"]
    is_metric = kind == _METRIC_KIND
    # csrc/format/span.h, is_communication: sends, receives and collectives have a communicator in place of a name.
    is_communication = (kind >= min(*SENDS, *RECVS)) & (kind <= 14)
    zeros = np.zeros(len(rows), np.int64)
    value = np.ascontiguousarray(np.stack([rows["comm_seq"], rows["peer"].view(np.uint32)], axis=1)).view("<f8")[:, 0]
    return SpanColumns(
        start_ns=start_ns,
        duration_ns=end_ns - start_ns,
        # Events of the GPU died with the process.
        device_start_ns=zeros,
        device_duration_ns=zeros,
        has_device_times=zeros.astype(np.bool_),
        kind=kind,
        step=rows["step"].astype(np.int64),
        time_source=zeros.astype(np.uint8),
        flags=rows["flags"],
        microbatch=rows["microbatch"].astype(np.int32),
        chunk=rows["chunk"].astype(np.int32),
        op_index=rows["op_index"].astype(np.int32),
        track_id=rows["track_id"].astype(np.int32),
        name_id=np.where(is_communication, 0, rows["name_or_comm_id"]).astype(np.int32),
        comm_id=np.where(is_communication, rows["name_or_comm_id"], 0).astype(np.int32),
        comm_seq=np.where(is_metric, 0, rows["comm_seq"]).astype(np.int64),
        peer=np.where(is_metric, -1, rows["peer"]).astype(np.int32),
        payload_bytes=rows["payload_high"].astype(np.int64) << 32 | rows["payload_low"],
        metric_value=np.where(is_metric, value, 0.0),
        ring_id=np.full(len(rows), ring_id, np.int64),
        ring_index=index,
    )


def _open_spans(content: bytes, thread: np.void, header: np.void) -> list[OpenSpan]:
    slots = _records(content, int(thread["slots_offset"]), SLOT, int(header["slot_bytes"]), int(thread["slot_count"]))
    # An odd sequence: died, or was copied, in the middle of writing it.
    slots = slots[(slots["state"] & SLOT_STATE_MASK == SLOT_OPEN) & (slots["sequence"] % 2 == 0)]
    starts = _to_ns(slots["span"]["start"], header)
    return [
        OpenSpan(
            kind=kind_name(int(slot["kind"])),
            step=int(slot["step"]),
            microbatch=int(slot["microbatch"]),
            thread=_text(thread["name"]) or str(int(thread["thread_id"])),
            start_ns=None if starts is None or slot["start"] == 0 else int(starts[row]),
        )
        for row, slot in enumerate(slots["span"][:_MOST_OPEN_SPANS])
    ]


def _runs(pid: int, start_ticks: int) -> bool:
    """True if the process is there and is no later one with the same number."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        # Field 22 of the line, counted from 1; what follows the name begins with field 3. A zombie records no more.
        return int(fields[19]) == start_ticks and fields[0] not in ("Z", "X")
    except (OSError, ValueError, IndexError):
        return False
