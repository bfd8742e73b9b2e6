"""What NCCL says of the operations that ranks recorded as spans."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from smon_rt.analysis.communication import NcclFacts
from smon_rt.trace.comm_ops import CommOpColumns
from smon_rt.trace.comm_words import ALGORITHM_NAMES, PROTOCOL_NAMES
from smon_rt.trace.kinds import name_of
from smon_rt.trace.rank_trace import RankTrace
from smon_rt.trace.spans import Array

__all__ = ["NO_OP", "NcclOps", "most_frequent"]

#: The place of a span of which NCCL said nothing.
NO_OP = -1
_NS_PER_S = 1e9
_UNKNOWN = 0


@dataclass
class NcclOps:
    """Operations of NCCL of all ranks that belong to spans: one row a span, of the ranks in the order of `add`."""

    parts: list[CommOpColumns] = field(default_factory=list)
    _count: int = 0

    def add(self, trace: RankTrace) -> Array:
        """Takes a rank's; the place of each of its spans among all rows, NO_OP where NCCL said nothing of it."""
        places = np.full(len(trace.spans), NO_OP, np.int64)
        joined = trace.comm_ops.take(trace.comm_ops.is_joined)
        span = _spans_of(trace, joined)
        joined, span = joined.take(span != NO_OP), span[span != NO_OP]
        if len(joined) == 0:
            return places
        rows = _merged(joined, span)
        places[np.unique(span)] = self._count + np.arange(len(rows))
        self.parts.append(rows)
        self._count += len(rows)
        return places

    def facts(self, places: Array) -> NcclFacts | None:
        """Of the spans at these places together; None where NCCL said nothing of any."""
        places = places[places != NO_OP]
        if len(places) == 0:
            return None
        ops = self._all.take(places)
        moved_ns = ops.transfer_ns[(ops.open_transfer_count == 0) & (ops.transfer_ns > 0)]
        slowest = ops.slowest_channel[(ops.kernel_count > 1) & (ops.kernel_duration_device_ns > 0)]
        channel, ratio = most_frequent(slowest)
        algorithm, _ = most_frequent(ops.algorithm[ops.algorithm != _UNKNOWN])
        protocol, _ = most_frequent(ops.protocol[ops.protocol != _UNKNOWN])
        channel_count, _ = most_frequent(ops.channel_count[ops.channel_count > 0])
        return NcclFacts(
            op_count=len(ops),
            algorithm=None if algorithm is None else name_of(algorithm, ALGORITHM_NAMES, "algorithm"),
            protocol=None if protocol is None else name_of(protocol, PROTOCOL_NAMES, "protocol"),
            channel_count=channel_count,
            transfer_s=float(np.median(moved_ns)) / _NS_PER_S if len(moved_ns) else None,
            slowest_channel=channel,
            slowest_channel_ratio=ratio,
        )

    @property
    def _all(self) -> CommOpColumns:
        if len(self.parts) > 1:
            self.parts = [CommOpColumns.concatenate(self.parts)]
        return self.parts[0]


def _spans_of(trace: RankTrace, ops: CommOpColumns) -> Array:
    """The row of the span that each operation belongs to: of its communicator, number and step the last before it.

    Kinds of one communicator count apart, so communicator and number alone may be several spans.
    """
    spans = trace.spans
    rows = np.flatnonzero(spans.comm_seq > 0)
    is_op = np.concatenate([np.zeros(len(rows), np.bool_), np.ones(len(ops), np.bool_)])
    key = [np.concatenate([getattr(spans, name)[rows], getattr(ops, name)]) for name in ("comm_id", "comm_seq", "step")]
    start_ns = np.concatenate([spans.start_ns[rows], ops.start_ns])
    order = np.lexsort((is_op, start_ns, *key))
    # The last span before each place of the order, as far as it is of the same key.
    place = np.where(is_op[order], -1, np.arange(len(order)))
    last = np.maximum.accumulate(place) if len(order) else place
    same = last >= 0
    for column in key:
        same &= column[order] == column[order[np.maximum(last, 0)]]
    found = np.full(len(order), NO_OP, np.int64)
    found[order[same]] = rows[order[last[same]]] if len(rows) else NO_OP
    return found[len(rows) :]


def _merged(ops: CommOpColumns, span: Array) -> CommOpColumns:
    """One row a span, in the order of the spans: of several operations the largest, with the transfers of all."""
    order = np.lexsort((ops.number, -ops.payload_bytes, span))
    ops, span = ops.take(order), span[order]
    firsts = np.flatnonzero(np.diff(span, prepend=-1))
    moves = ops.transfer_count > 0
    begin_ns = np.where(moves, ops.first_transfer_ns, np.iinfo(np.int64).max)
    end_ns = np.where(moves, ops.first_transfer_ns + ops.transfer_ns, np.iinfo(np.int64).min)
    begin_ns, end_ns = np.minimum.reduceat(begin_ns, firsts), np.maximum.reduceat(end_ns, firsts)
    largest = ops.take(firsts)
    largest.transfer_count[:] = np.add.reduceat(ops.transfer_count, firsts)
    largest.open_transfer_count[:] = np.add.reduceat(ops.open_transfer_count, firsts)
    has_moved = largest.transfer_count > 0
    largest.first_transfer_ns[:] = np.where(has_moved, begin_ns, 0)
    largest.transfer_ns[:] = np.where(has_moved, end_ns - np.where(has_moved, begin_ns, 0), 0)
    return largest


def most_frequent(values: Array) -> tuple[int | None, float | None]:
    """The value that most have, and their part; None without any."""
    if len(values) == 0:
        return None, None
    found, counts = np.unique(values, return_counts=True)
    return int(found[np.argmax(counts)]), float(counts.max() / len(values))
