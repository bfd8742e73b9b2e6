"""Puts the clocks of all ranks on one axis."""

from __future__ import annotations

from dataclasses import dataclass

from smon_rt.errors import TraceError
from smon_rt.trace.job_trace import JobReader
from smon_rt.trace.rank_trace import RankTrace
from smon_rt.trace.reader import FileHead

HostKey = tuple[str, str, int]


@dataclass(frozen=True)
class ClockAlignment:
    """What to add to CLOCK_MONOTONIC of each host. `clock` is monotonic (one host) or realtime (several)."""

    clock: str
    offsets_ns: dict[HostKey, int]

    def offset_ns(self, trace: RankTrace) -> int:
        """What to add to a rank's times."""
        return self.offsets_ns[trace.host_key]


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
        return ClockAlignment("monotonic", dict.fromkeys(by_host, 0))
    offsets: dict[HostKey, int] = {}
    for key, heads in by_host.items():
        known = [head.realtime_offset_ns for head in heads if head.realtime_offset_ns is not None]
        if not known:
            raise TraceError(
                f"{heads[0].path}: has no reading of its host's clocks, so its ranks cannot be put beside other hosts; "
                "export each host alone"
            )
        offsets[key] = known[0]
    return ClockAlignment("realtime", offsets)
