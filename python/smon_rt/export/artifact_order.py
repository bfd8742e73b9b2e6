"""What the published analyzer's rules have a place for, out of steps that run in another order.

Its rules know one order of a step: parameters are gathered before the first forward of their chunk; after the last
compute come the layernorms' and the embeddings' gradients, the reductions one after the other, the clip, and the
optimizer. What runs otherwise would wait for what waits for it. A job whose reductions overlap with computes by these
rules, as a separate all-reduce shows, is left as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smon_rt.trace.kinds import KIND_NUMBERS
from smon_rt.trace.spans import Array, SpanColumns

_FORWARD = KIND_NUMBERS["forward_compute"]
_COMPUTES = (_FORWARD, KIND_NUMBERS["backward_compute"])
_GATHER = KIND_NUMBERS["params_all_gather"]
_REDUCTION = KIND_NUMBERS["grads_reduce_scatter"]
_SEPARATE = KIND_NUMBERS["separate_grads_all_reduce"]
_BEFORE_REDUCTIONS = ("layernorm_grads_all_reduce", "embedding_grads_all_reduce")
_CLIP = KIND_NUMBERS["optimizer_clip_main_grad"]
_OPTIMIZER = KIND_NUMBERS["optimizer"]
# As the rules have it for what is recorded of messages.
_TOLERANCE_NS = 50_000
_NEVER = np.iinfo(np.int64)


@dataclass(eq=False)
class WorkerOps:
    """The ops of one worker: those of its lowest rank. Times are those that are exported."""

    rank: int
    dp_rank: int
    stage: int
    ops: SpanColumns
    start_ns: Array
    duration_ns: Array

    def keep(self, rows: Array) -> int:
        """Only the rows where the mask is true; returns how many there were besides."""
        left_out = int(np.count_nonzero(~rows))
        if left_out:
            self.ops = self.ops.take(rows)
            self.start_ns, self.duration_ns = self.start_ns[rows], self.duration_ns[rows]
        return left_out

    def end_ns(self) -> Array:
        return self.start_ns + self.duration_ns


def fit_order(workers: Sequence[WorkerOps], *, has_one_chunk: bool) -> list[str]:
    """Brings the ops into the rules' order, and leaves out those that have no place in it; returns words for these."""
    said = []
    if count := _leave_out_gathers(workers, has_one_chunk):
        said.append(f"{count:,} params_all_gather spans that no forward of their step waited for")
    if not any((worker.ops.kind == _SEPARATE).any() for worker in workers):
        said += [
            f"{count:,} {kind} spans, which come after the reductions (by the file's rules before)"
            for kind in _BEFORE_REDUCTIONS
            if (count := _leave_out_after_reductions(workers, KIND_NUMBERS[kind]))
        ]
        if count := sum(_put_behind_computes(worker) for worker in workers):
            said.append(f"what {count:,} grads_reduce_scatter spans have beside computes (by the file's rules none)")
    for worker in workers:
        _take_clips_out(worker)
    return said


def _leave_out_gathers(workers: Sequence[WorkerOps], has_one_chunk: bool) -> int:
    """A gather that had not ended when its chunk's first forward began was not what that waited for.

    One that is so anywhere on a stage is left out everywhere on it: all steps must have the same ops.
    """
    late: dict[int, set[int]] = {}
    for worker in workers:
        ops = worker.ops
        is_gather, is_forward = ops.kind == _GATHER, ops.kind == _FORWARD
        if not is_gather.any():
            continue
        chunk = np.zeros_like(ops.chunk) if has_one_chunk else ops.chunk
        place = _numbered(ops.step, chunk)
        first = np.full(int(place.max()) + 1, _NEVER.max)
        np.minimum.at(first, place[is_forward], worker.start_ns[is_forward])
        # In a step that was cut a chunk may have no forward; one that has none in any step cannot be waited for.
        is_late = is_gather & (worker.end_ns() - _TOLERANCE_NS > first[place])
        is_late |= is_gather & ~np.isin(chunk, chunk[is_forward])
        late.setdefault(worker.stage, set()).update(ops.op_index[is_late].tolist())
    return sum(
        worker.keep(~((worker.ops.kind == _GATHER) & np.isin(worker.ops.op_index, sorted(late.get(worker.stage, ())))))
        for worker in workers
    )


def _leave_out_after_reductions(workers: Sequence[WorkerOps], kind: int) -> int:
    """Leaves out a kind that starts after a reduction anywhere: its stages meet in it, so on all or on none."""
    for worker in workers:
        ops = worker.ops
        is_kind, is_reduction = ops.kind == kind, ops.kind == _REDUCTION
        place = _numbered(ops.step)
        first = np.full(int(place.max(initial=0)) + 1, _NEVER.max)
        np.minimum.at(first, place[is_reduction], worker.start_ns[is_reduction])
        if (worker.start_ns[is_kind] > first[place[is_kind]]).any():
            return sum(each.keep(each.ops.kind != kind) for each in workers)
    return 0


def _put_behind_computes(worker: WorkerOps) -> int:
    """Reductions begin behind the last compute and one another, and keep what they last from there on.

    So the replay has them where the rules do and yet ends them when they ended. Returns how many began beside a
    compute.
    """
    ops = worker.ops
    ends = worker.end_ns()
    is_compute = np.isin(ops.kind, _COMPUTES)
    rows = np.flatnonzero(ops.kind == _REDUCTION)
    if not len(rows):
        return 0
    place = _numbered(ops.step)
    computed = np.full(int(place.max()) + 1, _NEVER.min)
    np.maximum.at(computed, place[is_compute], ends[is_compute])
    rows = rows[np.lexsort((ops.op_index[rows], place[rows]))]
    beside = 0
    for of_step in np.split(rows, np.flatnonzero(np.diff(place[rows])) + 1):
        begins, last_ns = worker.start_ns[of_step], computed[place[of_step[0]]]
        beside += int(np.count_nonzero(begins < last_ns - _TOLERANCE_NS))
        before = np.maximum.accumulate([last_ns, *ends[of_step]])
        worker.start_ns[of_step] = np.maximum(begins, before[:-1])
        worker.duration_ns[of_step] = np.maximum(ends[of_step] - worker.start_ns[of_step], 0)
    return beside


def _take_clips_out(worker: WorkerOps) -> None:
    """Clips that run inside an optimizer are its first part: they begin with it, and it begins when they have ended."""
    kind = worker.ops.kind
    clips, optimizers = (_by_start(worker, np.flatnonzero(kind == each)) for each in (_CLIP, _OPTIMIZER))
    if not len(clips) or not len(optimizers):
        return
    ends = worker.end_ns()
    around = optimizers[
        np.maximum(np.searchsorted(worker.start_ns[optimizers], worker.start_ns[clips], "right") - 1, 0)
    ]
    is_inside = (worker.start_ns[around] <= worker.start_ns[clips]) & (ends[clips] <= ends[around])
    for clip, optimizer in zip(clips[is_inside].tolist(), around[is_inside].tolist(), strict=True):
        begin_ns, end_ns = worker.start_ns[optimizer], max(ends[clip], worker.start_ns[optimizer])
        worker.start_ns[clip], worker.duration_ns[clip] = begin_ns, end_ns - begin_ns
        worker.start_ns[optimizer], worker.duration_ns[optimizer] = end_ns, ends[optimizer] - end_ns


def _by_start(worker: WorkerOps, rows: Array) -> Array:
    return rows[np.argsort(worker.start_ns[rows], kind="stable")]


def _numbered(*columns: Array) -> Array:
    """The rows that agree in all columns have the same number, from 0."""
    number = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        _, own = np.unique(column, return_inverse=True)
        number = number * (int(own.max(initial=0)) + 1) + own
    _, dense = np.unique(number, return_inverse=True)
    return dense
