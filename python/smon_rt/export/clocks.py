"""Puts the clocks of all ranks on one axis."""

from __future__ import annotations

from dataclasses import dataclass

from smon_rt.errors import TraceError
from smon_rt.trace.job_trace import JobReader
from smon_rt.trace.rank_trace import RankTrace
from smon_rt.trace.reader import FileHead

# How long before the first reading of the clocks a span may have begun, for all that is known here.
_EARLIER_NS = 3_600_000_000_000

HostKey = tuple[str, str, int]


@dataclass(frozen=True)
class ClockAlignment:
    """What to add to CLOCK_MONOTONIC of each host. `clock` is monotonic (one host) or realtime (several)."""

    clock: str
    offsets_ns: dict[HostKey, int]
    first_reading_ns: int = 0

    def offset_ns(self, trace: RankTrace) -> int:
        """What to add to a rank's times."""
        return self.offsets_ns[trace.host_key]

    def near_zero(self) -> tuple[int, ClockAlignment]:
        """An origin shortly before the recording, and the alignment that counts from it."""
        origin_ns = max(self.first_reading_ns - _EARLIER_NS, 0)
        offsets = {key: offset - origin_ns for key, offset in self.offsets_ns.items()}
        return origin_ns, ClockAlignment(self.clock, offsets, self.first_reading_ns - origin_ns)


def align(reader: JobReader) -> ClockAlignment:
    """Ranks of one host share its monotonic clock: nothing is added. Hosts are put together by their realtime clocks.

    All ranks of a host get the same offset, from the first reading of the clocks in its lowest rank's file: they must
    not move against each other. Raises TraceError for a host without a reading when there are several hosts.
    """
    by_host: dict[HostKey, list[FileHead]] = {}
    for head in reader.heads:
        identity = head.identity
        by_host.setdefault((identity.host, identity.boot_id, identity.time_namespace), []).append(head)
    if len(by_host) == 1:
        readings = [head.clock.monotonic_ns for head in reader.heads if head.clock is not None]
        return ClockAlignment("monotonic", dict.fromkeys(by_host, 0), min(readings, default=0))
    offsets: dict[HostKey, int] = {}
    for key, heads in by_host.items():
        known = [head.realtime_offset_ns for head in heads if head.realtime_offset_ns is not None]
        if not known:
            raise TraceError(
                f"{heads[0].path}: has no reading of its host's clocks, so its ranks cannot be put beside other hosts; "
                "export each host alone"
            )
        offsets[key] = known[0]
    starts = [head.started_ns for head in reader.heads if head.started_ns is not None]
    return ClockAlignment("realtime", offsets, min(starts))
