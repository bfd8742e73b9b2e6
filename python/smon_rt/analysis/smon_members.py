"""Which tp or cp member of a worker keeps the others waiting, and how much longer the worker's computes take for it.

Members *start apart and end together*: where one comes last to their collectives again and again, because it takes
longer than the others for the same work, the worker would be as much faster if that one came when the others do. That
is followed from meeting to meeting: the later of what the others really did, and what the slow one would have done.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from smon_rt.analysis.recording import SlowMember
from smon_rt.analysis.smon_member_clocks import leads_of_members
from smon_rt.analysis.smon_member_times import MemberTimes
from smon_rt.analysis.smon_spans import COMPUTES, OpColumns
from smon_rt.analysis.smon_workers import WorkerOps
from smon_rt.trace.partners import dense
from smon_rt.trace.spans import Array

#: So many times as long as the others a member must take for its own work, and that many sigma beyond chance.
_LEAST_RATIO = 1.03
_SIGMA_BEYOND_CHANCE = 4.0
_SIGMA_PER_DEVIATION = 1.4826
_SIGMA_OF_MEDIAN = 1.2533
#: Of the time that members wait for each other that part must be for the slow ones.
_LEAST_WAIT_RATIO = 0.6
#: That many computes, as many as would spread the lost time evenly, and that many steps show it, if there are more.
_LEAST_OCCURRENCES = 3.0
_LEAST_STEPS = 2
_NEVER = np.iinfo(np.int64).min


@dataclass(frozen=True)
class MemberSkew:
    """`excess_ns` of each merged op; the slow members of workers, slowest first; workers whose members were compared.

    `unknown`: workers whose members share collectives, but were not all recorded.
    """

    excess_ns: Array
    slow: dict[int, tuple[SlowMember, ...]] = field(default_factory=dict)
    compared: frozenset[int] = frozenset()
    unknown: frozenset[int] = frozenset()


def member_skew(
    ranks: OpColumns,
    merged: WorkerOps,
    times: MemberTimes,
    members: Sequence[tuple[int, ...]],
    worker_size: int,
    scattered: Set[int] = frozenset(),
) -> MemberSkew:
    """Compares the members of each worker.

    `members` of each communicator; `worker_size`: how many ranks a worker has by the layout; `scattered`: workers whose
    members are on several hosts. Those are compared by how long each waits, and not by the hosts' clocks.
    """
    nothing = np.zeros(len(merged.ops), np.int64)
    if len(times) == 0:
        return MemberSkew(nothing)
    recorded = _ranks_of_workers(ranks)
    of_times = np.unique(ranks.worker[times.row]).tolist()
    unknown = frozenset(worker for worker in of_times if recorded[worker] < worker_size)
    times = times.take(~np.isin(ranks.worker[times.row], list(unknown)))
    excess_ns = np.zeros(len(merged.ops))
    slow: dict[int, tuple[SlowMember, ...]] = {}
    compared = set()
    for worker, meetings in _meetings_of_workers(ranks, merged, times, members, scattered):
        compared.add(worker)
        factors = meetings.factors()
        if all(factor <= 1 for by_rank in factors.values() for factor in by_rank.values()):
            continue
        lateness = meetings.lateness(factors)
        rows, which = np.unique(lateness.op, return_inverse=True)
        own_ns = np.bincount(which.reshape(-1), weights=lateness.saved_ns)
        if lateness.wait_ratio >= _LEAST_WAIT_RATIO and _occurs_often(own_ns, merged.ops.step[rows]):
            excess_ns[rows] = own_ns
            slow[worker] = _slow_members(factors, lateness)
    longest_ns = np.maximum(merged.ops.end_ns - merged.ops.start_ns, 0)
    return MemberSkew(np.minimum(np.rint(excess_ns).astype(np.int64), longest_ns), slow, frozenset(compared), unknown)


def _ranks_of_workers(ranks: OpColumns) -> dict[int, int]:
    """How many ranks of each worker have ops."""
    pairs = np.unique(np.stack([ranks.worker, ranks.rank]), axis=1)
    workers, counts = np.unique(pairs[0], return_counts=True)
    return dict(zip(workers.tolist(), counts.tolist(), strict=True))


def _whole_meetings(
    merged: WorkerOps, times: MemberTimes, members: Sequence[tuple[int, ...]]
) -> tuple[MemberTimes, Array, Array]:
    """Meetings to which all came who belong to them, those of one side by side; with the merged op and the meeting."""
    op = merged.merged_row[times.row]
    meeting = dense(op, times.comm, times.comm_seq, times.number)
    order = np.argsort(meeting, kind="stable")
    times, op, meeting = times.take(order), op[order], meeting[order]
    came = np.bincount(meeting, minlength=1)[meeting]
    # The end of a compute is a meeting of all who were in it.
    in_op = np.zeros(len(merged.ops), np.int64)
    np.maximum.at(in_op, op, came)
    sizes = np.array([*map(len, members), 0], np.int64)
    keeps = came == np.where(times.comm >= 0, sizes[times.comm], in_op[op])
    return times.take(keeps), op[keeps], meeting[keeps]


@dataclass(frozen=True)
class _Meetings:
    """The meetings of one worker's members, a row each member; those of one meeting lie side by side."""

    op: Array
    meeting: Array
    rank: Array
    kind: Array
    start_ns: Array
    end_ns: Array
    work_ns: Array
    is_collective: Array
    #: Who is late by less is not late.
    bound_ns: float

    @cached_property
    def _first(self) -> Array:
        return np.flatnonzero(np.diff(self.meeting, prepend=-1))

    def _most(self, values: Array) -> Array:
        return np.asarray(np.maximum.reduceat(values, self._first))

    def _least(self, values: Array) -> Array:
        return np.asarray(np.minimum.reduceat(values, self._first))

    def take(self, rows: Array) -> _Meetings:
        """The rows where this mask is true, which holds whole meetings."""
        columns = [field.name for field in dataclasses.fields(self) if field.name != "bound_ns"]
        return dataclasses.replace(self, **{name: getattr(self, name)[rows] for name in columns})

    def on_one_clock(self) -> _Meetings:
        """Those whose members can be put on one clock by what they did together; as they would be by that clock."""
        ahead_ns, is_known, apart_ns = leads_of_members(
            self.op, self.rank, self.meeting, self.end_ns, self.is_collective
        )
        own_ns = {"start_ns": self.start_ns - ahead_ns, "end_ns": self.end_ns - ahead_ns}
        return dataclasses.replace(self, **own_ns, bound_ns=apart_ns).take(is_known)

    def waits(self) -> Array:
        """Rows of meetings that nobody left before the last one came: a broadcast's root does, and holds nobody up."""
        stays = self._least(self.end_ns) >= self._most(self.start_ns) - self.bound_ns
        return np.asarray(np.repeat(stays, np.diff(np.append(self._first, len(self.op)))))

    def factors(self) -> dict[int, dict[int, float]]:
        """By kind of compute and rank: how many times as long as the others it takes by itself; 1 if it is not slow."""
        kinds = [kind for kind in COMPUTES if (self.kind == kind).any()]
        return {kind: self._factors(np.flatnonzero(self.kind == kind)) for kind in kinds}

    def _factors(self, rows: Array) -> dict[int, float]:
        ranks, member = np.unique(self.rank[rows], return_inverse=True)
        ops, op = np.unique(self.op[rows], return_inverse=True)
        work_ns = np.zeros((len(ranks), len(ops)))
        np.add.at(work_ns, (member.reshape(-1), op.reshape(-1)), self.work_ns[rows])
        factors = dict.fromkeys(ranks.tolist(), 1.0)
        if len(ranks) < 2:
            return factors
        slow = {}
        for number, rank in enumerate(ranks.tolist()):
            others_ns = np.median(np.delete(work_ns, number, axis=0), axis=0)
            known = (others_ns > 0) & (work_ns[number] > 0)
            if (ratio := _sure_ratio(np.log(work_ns[number][known] / others_ns[known]))) > 1:
                slow[rank] = ratio
        # Slow is who is slower than the rest: where that is most of them, there is no rest.
        return factors | (slow if 2 * len(slow) <= len(ranks) else {})

    def lateness(self, factors: Mapping[int, Mapping[int, float]]) -> _Lateness:
        """What members with these factors cost."""
        factor = np.ones(len(self.op))
        for kind, by_rank in factors.items():
            for rank, value in by_rank.items():
                factor[(self.kind == kind) & (self.rank == rank)] = value
        is_slow = factor > 1
        late_ns = self._most(np.where(is_slow, self.start_ns, _NEVER)).astype(np.float64)
        late_ns -= self._most(np.where(is_slow, _NEVER, self.start_ns))
        # Late is who comes after members that are not slow.
        meets = self._most(is_slow) & ~self._least(is_slow)
        counts = meets & (late_ns > self.bound_ns)
        saved_part = 1 - 1 / factor
        work_ns, place = self._since_mixed(np.repeat(meets, np.diff(np.append(self._first, len(self.op)))))
        saved_ns = self._most(self.start_ns) - self._most(self.start_ns - work_ns * saved_part)
        # Work beside a collective that is waited for later: the slow one comes late out of it.
        left_ns = self.end_ns - (self.end_ns - self.start_ns) * saved_part
        saved_ns += self._most(self.end_ns) - self._most(left_ns)
        saved_ns = np.minimum(saved_ns, late_ns + self._most(self.end_ns - self.start_ns))
        rows, saved_ns = _longest_at_a_time(
            self.op[self._first][counts], self._most(np.where(is_slow, place, -1))[counts], saved_ns[counts]
        )
        at_collectives = meets & self.is_collective[self._first]
        waited_ns = late_ns[counts & at_collectives]
        all_ns = float(np.abs(late_ns[at_collectives]).sum())
        return _Lateness(
            op=rows,
            saved_ns=np.maximum(saved_ns, 0),
            wait_ratio=float(waited_ns.sum()) / all_ns if all_ns > 0 else 0.0,
            last_ratio=len(waited_ns) / max(int(np.count_nonzero(at_collectives)), 1),
            late_s=float(np.median(waited_ns)) / 1e9 if len(waited_ns) else 0.0,
        )

    def _since_mixed(self, is_mixed: Array) -> tuple[Array, Array]:
        """What each member worked since it last was where slow ones and others met, within the op; how often it was.

        Where only slow ones meet, as the tp members of a slow cp rank do, nobody waits for them until they meet others.
        """
        order = np.lexsort((self.start_ns, self.rank, self.op))
        own = np.stack([self.op[order], self.rank[order]])
        index = np.arange(len(order))
        begins = np.append(True, (own[:, 1:] != own[:, :-1]).any(axis=0))
        first = np.maximum.accumulate(np.where(begins, index, 0))
        last_mixed = np.maximum.accumulate(np.where(is_mixed[order], index, -1))
        last_mixed = np.append(-1, last_mixed[:-1])
        work_ns = self.work_ns[order]
        until_ns = np.cumsum(work_ns)
        before_ns = np.where(last_mixed >= first, until_ns[last_mixed], until_ns[first] - work_ns[first])
        count = np.cumsum(is_mixed[order])
        since_ns, place = np.empty(len(order)), np.empty(len(order), np.int64)
        since_ns[order] = until_ns - before_ns
        place[order] = count - count[first]
        return since_ns, place


@dataclass(frozen=True)
class _Lateness:
    """By how much sooner each meeting would be over, with the merged op that it is in.

    To `last_ratio` of the collectives a slow member came last, by `late_s` seconds, the median: `wait_ratio` of the
    time that slow members and the others waited for each other.
    """

    op: Array
    saved_ns: Array
    wait_ratio: float
    last_ratio: float
    late_s: float


def _meetings_of_workers(
    ranks: OpColumns,
    merged: WorkerOps,
    times: MemberTimes,
    members: Sequence[tuple[int, ...]],
    scattered: Set[int],
) -> Iterator[tuple[int, _Meetings]]:
    times, op, meeting = _whole_meetings(merged, times, members)
    worker = ranks.worker[times.row]
    order = np.argsort(worker, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(worker[order])) + 1):
        if len(rows) == 0:
            continue
        own = times.take(rows)
        number = int(worker[rows[0]])
        columns = {
            "op": op[rows],
            "meeting": meeting[rows],
            "rank": ranks.rank[own.row],
            "kind": ranks.kind[own.row],
            "start_ns": own.start_ns,
            "end_ns": own.end_ns,
            "work_ns": own.work_ns.astype(np.float64),
            "is_collective": own.comm >= 0,
        }
        found = _Meetings(**columns, bound_ns=0.0)
        if number in scattered:
            found = found.on_one_clock()
        found = found.take(found.waits())
        if found.is_collective.any():
            yield number, found


def _longest_at_a_time(op: Array, place: Array, saved_ns: Array) -> tuple[Array, Array]:
    """Of meetings side by side (each tp rank's cp members have their own) the one that costs most; ops and times."""
    if len(op) == 0:
        return op, saved_ns
    code = dense(op, place)
    most_ns = np.zeros(int(code.max()) + 1)
    np.maximum.at(most_ns, code, saved_ns)
    _, first = np.unique(code, return_index=True)
    return op[first], most_ns


def _sure_ratio(logarithms: Array) -> float:
    """How many times as long, of logarithms of single computes; 1 where that may be chance."""
    if len(logarithms) == 0:
        return 1.0
    middle = float(np.median(logarithms))
    sigma = _SIGMA_PER_DEVIATION * float(np.median(np.abs(logarithms - middle)))
    chance = _SIGMA_OF_MEDIAN * sigma / math.sqrt(len(logarithms))
    return math.exp(middle) if middle >= max(math.log(_LEAST_RATIO), _SIGMA_BEYOND_CHANCE * chance) else 1.0


def _occurs_often(excess_ns: Array, step: Array) -> bool:
    """Whether the time was lost in several computes and steps, and not once by chance (Kish's effective count)."""
    square = float((excess_ns * excess_ns).sum())
    if square <= 0:
        return False
    shown = len(np.unique(step[excess_ns > 0]))
    least = min(_LEAST_STEPS, len(np.unique(step)))
    return float(excess_ns.sum()) ** 2 / square >= _LEAST_OCCURRENCES and shown >= least


def _slow_members(factors: Mapping[int, Mapping[int, float]], lateness: _Lateness) -> tuple[SlowMember, ...]:
    """Those with a factor, slowest first."""
    forward, backward, combined = COMPUTES
    ranks = sorted({rank for by_rank in factors.values() for rank, factor in by_rank.items() if factor > 1})

    def of(kind: int, rank: int) -> float | None:
        return factors.get(kind, factors.get(combined, {})).get(rank)

    shown = (lateness.wait_ratio, lateness.last_ratio, lateness.late_s)
    found = [SlowMember(rank, of(forward, rank), of(backward, rank), *shown) for rank in ranks]
    return tuple(sorted(found, key=lambda member: -max(member.forward_ratio or 1, member.backward_ratio or 1)))
