"""Merges the ops of a worker's ranks: its tp × cp members compute one share of the job together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from smon_rt.analysis.smon_spans import HOST_WORK, OpColumns
from smon_rt.trace.kinds import RECVS, SENDS
from smon_rt.trace.partners import COMMUNICATION, dense
from smon_rt.trace.spans import Array


@dataclass(frozen=True)
class Members:
    """Single ops of a worker's ranks, for what only one of them shows: `row` of the merged op, rank, own times."""

    row: Array
    rank: Array
    start_ns: Array
    end_ns: Array


@dataclass(frozen=True)
class WorkerOps:
    """One row an op of a worker. `merged_row` is the row that each of the ops given went into; `members` their times.

    The times of a merged op: from the latest start of its members to their latest end.
    """

    ops: OpColumns
    merged_row: Array
    members: Members


def merge_members(ops: OpColumns, lowest_rank: Array) -> WorkerOps:
    """Merges ops; `lowest_rank` by worker is the rank that a merged op has.

    Ops are one where step, kind, chunk, microbatch and their number among those are. Work of the host (a collection,
    a load) is each rank's own: what overlaps in time is one.
    """
    rank = lowest_rank[ops.worker]
    if np.array_equal(rank, ops.rank):
        rows = np.arange(len(ops))
        return WorkerOps(ops, rows, Members(rows, ops.rank, ops.start_ns, ops.end_ns))
    number = _number_among_equals(ops)
    is_host_work = np.isin(ops.kind, HOST_WORK)
    number = np.where(is_host_work, _overlapping(ops, is_host_work), number)
    code = dense(ops.step, ops.worker, ops.kind, ops.chunk, ops.microbatch, number)
    order = np.argsort(code, kind="stable")
    firsts = np.flatnonzero(np.diff(code[order], prepend=-1))
    first_of_all = np.minimum.reduceat(ops.start_ns[order], firsts)
    merged = ops.take(order[firsts])
    merged = merged.replace(
        rank=lowest_rank[merged.worker],
        start_ns=np.where(
            np.isin(merged.kind, HOST_WORK), first_of_all, np.maximum.reduceat(ops.start_ns[order], firsts)
        ),
        end_ns=np.maximum.reduceat(ops.end_ns[order], firsts),
        op_index=np.minimum.reduceat(ops.op_index[order], firsts),
        step_start_ns=np.minimum.reduceat(ops.step_start_ns[order], firsts),
    )
    return WorkerOps(
        merged,
        code,
        Members(code, ops.rank, ops.start_ns, ops.end_ns),
    )


def _number_among_equals(ops: OpColumns) -> Array:
    """Which one each op is among those of its rank with the same step, kind, chunk and microbatch.

    By its number in its communicator, so that a lost one does not shift the others, or else by launch.
    """
    keys = (ops.step, ops.kind, ops.chunk, ops.microbatch, ops.rank)
    number = running_numbers(dense(*keys), ops.op_index, ops.start_ns)
    in_communicator = numbers_in_communicators(ops)
    counted = np.flatnonzero(in_communicator >= 0)
    if len(counted):
        number[counted] = int(number.max()) + 1 + dense(ops.own_comm[counted], in_communicator[counted])
    return number


def numbers_in_communicators(ops: OpColumns) -> Array:
    """Which one each collective is among those of its communicator, kind and step; -1 where it was not numbered.

    From the lowest number that any member recorded in the step: who lost some does not shift the rest.
    """
    is_collective = np.isin(ops.kind, COMMUNICATION) & ~np.isin(ops.kind, (*SENDS, *RECVS))
    rows = np.flatnonzero(is_collective & (ops.comm >= 0) & (ops.comm_seq > 0))
    numbers = np.full(len(ops), -1, np.int64)
    if len(rows) == 0:
        return numbers
    group = dense(ops.comm[rows], ops.kind[rows], ops.step[rows])
    sequence = ops.comm_seq[rows].astype(np.int64)
    first = np.full(int(group.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, group, sequence)
    number = sequence - first[group]
    numbers[rows] = np.where(number <= np.iinfo(np.int32).max, number, -1)
    return numbers


def running_numbers(group: Array, *by: Array) -> Array:
    """The place of each row within its group, from 0, in the order of `by` (the first counts most)."""
    order = np.lexsort((*reversed(by), group))
    sorted_group = group[order]
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = sorted_group[1:] != sorted_group[:-1]
    firsts = np.maximum.accumulate(np.where(is_first, np.arange(len(order)), 0))
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.arange(len(order)) - firsts
    return numbers


def _overlapping(ops: OpColumns, mask: Array) -> Array:
    """The same number for masked ops of one worker, step and kind whose times touch; 0 elsewhere."""
    numbers = np.zeros(len(ops), np.int64)
    rows = np.flatnonzero(mask)
    if len(rows) == 0:
        return numbers
    group = dense(ops.worker[rows], ops.step[rows], ops.kind[rows])
    order = np.lexsort((ops.start_ns[rows], group))
    current_group, latest, number = -1, 0, 0
    for place in order.tolist():
        row = rows[place]
        if group[place] != current_group or int(ops.start_ns[row]) > latest:
            number += 1
            current_group, latest = int(group[place]), int(ops.end_ns[row])
        latest = max(latest, int(ops.end_ns[row]))
        numbers[row] = number
    return numbers
