"""A rank's trace as tracks of nested slices, the form that timeline viewers take.

A track is a thread or a stream. Spans of one track may overlap (communication that runs beside the computation), but
viewers draw a track as a stack of slices; so a track is split into lanes, within each of which slices nest. Messages
have lanes of their own: a compute while one is on its way is no part of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from smon_rt.trace.kinds import METRIC, RECVS, SENDS, TIME_SOURCE_NAMES, flag_names, kind_name, name_of
from smon_rt.trace.rank_trace import RankTrace
from smon_rt.trace.spans import Array

#: Names of the arguments of slices.
ARGUMENTS = (
    *("step", "microbatch", "chunk", "op_index", "communicator", "comm_seq", "peer", "payload_bytes"),
    *("time_source", "flags", "sampled", "warmup"),
)
# A track of a thousand overlapping spans is no drawing; what does not fit the last lane is drawn shorter.
_MOST_LANES = 64

Argument = tuple[str, int | str | bool]


class Slice(NamedTuple):
    """A slice: times on the axis of all ranks, and the message it is an end of (0: none)."""

    start_ns: int
    end_ns: int
    name: str
    arguments: list[Argument]
    flow: int
    is_send: bool


@dataclass(frozen=True)
class Lane:
    """Slices that nest, by start; lanes of one track have the same name."""

    name: str
    track_order: int
    slices: Iterator[Slice]


@dataclass(frozen=True)
class Counter:
    """A metric over time."""

    name: str
    times_ns: list[int]
    values: list[float]


@dataclass(frozen=True)
class RankTimeline:
    """One rank: its lanes, track by track, and its metrics.

    `process` is the number of its process in the file, `order` its place among them; -1: the rank.
    """

    rank: int
    title: str
    names: list[str]
    lanes: list[Lane]
    counters: list[Counter]
    process: int = -1
    order: int = -1

    @property
    def process_number(self) -> int:
        """A number of its own among the timelines of a file."""
        return self.rank if self.process < 0 else self.process

    @property
    def sort_index(self) -> int:
        """Viewers draw processes in this order."""
        return self.rank if self.order < 0 else self.order


def rank_timeline(trace: RankTrace, offset_ns: int) -> RankTimeline:
    """The timeline of a rank, `offset_ns` added to its times."""
    return _TimelineBuilder(trace, offset_ns).build()


def rank_title(trace: RankTrace) -> str:
    """`rank 3 (dp 1, stage 0, tp 1) node0`: coordinates that the layout has."""
    layout = trace.identity.layout
    sizes = [("dp", layout.dp_rank, layout.dp_size), ("stage", layout.stage, layout.pp_size)]
    sizes += [("tp", layout.tp_rank, layout.tp_size), ("cp", layout.cp_rank, layout.cp_size)]
    place = ", ".join(f"{name} {value}" for name, value, size in sizes if size > 1)
    return f"rank {trace.rank}" + (f" ({place})" if place else "") + f" {trace.identity.host}".rstrip()


def flow_id(communicator: str, source: int, destination: int, is_forward: bool, comm_seq: int) -> int:
    """The same number at both ends of a message: 63 bits of a hash, never 0."""
    text = f"{communicator}\0{source}\0{destination}\0{is_forward}\0{comm_seq}"
    digest = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 1) or 1


class _TimelineBuilder:
    def __init__(self, trace: RankTrace, offset_ns: int) -> None:
        self._trace = trace
        self._spans = trace.spans
        self._offset_ns = offset_ns
        self._communicators = {
            number: f"{communicator.name or communicator.dimension}\0{list(communicator.member_ranks)}"
            for number, communicator in trace.communicators.items()
        }

    def build(self) -> RankTimeline:
        spans, trace = self._spans, self._trace
        lanes = list(self._step_lanes())
        rows = np.flatnonzero(spans.kind != METRIC)
        order = 1
        for name, of_track in self._by_thread(rows):
            lanes += self._lanes(name, order, of_track, spans.start_ns, spans.duration_ns, on_device=False)
            order += 1
        for name, of_track in self._by_stream(rows[spans.has_device_times[rows]]):
            lanes += self._lanes(name, order, of_track, spans.device_start_ns, spans.device_duration_ns, on_device=True)
            order += 1
        names = ["step", *(kind_name(int(kind)) for kind in np.unique(spans.kind[rows])), *trace.names.values()]
        return RankTimeline(trace.rank, rank_title(trace), list(dict.fromkeys(names)), lanes, self._counters())

    def _step_lanes(self) -> Iterator[Lane]:
        steps = self._trace.steps
        if len(steps) == 0:
            return
        start_ns = steps.start_ns + self._offset_ns
        for rows in split_into_lanes(start_ns, start_ns + steps.duration_ns, np.arange(len(steps))):
            yield Lane("steps", 0, self._step_slices(rows))

    def _step_slices(self, rows: list[tuple[int, int, int]]) -> Iterator[Slice]:
        steps = self._trace.steps
        for row, start_ns, end_ns in rows:
            arguments: list[Argument] = [("step", int(steps.step[row])), ("sampled", bool(steps.is_sampled[row]))]
            arguments += [("warmup", True)] if steps.is_warmup[row] else []
            yield Slice(start_ns, end_ns, "step", arguments, 0, False)

    def _by_thread(self, rows: Array) -> Iterator[tuple[str, Array]]:
        """Rows of each thread; spans without a track are told apart by their ring, which is a thread's too."""
        tracks = self._trace.tracks
        groups: dict[tuple[int, str], list[Array]] = {}
        key = self._spans.track_id[rows].astype(np.int64) << 32 | self._spans.ring_id[rows]
        for value, of_value in _grouped(key, rows):
            track = tracks.get(value >> 32)
            name = (
                f"thread (ring {value & 0xFFFF_FFFF})"
                if track is None
                else f"{track.thread_name or 'thread'} {track.thread_id}"
            )
            groups.setdefault((0 if track else 1, name), []).append(of_value)
        for (_, name), parts in sorted(groups.items(), key=lambda item: item[0]):
            yield name, np.concatenate(parts)

    def _by_stream(self, rows: Array) -> Iterator[tuple[str, Array]]:
        groups: dict[tuple[int, int], list[Array]] = {}
        for value, of_value in _grouped(self._spans.track_id[rows], rows):
            track = self._trace.tracks.get(value)
            place = (-1, 0) if track is None else (track.device, track.stream)
            groups.setdefault(place, []).append(of_value)
        for (device, stream), parts in sorted(groups.items()):
            name = f"GPU {device} stream {stream:#x}" if device >= 0 else "GPU"
            yield name, np.concatenate(parts)

    def _lanes(
        self, name: str, order: int, rows: Array, start_ns: Array, duration_ns: Array, *, on_device: bool
    ) -> Iterator[Lane]:
        is_message = np.isin(self._spans.kind[rows], [*SENDS, *RECVS])
        for chosen in (rows[~is_message], rows[is_message]):
            starts = start_ns[chosen] + self._offset_ns
            for lane in split_into_lanes(starts, starts + duration_ns[chosen], chosen):
                yield Lane(name, order, self._slices(lane, on_device))

    def _slices(self, rows: list[tuple[int, int, int]], on_device: bool) -> Iterator[Slice]:
        """Slices of some spans. The arrow of a message goes from device slice to device slice where there are any."""
        spans, names = self._spans, self._trace.names
        index = np.array([row for row, _, _ in rows], np.int64)
        columns = [
            getattr(spans, name)[index].tolist()
            for name in (
                *("kind", "name_id", "step", "microbatch", "chunk", "op_index", "comm_id", "comm_seq", "peer"),
                *("payload_bytes", "time_source", "flags", "has_device_times"),
            )
        ]
        for (_, start_ns, end_ns), values in zip(rows, zip(*columns, strict=True), strict=True):
            kind, name_id, step, microbatch, chunk, op_index, comm_id, comm_seq, peer, *rest = values
            payload_bytes, time_source, flags, has_device_times = rest
            arguments: list[Argument] = [("step", step)]
            if microbatch >= 0:
                arguments.append(("microbatch", microbatch))
            if chunk >= 0:
                arguments.append(("chunk", chunk))
            arguments.append(("op_index", op_index))
            flow = 0
            if comm_id:
                arguments.append(("communicator", self._communicator(comm_id).partition("\0")[0]))
                arguments.append(("comm_seq", comm_seq))
                if peer >= 0:
                    arguments.append(("peer", peer))
                    if comm_seq and (on_device or not has_device_times):
                        flow = self._flow(kind, comm_id, peer, comm_seq)
            if payload_bytes:
                arguments.append(("payload_bytes", payload_bytes))
            if time_source:
                arguments.append(("time_source", name_of(time_source, TIME_SOURCE_NAMES, "time_source")))
            if flags:
                arguments.append(("flags", " ".join(flag_names(flags))))
            name = names.get(name_id) or kind_name(kind)
            yield Slice(start_ns, end_ns, name, arguments, flow, kind in SENDS)

    def _communicator(self, comm_id: int) -> str:
        return self._communicators.get(comm_id, f"communicator {comm_id}")

    def _flow(self, kind: int, comm_id: int, peer: int, comm_seq: int) -> int:
        if kind in SENDS:
            return flow_id(self._communicator(comm_id), self._trace.rank, peer, kind == SENDS[0], comm_seq)
        if kind in RECVS:
            return flow_id(self._communicator(comm_id), peer, self._trace.rank, kind == RECVS[0], comm_seq)
        return 0

    def _counters(self) -> list[Counter]:
        spans = self._spans
        rows = np.flatnonzero(spans.kind == METRIC)
        counters = []
        for name_id, chosen in _grouped(spans.name_id[rows], rows):
            chosen = chosen[np.argsort(spans.start_ns[chosen], kind="stable")]
            name = self._trace.names.get(name_id) or (f"metric {name_id}" if name_id else "metric")
            times_ns = (spans.start_ns[chosen] + self._offset_ns).tolist()
            counters.append(Counter(name, times_ns, spans.metric_value[chosen].tolist()))
        return counters


def _grouped(keys: Array, rows: Array) -> Iterator[tuple[int, Array]]:
    """Each key, from the least on, with its rows in order; there may be tens of thousands of threads, or of names."""
    order = np.argsort(keys, kind="stable")
    values, firsts = np.unique(keys[order], return_index=True)
    yield from zip(values.tolist(), np.split(rows[order], firsts[1:]), strict=True) if len(values) else ()


def split_into_lanes(starts: Array, ends: Array, rows: Array) -> list[list[tuple[int, int, int]]]:
    """(row, start, end) of each slice, in lanes: a slice goes to the first lane where it nests."""
    order = np.lexsort((-ends, starts))
    lanes: list[list[tuple[int, int, int]]] = []
    stacks: list[list[int]] = []
    for row, start, end in zip(rows[order].tolist(), starts[order].tolist(), ends[order].tolist(), strict=True):
        for lane, stack in zip(lanes, stacks, strict=True):
            while stack and stack[-1] <= start:
                stack.pop()
            if not stack or stack[-1] >= end:
                stack.append(end)
                lane.append((row, start, end))
                break
        else:
            if len(lanes) < _MOST_LANES:
                lanes.append([(row, start, end)])
                stacks.append([end])
            else:
                inside = stacks[-1][-1]
                stacks[-1].append(inside)
                lanes[-1].append((row, start, inside))
    return lanes
