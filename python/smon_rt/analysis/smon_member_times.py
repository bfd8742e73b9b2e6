"""What each member of a worker did by itself inside a compute, between the collectives that it shares with the others.

The tp and cp members of a worker compute one share of the job together and meet several times in each layer: they come
when they are done, and go on together. What a member takes from one meeting to the next is its own work, by its own
clock.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smon_rt.analysis.smon_spans import COMPUTES, HOST_WORK, OpColumns
from smon_rt.analysis.smon_workers import running_numbers
from smon_rt.trace.kinds import HOST_TIME_SOURCES
from smon_rt.trace.partners import dense
from smon_rt.trace.spans import Array


@dataclass(frozen=True)
class MemberTimes:
    """How ranks came to the collectives of their workers, a row each: from their own start on, ns on the common axis.

    `row`: of the compute that it is in, among all ranks' ops. `number`: which one it is among those of its communicator
    with the same sequence number, since each function counts for itself. `work_ns`: what the rank did by itself before.
    The end of a compute is a row, too, with communicator -1.
    """

    row: Array
    comm: Array
    comm_seq: Array
    number: Array
    start_ns: Array
    end_ns: Array
    work_ns: Array

    def __len__(self) -> int:
        return len(self.row)

    def take(self, rows: Array) -> MemberTimes:
        """The rows that are asked for, or where this mask is true."""
        return MemberTimes(**{field.name: getattr(self, field.name)[rows] for field in dataclasses.fields(self)})

    @staticmethod
    def concatenate(parts: Sequence[MemberTimes]) -> MemberTimes:
        """All parts in order; none makes an empty one."""
        names = [field.name for field in dataclasses.fields(MemberTimes)]
        none = np.empty(0, np.int64)
        return MemberTimes(**{name: np.concatenate([none, *(getattr(part, name) for part in parts)]) for name in names})


def member_times(ops: OpColumns, collectives: OpColumns, first_row: int) -> MemberTimes:
    """Of one rank: its ops, which begin at `first_row` of all, and its collectives with members of its own worker.

    Left out are collectives in no compute, those that nobody waited for, and those whose times are the host's where the
    compute's are the device's: a launch is no arrival.
    """
    computes = np.flatnonzero(np.isin(ops.kind, COMPUTES))
    computes = computes[np.argsort(ops.start_ns[computes], kind="stable")]
    collectives = collectives.take(np.argsort(collectives.start_ns, kind="stable"))
    place = np.searchsorted(ops.start_ns[computes], collectives.start_ns, side="right") - 1
    within = (place >= 0) & (collectives.waited > 0)
    within[within] = collectives.start_ns[within] < ops.end_ns[computes[place[within]]]
    on_host = np.isin(ops.time_source[computes], HOST_TIME_SOURCES)
    within[within] = np.isin(collectives.time_source[within], HOST_TIME_SOURCES) == on_host[place[within]]
    collectives, place = collectives.take(within), place[within]
    if len(collectives) == 0:
        return MemberTimes.concatenate([])
    own = computes[place]
    begun_ns = np.maximum(ops.start_ns[own], _last_end(collectives, collectives.start_ns))
    is_next = np.zeros(len(place), np.bool_)
    is_next[1:] = place[1:] == place[:-1]
    # One that is waited for later does not keep the rank from the next one.
    before_ns = np.concatenate([[0], collectives.start_ns[:-1]])
    begun_ns = np.maximum(begun_ns, np.where(is_next, before_ns, begun_ns))
    meetings = MemberTimes(
        row=own + first_row,
        comm=collectives.comm,
        comm_seq=collectives.comm_seq.astype(np.int64),
        number=running_numbers(dense(own, collectives.comm, collectives.comm_seq), collectives.start_ns),
        start_ns=collectives.start_ns,
        end_ns=collectives.end_ns,
        work_ns=_without_pauses(ops, begun_ns, collectives.start_ns),
    )
    return MemberTimes.concatenate([meetings, _ends_of_computes(ops, collectives, place, computes, first_row)])


def _ends_of_computes(
    ops: OpColumns, collectives: OpColumns, place: Array, computes: Array, first_row: int
) -> MemberTimes:
    """The ends of the computes that have collectives, as meetings of their own."""
    last = np.flatnonzero(np.append(place[1:] != place[:-1], True))
    own = computes[place[last]]
    end_ns = ops.end_ns[own]
    begun_ns = np.maximum(collectives.start_ns[last], _last_end(collectives, end_ns))
    none = np.full(len(own), -1)
    return MemberTimes(
        row=own + first_row,
        comm=none,
        comm_seq=none,
        number=np.zeros(len(own), np.int64),
        start_ns=end_ns,
        end_ns=end_ns,
        work_ns=_without_pauses(ops, np.minimum(begun_ns, end_ns), end_ns),
    )


def _last_end(collectives: OpColumns, time_ns: Array) -> Array:
    """The last end of a collective up to each time, or long before."""
    ends_ns = np.concatenate([[np.iinfo(np.int64).min], np.sort(collectives.end_ns)])
    return np.asarray(ends_ns[np.searchsorted(ends_ns, time_ns, side="right") - 1])


def _without_pauses(ops: OpColumns, from_ns: Array, to_ns: Array) -> Array:
    """How long it is between times, without what the host did then that is a cause of its own."""
    rows = np.flatnonzero(np.isin(ops.kind, HOST_WORK))
    length_ns = np.maximum(to_ns - from_ns, 0)
    if len(rows) == 0:
        return np.asarray(length_ns)
    rows = rows[np.argsort(ops.start_ns[rows], kind="stable")]
    ends_ns = np.maximum.accumulate(ops.end_ns[rows])
    starts_ns = np.maximum(ops.start_ns[rows], np.concatenate([[np.iinfo(np.int64).min], ends_ns[:-1]]))
    starts_ns = np.minimum(starts_ns, ends_ns)
    before_ns = np.concatenate([[0], np.cumsum(ends_ns - starts_ns)])

    def paused_until(time_ns: Array) -> Array:
        count = np.searchsorted(starts_ns, time_ns, side="right")
        last = np.maximum(count - 1, 0)
        beyond_ns = np.where(count > 0, np.maximum(ends_ns[last] - time_ns, 0), 0)
        return np.asarray(before_ns[count] - beyond_ns)

    return np.asarray(np.maximum(length_ns - (paused_until(to_ns) - paused_until(from_ns)), 0))
