"""Which ops of a step communicate with each other: the two ends of a message, the members of a collective.

A message of a pipeline is known by its microbatch, its direction and the global chunk that it goes to; any other one,
and every collective, by the numbers that the recorder counts for each communicator.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from smon_rt.analysis.smon_spans import COLLECTIVE, WAIT_RETURN, OpColumns
from smon_rt.analysis.smon_workers import WorkerOps, running_numbers
from smon_rt.kinds import DP_COLLECTIVE_KINDS
from smon_rt.trace.kinds import KIND_NUMBERS, RECVS, SENDS
from smon_rt.trace.partners import Communicators, dense, sequence_codes
from smon_rt.trace.spans import Array

_FORWARD = (SENDS[0], RECVS[0])
_CLIP = KIND_NUMBERS["optimizer_clip_main_grad"]
_EMBEDDING = KIND_NUMBERS["embedding_grads_all_reduce"]
# Dimensions in which the members of a worker differ.
_OF_MEMBERS = ("tp", "cp")
# Over the dp ranks of a stage, where no communicator says otherwise.
_OF_DP = tuple(KIND_NUMBERS[name] for name in DP_COLLECTIVE_KINDS)


@dataclass(frozen=True)
class Groups:
    """`group_id` of each merged op, -1 without a partner. Messages that ids pair otherwise than sequences: counted."""

    group_id: Array
    mismatched_count: int


@dataclass(frozen=True)
class Layout:
    """What pairing needs to know of the job's layout. `worker_of_rank`: -1 for ranks that recorded nothing."""

    pp_size: int
    vpp_size: int
    worker_of_rank: Array


def find_groups(ranks: OpColumns, merged: WorkerOps, layout: Layout) -> Groups:
    """Groups of the merged ops; `ranks` are the single ranks' ops that they were merged from."""
    by_sequence = sequence_codes(ranks.comm, ranks.comm_seq, ranks.kind, ranks.step, ranks.rank, ranks.peer)
    by_ids = _message_codes(merged.ops, layout)
    has_ids = by_ids >= 0
    mismatched = _mismatches(ranks, by_sequence, by_ids[merged.merged_row])
    group = np.full(len(merged.ops), -1, np.int64)
    _number(group, has_ids, by_ids)
    rest = ~has_ids & (group < 0)
    linked = _linked(np.where(rest[merged.merged_row], by_sequence, -1), merged.merged_row, len(group))
    _number(group, linked >= 0, linked)
    rest &= group < 0
    by_layout = _layout_codes(merged.ops, rest & (merged.ops.comm < 0), layout)
    _number(group, by_layout >= 0, by_layout)
    return Groups(_without_lone(group), mismatched)


def _message_codes(ops: OpColumns, layout: Layout) -> Array:
    """The same code for a send and its receive, by ids; -1 where ids do not tell, or the other end is not there."""
    codes = np.full(len(ops), -1, np.int64)
    is_send = np.isin(ops.kind, SENDS)
    is_forward = np.isin(ops.kind, _FORWARD)
    # One chunk a stage, which a recorder has no reason to number.
    chunk = np.where((ops.chunk < 0) & (layout.vpp_size == 1), 0, ops.chunk)
    stage = ops.worker % layout.pp_size
    ahead = np.where(is_forward, 1, -1)
    here = chunk * layout.pp_size + stage
    other = np.where(is_send, here + ahead, here - ahead)
    known = np.isin(ops.kind, (*SENDS, *RECVS)) & (ops.microbatch >= 0) & (chunk >= 0)
    known &= (other >= 0) & (other < layout.pp_size * layout.vpp_size)
    # Where the layout of chunks is another than ours, the peer is another than theirs.
    known &= _peer_is(ops, ops.worker - stage + other % layout.pp_size, layout)
    rows = np.flatnonzero(known)
    if len(rows) == 0:
        return codes
    target = np.where(is_send, other, here)
    keys = (ops.step, ops.worker // layout.pp_size, is_forward, ops.microbatch, target)
    message = dense(*(key[rows] for key in keys))
    number = running_numbers(message * 2 + is_send[rows], ops.op_index[rows], ops.start_ns[rows])
    codes[rows] = dense(message, number)
    sends = np.bincount(codes[rows], weights=is_send[rows])
    counts = np.bincount(codes[rows])
    codes[rows[(sends[codes[rows]] != 1) | (counts[codes[rows]] != 2)]] = -1
    return codes


def _peer_is(ops: OpColumns, worker: Array, layout: Layout) -> Array:
    """True where the peer is a rank of this worker, or unknown."""
    has_peer = (ops.peer >= 0) & (ops.peer < len(layout.worker_of_rank))
    peer_worker = layout.worker_of_rank[np.where(has_peer, ops.peer, 0)]
    return np.asarray(~has_peer | (peer_worker < 0) | (peer_worker == worker))


def _mismatches(ranks: OpColumns, by_sequence: Array, by_ids: Array) -> int:
    """Messages whose two ends, paired by ids, have numbers of their communicator that say otherwise."""
    rows = np.flatnonzero((by_ids >= 0) & (by_sequence >= 0))
    if len(rows) == 0:
        return 0
    # Members of a worker each have their own pair: sender and receiver tell them apart.
    is_send = np.isin(ranks.kind[rows], SENDS)
    source = np.where(is_send, ranks.rank[rows], ranks.peer[rows])
    target = np.where(is_send, ranks.peer[rows], ranks.rank[rows])
    message = dense(by_ids[rows], source, target)
    order = np.lexsort((by_sequence[rows], message))
    message, sequence = message[order], by_sequence[rows][order]
    return int(np.count_nonzero((message[1:] == message[:-1]) & (sequence[1:] != sequence[:-1])))


def _linked(code: Array, row: Array, row_count: int) -> Array:
    """For each merged row a number that it shares with all rows it has a code in common with; -1 without a code.

    The members of two workers may each have a communicator of their own between them: all of them are one op.
    """
    found = np.full(row_count, -1, np.int64)
    chosen = np.flatnonzero(code >= 0)
    if len(chosen) == 0:
        return found
    code, row = code[chosen], row[chosen]
    of_row = np.full(row_count, np.iinfo(np.int64).max)
    np.minimum.at(of_row, row, code)
    while True:
        # The least code of all that hang together spreads over rows, and from rows over codes.
        of_code = np.full(int(code.max()) + 1, np.iinfo(np.int64).max)
        np.minimum.at(of_code, code, of_row[row])
        before = of_row.copy()
        np.minimum.at(of_row, row, of_code[code])
        if np.array_equal(before, of_row):
            break
    found[row] = of_row[row]
    return found


def _layout_codes(ops: OpColumns, chosen: Array, layout: Layout) -> Array:
    """For collectives whose communicator nobody recorded: who takes part follows from their kind."""
    codes = np.full(len(ops), -1, np.int64)
    stage = ops.worker % layout.pp_size
    dp_rank = ops.worker // layout.pp_size
    # What the members have in common: for a collective of the dp ranks the stage, and so on.
    shared = np.where(ops.kind == _EMBEDDING, dp_rank, np.where(ops.kind == _CLIP, 0, stage))
    rows = np.flatnonzero(chosen & np.isin(ops.kind, (*_OF_DP, _EMBEDDING, _CLIP)))
    if len(rows) == 0:
        return codes
    own = dense(ops.step[rows], ops.worker[rows], ops.kind[rows], ops.chunk[rows])
    number = running_numbers(own, ops.op_index[rows], ops.start_ns[rows])
    codes[rows] = dense(ops.step[rows], ops.kind[rows], shared[rows], ops.chunk[rows], number)
    return codes


def _number(group: Array, mask: Array, codes: Array) -> None:
    """Takes over codes as group numbers, after those there are."""
    rows = np.flatnonzero(mask)
    if len(rows):
        group[rows] = dense(codes[rows]) + int(group.max(initial=-1)) + 1


def _without_lone(group: Array) -> Array:
    """-1 for who has a group of its own."""
    rows = np.flatnonzero(group >= 0)
    counts = np.bincount(group[rows])
    result = group.copy()
    result[rows[counts[group[rows]] < 2]] = -1
    return np.asarray(result)


def end_sends_with_receives(ops: OpColumns, group: Array) -> Array:
    """Ends of the ops, where a send that was waited for late, or never, ends when its message was received.

    A sender looks after a message when it suits it, often at the end of the step; by then it is long gone.
    """
    rows = np.flatnonzero(np.isin(ops.kind, (*SENDS, *RECVS)) & (group >= 0))
    end_ns: Array = ops.end_ns.copy()
    if len(rows) == 0:
        return end_ns
    received_ns = np.full(int(group.max()) + 1, np.iinfo(np.int64).min)
    receives = rows[np.isin(ops.kind[rows], RECVS)]
    np.maximum.at(received_ns, group[receives], ops.end_ns[receives])
    is_send = np.isin(ops.kind[rows], SENDS)
    sends = rows[is_send & ((ops.time_source[rows] == WAIT_RETURN) | (ops.waited[rows] == 0))]
    received_ns = received_ns[group[sends]]
    latest_ns = np.where(ops.waited[sends] == 0, received_ns, np.minimum(ops.end_ns[sends], received_ns))
    is_received = received_ns >= ops.start_ns[sends]
    end_ns[sends[is_received]] = latest_ns[is_received]
    return np.asarray(end_ns)


def is_inside_a_worker(ops: OpColumns, communicators: Communicators, worker_of_rank: Array) -> Array:
    """True for collectives between the members of one worker, which are part of its computes.

    Where some of them were not recorded, their communicator's dimension must say so.
    """
    members = communicators.members()
    inside = np.zeros(len(members) + 1, np.bool_)
    for number, (ranks, dimension) in enumerate(zip(members, communicators.dimensions(), strict=True)):
        known = [rank for rank in ranks if rank < len(worker_of_rank)]
        workers = {int(worker_of_rank[rank]) for rank in known}
        if dimension in _OF_MEMBERS:
            workers.discard(-1)
        inside[number] = len(ranks) > 0 and len(known) == len(ranks) and len(workers) == 1
    return np.asarray((ops.kind == COLLECTIVE) & inside[ops.comm])
