"""Takes apart what happens inside a computation but is none: waits, garbage collection, loading of data.

A computation that waits for its peers, or for a collection of garbage, takes longer and computes no more. Where the
times are the host's, its own part is what is left when the waits and the other work are taken out. The device's times
of a computation hold neither.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from smon_rt.analysis.smon_spans import COMPUTES, HOST_WORK, OpColumns
from smon_rt.trace.kinds import HOST_TIME_SOURCES, KIND_NUMBERS, RECVS, SENDS
from smon_rt.trace.partners import COMMUNICATION
from smon_rt.trace.spans import Array

_OPTIMIZER = KIND_NUMBERS["optimizer"]
_STREAM = (*COMPUTES, *HOST_WORK, _OPTIMIZER)
_WAITED_FOR = tuple({*COMMUNICATION, KIND_NUMBERS["optimizer_clip_main_grad"]} - {*SENDS, *RECVS})


@dataclass(frozen=True)
class Unnested:
    """Ops of one rank, and which collectives held up its computes (`in_stream`)."""

    ops: OpColumns
    in_stream: Array


def unnest(ops: OpColumns) -> Unnested:
    """Ops of one rank such that those of its compute stream do not overlap. Times of the device stay as they are."""
    is_host_time = np.isin(ops.time_source, HOST_TIME_SOURCES)
    on_stream = np.isin(ops.kind, _STREAM)
    if np.any(np.isin(ops.kind, COMPUTES) & ~is_host_time):
        ops = _behind_device(ops)
        return Unnested(ops, np.zeros(len(ops), np.bool_))
    ops = _take_out_work(ops, np.flatnonzero(on_stream))
    return _take_out_waits(ops)


def _behind_device(ops: OpColumns) -> OpColumns:
    """Work of the host costs nothing while the device computes: of it stays what the device idles through."""
    rows = np.flatnonzero(np.isin(ops.kind, HOST_WORK))
    computes = np.flatnonzero(np.isin(ops.kind, COMPUTES))
    if len(rows) == 0:
        return ops
    order = computes[np.argsort(ops.start_ns[computes], kind="stable")]
    busy_until = np.maximum.accumulate(ops.end_ns[order])
    last = np.searchsorted(ops.start_ns[order], ops.end_ns[rows], side="left") - 1
    start_ns = ops.start_ns.copy()
    start_ns[rows] = np.where(last >= 0, np.maximum(ops.start_ns[rows], busy_until[last]), ops.start_ns[rows])
    keeps = start_ns < ops.end_ns
    keeps[np.isin(ops.kind, HOST_WORK, invert=True)] = True
    return ops.replace(start_ns=start_ns).take(keeps)


def _take_out_work(ops: OpColumns, stream: Array) -> OpColumns:
    """Moves what lies inside an op of the compute stream before or after it, and shortens that op by it.

    Where it goes follows from which half of the op it began in; the sum of all times stays.
    """
    stream = stream[np.lexsort((-ops.end_ns[stream], ops.start_ns[stream]))]
    ends = np.maximum.accumulate(ops.end_ns[stream])
    nested = np.zeros(len(stream), np.bool_)
    # A later start than an end before it: the rest of an op that only reaches into another stays as it is.
    nested[1:] = ops.end_ns[stream[1:]] <= ends[:-1]
    nested &= ops.end_ns[stream] > ops.start_ns[stream]
    if not nested.any():
        return ops
    # The outermost op around each nested one is the last before it that is not nested.
    outer_place = np.maximum.accumulate(np.where(nested, 0, np.arange(len(stream))))
    start_ns, end_ns = ops.start_ns.copy(), ops.end_ns.copy()
    places = np.flatnonzero(nested)
    for group in np.split(places, np.flatnonzero(np.diff(outer_place[places])) + 1):
        _lay_out(ops, stream[group], int(stream[outer_place[group[0]]]), start_ns, end_ns)
    return ops.replace(start_ns=start_ns, end_ns=end_ns)


def _lay_out(ops: OpColumns, inner: Array, outer: int, start_ns: Array, end_ns: Array) -> None:
    """The ops inside one, by start: some before it, some after it, each without what lies inside of it in turn."""
    begin, end = int(ops.start_ns[outer]), int(ops.end_ns[outer])
    own: list[int] = []
    open_ends: list[tuple[int, int]] = []
    for place, row in enumerate(inner.tolist()):
        start, stop = int(ops.start_ns[row]), int(ops.end_ns[row])
        while open_ends and open_ends[-1][0] <= start:
            open_ends.pop()
        own.append(stop - start)
        if open_ends:
            own[open_ends[-1][1]] -= min(stop, open_ends[-1][0]) - start
        open_ends.append((stop, place))
    before = [place for place, row in enumerate(inner.tolist()) if 2 * int(ops.start_ns[row]) < begin + end]
    at = begin
    for place in before:
        start_ns[inner[place]], end_ns[inner[place]] = at, at + max(own[place], 0)
        at = int(end_ns[inner[place]])
    start_ns[outer] = at
    at = end
    for place in range(len(inner) - 1, len(before) - 1, -1):
        start_ns[inner[place]], end_ns[inner[place]] = at - max(own[place], 0), at
        at = int(start_ns[inner[place]])
    end_ns[outer] = max(at, int(start_ns[outer]))


def _take_out_waits(ops: OpColumns) -> Unnested:
    """Splits computes around the collectives that they wait for.

    When the wait began is not recorded. Collectives that overlap are one cluster, and what follows the launch of its
    last one is taken as waiting: a reducer of gradients launches its last bucket when nothing is left to compute.
    """
    in_stream = np.zeros(len(ops), np.bool_)
    computes = np.flatnonzero(np.isin(ops.kind, (*COMPUTES, _OPTIMIZER)))
    waits = np.flatnonzero(np.isin(ops.kind, _WAITED_FOR) & ops.is_waited & (ops.end_ns > ops.start_ns))
    if len(computes) == 0 or len(waits) == 0:
        return Unnested(ops, in_stream)
    computes = computes[np.argsort(ops.start_ns[computes], kind="stable")]
    waits = waits[np.argsort(ops.start_ns[waits], kind="stable")]
    _mark_between(ops, computes, waits, in_stream)
    around = np.searchsorted(ops.start_ns[computes], ops.start_ns[waits], side="right") - 1
    inside = (around >= 0) & (ops.end_ns[waits] <= ops.end_ns[computes[around]])
    waits, around = waits[inside], around[inside]
    if len(waits) == 0:
        return Unnested(ops, in_stream)
    # Computes come one after the other, so the latest end so far is that of the same compute.
    latest = np.maximum.accumulate(ops.end_ns[waits])
    begins_cluster = np.ones(len(waits), np.bool_)
    begins_cluster[1:] = (around[1:] != around[:-1]) | (ops.start_ns[waits[1:]] >= latest[:-1])
    lasts = np.append(np.flatnonzero(begins_cluster)[1:] - 1, len(waits) - 1)
    in_stream[waits[lasts]] = True
    return _split(ops, in_stream, computes[around[lasts]], ops.start_ns[waits[lasts]], latest[lasts])


def _mark_between(ops: OpColumns, computes: Array, waits: Array, in_stream: Array) -> None:
    """A collective that nothing is computed beside held up what came after it."""
    stream = np.flatnonzero(np.isin(ops.kind, _STREAM))
    starts = np.sort(ops.start_ns[stream])
    busy_until = np.maximum.accumulate(ops.end_ns[computes])
    last = np.searchsorted(ops.start_ns[computes], ops.start_ns[waits], side="right") - 1
    is_after = (last < 0) | (busy_until[last] <= ops.start_ns[waits])
    begun = np.searchsorted(starts, ops.end_ns[waits], side="left") - np.searchsorted(
        starts, ops.start_ns[waits], side="left"
    )
    in_stream[waits] |= is_after & (begun == 0)


def _split(ops: OpColumns, in_stream: Array, computes: Array, from_ns: Array, until_ns: Array) -> Unnested:
    """Cuts the time from `from_ns` to `until_ns` out of the compute in each row; one compute may come several times."""
    is_first = np.ones(len(computes), np.bool_)
    is_first[1:] = computes[1:] != computes[:-1]
    is_last = np.append(is_first[1:], True)
    start_ns, end_ns = ops.start_ns.copy(), ops.end_ns.copy()
    # The op itself becomes its first part; each cut begins another. Of an optimizer only what follows its waits stays.
    is_compute = ops.kind[computes] != _OPTIMIZER
    firsts = is_first & is_compute
    end_ns[computes[firsts]] = from_ns[firsts]
    lasts = is_last & ~is_compute
    start_ns[computes[lasts]] = until_ns[lasts]
    next_from_ns = np.append(from_ns[1:], 0)
    more = ops.take(computes).replace(start_ns=until_ns, end_ns=np.where(is_last, ops.end_ns[computes], next_from_ns))
    whole = OpColumns.concatenate([ops.replace(start_ns=start_ns, end_ns=end_ns), more.take(is_compute)])
    return Unnested(whole, np.append(in_stream, np.zeros(int(np.count_nonzero(is_compute)), np.bool_)))
