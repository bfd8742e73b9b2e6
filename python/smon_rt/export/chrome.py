"""Writes the Trace Event Format (JSON) that chrome://tracing, Perfetto and many scripts read, event by event."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from smon_rt.export.timeline import RankTimeline, Slice

_BATCH_EVENTS = 4096
_ENCODE = json.JSONEncoder(separators=(",", ":")).encode


def write_chrome(timelines: Iterable[RankTimeline], output: BinaryIO, *, about: dict[str, Any]) -> None:
    """Writes one process a rank and one thread a lane. Times are microseconds with three decimals.

    `about` becomes the file's otherData. Readers take times as float64: give them from an origin of the same day, or
    they lose the nanoseconds.
    """
    head = json.dumps({"displayTimeUnit": "ms", "otherData": about})
    output.write((head[:-1] + ', "traceEvents": [').encode("ascii"))
    separator = "\n"
    pending: list[str] = []
    for timeline in timelines:
        for event in _events(timeline):
            pending.append(separator + event)
            separator = ",\n"
            if len(pending) >= _BATCH_EVENTS:
                output.write("".join(pending).encode("ascii"))
                pending = []
    output.write("".join([*pending, "\n]}\n"]).encode("ascii"))


def _events(timeline: RankTimeline) -> Iterator[str]:
    pid = timeline.process_number
    yield _metadata("process_name", pid, 0, {"name": timeline.title})
    yield _metadata("process_sort_index", pid, 0, {"sort_index": timeline.sort_index})
    for tid, lane in enumerate(timeline.lanes):
        yield _metadata("thread_name", pid, tid, {"name": lane.name})
        yield _metadata("thread_sort_index", pid, tid, {"sort_index": tid})
        place = f'"pid":{pid},"tid":{tid}'
        for piece in lane.slices:
            yield _slice(piece, place)
            if piece.flow:
                yield _flow(piece, place)
    for counter in timeline.counters:
        name = json.dumps(counter.name)
        for time_ns, value in zip(counter.times_ns, counter.values, strict=True):
            # JSON has no NaN; a loss that became one is left out, like any gap.
            if math.isfinite(value):
                yield f'{{"ph":"C","name":{name},"pid":{pid},"tid":0,"ts":{_us(time_ns)},"args":{{"value":{value!r}}}}}'


def _us(time_ns: int) -> str:
    sign = "-" if time_ns < 0 else ""
    whole, rest = divmod(abs(time_ns), 1000)
    return f"{sign}{whole}.{rest:03d}"


def _slice(piece: Slice, place: str) -> str:
    arguments = _ENCODE(dict(piece.arguments))
    times = f'"ts":{_us(piece.start_ns)},"dur":{_us(piece.end_ns - piece.start_ns)}'
    return f'{{"ph":"X","name":{_ENCODE(piece.name)},{place},{times},"args":{arguments}}}'


def _flow(piece: Slice, place: str) -> str:
    """An arrow begins inside the send and ends at the end of the receive, which may have been posted before."""
    if piece.is_send:
        return (
            f'{{"ph":"s","name":"message","cat":"message","id":"{piece.flow:#x}",{place},"ts":{_us(piece.start_ns)}}}'
        )
    moment = _us(max(piece.end_ns - 1, piece.start_ns))
    return f'{{"ph":"f","bp":"e","name":"message","cat":"message","id":"{piece.flow:#x}",{place},"ts":{moment}}}'


def _metadata(name: str, pid: int, tid: int, arguments: dict[str, Any]) -> str:
    return f'{{"ph":"M","name":"{name}","pid":{pid},"tid":{tid},"args":{json.dumps(arguments)}}}'
