"""What NCCL's profiler plug-in was told in a job, in numbers: for `smon info`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from smon_rt._proto import trace_pb2
from smon_rt.trace.comm_ops import CommChannel, CommOpColumns
from smon_rt.trace.comm_words import CHANNEL_STATE_NAMES
from smon_rt.trace.kinds import name_of
from smon_rt.trace.rank_trace import RankTrace

__all__ = ["NcclCommunicator", "NcclSummary", "NcclTotals", "WaitingChannel"]

#: What went another way than it should: fields of CommCounts.
_WRONG = ("foreign_handles", "stale_handles", "lost_ends", "rejected_times", "untracked")
_MOST_WAITING = 16


@dataclass(frozen=True)
class WaitingChannel:
    """One direction of a channel with transfers under way when its rank wrote last, and what the newest waits for."""

    rank: int
    channel: int
    is_send: bool
    peer: int
    state: str
    pending_count: int


@dataclass(frozen=True)
class NcclCommunicator:
    """Channels of one of NCCL's communicators that move data over the network, of all ranks that recorded it.

    `name` and `dimension` are the job's, empty where no span was seen in it. `waiting`: 16 at most.
    """

    nccl_comm: int
    name: str
    dimension: str
    rank_count: int
    channel_count: int
    moved_bytes: int
    waiting_count: int
    waiting: list[WaitingChannel]


@dataclass(frozen=True)
class NcclSummary:
    """`ops` and `joined_ops` (those of spans) are all that NCCL told of, `written_ops` those in the files.

    `communicators`: of the rank that has most, each of which it shares with others. Of a process that was killed in its
    first seconds all these are of its file.
    """

    communicators: int
    ops: int
    joined_ops: int
    written_ops: int
    wrong: dict[str, int]
    with_channels: list[NcclCommunicator]


@dataclass
class _Channels:
    """Of one communicator."""

    names: Counter[tuple[str, str]] = field(default_factory=Counter)
    ranks: set[int] = field(default_factory=set)
    channels: set[int] = field(default_factory=set)
    moved_bytes: int = 0
    waiting: list[WaitingChannel] = field(default_factory=list)

    def add(self, trace: RankTrace, row: CommChannel) -> None:
        if row.comm_id in trace.communicators:
            communicator = trace.communicators[row.comm_id]
            self.names[communicator.name, communicator.dimension] += 1
        self.ranks.add(trace.rank)
        self.channels.add(row.channel)
        if row.is_send:
            self.moved_bytes += row.moved_bytes
        if row.begun > row.done:
            state = name_of(row.state, CHANNEL_STATE_NAMES, "state")
            pending = row.begun - row.done
            self.waiting.append(WaitingChannel(trace.rank, row.channel, row.is_send, row.peer, state, pending))

    def summary(self, nccl_comm: int) -> NcclCommunicator:
        name, dimension = self.names.most_common(1)[0][0] if self.names else ("", "")
        return NcclCommunicator(
            nccl_comm=nccl_comm,
            name=name,
            dimension=dimension,
            rank_count=len(self.ranks),
            channel_count=len(self.channels),
            moved_bytes=self.moved_bytes,
            waiting_count=len(self.waiting),
            waiting=self.waiting[:_MOST_WAITING],
        )


def _counts_of(ops: CommOpColumns) -> trace_pb2.CommCounts:
    """What is known of a process that was killed before it wrote its counts: no more than what the files have."""
    communicators = len(np.unique(ops.communicator))
    return trace_pb2.CommCounts(communicators=communicators, ops=len(ops), joined_ops=int(ops.is_joined.sum()))


class NcclTotals:
    """What is summed over ranks while each is in memory."""

    def __init__(self) -> None:
        self._is_used = False
        self._counts: Counter[str] = Counter()
        self._written = 0
        self._most_communicators = 0
        self._communicators: dict[int, _Channels] = {}

    def add(self, trace: RankTrace) -> None:
        """A rank's."""
        counts = trace.comm_counts or _counts_of(trace.comm_ops)
        self._most_communicators = max(self._most_communicators, counts.communicators)
        for name in ("ops", "joined_ops", *_WRONG):
            self._counts[name] += getattr(counts, name)
        self._is_used |= trace.comm_counts is not None or bool(trace.comm_channels) or len(trace.comm_ops) > 0
        self._written += len(trace.comm_ops)
        for row in trace.comm_channels:
            self._communicators.setdefault(row.nccl_comm, _Channels()).add(trace, row)

    def summary(self) -> NcclSummary | None:
        """None where NCCL told nothing."""
        if not self._is_used:
            return None
        communicators = [channels.summary(number) for number, channels in sorted(self._communicators.items())]
        return NcclSummary(
            communicators=self._most_communicators,
            ops=self._counts["ops"],
            joined_ops=self._counts["joined_ops"],
            written_ops=self._written,
            wrong={name: self._counts[name] for name in _WRONG if self._counts[name]},
            with_channels=sorted(communicators, key=lambda each: (-each.waiting_count, -each.moved_bytes)),
        )
