"""When the thread that computes stood still for a message that it had asked for long before."""

from __future__ import annotations

import numpy as np

from smon_rt.analysis.smon_spans import COMPUTES, HOST_WORK, WAIT_RETURN, OpColumns
from smon_rt.trace.kinds import KIND_NUMBERS, RECVS
from smon_rt.trace.spans import Array

#: What occupies the thread from its start to its end.
_BUSY = (*COMPUTES, *HOST_WORK, KIND_NUMBERS["optimizer_clip_main_grad"], KIND_NUMBERS["optimizer"])
#: Waited for by the thread that computes: see OpColumns.waited.
_BY_COMPUTE = 1


def receive_when_waited(ops: OpColumns) -> OpColumns:
    """The ops of one rank, with receives that begin where their wait did, as far as that is known.

    A schedule asks for a message early, computes something else, and waits for it then. Until it waits nobody sees the
    message arrive: from the request to the wait's return is the time of those computes, not of the transfer, which
    would keep its length in every replay, however short the computes became. The wait began when the thread had last
    done something else: ended a compute, or issued another message.
    """
    rows = np.flatnonzero(np.isin(ops.kind, RECVS) & (ops.time_source == WAIT_RETURN) & (ops.waited == _BY_COMPUTE))
    busy = np.flatnonzero(np.isin(ops.kind, _BUSY))
    if len(rows) == 0 or len(busy) == 0:
        return ops
    busy = busy[np.argsort(ops.start_ns[busy], kind="stable")]
    end_ns = ops.end_ns[rows]
    # An end while the thread computed is not the return of a wait.
    begun = np.searchsorted(ops.start_ns[busy], end_ns, side="left")
    busy_until = np.concatenate([[np.iinfo(np.int64).min], np.maximum.accumulate(ops.end_ns[busy])])[begun]
    events = np.sort(np.concatenate([ops.end_ns[busy], ops.start_ns[ops.waited == _BY_COMPUTE]]))
    # Of each receive its own start is among them, unless it took no time.
    place = np.searchsorted(events, end_ns, side="left") - 1
    latest: Array = np.where(place >= 0, events[np.maximum(place, 0)], ops.start_ns[rows])
    start_ns = ops.start_ns.copy()
    is_wait = busy_until <= end_ns
    start_ns[rows[is_wait]] = np.maximum(ops.start_ns[rows], latest)[is_wait]
    return ops.replace(start_ns=start_ns)
