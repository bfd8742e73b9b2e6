"""How far times of a device, which the recorder has put on its host's clock, may be off.

Each time is as good as the map that it was made with. A process has maps of each of its devices, and of each clock of
theirs: of events, and of the timer that kernels read.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from smon_rt._proto import trace_pb2
from smon_rt.trace.kinds import TIME_SOURCE_NAMES
from smon_rt.trace.rank_trace import RankTrace
from smon_rt.trace.spans import Array, SpanColumns

_NCCL_GLOBALTIMER = TIME_SOURCE_NAMES.index("nccl_globaltimer")
_TIMER = "globaltimer"
_NEVER = np.int64(1) << 61


def bounds_of(trace: RankTrace, spans: SpanColumns, times_ns: Array) -> Array | None:
    """How far times of a rank's device may be off, one of each of these spans of it; None without any map.

    By the maps of the span's own clock and device; -1 where there is none of that clock.
    """
    if not trace.clock_maps:
        return None
    is_timer = spans.time_source == _NCCL_GLOBALTIMER
    device = _devices(trace, spans)
    found_ns = np.full(len(spans), -1)
    for of_timer in (False, True):
        maps = [clock for clock in trace.clock_maps if (clock.device_clock == _TIMER) == of_timer]
        for number in np.unique(device[is_timer == of_timer]).tolist() if maps else ():
            rows = (is_timer == of_timer) & (device == number)
            # Spans without a track, and maps from before devices were numbered, are of a process with one device.
            own = [clock for clock in maps if clock.device == number] or maps
            found_ns[rows] = bounds_at(own, times_ns[rows])
    return found_ns


def event_bounds_at(trace: RankTrace, times_ns: Array) -> Array:
    """The same by the maps of events of any device, where some say it."""
    maps = [clock for clock in trace.clock_maps if clock.device_clock != _TIMER]
    bounds_ns = bounds_at(maps, times_ns)
    return np.full(len(times_ns), -1) if bounds_ns is None else bounds_ns


def bounds_at(clock_maps: Sequence[trace_pb2.ClockMap], times_ns: Array) -> Array | None:
    """How far times of a device, on its host's clock, may be off; None without any map of it.

    By the maps whose window has them, or where none does, by the worst of all.
    """
    if not clock_maps:
        return None
    in_order = sorted(clock_maps, key=lambda clock: clock.window_start_ns)
    begins_ns = np.array([clock.window_start_ns for clock in in_order], np.int64)
    ends_ns = np.array([clock.window_end_ns for clock in in_order], np.int64)
    bounds_ns = np.array([min(clock.bound_ns, _NEVER) for clock in in_order], np.int64)
    last = np.searchsorted(begins_ns, times_ns, side="right") - 1
    found_ns = np.full(len(times_ns), -1)
    for place in (last, last - 1, last - 2):
        covers = (place >= 0) & (times_ns <= ends_ns[np.maximum(place, 0)])
        found_ns = np.maximum(found_ns, np.where(covers, bounds_ns[np.maximum(place, 0)], -1))
    return np.where(found_ns >= 0, found_ns, bounds_ns.max())


def _devices(trace: RankTrace, spans: SpanColumns) -> Array:
    """The number of each span's device in its process; -1 where its track says none."""
    # By the numbers that spans have: a file may give a track any number.
    numbers, of = np.unique(spans.track_id, return_inverse=True)
    table = [track.device if (track := trace.tracks.get(number)) else -1 for number in numbers.tolist()]
    return np.array(table, np.int64)[of]
