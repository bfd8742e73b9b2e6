"""The spans of one rank that are ops of its training steps, as columns of their own."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from smon_rt.analysis.smon_device import op_bounds, starts_when_free, times_in_order
from smon_rt.analysis.smon_nccl import NcclOps
from smon_rt.analysis.smon_threads import of_background
from smon_rt.trace.device_order import WAIT_EVENT, is_device_work
from smon_rt.trace.kinds import FLAGS, KIND_NUMBERS, TIME_SOURCE_NAMES
from smon_rt.trace.partners import Communicators
from smon_rt.trace.rank_trace import RankTrace
from smon_rt.trace.spans import Array, SpanColumns

COMPUTES = tuple(KIND_NUMBERS[name] for name in ("forward_compute", "backward_compute", "forward_backward_combined"))
#: Work of the host that holds up the computes.
HOST_WORK = tuple(
    KIND_NUMBERS[name] for name in ("data_loading", "gc", "checkpoint_snapshot", "checkpoint_wait", "eval")
)
_MOST = (1 << 15) - 1
# 36 years: no host is up for longer, and sums of such times still fit.
_LONGEST_NS = 1 << 60
COLLECTIVE = KIND_NUMBERS["collective"]
WAIT_RETURN = TIME_SOURCE_NAMES.index("wait_return")
_OPS = (*range(KIND_NUMBERS["forward_compute"], KIND_NUMBERS["checkpoint_wait"] + 1),)
# Between two steps a loop waits for its data.
_BEFORE_A_STEP = (KIND_NUMBERS["data_loading"], KIND_NUMBERS["gc"])
_EVAL = KIND_NUMBERS["eval"]
#: Computes that a GPU did and whose times were lost: their launch is no measure of them.
WITHOUT_TIMES = "of GPU computes without the GPU's times"
_NO_OP_FLAGS = {
    FLAGS["forward_only"]: "of evaluation",
    FLAGS["recomputed"]: "recomputed in a backward",
    FLAGS["aborted"]: "aborted",
}


@dataclass(frozen=True, eq=False)
class OpColumns:
    """Ops, a column each; all of one length. Times are ns on one axis, ends included."""

    rank: Array
    worker: Array
    step: Array
    kind: Array
    start_ns: Array
    end_ns: Array
    op_index: Array
    chunk: Array
    microbatch: Array
    comm: Array  # number of the communicator in the job, -1 for none
    own_comm: Array  # the same as this rank numbers it: what its peers made at the same place has the same number
    comm_seq: Array
    peer: Array
    payload_bytes: Array
    time_source: Array
    step_start_ns: Array  # of its step, on its rank
    waited: Array  # see _waited
    nccl: Array  # its place in NcclOps
    device_bound_ns: Array  # how far its times may be off its host's clock: 0 without a device, -1 where nobody says

    def __len__(self) -> int:
        return len(self.rank)

    def take(self, rows: Array) -> OpColumns:
        """The ops at these rows, or where this mask is true."""
        return OpColumns(**{field.name: getattr(self, field.name)[rows] for field in dataclasses.fields(self)})

    def replace(self, **columns: Array) -> OpColumns:
        """The same with other columns."""
        return dataclasses.replace(self, **columns)

    @staticmethod
    def concatenate(parts: Sequence[OpColumns]) -> OpColumns:
        """All parts in order."""
        names = [field.name for field in dataclasses.fields(OpColumns)]
        return OpColumns(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def rank_ops(
    trace: RankTrace, worker: int, communicators: Communicators, nccl: NcclOps, left_out: Counter[str]
) -> OpColumns:
    """The ops of one rank, in the device's times where it has any; `left_out` counts, by words, spans that are none."""
    spans = trace.spans
    is_evaluation = spans.kind == _EVAL
    left_out["of evaluation"] += int(np.count_nonzero(is_evaluation))
    is_op = np.isin(spans.kind, _OPS) | is_evaluation
    for flag, words in _NO_OP_FLAGS.items():
        # Said above; that an evaluation is one does not make it less.
        has_flag = is_op & (spans.flags & flag != 0) & ~is_evaluation
        left_out[words] += int(np.count_nonzero(has_flag))
        is_op &= ~has_flag
    has_times = _are_possible(spans)
    left_out["with impossible times"] += int(np.count_nonzero(is_op & ~has_times))
    is_op &= has_times
    # Counted by steps, not by spans: see the importer.
    is_op &= spans.flags & FLAGS["warmup"] == 0
    is_op &= ~of_background(trace, is_op, left_out)
    is_op &= ~_lost_their_times(spans, is_op, left_out)
    is_op = _within_steps(spans, is_op)
    ops = spans.take(is_op)
    start_ns, end_ns, waited = times_in_order(ops, _waited(ops))
    step = _next_step_between(trace, ops.kind, ops.step, ops.start_ns)
    comm = communicators.numbers(trace, ops.comm_id)
    return OpColumns(
        rank=np.full(len(ops), trace.rank),
        worker=np.full(len(ops), worker),
        step=step,
        kind=ops.kind,
        start_ns=start_ns,
        end_ns=end_ns,
        op_index=ops.op_index.astype(np.int64),
        chunk=_small(ops.chunk),
        microbatch=_small(ops.microbatch),
        comm=comm,
        own_comm=np.where(comm >= 0, ops.comm_id, -1),
        comm_seq=ops.comm_seq,
        peer=ops.peer,
        payload_bytes=ops.payload_bytes,
        time_source=ops.time_source,
        step_start_ns=_step_starts(trace, ops, step, (start_ns, end_ns)),
        waited=waited,
        nccl=nccl.add(trace)[is_op],
        device_bound_ns=op_bounds(trace, ops, start_ns, end_ns),
    )


def _lost_their_times(spans: SpanColumns, is_op: Array, left_out: Counter[str]) -> Array:
    """Computes that have times of the host alone where others of their rank have those of the device.

    Their host's times are of launches: a rank computes on a device or does not. Of a killed process those are the last.
    """
    is_compute = np.isin(spans.kind, COMPUTES)
    lost = is_op & is_compute & ~spans.has_device_times & bool((is_compute & spans.has_device_times).any())
    left_out[WITHOUT_TIMES] += int(np.count_nonzero(lost))
    return np.asarray(lost)


def ranks_of_launches(ranks: Iterable[OpColumns]) -> dict[int, int]:
    """Ranks without any time of a GPU where others' computes have them, and how many computes: those are launches.

    So it is where a node's driver is too old for events, or a process was killed in its first second.
    """
    counts: dict[int, int] = {}
    is_on_gpus = False
    for ops in ranks:
        is_compute = np.isin(ops.kind, COMPUTES)
        if is_device_work(ops.time_source, ops.kind)[is_compute].any():
            is_on_gpus = True
        elif is_compute.any():
            counts[int(ops.rank[0])] = int(np.count_nonzero(is_compute))
    return counts if is_on_gpus else {}


def _within_steps(spans: SpanColumns, is_op: Array) -> Array:
    """Which ops count: of evaluations those that others of their step come after.

    There the time has passed within the step, which would else be a gap of nobody's. At its end it is none of the step.
    """
    evaluations = np.flatnonzero(is_op & (spans.kind == _EVAL))
    if len(evaluations) == 0:
        return is_op
    others = np.flatnonzero(is_op & (spans.kind != _EVAL))
    steps, of = np.unique(spans.step[others], return_inverse=True)
    latest_ns = np.full(len(steps), np.iinfo(np.int64).min)
    np.maximum.at(latest_ns, of, spans.start_ns[others])
    place = np.searchsorted(steps, spans.step[evaluations])
    has_others = place < len(steps)
    has_others[has_others] = steps[place[has_others]] == spans.step[evaluations][has_others]
    keeps = is_op.copy()
    keeps[evaluations] = has_others
    keeps[evaluations[has_others]] = spans.start_ns[evaluations[has_others]] < latest_ns[place[has_others]]
    return np.asarray(keeps)


def _are_possible(spans: SpanColumns) -> Array:
    """Which spans have times that a clock can show; one that has not would stretch the whole job."""
    possible = np.ones(len(spans), np.bool_)
    for start_ns, duration_ns in (
        (spans.start_ns, spans.duration_ns),
        (spans.device_start_ns, spans.device_duration_ns),
    ):
        possible &= (np.abs(start_ns) < _LONGEST_NS) & (duration_ns >= 0) & (duration_ns < _LONGEST_NS)
    return possible


def _next_step_between(trace: RankTrace, kind: Array, step: Array, start_ns: Array) -> Array:
    """Step numbers, where what a loop does between two steps counts to the one that comes.

    The recorder gives a span to the step that began last.
    """
    steps = trace.steps
    rows = np.flatnonzero(np.isin(kind, _BEFORE_A_STEP))
    if len(rows) == 0 or len(steps) == 0 or (np.diff(steps.step) <= 0).any():
        return step
    # The first step that ends after the span's begin: the span is in it, or before it. After the last one in the table
    # comes one that has not ended.
    place = np.searchsorted(steps.start_ns + steps.duration_ns, start_ns[rows], side="right")
    coming = np.append(steps.step, steps.step[-1] + 1)[place]
    moved = step.copy()
    moved[rows] = np.maximum(step[rows], coming)
    return np.asarray(moved)


def _small(values: Array) -> Array:
    """Numbers of chunks and microbatches, -1 for what none can be: the recorder holds them in 16 bits."""
    return np.where((values < 0) | (values > _MOST), -1, values)


def _waited(ops: SpanColumns) -> Array:
    """Who saw the end of a communication: 0 nobody, it says nothing; 1 the thread, or stream, that computes waited for
    it; 2 another stream, or another thread.
    """
    elsewhere = ops.has_device_times & (ops.time_source != WAIT_EVENT) | (ops.flags & FLAGS["other_thread"] != 0)
    return np.where(ops.flags & FLAGS["not_waited"] != 0, 0, np.where(elsewhere, 2, 1)).astype(np.uint8)


def _step_starts(trace: RankTrace, ops: SpanColumns, step: Array, times_ns: tuple[Array, Array]) -> Array:
    """When the step of each op began on this rank: with its first op, if that came before the step's own span."""
    numbers, of = np.unique(step, return_inverse=True)
    starts = np.full(len(numbers), np.iinfo(np.int64).max)
    np.minimum.at(starts, of, times_ns[0])
    known = np.isin(trace.steps.step, numbers)
    np.minimum.at(starts, np.searchsorted(numbers, trace.steps.step[known]), trace.steps.start_ns[known])
    return np.asarray(starts_when_free(ops, times_ns, numbers, of, starts)[of])


def behind_device(ops: OpColumns) -> OpColumns:
    """Work of the host costs nothing while the device works: of it stays what the device idles through."""
    is_busy = is_device_work(ops.time_source, ops.kind)
    # An evaluation may be the device's own.
    is_host_work = np.isin(ops.kind, HOST_WORK) & ~is_busy
    rows, busy = np.flatnonzero(is_host_work), np.flatnonzero(is_busy)
    if len(rows) == 0 or len(busy) == 0:
        return ops
    order = busy[np.argsort(ops.start_ns[busy], kind="stable")]
    busy_until = np.maximum.accumulate(ops.end_ns[order])
    last = np.searchsorted(ops.start_ns[order], ops.end_ns[rows], side="left") - 1
    free_ns = np.where(last >= 0, busy_until[last], ops.start_ns[rows])
    start_ns = ops.start_ns.copy()
    # A step begins when the device is free for it, whatever it did before.
    start_ns[rows] = np.maximum(np.maximum(ops.start_ns[rows], free_ns), ops.step_start_ns[rows])
    keeps = start_ns < ops.end_ns
    keeps[~is_host_work] = True
    return ops.replace(start_ns=start_ns).take(keeps)
