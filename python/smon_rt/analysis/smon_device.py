"""Starts and ends of a rank's ops where a GPU runs them, and of its steps; how far its times may be off."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from smon_rt.trace.device_bounds import bounds_of
from smon_rt.trace.device_order import WAIT_EVENT, DeviceOrder, is_device_work, is_on_device
from smon_rt.trace.kinds import FLAGS, HOST_TIME_SOURCES, RECVS
from smon_rt.trace.partners import COMMUNICATION
from smon_rt.trace.rank_trace import RankTrace
from smon_rt.trace.spans import Array, SpanColumns

#: Sources that say nothing of when a communication began on the device.
_WITHOUT_A_START = (*HOST_TIME_SOURCES, WAIT_EVENT)
_NEVER = np.int64(1) << 61
# A GPU that waits for its host starts what it gets within some ten µs; clocks may be apart by some hundred.
_LAUNCH_NS = 500_000


@dataclass
class DeviceClocks:
    """How far the times of each rank's device may be off its host's clock; None where its files do not say.

    `lost_count`: spans of a device whose times nobody knows, since no event was free or it was not seen in time.
    """

    bounds_ns: list[int | None] = field(default_factory=list)
    lost_count: int = 0

    def add(self, trace: RankTrace) -> None:
        """Takes what one rank recorded, if it has times of a device outside of warm-up."""
        spans = trace.spans
        self.lost_count += trace.losses.host_only_spans
        rows = spans.has_device_times & (spans.flags & FLAGS["warmup"] == 0)
        if rows.any():
            timed = spans.take(rows)
            bounds_ns = bounds_of(trace, timed, timed.device_start_ns)
            is_known = bounds_ns is not None and int(bounds_ns.min()) >= 0
            self.bounds_ns.append(int(bounds_ns.max()) if bounds_ns is not None and is_known else None)

    @property
    def bound_ns(self) -> int | None:
        """Of the worst device; 0 without any, None where one is not known."""
        return self._sum_of(1)

    @property
    def pair_bound_ns(self) -> int | None:
        """How far any two may be apart."""
        return self._sum_of(2)

    def _sum_of(self, count: int) -> int | None:
        known = [bound for bound in self.bounds_ns if bound is not None]
        return sum(sorted(known, reverse=True)[:count]) if len(known) == len(self.bounds_ns) else None


def times_in_order(spans: SpanColumns, waited: Array) -> tuple[Array, Array, Array]:
    """Starts, ends and `waited` (OpColumns) of one rank's ops, in the device's times where they have any.

    Communication without a start on the device begins when the stream that it was issued from gets to it; a receive
    that this stream waits for, when it gets to the wait. Where the end is the host's, it is the return of a launch:
    nobody has seen it end. So it is with all else that the host is through with while the device still has work.
    """
    on_device = spans.has_device_times
    start_ns = np.where(on_device, spans.device_start_ns, spans.start_ns)
    end_ns = start_ns + np.where(on_device, spans.device_duration_ns, spans.duration_ns)
    rows = np.flatnonzero(np.isin(spans.kind, COMMUNICATION) & np.isin(spans.time_source, _WITHOUT_A_START))
    order = DeviceOrder.of(spans)
    if order is None or len(rows) == 0:
        return start_ns, end_ns, waited
    issued_ns, returned_ns = spans.start_ns[rows], spans.start_ns[rows] + spans.duration_ns[rows]
    is_event = spans.time_source[rows] == WAIT_EVENT
    is_waited_receive = is_event & np.isin(spans.kind[rows], RECVS)
    # Of several waits in a row each began when the computes before had ended: none is for another one.
    begin_ns = np.where(is_waited_receive, order.computed_ns(returned_ns), order.reached_ns(issued_ns))
    # What the recorder said of the start of an event, it knew better.
    said_ns = np.where(is_event & (start_ns[rows] < end_ns[rows]), start_ns[rows], -_NEVER)
    begin_ns = np.maximum(begin_ns, said_ns)
    # What the host does itself, and is through with while the device is still at work, holds that up as little.
    is_ahead = ~is_event & (is_on_device(spans)[rows] | (end_ns[rows] < begin_ns))
    waited = waited.copy()
    waited[rows[is_ahead]] = 0
    begin_ns = np.where(is_event, np.minimum(begin_ns, end_ns[rows]), np.where(is_ahead, begin_ns, start_ns[rows]))
    start_ns[rows] = begin_ns
    end_ns[rows] = np.maximum(end_ns[rows], begin_ns)
    return start_ns, end_ns, waited


def op_bounds(trace: RankTrace, ops: SpanColumns, start_ns: Array, end_ns: Array) -> Array:
    """How far times of one rank's ops may be off its host's clock; 0 without a device, -1 where nobody says.

    Starts that follow from the order of a stream are as exact as the times of what came before.
    """
    if not trace.spans.has_device_times.any():
        return np.zeros(len(ops), np.int64)
    starts, ends = (bounds_of(trace, ops, times_ns) for times_ns in (start_ns, end_ns))
    if starts is None or ends is None:
        return np.full(len(ops), -1)
    return np.where(np.minimum(starts, ends) < 0, -1, np.maximum(starts, ends))


def starts_when_free(
    spans: SpanColumns, times_ns: tuple[Array, Array], steps: Array, of_step: Array, step_start_ns: Array
) -> Array:
    """When each of `steps`, ascending, began: where the device still worked on the one before, when it was done.

    Else what it does of one step while the host is ahead in the next one would be a late launch in that. `times_ns` are
    starts and ends of the rank's ops, `of_step` which of `steps` each is of. Of a step whose predecessor was not
    recorded: with its first op, if its first compute started long after its launch and after what the stream waited
    for, since the device was busy until then.
    """
    start_ns, end_ns = times_ns
    rows = np.flatnonzero(spans.has_device_times)
    if len(rows) == 0:
        return step_start_ns
    first_ns = np.full(len(steps), _NEVER)
    np.minimum.at(first_ns, of_step[rows], start_ns[rows])
    last_ns = np.full(len(steps), -_NEVER)
    np.maximum.at(last_ns, of_step[rows], end_ns[rows])
    busy_ns = np.concatenate([[-_NEVER], np.maximum.accumulate(last_ns)[:-1]])
    follows = np.concatenate([[False], (np.diff(steps) == 1) & (last_ns[:-1] > -_NEVER)])
    busy_ns = np.where(~follows & _was_busy(spans, start_ns, steps, of_step), first_ns, busy_ns)
    return np.where(first_ns < _NEVER, np.maximum(step_start_ns, np.minimum(busy_ns, first_ns)), step_start_ns)


def _was_busy(spans: SpanColumns, start_ns: Array, steps: Array, of_step: Array) -> Array:
    """Of each step whether its first compute started long after its launch, and after what the stream waited for."""
    order = DeviceOrder.of(spans)
    was_busy = np.zeros(len(steps), np.bool_)
    if order is None:
        return was_busy
    computes = np.flatnonzero(is_device_work(spans.time_source, spans.kind))
    computes = computes[np.lexsort((start_ns[computes], of_step[computes]))]
    found, places = np.unique(of_step[computes], return_index=True)
    firsts = computes[places]
    # Just before its launch, since it is not behind itself.
    was_busy[found] = start_ns[firsts] - order.reached_ns(spans.start_ns[firsts] - 1) > _LAUNCH_NS
    return was_busy
