"""Measures the communication of a recorded job, group by group, from the ops of its single ranks on one axis."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from smon_rt.analysis.communication import Communication, CommunicationGroup, CommunicationKind
from smon_rt.analysis.smon_groups import Layout
from smon_rt.analysis.smon_nccl import NcclOps, most_frequent
from smon_rt.analysis.smon_spans import OpColumns
from smon_rt.trace.clocks import HostClock, HostKey
from smon_rt.trace.kinds import HOST_TIME_SOURCES, RECVS, SENDS, kind_name
from smon_rt.trace.partners import COMMUNICATION, Communicators, dense, sequence_codes
from smon_rt.trace.spans import Array

_FORWARD = (SENDS[0], RECVS[0])
_NEVER = np.int64(1) << 61
_NS_PER_S = 1e9
#: More groups a report does not list: the slowest are told.
_MOST_GROUPS = 128
#: Fewer transfers than this say nothing of a group's speed.
_LEAST_TIMED = 3
#: Groups whose ops are as large, within so much, may be compared.
_SIZE_STEP = 1.5


def bus_factors(kind: str, member_count: int) -> tuple[float, float | None]:
    """What a member's payload is multiplied by for an op's size, and that for what goes through a member's link.

    By the formulas of nccl-tests (doc/PERFORMANCE.md), where a gather's size is all members' and a member puts in its
    own part. None for what may be any function.

    >>> bus_factors("grads_all_reduce", 4)
    (1.0, 1.5)
    """
    n = max(member_count, 1)
    if kind == "collective":
        return 1.0, None
    if kind.endswith("_pp_comm"):
        return 1.0, 1.0
    if kind == "params_all_gather":
        return float(n), float(n - 1)
    part = (n - 1) / n
    return 1.0, part if kind == "grads_reduce_scatter" else 2 * part


@dataclass(frozen=True)
class RankClocks:
    """How far the times of any two ranks may be apart: by their hosts' clocks, and by those of their devices."""

    host_of_rank: dict[int, HostKey]
    hosts: dict[HostKey, HostClock]

    def apart_s(self, ranks: Sequence[int], devices_ns: float | None) -> float | None:
        """Of some ranks the two worst hosts, and what their devices add; None where nothing bounds them."""
        clocks = {host: self.hosts[host] for rank in ranks if (host := self.host_of_rank.get(rank)) in self.hosts}
        if devices_ns is None or len({clock.group for clock in clocks.values()}) > 1:
            return None
        bounds_ns = sorted((clock.bound_ns for clock in clocks.values()), reverse=True) if len(clocks) > 1 else []
        return (sum(bounds_ns[:2]) + devices_ns) / _NS_PER_S


@dataclass(frozen=True)
class NumberedOps:
    """Communication of single ranks that their communicators count: the columns of OpColumns that are needed."""

    rank: Array
    step: Array
    kind: Array
    comm: Array
    comm_seq: Array
    peer: Array
    start_ns: Array
    end_ns: Array
    waited: Array
    payload_bytes: Array
    nccl: Array
    device_bound_ns: Array

    @staticmethod
    def of(ops: OpColumns, gpu_ranks: Array) -> NumberedOps:
        """Those among some ops. Who computes on a GPU has seen no end by the host's times: they are of a launch."""
        rows = np.flatnonzero(np.isin(ops.kind, COMMUNICATION) & (ops.comm >= 0) & (ops.comm_seq > 0))
        found = NumberedOps(**{field.name: getattr(ops, field.name)[rows] for field in dataclasses.fields(NumberedOps)})
        is_launch = np.isin(ops.time_source[rows], HOST_TIME_SOURCES) & np.isin(found.rank, gpu_ranks)
        return dataclasses.replace(found, waited=np.where(is_launch, 0, found.waited))

    @staticmethod
    def concatenate(parts: Sequence[NumberedOps]) -> NumberedOps:
        """All parts in order, at least one."""
        names = [field.name for field in dataclasses.fields(NumberedOps)]
        return NumberedOps(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})

    def take(self, rows: Array) -> NumberedOps:
        """The ops at these rows, or where this mask is true."""
        return NumberedOps(**{name: values[rows] for name, values in vars(self).items()})

    def __len__(self) -> int:
        return len(self.rank)


@dataclass(frozen=True)
class _Ops:
    """One row an op of some members: its group, first and last start, first end (`_NEVER`: nobody saw one), bytes."""

    group: Array
    first_row: Array
    member_count: Array
    first_ns: Array
    begin_ns: Array
    end_ns: Array
    wait_ns: Array  # of one member, the mean
    last_rank: Array
    payload_bytes: Array
    is_late_receive: Array  # a message that had been sent when its receiver came for it
    device_bound_ns: Array  # how far the times of any two members' devices may be apart; -1 where nobody says

    def rows(self) -> Array:
        """Those of all members."""
        before = np.cumsum(self.member_count) - self.member_count
        return np.asarray(np.arange(self.member_count.sum()) + np.repeat(self.first_row - before, self.member_count))

    def is_timed(self) -> Array:
        """Of which ops a member waited for the transfer, and saw its end."""
        return np.asarray((self.end_ns < _NEVER) & (self.end_ns > self.begin_ns) & ~self.is_late_receive)

    def take(self, rows: Array) -> _Ops:
        return _Ops(**{name: values[rows] for name, values in vars(self).items()})


def measure_communication(
    ops: NumberedOps,
    communicators: Communicators,
    nccl: NcclOps,
    layout: Layout,
    clocks: RankClocks,
    step_count: int,
) -> Communication | None:
    """What these ops took; None where there are none."""
    code = sequence_codes(ops.comm, ops.comm_seq, ops.kind, ops.step, ops.rank, ops.peer)
    if not (code >= 0).any():
        return None
    order = np.lexsort((ops.start_ns, code))[np.count_nonzero(code < 0) :]
    ops, code = ops.take(order), code[order]
    measured = _whole(_measure(ops, code), ops, communicators)
    order = np.argsort(measured.group, kind="stable")
    borders = np.flatnonzero(np.diff(measured.group[order], prepend=-1, append=-1))
    describe = _Describing(ops, communicators, nccl, layout, clocks, max(step_count, 1))
    groups = [describe.group(measured.take(order[a:b])) for a, b in itertools.pairwise(borders)]
    if not groups:
        return None
    groups = _with_ratios(groups)
    groups.sort(
        key=lambda group: (
            not group.is_slow,
            -(group.ratio or 0.0),
            -group.transfer_s_per_step,
            group.kind,
            group.ranks,
        )
    )
    kinds = sorted({(group.kind, group.dimension) for group in groups})
    by_kind = [_of_kind([group for group in groups if (group.kind, group.dimension) == each]) for each in kinds]
    by_kind.sort(key=lambda each: -(each.transfer_s_per_step + each.skew_s_per_step))
    return Communication(tuple(by_kind), tuple(groups[:_MOST_GROUPS]), len(groups))


def _measure(ops: NumberedOps, code: Array) -> _Ops:
    """Each op from those of its members, which follow each other by their starts."""
    first_row = np.flatnonzero(np.diff(code, prepend=-1))
    counts = np.diff(first_row, append=len(code))
    lasts = first_row + counts - 1
    is_recv = np.isin(ops.kind, RECVS)
    sees_end = (ops.waited > 0) & ~np.isin(ops.kind, SENDS)
    end_ns = np.minimum.reduceat(np.where(sees_end, ops.end_ns, _NEVER), first_row)
    begin_ns = ops.start_ns[lasts]
    is_message = np.isin(ops.kind[first_row], (*SENDS, *RECVS))
    wait_ns = np.add.reduceat(np.repeat(begin_ns, counts) - ops.start_ns, first_row) / counts
    # Who sends goes on; only the receiver waits.
    is_late_receive = is_message & is_recv[lasts]
    skew_ns = np.where(is_late_receive, 0, begin_ns - ops.start_ns[first_row])
    return _Ops(
        group=_groups(ops, first_row, is_message),
        first_row=first_row,
        member_count=counts,
        first_ns=begin_ns - skew_ns,
        begin_ns=begin_ns,
        end_ns=end_ns,
        wait_ns=np.where(is_message, skew_ns, wait_ns),
        last_rank=np.where(is_message, -1, ops.rank[lasts]),
        payload_bytes=np.maximum.reduceat(ops.payload_bytes, first_row),
        is_late_receive=is_late_receive,
        device_bound_ns=_two_worst(ops.device_bound_ns, code, first_row),
    )


def _two_worst(bounds_ns: Array, code: Array, first_row: Array) -> Array:
    """Of each op the sum of its members' two largest bounds; -1 where one is not known."""
    in_order = bounds_ns[np.lexsort((bounds_ns, code))]
    lasts = np.append(first_row[1:], len(code)) - 1
    worst = in_order[lasts] + np.where(lasts > first_row, in_order[np.maximum(lasts - 1, 0)], 0)
    return np.where(in_order[first_row] < 0, -1, worst)


def _groups(ops: NumberedOps, row: Array, is_message: Array) -> Array:
    """A number for each group: of messages by direction, sender and receiver, else by communicator and kind."""
    is_send = np.isin(ops.kind[row], SENDS)
    source = np.where(is_send, ops.rank[row], ops.peer[row])
    target = np.where(is_send, ops.peer[row], ops.rank[row])
    what = np.where(is_message, np.isin(ops.kind[row], _FORWARD), ops.kind[row])
    none = np.full(len(row), -1)
    comm = np.where(is_message, none, ops.comm[row])
    return dense(
        is_message.astype(np.int64),
        what.astype(np.int64),
        comm.astype(np.int64),
        np.where(is_message, source, none).astype(np.int64),
        np.where(is_message, target, none).astype(np.int64),
    )


def _whole(measured: _Ops, ops: NumberedOps, communicators: Communicators) -> _Ops:
    """Without ops of which a member is not there: it may have been the one that the others waited for."""
    sizes = np.array([len(members) for members in communicators.members()] or [0], np.int64)
    most = np.zeros(int(measured.group.max()) + 1, np.int64)
    np.maximum.at(most, measured.group, measured.member_count)
    is_message = np.isin(ops.kind[measured.first_row], (*SENDS, *RECVS))
    size = sizes[ops.comm[measured.first_row]]
    wanted = np.where(is_message, 2, np.where(size > 0, size, most[measured.group]))
    # A group of one waits for nobody and sends nothing.
    return measured.take((measured.member_count == wanted) & (wanted > 1))


@dataclass(frozen=True)
class _Describing:
    """What all groups have in common."""

    ops: NumberedOps
    communicators: Communicators
    nccl: NcclOps
    layout: Layout
    clocks: RankClocks
    step_count: int

    def group(self, measured: _Ops) -> CommunicationGroup:
        """The ops of one group."""
        row = int(measured.first_row[0])
        number = int(self.ops.kind[row])
        is_message = number in (*SENDS, *RECVS)
        name, dimension, said_members = list(self.communicators.keys)[int(self.ops.comm[row])]
        kind = kind_name(number)
        ranks = tuple(rank for rank in said_members if rank >= 0)
        if is_message:
            kind = f"{'forward' if number in _FORWARD else 'backward'}_pp_comm"
            ends = int(self.ops.rank[row]), int(self.ops.peer[row])
            ranks = ends if number in SENDS else ends[::-1]
        facts = _traffic(measured, kind, self.step_count)
        dp_rank, stage, peer_stage = self._place(ranks, is_message=is_message)
        last_rank, last_ratio = (None, None) if is_message else most_frequent(measured.last_rank)
        return CommunicationGroup(
            dimension=dimension,
            name=name,
            ranks=ranks,
            dp_rank=dp_rank,
            stage=stage,
            peer_stage=peer_stage,
            ratio=None,
            clock_bound_s=self.clocks.apart_s(ranks, _devices_apart(measured)),
            last_rank=last_rank,
            last_ratio=last_ratio,
            nccl=self.nccl.facts(self.ops.nccl[measured.rows()]),
            **facts,
        )

    def _place(self, ranks: Sequence[int], *, is_message: bool) -> tuple[int | None, int | None, int | None]:
        """The dp rank and the stage that all share; of a message the stages of both ends."""
        table = self.layout.worker_of_rank
        workers = [int(table[rank]) if rank < len(table) else -1 for rank in ranks]
        places = [divmod(worker, self.layout.pp_size) if worker >= 0 else (None, None) for worker in workers]
        dp_ranks, stages = {place[0] for place in places}, {place[1] for place in places}
        dp_rank = dp_ranks.pop() if len(dp_ranks) == 1 else None
        if is_message:
            return dp_rank, places[0][1], places[1][1]
        return dp_rank, stages.pop() if len(stages) == 1 else None, None


def _traffic(measured: _Ops, kind: str, step_count: int) -> dict[str, Any]:
    """The numbers of one group."""
    transfer_ns = measured.end_ns - measured.begin_ns
    timed = measured.is_timed()
    took_ns = transfer_ns[timed]
    total_ns, moved = float(took_ns.sum()), float(measured.payload_bytes[timed].sum())
    size, bus = bus_factors(kind, int(np.median(measured.member_count)))
    speed = moved * _NS_PER_S / total_ns if total_ns > 0 and moved > 0 else None
    return {
        "kind": kind,
        "op_count": len(transfer_ns),
        "timed_op_count": int(np.count_nonzero(timed)),
        "payload_bytes": int(np.median(measured.payload_bytes)),
        "bytes_per_step": float(measured.payload_bytes.sum()) / step_count,
        "transfer_s": float(np.median(took_ns)) / _NS_PER_S if len(took_ns) else None,
        "skew_s": float(np.median(measured.begin_ns - measured.first_ns)) / _NS_PER_S,
        "transfer_s_per_step": total_ns / _NS_PER_S / step_count,
        "skew_s_per_step": float(measured.wait_ns.sum()) / _NS_PER_S / step_count,
        "algorithm_bytes_per_s": None if speed is None else speed * size,
        "bus_bytes_per_s": None if speed is None or bus is None else speed * bus,
    }


def _devices_apart(measured: _Ops) -> float | None:
    """By how much the median transfer of a group may be off, where each op may be by the bound of its own times."""
    timed = measured.is_timed()
    bounds_ns = measured.device_bound_ns[timed] if timed.any() else measured.device_bound_ns
    if (bounds_ns < 0).any():
        return None
    if not timed.any():
        return float(bounds_ns.max())
    took_ns = (measured.end_ns - measured.begin_ns)[timed]
    longest, usual, shortest = (np.median(took_ns + sign * bounds_ns) for sign in (1, 0, -1))
    return float(max(longest - usual, usual - shortest))


def _with_ratios(groups: list[CommunicationGroup]) -> list[CommunicationGroup]:
    """With how much longer each takes than others of its kind that have as many members and as large ops."""
    alike: dict[Any, list[int]] = {}
    for place, group in enumerate(groups):
        if group.transfer_s is not None and group.timed_op_count >= _LEAST_TIMED:
            size = round(math.log(group.payload_bytes, _SIZE_STEP)) if group.payload_bytes > 0 else -1
            alike.setdefault((group.kind, group.dimension, len(group.ranks), size), []).append(place)
    for places in alike.values():
        times_s = np.array([groups[place].transfer_s for place in places])
        for index, place in enumerate(places if len(places) > 1 else ()):
            usual_s = float(np.median(np.delete(times_s, index)))
            groups[place] = dataclasses.replace(groups[place], ratio=float(times_s[index]) / usual_s)
    return groups


def _of_kind(groups: Sequence[CommunicationGroup]) -> CommunicationKind:
    """All groups of one kind together."""
    first, count = groups[0], len(groups)

    def median(name: str) -> float | None:
        values = [value for group in groups if (value := getattr(group, name)) is not None]
        return float(np.median(values)) if values else None

    def mean(name: str) -> float:
        return float(np.mean([getattr(group, name) for group in groups]))

    return CommunicationKind(
        kind=first.kind,
        dimension=first.dimension,
        op_count=sum(group.op_count for group in groups),
        timed_op_count=sum(group.timed_op_count for group in groups),
        payload_bytes=int(median("payload_bytes") or 0),
        bytes_per_step=mean("bytes_per_step"),
        transfer_s=median("transfer_s"),
        skew_s=median("skew_s"),
        transfer_s_per_step=mean("transfer_s_per_step"),
        skew_s_per_step=mean("skew_s_per_step"),
        algorithm_bytes_per_s=median("algorithm_bytes_per_s"),
        bus_bytes_per_s=median("bus_bytes_per_s"),
        group_count=count,
        rank_count=len({rank for group in groups for rank in group.ranks}),
    )
