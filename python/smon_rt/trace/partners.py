"""Which spans of different ranks are one communication: the two ends of a message, the members of a collective."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from smon_rt.trace.kinds import KIND_NUMBERS, RECVS, SENDS
from smon_rt.trace.rank_trace import RankTrace
from smon_rt.trace.spans import Array

#: Kinds that a communicator carries: csrc/format/span.h, is_communication.
COMMUNICATION = tuple(range(KIND_NUMBERS["forward_send"], KIND_NUMBERS["collective"] + 1))
_FORWARD = (SENDS[0], RECVS[0])

#: Name, dimension and member ranks: the same on every member, where ids of communicators are each process's own.
CommunicatorKey = tuple[str, str, tuple[int, ...]]


@dataclass
class Communicators:
    """The communicators of a job by one number each, whatever its ranks call them."""

    keys: dict[CommunicatorKey, int] = field(default_factory=dict)

    def numbers(self, trace: RankTrace, comm_id: Array) -> Array:
        """The job's numbers for a rank's ids; -1 where a span has no communicator, or one that was never named."""
        known = sorted(number for number in trace.communicators if number > 0)
        numbers = [-1]  # of no communicator
        for number in known:
            communicator = trace.communicators[number]
            members = tuple(communicator.member_ranks) or _implied_members(trace, communicator.dimension)
            key = (communicator.name, communicator.dimension, members)
            numbers.append(self.keys.setdefault(key, len(self.keys)))
        ids = np.array([0, *known], np.int64)
        place = np.minimum(np.searchsorted(ids, comm_id), len(ids) - 1)
        return np.asarray(np.where(ids[place] == comm_id, np.array(numbers, np.int64)[place], -1))

    def members(self) -> list[tuple[int, ...]]:
        """The member ranks of each, by number; empty where nobody said them."""
        return [tuple(rank for rank in members if rank >= 0) for _, _, members in self.keys]

    def dimensions(self) -> list[str]:
        """The parallel dimension of each, by number; empty where nobody said it."""
        return [dimension for _, dimension, _ in self.keys]


def _implied_members(trace: RankTrace, dimension: str) -> tuple[int, ...]:
    """What tells the communicators of one dimension apart where their members are not recorded.

    Negative numbers: the coordinates that members of such a communicator share.
    """
    layout = trace.identity.layout
    place = {"dp": layout.dp_rank, "pp": layout.stage, "tp": layout.tp_rank, "cp": layout.cp_rank}
    if dimension not in place:
        return ()
    return tuple(-1 if name == dimension else -2 - value for name, value in place.items())


def sequence_codes(comm: Array, comm_seq: Array, kind: Array, step: Array, rank: Array, peer: Array) -> Array:
    """The same code for spans that are one communication, by the numbers that the recorder counts; -1 without one.

    A collective is known by communicator, kind and number; a message by communicator, direction, sender, receiver and
    number. All of one step.
    """
    is_send, is_recv = np.isin(kind, SENDS), np.isin(kind, RECVS)
    is_message = is_send | is_recv
    counted = (comm >= 0) & (comm_seq > 0) & ~(is_message & (peer < 0))
    source = np.where(is_send, rank, np.where(is_recv, peer, -1))
    target = np.where(is_send, peer, np.where(is_recv, rank, -1))
    # Of the kinds of messages only the direction counts: both ends must get the same.
    what = np.where(is_message, np.where(np.isin(kind, _FORWARD), 0, 1), kind)
    codes = np.full(len(kind), -1, np.int64)
    rows = np.flatnonzero(counted)
    codes[rows] = dense(comm[rows], comm_seq[rows], what[rows], step[rows], source[rows], target[rows])
    return codes


def dense(*columns: Array) -> Array:
    """One number from 0 on for each combination of values that occurs, in the order of the combinations."""
    code = np.zeros(len(columns[0]), np.int64)
    if len(code) == 0:
        return code
    size = 1
    for column in columns:
        least = int(column.min())
        span = int(column.max()) - least + 1
        if span >= 1 << 62:
            values, span = _renumbered(column)
        else:
            values = column.astype(np.int64) - least
        if size * span >= 1 << 62:
            # What does not fit is numbered anew, without the combinations that do not occur.
            code, size = _renumbered(code)
            values, span = _renumbered(values)
        code = code * span + values
        size *= span
    return _renumbered(code)[0]


def _renumbered(values: Array) -> tuple[Array, int]:
    found, inverse = np.unique(values, return_inverse=True)
    return np.asarray(inverse.reshape(-1), np.int64), len(found)
