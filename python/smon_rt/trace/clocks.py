"""Puts the clocks of all ranks on one axis, and says how well.

Processes of one host share CLOCK_MONOTONIC. Between hosts it says nothing, and realtime clocks are as good as their
NTP. What holds is this: no message is received before it was sent, and no collective ends anywhere before it began
everywhere. Each such pair of spans bounds the difference of two clocks from one side; messages both ways leave a little
room, through which a line of offset and drift goes (`clock_line`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from smon_rt.analysis.input_file import shown
from smon_rt.errors import TraceError
from smon_rt.trace.clock_line import ClockLine, fit_line
from smon_rt.trace.device_bounds import bounds_of, event_bounds_at
from smon_rt.trace.device_order import DeviceOrder, is_on_device
from smon_rt.trace.kinds import KIND_NUMBERS, RECVS, SENDS, TIME_SOURCE_NAMES
from smon_rt.trace.partners import COMMUNICATION, Communicators, sequence_codes
from smon_rt.trace.rank_trace import ClockColumns, RankTrace, StepColumns
from smon_rt.trace.spans import Array

#: Processes with the same host, boot and time namespace.
HostKey = tuple[str, str, int]

# What a `collective` is nobody knows: the root of a broadcast ends before the others begin.
_MEETINGS = tuple(kind for kind in COMMUNICATION if kind not in (*SENDS, *RECVS, KIND_NUMBERS["collective"]))
_WAIT_RETURN = TIME_SOURCE_NAMES.index("wait_return")
_NEVER = np.int64(1) << 61
# No time on the common axis is further than this, widened or not; _NEVER is, whatever is added to it.
_FAR = np.int64(1) << 60


@dataclass(frozen=True)
class HostClock:
    """How one host's clock was put on the common axis.

    Hosts of one `group` are bound by messages, within `bound_ns` of the group's first host; groups are put beside each
    other by realtime clocks, within nobody knows what.
    """

    line: ClockLine = field(default_factory=ClockLine)
    group: int = 0
    bound_ns: int = 0


@dataclass(frozen=True)
class ClockAlignment:
    """The clocks of a job's hosts. The axis is the monotonic clock of one host, or realtime (`clock`)."""

    clock: str
    hosts: dict[HostKey, HostClock]
    origin_ns: int = 0

    def aligned(self, trace: RankTrace) -> RankTrace:
        """The trace with all its times on the common axis; durations stay as they are."""
        # A host that only a damaged file names, which says so: its times stay as they are.
        line = self.hosts.get(trace.host_key, HostClock()).line
        if line == ClockLine():
            return trace
        spans, steps, clocks = trace.spans, trace.steps, trace.clocks
        device_start_ns = np.where(spans.has_device_times, line.apply(spans.device_start_ns), spans.device_start_ns)
        moved = dataclasses.replace(spans, start_ns=line.apply(spans.start_ns), device_start_ns=device_start_ns)
        return dataclasses.replace(
            trace,
            spans=moved,
            steps=StepColumns(
                steps.step, line.apply(steps.start_ns), steps.duration_ns, steps.is_sampled, steps.is_warmup
            ),
            clocks=ClockColumns(clocks.ticks, line.apply(clocks.monotonic_ns), clocks.realtime_ns, clocks.width_ns),
        )

    @property
    def bound_ns(self) -> int | None:
        """How far any two hosts may be apart at most; 0 with one host, None where nothing bounds it."""
        if any(host.group for host in self.hosts.values()):
            return None
        return sum(sorted((host.bound_ns for host in self.hosts.values()), reverse=True)[:2])

    @property
    def violated_count(self) -> int:
        """Pairs of spans that contradict the others, and were left out."""
        return sum(host.line.violated_count for host in self.hosts.values())

    @property
    def is_contradicted(self) -> bool:
        """True where more than the allowed part of the pairs contradict each other: the bound is an estimate then."""
        return any(host.line.is_contradicted for host in self.hosts.values())

    def words(self) -> str:
        """What the times are by."""
        count, groups = len(self.hosts), 1 + max(host.group for host in self.hosts.values())
        if count == 1:
            return "one host's monotonic clock"
        if groups == 1:
            return f"clocks of {count:,} hosts put together by their messages"
        if groups == count:
            return f"realtime clocks of {count:,} hosts"
        return f"clocks of {count:,} hosts put together by their messages, {groups:,} groups of them by realtime"


@dataclass
class _HostFacts:
    """What one host's ranks say about its clock."""

    path: str
    rank: int
    realtime_offset_ns: int | None = None
    first_ns: int = _NEVER
    last_ns: int = -_NEVER


@dataclass
class ClockEvidence:
    """Collects, rank by rank, what bounds the clocks of hosts against each other."""

    hosts: dict[HostKey, _HostFacts] = field(default_factory=dict)
    communicators: Communicators = field(default_factory=Communicators)
    _parts: dict[int, tuple[Array, ...]] = field(default_factory=dict)
    """By rank."""

    def add(self, trace: RankTrace) -> None:
        """Takes what one rank recorded. Ranks come in order."""
        facts = self.hosts.setdefault(trace.host_key, _HostFacts(trace.files[0], trace.rank))
        if facts.realtime_offset_ns is None:
            facts.realtime_offset_ns = trace.realtime_offset_ns
        for starts, durations in (
            (trace.spans.start_ns, trace.spans.duration_ns),
            (trace.steps.start_ns, trace.steps.duration_ns),
            (trace.clocks.monotonic_ns, trace.clocks.width_ns * 0),
        ):
            if len(starts):
                facts.first_ns = min(facts.first_ns, int(starts.min()))
                facts.last_ns = max(facts.last_ns, int((starts + durations).max()))
        self._parts[trace.rank] = self._communication(trace, list(self.hosts).index(trace.host_key))

    def leave_out(self, ranks: Iterable[int]) -> None:
        """Forgets what ranks recorded of communication: its times are not what they seem."""
        for rank in ranks:
            self._parts.pop(rank, None)

    def align(self) -> ClockAlignment:
        """The alignment. Raises TraceError for a host that neither messages nor a reading of its clocks can place."""
        if len(self.hosts) == 1:
            (facts,) = self.hosts.values()
            origin_ns = int(facts.first_ns) if facts.first_ns < _NEVER else 0
            return ClockAlignment("monotonic", dict.fromkeys(self.hosts, HostClock()), origin_ns)
        return _Placing(self.hosts, self._pairs()).place_all()

    def _communication(self, trace: RankTrace, host: int) -> tuple[Array, ...]:
        """Host, rank, start, end or _NEVER, widening by the device's clock, and what pairs are found by."""
        spans = trace.spans
        rows = np.flatnonzero(np.isin(spans.kind, (*_MEETINGS, *SENDS, *RECVS)) & (spans.comm_seq > 0))
        on_device = spans.has_device_times[rows]
        start_ns, end_ns = spans.start_ns[rows], spans.start_ns[rows] + spans.duration_ns[rows]
        is_waited = spans.time_source[rows] == _WAIT_RETURN
        ended_ns = spans.device_start_ns[rows] + spans.device_duration_ns[rows]
        order, bound_ns = DeviceOrder.of(spans), bounds_of(trace, spans.take(rows), ended_ns)
        # Times of a device that nothing bounds are no evidence.
        if bound_ns is not None:
            is_bounded = on_device & (bound_ns >= 0)
            is_waited |= is_bounded
            end_ns = np.where(is_bounded, ended_ns + bound_ns, end_ns)
            if order is not None:
                # The host may have launched it long before the device got there.
                reached_ns = order.reached_ns(start_ns)
                off_ns = event_bounds_at(trace, reached_ns)
                reached_ns = np.where(is_on_device(spans)[rows] & (off_ns >= 0), reached_ns - off_ns, start_ns)
                start_ns = np.maximum(start_ns, reached_ns)
        kind = spans.kind[rows]
        return (
            np.full(len(rows), host),
            np.full(len(rows), trace.rank),
            # The receiver of a message may begin long before, and its sender be done long before it arrives.
            np.where(np.isin(kind, RECVS), -_NEVER, start_ns),
            np.where(is_waited & ~np.isin(kind, SENDS), end_ns, _NEVER),
            kind,
            spans.step[rows],
            self.communicators.numbers(trace, spans.comm_id[rows]),
            spans.comm_seq[rows],
            spans.peer[rows],
        )

    def _pairs(self) -> _Pairs:
        host, rank, start_ns, end_ns, kind, step, comm, comm_seq, peer = (
            np.concatenate(column) for column in zip(*self._parts.values(), strict=True)
        )
        codes = sequence_codes(comm, comm_seq, kind, step, rank, peer)
        order = np.lexsort((host, codes))
        order = order[codes[order] >= 0]
        return _Pairs.across_hosts(codes[order], host[order], start_ns[order], end_ns[order])


@dataclass(frozen=True)
class _Pairs:
    """Spans that have a partner on another host, sorted by what they are part of (`code`), then by host.

    One row for all ranks of a host: its last start, its first end.
    """

    code: Array
    host: Array
    start_ns: Array
    end_ns: Array

    @staticmethod
    def across_hosts(code: Array, host: Array, start_ns: Array, end_ns: Array) -> _Pairs:
        if len(code) == 0:
            return _Pairs(code, host, start_ns, end_ns)
        is_first = np.ones(len(code), np.bool_)
        is_first[1:] = (code[1:] != code[:-1]) | (host[1:] != host[:-1])
        firsts = np.flatnonzero(is_first)
        code, host = code[firsts], host[firsts]
        start_ns, end_ns = np.maximum.reduceat(start_ns, firsts), np.minimum.reduceat(end_ns, firsts)
        counts = np.bincount(np.searchsorted(np.unique(code), code))
        crosses = np.repeat(counts > 1, counts)
        return _Pairs(code[crosses], host[crosses], start_ns[crosses], end_ns[crosses])


class _Placing:
    """Puts one host after the other beside those that have their place."""

    def __init__(self, hosts: dict[HostKey, _HostFacts], pairs: _Pairs) -> None:
        self._keys, self._facts = list(hosts), list(hosts.values())
        self._pairs = pairs
        self._clocks: dict[int, HostClock] = {}
        self._group = 0
        # Rows of each host, and where the rows of each code begin.
        self._rows = [np.flatnonzero(pairs.host == host) for host in range(len(hosts))]
        self._borders = np.searchsorted(pairs.code, np.arange(int(pairs.code.max(initial=-1)) + 2))
        self._forget()

    def place_all(self) -> ClockAlignment:
        """The alignment of all hosts."""
        root = self._largest()
        self._set(root, ClockLine())
        self._place_neighbours()
        while len(self._clocks) < len(self._facts):
            rest = self._largest()
            self._group += 1
            self._forget()
            self._set(rest, ClockLine().shifted(self._realtime_ns(rest) - self._realtime_ns(root)))
            self._place_neighbours()
        # The first host's times become those of its realtime clock, which other records of the job are by.
        reading = self._facts[root].realtime_offset_ns
        clocks = {
            key: dataclasses.replace(self._clocks[host], line=self._clocks[host].line.shifted(reading or 0))
            for host, key in enumerate(self._keys)
        }
        firsts = [int(facts.first_ns) for facts in self._facts]
        known = [
            int(clock.line.apply(np.int64(f))) for clock, f in zip(clocks.values(), firsts, strict=True) if f < _NEVER
        ]
        return ClockAlignment("monotonic" if reading is None else "realtime", clocks, min(known, default=0))

    def _largest(self) -> int:
        """Of the hosts without a place the one with most to go by."""
        rest = [host for host in range(len(self._facts)) if host not in self._clocks]
        return max(rest, key=lambda host: (len(self._rows[host]), -self._facts[host].rank))

    def _realtime_ns(self, host: int) -> int:
        facts = self._facts[host]
        if facts.realtime_offset_ns is None:
            raise TraceError(
                f"{shown(facts.path)}: has no reading of its host's clocks, and no messages both ways bind it to other "
                "hosts, so its times cannot be put beside theirs; give each host alone"
            )
        return facts.realtime_offset_ns

    def _forget(self) -> None:
        """Hosts of another group bind nobody: where they are is a guess."""
        self._start_ns = np.full(len(self._pairs.code), -_NEVER)
        self._end_ns = np.full(len(self._pairs.code), _NEVER)
        self._bound_ns = np.zeros(len(self._pairs.code), np.int64)

    def _set(self, host: int, line: ClockLine) -> None:
        """Gives a host its place, and others the starts and ends of its spans, and how far those may be off."""
        clock = HostClock(line, self._group, line.bound_ns)
        self._clocks[host] = clock
        rows, pairs = self._rows[host], self._pairs
        has_start, has_end = pairs.start_ns[rows] > -_NEVER, pairs.end_ns[rows] < _NEVER
        start_ns, end_ns = line.apply(pairs.start_ns[rows]), line.apply(pairs.end_ns[rows])
        self._start_ns[rows] = np.where(has_start, start_ns, -_NEVER)
        self._end_ns[rows] = np.where(has_end, end_ns, _NEVER)
        self._bound_ns[rows] = clock.bound_ns

    def _place_neighbours(self) -> None:
        """Places whom messages both ways connect with hosts of this group, until there is none."""
        found = True
        while found:
            found = False
            for host in range(len(self._facts)):
                line = None if host in self._clocks else self._line_of(host)
                if line is not None:
                    self._set(host, line)
                    found = True

    def _line_of(self, host: int) -> ClockLine | None:
        """From all that binds a host to those that have their place.

        They are taken to be where they were put: who has a tight bound to one of them keeps to it, however far that one
        may be off. Where they contradict each other they are given the room that they have.
        """
        group = [clock for clock in self._clocks.values() if clock.group == self._group]
        others_bound_ns = max((clock.bound_ns for clock in group), default=0)
        line = self._fit(host, self._start_ns, self._end_ns)
        if line is None or others_bound_ns == 0:
            return line
        widened = self._fit(host, self._start_ns - self._bound_ns, self._end_ns + self._bound_ns)
        if widened is None or line.is_contradicted:
            return widened
        # Two ways to say how far off it may be; both hold.
        facts = self._facts[host]
        borders = np.array([facts.first_ns, facts.last_ns], np.int64)
        apart_ns = int(np.abs(line.apply(borders) - widened.apply(borders)).max())
        bound_ns = min(line.bound_ns + others_bound_ns, widened.bound_ns + apart_ns)
        return dataclasses.replace(line, bound_ns=bound_ns)

    def _fit(self, host: int, starts_ns: Array, ends_ns: Array) -> ClockLine | None:
        """The line of a host by starts and ends of all pairs' other spans, on the common axis."""
        rows, pairs = self._rows[host], self._pairs
        codes = pairs.code[rows]
        begins, ends = self._borders[codes], self._borders[codes + 1]
        # The host's own rows are among these, without a time on the common axis yet.
        latest = _reduce_ranges(np.maximum, starts_ns, begins, ends)
        earliest = _reduce_ranges(np.minimum, ends_ns, begins, ends)
        start_ns, end_ns = pairs.start_ns[rows], pairs.end_ns[rows]
        lower = (latest > -_FAR) & (end_ns < _NEVER)
        upper = (earliest < _FAR) & (start_ns > -_NEVER)
        facts = self._facts[host]
        return fit_line(
            end_ns[lower],
            (latest - end_ns)[lower],
            start_ns[upper],
            (earliest - start_ns)[upper],
            int(facts.first_ns),
            int(facts.last_ns),
        )


def _reduce_ranges(function: np.ufunc, values: Array, begins: Array, ends: Array) -> Array:
    """function.reduce over each range of values; none is empty, and they are sorted and apart."""
    borders = np.stack([begins, ends], axis=1).reshape(-1)
    if len(borders) and borders[-1] == len(values):
        # reduceat wants indices within the array: the last range then ends by itself.
        borders = borders[:-1]
    return np.asarray(function.reduceat(values, borders)[::2])


def align_traces(traces: Iterable[RankTrace]) -> ClockAlignment:
    """Aligns the clocks of a job, which are read rank by rank. Raises TraceError."""
    evidence = ClockEvidence()
    for trace in traces:
        evidence.add(trace)
    return evidence.align()
