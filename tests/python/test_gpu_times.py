"""Times of GPUs in recorded traces: durations are the device's, and what the host launched begins when it got there."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smon_rt._proto import trace_pb2
from smon_rt.analysis import analyze
from smon_rt.analysis.smon_importer import read_smon
from smon_rt.analysis.units import counted
from smon_rt.synth import JobSpec, Pauses, SynthError, make_job
from smon_rt.trace import read_file
from smon_rt.trace.clocks import align_traces
from smon_rt.trace.device_bounds import bounds_at, bounds_of
from smon_rt.trace.job_trace import JobReader
from smon_rt.trace.kinds import FLAGS, KIND_NAMES, TIME_SOURCE_NAMES
from smon_rt.trace.partners import COMMUNICATION
from smon_rt.trace.summary import summarize
from tests.python.smon_files import TestSpan, packet, step_packet, write_rank

MS = 1_000_000
GPU_EVENT, WAIT_EVENT, WAIT_RETURN = (TIME_SOURCE_NAMES.index(n) for n in ("gpu_event", "wait_event", "wait_return"))


def compute(launched_ms: float, began_ms: float, took_ms: float, kind: str = "forward_compute", **ids: int) -> TestSpan:
    """What the host launched then, in 10 µs, and the GPU did later."""
    times = {"start_ns": round(launched_ms * MS), "duration_ns": 10_000}
    device = {"device_start_ns": round(began_ms * MS), "device_duration_ns": round(took_ms * MS)}
    return TestSpan(kind, time_source=GPU_EVENT, **times, **device, **ids)


def clock_map(bound_ns: int) -> bytes:
    return packet(clock_map=trace_pb2.ClockMap(drift_ratio=1.0, bound_ns=bound_ns, device_clock="event"))


def names(*ranks: int) -> bytes:
    both = [trace_pb2.Communicator(id=n, name=f"group {n}", dimension="dp", member_ranks=ranks) for n in (1, 2)]
    return packet(names=trace_pb2.Names(communicator=both))


def ops(folder: Path) -> list[dict[str, Any]]:
    """The importer's rows, kinds by name, ends besides, times in ms from the start of the trace's axis."""
    trace = read_smon([folder])
    assert trace.recording is not None
    origin = trace.recording.origin_ns
    return [
        {
            **row,
            "kind": KIND_NAMES[row["kind"]],
            "start": (row["start_ns"] + origin) / MS,
            "end": (row["start_ns"] + origin + row["duration_ns"]) / MS,
            "step_start": (row["step_start_ns"] + origin) / MS,
        }
        for row in trace.ops.to_pylist()
    ]


def test_a_step_begins_when_the_gpu_is_done_with_the_one_before(tmp_path: Path) -> None:
    """The host is ahead: its own time of a step's begin would make a late launch of what the GPU still had to do."""
    spans = []
    for step, launched_ms, began_ms in ((3, 0, 100), (4, 20, 180), (5, 40, 290), (8, 500, 700), (12, 900, 900.02)):
        spans += [compute(launched_ms, began_ms, 50, step=step, microbatch=0)]
        spans += [compute(launched_ms + 1, began_ms + 60, 20, "optimizer", step=step)]
    steps = [(3, -5, 9), (4, 19, 9), (5, 39, 9), (8, 499, 9), (12, 899, 9)]
    rows = [(step, round(start * MS), length * MS, True, False) for step, start, length in steps]
    write_rank(tmp_path, spans, packets=[step_packet(rows), clock_map(1000)])
    found = {row["step"]: row["step_start"] for row in ops(tmp_path)}
    # 3 and 8: the GPU was busy with what was not recorded until it got to them; 4: at once; 5: 10 ms of nothing before
    # it; 12: it had waited for the host.
    assert found == pytest.approx({3: 100, 4: 180, 5: 260, 8: 700, 12: 899})


def test_a_stall_of_the_host_between_two_gpu_spans_is_a_late_launch_and_no_compute(tmp_path: Path) -> None:
    spans, steps = [], []
    for step in range(8):
        at = step * 100
        spans.append(compute(at, at, 10, step=step, microbatch=0))
        spans.append(compute(at + 60, at + 60, 20, "backward_compute", step=step, microbatch=0))
        steps.append((step, at * MS, 70 * MS, True, False))
    write_rank(tmp_path, spans, packets=[step_packet(steps), clock_map(1000)])
    report = analyze(tmp_path)
    assert report.verdict.cause == "host_launch_delay"
    assert report.verdict.gain_s_per_step == pytest.approx(0.050)
    assert report.mean_step_time_s.nodelay == pytest.approx(0.030)


def test_communication_begins_when_the_stream_gets_to_it(tmp_path: Path) -> None:
    message: dict[str, Any] = {"microbatch": 0, "comm_id": 1, "comm_seq": 1}
    first = [
        compute(0, 0, 30, microbatch=0),
        TestSpan("forward_send", start_ns=1 * MS, duration_ns=1000, peer=1, flags=FLAGS["not_waited"], **message),
        # That some communication has times of the device says who carries the messages.
        TestSpan(
            "backward_recv",
            start_ns=2 * MS,
            duration_ns=MS,
            time_source=WAIT_EVENT,
            device_start_ns=2 * MS,
            device_duration_ns=58 * MS,
            **(message | {"peer": 1}),
        ),
    ]
    second = [
        compute(0, 0, 20, microbatch=7),
        # Asked for at 0.5, waited for when the stream was done with the compute, arrived at 33.
        TestSpan(
            "forward_recv",
            start_ns=MS // 2,
            duration_ns=MS,
            time_source=WAIT_EVENT,
            peer=0,
            device_start_ns=MS // 2,
            device_duration_ns=33 * MS - MS // 2,
            **message,
        ),
        compute(4, 33, 20, microbatch=0),
        TestSpan("backward_send", start_ns=6 * MS, duration_ns=1000, peer=0, flags=FLAGS["not_waited"], **message),
    ]
    for rank, spans in enumerate((first, second)):
        layout = {"pp_size": 2, "stage": rank}
        packets = [names(0, 1), clock_map(1000)]
        write_rank(tmp_path, spans, rank=rank, world_size=2, layout=layout, packets=packets)
    found = {(row["kind"], row["microbatch"]): row for row in ops(tmp_path)}
    send, received = found["forward_send", 0], found["forward_recv", 0]
    assert (send["start"], send["end"], send["is_waited"]) == (30, 33, 0)
    assert (received["start"], received["end"], received["is_waited"]) == (20, 33, 1)
    assert (found["backward_send", 0]["start"], found["backward_recv", 0]["end"]) == (53, 60)


def test_communication_on_the_host_beside_a_gpu_keeps_its_times_where_it_holds_that_up(tmp_path: Path) -> None:
    waited = {"time_source": WAIT_RETURN, "start_ns": 1 * MS, "duration_ns": 2 * MS}
    spans = [
        compute(0, 0, 30, microbatch=0),
        # Over before the GPU had run dry, and after.
        TestSpan("grads_all_reduce", comm_id=1, comm_seq=1, **waited),
        TestSpan("grads_all_reduce", comm_id=1, comm_seq=2, **(waited | {"start_ns": 50 * MS})),
        # The same call, of a communicator of which the GPU's times are known: it returned, and waited for nothing.
        TestSpan("grads_all_reduce", comm_id=2, comm_seq=1, **waited),
        TestSpan(
            "grads_all_reduce",
            time_source=WAIT_EVENT,
            comm_id=2,
            comm_seq=2,
            start_ns=4 * MS,
            duration_ns=MS,
            device_start_ns=4 * MS,
            device_duration_ns=41 * MS,
        ),
    ]
    write_rank(tmp_path, spans, packets=[names(0), clock_map(1000)])
    found = {(row["communicator"], row["start"], row["end"], row["is_waited"]) for row in ops(tmp_path)}
    assert found == {(-1, 0, 30, 2), (1, 30, 30, 0), (1, 50, 52, 1), (2, 30, 30, 0), (2, 30, 45, 1)}
    assert analyze(tmp_path).communication is None  # a group of one


def test_a_launch_of_a_gpus_collective_is_no_transfer(tmp_path: Path) -> None:
    """Around collectives of tensor parallelism no events are recorded."""
    for rank in range(2):
        spans = []
        for n in range(4):
            spans.append(compute(n, 20 * n, 20, microbatch=n))
            launch = {"start_ns": n * MS + 2_000, "duration_ns": 4_000, "time_source": WAIT_RETURN}
            spans.append(TestSpan("collective", comm_id=1, comm_seq=n + 1, payload_bytes=8, **launch))
        layout = {"tp_size": 2, "tp_rank": rank}
        write_rank(tmp_path, spans, rank=rank, world_size=2, layout=layout, packets=[names(0, 1), clock_map(1000)])
    report = analyze(tmp_path)
    assert report.communication is not None
    (group,) = report.communication.groups
    assert (group.op_count, group.timed_op_count, group.transfer_s) == (4, 0, None)
    assert (report.fidelity.early_starts.count, report.launch_slowdown) == (0, 1.0)


@pytest.mark.parametrize("lost_count", [1, 7])
def test_computes_whose_times_of_the_gpu_were_lost_are_left_out_and_said(tmp_path: Path, lost_count: int) -> None:
    """Of a job that was killed early most are lost: what is in memory has the times of launches."""
    spans = [compute(n, 10 * n, 10, microbatch=n) for n in range(10)]
    for n in range(10 - lost_count, 10):
        spans[n] = dataclasses.replace(spans[n], time_source=0)
    losses = packet(losses=trace_pb2.Losses(host_only_spans=3))
    write_rank(tmp_path, spans, packets=[clock_map(30_000), losses])
    report = analyze(tmp_path)
    assert report.fidelity.coverage.device_times == pytest.approx(1 - lost_count / 10)
    words = (f"{counted(lost_count, 'span')} of GPU computes without the GPU's times", "the GPU's times of 3 spans")
    assert report.fidelity.left_out == words
    assert report.verdict.text.endswith(f"GPU times of {100 - 10 * lost_count} % of the computes within 30.0 µs")
    assert report.worker_median_s["forward_compute"]["0,0"] == pytest.approx(0.010)


def test_a_rank_without_any_times_of_a_gpu_beside_ranks_with_them_measures_nothing(tmp_path: Path) -> None:
    """Its computes are launches: by them each GPU is a thousand times slower than it. One driver is too old, say."""
    spans = [compute(10 * n, 10 * n, 10, microbatch=n) for n in range(10)]
    launches = [compute(10 * n, 10 * n, 0.01, microbatch=n) for n in range(10)]
    for rank in range(4):
        on_gpu = rank != 2
        own = spans if on_gpu else [dataclasses.replace(span, time_source=0) for span in launches]
        layout = {"dp_size": 4, "dp_rank": rank}
        write_rank(tmp_path, own, rank=rank, world_size=4, layout=layout, packets=[clock_map(30_000)] if on_gpu else [])
    report = analyze(tmp_path)
    assert report.fidelity.left_out[:2] == (
        "10 spans of GPU computes without the GPU's times",
        "rank 2, without any times of a GPU",
    )
    assert report.fidelity.coverage.device_times == 0.75
    assert report.verdict.cause == "none"
    assert report.slowdown.value == 1.0
    assert report.worker_median_s["forward_compute"]["0,0"] == pytest.approx(0.010)


def test_what_the_host_does_while_the_gpu_works_costs_nothing(tmp_path: Path) -> None:
    spans = [
        compute(0, 0, 40, microbatch=0),
        TestSpan("gc", start_ns=10 * MS, duration_ns=20 * MS),
        TestSpan("checkpoint_wait", start_ns=35 * MS, duration_ns=15 * MS),
        compute(51, 51, 9, "eval", flags=FLAGS["forward_only"]),
        compute(52, 60, 10, "optimizer"),
        TestSpan("data_loading", start_ns=62 * MS, duration_ns=5 * MS),
    ]
    write_rank(tmp_path, spans, packets=[clock_map(1000)])
    found = [(row["kind"], row["start"], row["end"]) for row in ops(tmp_path)]
    # Of the wait for a checkpoint what the GPU idles through; its own evaluation whole.
    own = [("forward_compute", 0, 40), ("checkpoint_wait", 40, 50), ("eval", 51, 60), ("optimizer", 60, 70)]
    assert found == own


@pytest.mark.parametrize(
    ("bounds_ns", "of_one_s", "of_two_s"), [((20, 50, 30), 50e-9, 80e-9), ((20, None, 30), None, None)]
)
def test_the_bound_of_two_ranks_is_that_of_both_their_gpus(
    tmp_path: Path, bounds_ns: tuple[int | None, ...], of_one_s: float | None, of_two_s: float | None
) -> None:
    for rank, bound_ns in enumerate(bounds_ns):
        packets = [] if bound_ns is None else [clock_map(bound_ns), clock_map(7)]
        layout = {"dp_size": 3, "dp_rank": rank}
        write_rank(tmp_path, [compute(0, 0, 9, microbatch=0)], rank=rank, world_size=3, layout=layout, packets=packets)
    recording = read_smon([tmp_path]).recording
    assert recording is not None
    assert (recording.device_bound_s, recording.clock_bound_s) == (of_one_s, of_two_s)
    assert ("GPU times (no bound)" in analyze(tmp_path).verdict.text) == (of_two_s is None)


def test_the_bound_of_a_time_is_that_of_the_map_it_was_made_with() -> None:
    windows = ((100, 200, 300), (200, 300, 50), (150, 420, 90))
    maps = [trace_pb2.ClockMap(window_start_ns=a, window_end_ns=b, bound_ns=bound) for a, b, bound in windows]
    found = bounds_at(maps, np.array([90, 100, 160, 250, 310, 420, 421]))
    assert found is not None
    # Outside of all windows nobody knows: as the worst.
    assert found.tolist() == [300, 300, 300, 90, 90, 90, 300]
    assert bounds_at([], np.array([1])) is None


SPEC = JobSpec(dp=2, pp=2, microbatches=4, steps=3, noise=0.05, gpu_times=True, gpu_bound_us=40, hosts=2, seed=2)


def test_a_synthetic_job_has_launches_ahead_of_what_its_gpus_did(tmp_path: Path) -> None:
    bound_ns = 40_001
    gpu = [read_file(path) for path in make_job(SPEC).write(tmp_path / "gpu")[:-1]]
    host = [
        read_file(path) for path in make_job(dataclasses.replace(SPEC, gpu_times=False)).write(tmp_path / "host")[:-1]
    ]
    offsets = set()
    for trace, other in zip(gpu, host, strict=True):
        spans = trace.spans
        assert [found.bound_ns for found in trace.clock_maps] == [bound_ns]
        assert trace.identity.gpu_uuid
        work = spans.take(spans.time_source == GPU_EVENT)
        true = other.spans.take(
            ~np.isin(other.spans.kind, COMMUNICATION) & (other.spans.kind != KIND_NAMES.index("gc"))
        )
        work, true = (each.take(np.lexsort((each.kind, each.microbatch, each.step))) for each in (work, true))
        np.testing.assert_array_equal(work.kind, true.kind)
        np.testing.assert_array_equal(work.device_duration_ns, true.duration_ns)
        # Steps of a GPU have no gap between them.
        off = work.device_start_ns - (true.start_ns - 1_000_000 * true.step)
        assert np.ptp(off) == 0
        offsets.add(int(off[0]))
        assert (
            spans.start_ns[spans.has_device_times] - bound_ns <= spans.device_start_ns[spans.has_device_times]
        ).all()
        ends = trace.steps.start_ns + trace.steps.duration_ns
        assert (trace.steps.start_ns[1:] >= ends[:-1]).all()
    assert max(map(abs, offsets)) < bound_ns
    assert len(offsets) == 4
    (forwards,) = (each for each in summarize(JobReader([tmp_path / "gpu"])).kinds if each.kind == "forward_compute")
    assert forwards.total_s / forwards.span_count == pytest.approx(0.010, rel=0.05)
    alignment = align_traces(gpu)
    assert alignment.bound_ns is not None
    # Messages are held against when they were sent, not launched.
    assert alignment.bound_ns < 1_500_000
    assert not alignment.is_contradicted


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"tp": 2, "tp_collectives": 2}, "tp_collectives with gpu_times"),
        ({"plants": (Pauses("gc", 30, 0.4),)}, "a GPU computes on while its host collects"),
        ({"gpu_bound_us": -1.0}, "gpu_bound_us is -1.0: give a number from 0"),
    ],
)
def test_what_gpus_do_not_show_is_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(SynthError, match=words):
        dataclasses.replace(SPEC, **changed)


def test_data_that_the_gpu_waits_for_is_a_cause_with_gpu_times_too(tmp_path: Path) -> None:
    spec = dataclasses.replace(SPEC, steps=8, plants=(Pauses("data_loading", 60, 1.0, dp_rank=1, stage=0),))
    job = make_job(spec)
    job.write(tmp_path / "job")
    report = analyze(tmp_path / "job")
    assert (report.verdict.cause, report.verdict.where.rank) == ("data_loading", 1)
    assert report.verdict.gain_s_per_step == pytest.approx(job.truth["plants"][0]["gain_s_per_step"], rel=0.05)


def test_a_span_is_as_exact_as_the_map_of_its_own_clock_and_device(tmp_path: Path) -> None:
    maps = [
        trace_pb2.ClockMap(window_end_ns=10**9, bound_ns=bound_ns, device_clock=clock, device=device, drift_ratio=1.0)
        for bound_ns, clock, device in ((20, "event", 0), (70, "event", 1), (900, "globaltimer", 0))
    ]
    tracks = [trace_pb2.Track(id=2 + device, device=device) for device in (0, 1)]
    tracks.append(trace_pb2.Track(id=2**32 - 1, device=7))  # any number is a track's
    timer = TIME_SOURCE_NAMES.index("nccl_globaltimer")
    spans = [
        compute(0, 1, 5, track_id=2),
        compute(10, 11, 5, track_id=3),
        dataclasses.replace(compute(20, 21, 5, "collective", track_id=2), time_source=timer),
    ]
    names = packet(names=trace_pb2.Names(track=tracks))
    path = write_rank(tmp_path, spans, packets=[names, *(packet(clock_map=each) for each in maps)])
    trace = read_file(path)
    found = bounds_of(trace, trace.spans, trace.spans.device_start_ns)
    assert found is not None
    assert found.tolist() == [20, 70, 900]
    trace.clock_maps.pop()
    found = bounds_of(trace, trace.spans, trace.spans.device_start_ns)
    assert found is not None
    assert found.tolist() == [20, 70, -1], "times of the timer are none of events"
