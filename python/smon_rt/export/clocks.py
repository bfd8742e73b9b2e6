"""Puts the clocks of all ranks of an export on one axis, reading as little as that takes."""

from __future__ import annotations

from smon_rt.trace.clocks import ClockAlignment, HostClock, align_traces
from smon_rt.trace.job_trace import JobReader

# How long before the first reading of the clocks a span may have begun, for all that is known here.
_EARLIER_NS = 3_600_000_000_000


def align(reader: JobReader) -> ClockAlignment:
    """With one host there is nothing to align; with several all of the job is read once. Raises TraceError."""
    heads = reader.heads
    hosts = {(head.identity.host, head.identity.boot_id, head.identity.time_namespace) for head in heads}
    if len(hosts) > 1:
        return align_traces(reader)
    readings = [head.clock.monotonic_ns for head in heads if head.clock is not None]
    return ClockAlignment("monotonic", dict.fromkeys(hosts, HostClock()), min(readings, default=0))


def shortly_before(alignment: ClockAlignment) -> int:
    """An origin for readers that hold times in few digits: not long before the recording, ns on the common axis."""
    return max(alignment.origin_ns - _EARLIER_NS, 0)
