"""Turns what a rank did into what its recorder writes on a GPU: launches of the host, and times of the device.

The timeline says when the GPU ran each op. Its host launches ahead, as far as nothing keeps it from that, so host times
say little; communication has an event behind its wait, which the computing stream reaches when it gets there.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from smon_rt._proto import trace_pb2
from smon_rt.synth.durations import GPU_CLOCKS, NS_PER_MS, generator
from smon_rt.synth.smon_file import Column, SpanTable, packet
from smon_rt.synth.spec import JobSpec
from smon_rt.trace.kinds import FLAGS, KIND_NUMBERS, RECVS, SENDS, TIME_SOURCE_NAMES
from smon_rt.trace.partners import COMMUNICATION

_GPU_EVENT, _WAIT_EVENT = (TIME_SOURCE_NAMES.index(name) for name in ("gpu_event", "wait_event"))
_PASSES = (KIND_NUMBERS["forward_compute"], KIND_NUMBERS["backward_compute"])
_REDUCE = KIND_NUMBERS["grads_reduce_scatter"]
_TAIL = tuple(
    KIND_NUMBERS[name]
    for name in (
        *("layernorm_grads_all_reduce", "embedding_grads_all_reduce", "separate_grads_all_reduce"),
        *("optimizer_clip_main_grad", "optimizer"),
    )
)
#: What the host does by itself.
_HOST_WORK = (KIND_NUMBERS["gc"], KIND_NUMBERS["data_loading"])
#: One launch of the host, and how long the GPU takes to start what it gets when it has nothing else to do.
_LAUNCH_NS = 20_000
_START_NS = 5_000


def with_gpu_times(spec: JobSpec, spans: SpanTable, rank: int, *, is_late: bool) -> SpanTable:
    """The spans of one rank, whose times are true: with launches of its host, and times of its GPU.

    `is_late`: the host launches an op only when the GPU begins it.
    """
    # The schedule's own op for collections says nothing; only pauses are what a recorder would see.
    spans = spans.take((spans.kind != KIND_NUMBERS["gc"]) | (spans.duration_ns > NS_PER_MS))
    rows = np.flatnonzero(~np.isin(spans.kind, _HOST_WORK))
    is_compute = ~np.isin(spans.kind[rows], COMMUNICATION)
    order = rows[np.lexsort((is_compute, spans.start_ns[rows], spans.step[rows]))]
    launch_ns = _launches(spans, order, is_late=is_late)
    start_ns, end_ns = spans.start_ns.copy(), spans.start_ns + spans.duration_ns
    device_start_ns, device_end_ns = start_ns.copy(), end_ns.copy()
    start_ns[order], end_ns[order] = launch_ns, launch_ns + _LAUNCH_NS // 2
    is_waited = np.isin(spans.kind, COMMUNICATION) & ~np.isin(spans.kind, SENDS)
    waits = np.flatnonzero(is_waited)
    before_ns = np.zeros_like(end_ns)
    before_ns[order[1:]] = np.minimum(end_ns[order[:-1]], start_ns[order[1:]] - 1)
    tail = (*_TAIL, *(() if spec.overlap else (_REDUCE,)))
    device_end_ns[waits], end_ns[waits] = _waits(spans, waits, (device_end_ns, end_ns), before_ns, tail)
    source = np.where(is_waited, _WAIT_EVENT, _GPU_EVENT)
    source[np.isin(spans.kind, (*_HOST_WORK, *SENDS))] = 0
    device_start_ns = np.where(is_waited, np.minimum(start_ns, device_end_ns), device_start_ns)
    off_ns = round(float(generator(spec, GPU_CLOCKS, rank).uniform(-1, 1)) * spec.gpu_bound_us * 1e3)
    return dataclasses.replace(
        spans,
        start_ns=start_ns,
        duration_ns=end_ns - start_ns,
        device_start_ns=np.where(source > 0, device_start_ns + off_ns, 0),
        device_duration_ns=np.where(source > 0, device_end_ns - device_start_ns, 0),
        time_source=source,
        flags=np.where(np.isin(spans.kind, SENDS), FLAGS["not_waited"], 0),
    )


def clock_map_packet(spec: JobSpec, gpu_uuid: str, begin_ns: int, end_ns: int) -> bytes:
    """How far the GPU's times may be off its host's."""
    found = trace_pb2.ClockMap(
        gpu_uuid=gpu_uuid,
        window_start_ns=begin_ns,
        window_end_ns=end_ns,
        drift_ratio=1.0,
        bound_ns=round(spec.gpu_bound_us * 1e3) + 1,
        device_clock="event",
    )
    return packet(clock_map=found)


def step_times(spans: SpanTable, step_count: int) -> tuple[Column, Column]:
    """Begin and duration of each step as the host saw it: from its first launch to its last."""
    begins = np.full(step_count, np.iinfo(np.int64).max)
    np.minimum.at(begins, spans.step, spans.start_ns)
    ends = np.zeros(step_count, np.int64)
    np.maximum.at(ends, spans.step, spans.start_ns + spans.duration_ns)
    return begins, ends - begins


def _launches(spans: SpanTable, order: Column, *, is_late: bool) -> Column:
    """When the host launched the ops in `order`, by step and start: each when the GPU begins it, or ahead of all.

    Where it has something else to do first, as far ahead as that lets it be.
    """
    start_ns, step = spans.start_ns[order], spans.step[order]
    in_time_ns = start_ns - _START_NS
    if is_late:
        return np.asarray(in_time_ns)
    firsts = np.flatnonzero(np.diff(step, prepend=-1))
    counts = np.diff(firsts, append=len(step))
    paused = spans.take(np.isin(spans.kind, _HOST_WORK))
    free_ns = np.zeros(int(step.max(initial=0)) + 1, np.int64)
    np.maximum.at(free_ns, paused.step, paused.start_ns + paused.duration_ns)
    begin_ns = np.maximum(start_ns[firsts] - (counts + 1) * _LAUNCH_NS, free_ns[step[firsts]])
    number = np.arange(len(step)) - np.repeat(firsts, counts)
    return np.minimum(np.repeat(begin_ns, counts) + number * _LAUNCH_NS, in_time_ns)


def _waits(
    spans: SpanTable, waits: Column, ends_ns: tuple[Column, Column], before_ns: Column, tail: tuple[int, ...]
) -> tuple[Column, Column]:
    """Ends of communication as the computing stream sees them, and when the host had launched the wait.

    `ends_ns` are those of all ops, on the device and of their launches. The stream waits before what needs it: a
    message's pass, the first one after a gather, for gradients what comes next of the step's `tail`. Until then it runs
    what comes before that, and the host launches the wait last (`before_ns`).
    """
    device_end_ns, end_ns = ends_ns
    found_ns, returned_ns = device_end_ns[waits].copy(), end_ns[waits].copy()
    runs = _by_start(spans, (*_PASSES, *tail))
    consumer = np.full(len(waits), -1)
    is_receive = np.isin(spans.kind[waits], RECVS)
    is_gather = spans.kind[waits] == KIND_NUMBERS["params_all_gather"]
    for chosen, consumers in ((is_gather, runs), (~is_gather & ~is_receive, _by_start(spans, tail))):
        place = np.searchsorted(spans.start_ns[consumers], found_ns, side="left")
        of = np.flatnonzero(chosen & (place < len(consumers)))
        consumer[of] = consumers[place[of]]
    consumer[is_receive] = _passes_of(spans, waits[is_receive])
    of, consumer = np.flatnonzero(consumer >= 0), consumer[consumer >= 0]
    before = np.searchsorted(spans.start_ns[runs], spans.start_ns[consumer], side="left") - 1
    busy_ns = np.where(before >= 0, device_end_ns[runs[np.maximum(before, 0)]], 0)
    found_ns[of] = np.maximum(found_ns[of], np.minimum(busy_ns, spans.start_ns[consumer]))
    returned_ns[of] = np.maximum(returned_ns[of], before_ns[consumer])
    return found_ns, returned_ns


def _passes_of(spans: SpanTable, receives: Column) -> Column:
    """The forward or backward that each receive is for; -1 where it was dropped."""

    def keys(rows: Column) -> list[tuple[int, ...]]:
        is_forward = np.isin(spans.kind[rows], (_PASSES[0], RECVS[0]))
        columns = (spans.step[rows], is_forward, spans.chunk[rows], spans.microbatch[rows])
        return list(zip(*(column.tolist() for column in columns), strict=True))

    passes = np.flatnonzero(np.isin(spans.kind, _PASSES))
    row_of = dict(zip(keys(passes), passes.tolist(), strict=True))
    return np.array([row_of.get(key, -1) for key in keys(receives)], np.int64)


def _by_start(spans: SpanTable, kinds: tuple[int, ...]) -> Column:
    rows = np.flatnonzero(np.isin(spans.kind, kinds))
    return np.asarray(rows[np.argsort(spans.start_ns[rows], kind="stable")])
