"""Jobs on several hosts whose clocks differ: what their ranks would have recorded of true times."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from smon_rt._proto import trace_pb2
from smon_rt.trace.clocks import ClockAlignment, align_traces
from smon_rt.trace.job_trace import read_job
from smon_rt.trace.kinds import TIME_SOURCE_NAMES
from tests.python.smon_files import TestSpan, packet, snapshot, write_rank

WAIT_RETURN = TIME_SOURCE_NAMES.index("wait_return")
#: When the job begins, in true time.
BEGIN_NS = 7_000_000_000_000
REALTIME_NS = 1_700_000_000_000_000_000


@dataclass
class HostClock:
    """What a host's monotonic clock shows at a true time: so much more, and drifting from the job's begin on."""

    offset_ns: int = 0
    drift_ratio: float = 0.0

    def at(self, true_ns: int) -> int:
        return true_ns + self.offset_ns + round((true_ns - BEGIN_NS) * self.drift_ratio)


@dataclass
class ClockJob:
    """One rank a host. Times given are true ones; files hold what each host's clock showed."""

    clocks: list[HostClock]
    realtime_error_ns: int = 0
    spans: dict[int, list[TestSpan]] = field(default_factory=dict)
    has_readings: bool = True
    _sequences: dict[Any, int] = field(default_factory=dict)

    def message(self, source: int, target: int, sent_ns: int, arrived_ns: int, *, kind: str = "forward") -> None:
        """The receiver waits from before it was sent."""
        sequence = self._next(("message", source, target, kind))
        posted_ns = sent_ns - 1_000
        self._add(source, f"{kind}_send", sent_ns, sent_ns + 500, comm_seq=sequence, peer=target, time_source=0)
        self._add(target, f"{kind}_recv", posted_ns, arrived_ns, comm_seq=sequence, peer=source)

    def collective(self, starts_ns: dict[int, int], ends_ns: dict[int, int], *, kind: str = "grads_all_reduce") -> None:
        sequence = self._next(("collective", kind))
        for rank, start_ns in starts_ns.items():
            self._add(rank, kind, start_ns, ends_ns[rank], comm_seq=sequence)

    def lie(self, source: int, target: int, sent_ns: int, arrived_ns: int) -> None:
        """A message whose receiver's span ends long before it was sent, as a wait that did not wait records it."""
        sequence = self._next(("message", source, target, "forward"))
        self._add(source, "forward_send", sent_ns, sent_ns + 500, comm_seq=sequence, peer=target, time_source=0)
        self._add(target, "forward_recv", arrived_ns - 10, arrived_ns, comm_seq=sequence, peer=source)

    def _next(self, key: Any) -> int:
        self._sequences[key] = self._sequences.get(key, 0) + 1
        return self._sequences[key]

    def _add(
        self, rank: int, kind: str, start_ns: int, end_ns: int, time_source: int = WAIT_RETURN, **ids: int
    ) -> None:
        clock = self.clocks[rank]
        start, end = clock.at(start_ns), clock.at(end_ns)
        span = TestSpan(kind=kind, start_ns=start, duration_ns=end - start, time_source=time_source, comm_id=1, **ids)
        self.spans.setdefault(rank, []).append(span)

    def write(self, folder: Path) -> None:
        names = trace_pb2.Names(
            communicator=[
                trace_pb2.Communicator(id=1, name="all", dimension="dp", member_ranks=range(len(self.clocks)))
            ]
        )
        for rank, clock in enumerate(self.clocks):
            spans = sorted(self.spans.get(rank, []), key=lambda span: span.start_ns + span.duration_ns)
            begin_ns = clock.at(BEGIN_NS)
            reading = snapshot(begin_ns, REALTIME_NS + self.realtime_error_ns * rank)
            write_rank(
                folder,
                spans,
                packets=[packet(names=names)],
                clock=reading if self.has_readings else packet(names=names),
                rank=rank,
                world_size=len(self.clocks),
                layout={"dp_size": len(self.clocks), "dp_rank": rank},
                host=f"node{rank}",
                boot_id=f"boot-of-node{rank}",
            )

    def align(self) -> ClockAlignment:
        with tempfile.TemporaryDirectory() as folder:
            self.write(Path(folder))
            return align_traces(read_job([folder]).ranks)

    def errors_ns(self, alignment: ClockAlignment, times_ns: list[int]) -> list[int]:
        """How far each pair of hosts is apart on the common axis, the worst of some true times."""
        hosts = [alignment.hosts[f"node{rank}", f"boot-of-node{rank}", 4026531834] for rank in range(len(self.clocks))]
        worst = []
        for true_ns in times_ns:
            shown_ns = [np.int64(clock.at(true_ns)) for clock in self.clocks]
            common_ns = [int(host.line.apply(time)) for host, time in zip(hosts, shown_ns, strict=True)]
            worst.append(max(common_ns) - min(common_ns))
        return worst
