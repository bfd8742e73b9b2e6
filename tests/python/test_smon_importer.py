"""Recorded traces become one row an op of a worker, with its partners, on one clock."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smon_rt._proto import trace_pb2
from smon_rt.analysis.importer import Trace
from smon_rt.analysis.smon_importer import read_smon
from smon_rt.errors import TraceError
from smon_rt.kinds import KIND_NAMES
from smon_rt.synth import JobSpec, Plant, make_job
from smon_rt.trace.kinds import FLAGS
from tests.python.clock_jobs import HostClock
from tests.python.recorded_jobs import WAIT_RETURN, RecordedJob
from tests.python.smon_files import TestSpan, packet, span_packet, step_packet, write_rank

SPEC = JobSpec(dp=2, pp=3, microbatches=4, steps=3, noise=0.1, plants=(Plant(1, 1.5),), seed=3)


@st.composite
def specs(draw: st.DrawFn) -> JobSpec:
    pp = draw(st.integers(1, 3))
    vpp = draw(st.integers(1, 2)) if pp > 1 else 1
    dp = draw(st.integers(1, 3))
    return JobSpec(
        dp=dp,
        pp=pp,
        vpp=vpp,
        tp=draw(st.integers(1, 2)),
        microbatches=pp * draw(st.integers(1, 3)),
        steps=draw(st.integers(1, 3)),
        noise=0.2,
        overlap=dp > 1 and draw(st.booleans()),
        seed=draw(st.integers(0, 1000)),
    )


def rows_of(trace: Trace) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = trace.ops.to_pylist()
    return [{**row, "kind": KIND_NAMES[row["kind"]]} for row in rows]


def groups_of(trace: Trace) -> set[frozenset[tuple[int, int, int, str, int]]]:
    """The groups of ops, each op by dp rank, stage, step, kind and number."""
    found: dict[tuple[int, int], set[tuple[int, int, int, str, int]]] = {}
    for row in rows_of(trace):
        if row["group_id"] >= 0:
            op = (row["dp_rank"], row["stage"], row["step"], row["kind"], row["seq_id"])
            found.setdefault((row["step"], row["group_id"]), set()).add(op)
    return {frozenset(ops) for ops in found.values()}


def expected_groups(job: RecordedJob) -> set[frozenset[tuple[int, int, int, str, int]]]:
    found: dict[Any, set[tuple[int, int, int, str, int]]] = {}
    for (rank, step, kind, index), partners in job.groups.items():
        worker = rank // job.spec.tp
        op = (worker % job.spec.dp, worker // job.spec.dp, step, kind, index)
        found.setdefault((step, partners), set()).add(op)
    return {frozenset(ops) for ops in found.values() if len(ops) > 1}


@settings(max_examples=30, deadline=None)
@given(specs(), st.booleans(), st.booleans(), st.integers(0, 100_000))
def test_every_message_finds_its_other_end_and_every_collective_its_members(
    tmp_path_factory: pytest.TempPathFactory, spec: JobSpec, ids: bool, communicators: bool, skew_ns: int
) -> None:
    folder = tmp_path_factory.mktemp("job")
    job = RecordedJob(make_job(spec), ids_on_messages=ids or not communicators, skew_ns=skew_ns)
    job.has_communicators = communicators
    job.write(folder)
    trace = read_smon([folder])
    assert groups_of(trace) == expected_groups(job)
    assert trace.recording is not None
    assert trace.recording.mismatched_message_count == 0
    assert (trace.job.dp_size, trace.job.pp_size, trace.job.tp_size) == (spec.dp, spec.pp, spec.tp)


@pytest.mark.parametrize("spec", [SPEC, dataclasses.replace(SPEC, pp=2, vpp=2), dataclasses.replace(SPEC, dp=1)])
def test_every_op_of_the_job_is_there_with_its_times(tmp_path: Path, spec: JobSpec) -> None:
    job = RecordedJob(make_job(spec))
    job.write(tmp_path)
    trace = read_smon([tmp_path])
    ops = [op for op in job.job.program.ops if not op.is_no_op]
    mine = rows_of(trace)
    assert len(mine) == spec.dp * spec.steps * len(ops)
    starts: dict[Any, float] = {}
    for step in range(spec.steps):
        for op in ops:
            for dp_rank in range(spec.dp):
                if op.kind.endswith("_compute"):
                    key = (dp_rank, op.stage, step, op.kind, op.chunk, op.microbatch)
                    starts[key] = job._begins[step] + job.job.timeline.starts_ns[op.row, step, dp_rank]
    first = min(starts.values())
    origin = min(row["start_ns"] for row in mine if row["kind"] == "forward_compute")
    for row in mine:
        if row["kind"].endswith("_compute"):
            key = (row["dp_rank"], row["stage"], row["step"], row["kind"], row["chunk"], row["microbatch"])
            assert row["start_ns"] - origin == pytest.approx(starts[key] - first, abs=2)
            assert row["global_chunk"] == row["chunk"] * spec.pp + row["stage"]


def test_members_of_a_worker_become_one_op_from_the_last_start_to_the_last_end(tmp_path: Path) -> None:
    for rank, (start_ns, end_ns) in enumerate([(1_000, 2_000), (1_300, 2_500)]):
        spans = [TestSpan(kind="forward_compute", start_ns=start_ns, duration_ns=end_ns - start_ns, microbatch=0)]
        # Work of the host is each rank's own: what touches is one.
        spans += [TestSpan(kind="gc", start_ns=3_000 + 50 * rank, duration_ns=100, op_index=0)]
        spans += [TestSpan(kind="gc", start_ns=5_000, duration_ns=10, op_index=1)] if rank == 0 else []
        write_rank(tmp_path, spans, rank=rank, world_size=2, layout={"tp_size": 2, "tp_rank": rank})
    trace = read_smon([tmp_path])
    times = [(row["kind"], row["start_ns"], row["duration_ns"], row["seq_id"]) for row in rows_of(trace)]
    assert times == [("forward_compute", 300, 1_200, 0), ("gc", 2_000, 150, 0), ("gc", 4_000, 10, 1)]
    assert {row["rank"] for row in rows_of(trace)} == {0}


def test_numbers_that_contradict_the_ids_are_counted(tmp_path: Path) -> None:
    def change(rank: int, spans: list[TestSpan]) -> list[TestSpan]:
        return [
            dataclasses.replace(span, comm_seq=span.comm_seq + 1) if span.kind == "forward_recv" and rank == 2 else span
            for span in spans
        ]

    job = RecordedJob(make_job(SPEC), change=change)
    job.write(tmp_path)
    trace = read_smon([tmp_path])
    assert groups_of(trace) == expected_groups(job)
    assert trace.recording is not None
    assert trace.recording.mismatched_message_count == SPEC.microbatches * SPEC.steps


def test_what_is_no_training_is_left_out_and_said(tmp_path: Path) -> None:
    def change(_rank: int, spans: list[TestSpan]) -> list[TestSpan]:
        extra = [
            dataclasses.replace(spans[0], flags=FLAGS[name], op_index=90 + index, microbatch=90 + index)
            for index, name in enumerate(("forward_only", "recomputed", "aborted"))
        ]
        return [*spans, *extra, TestSpan(kind="eval", step=1, start_ns=spans[-1].start_ns, duration_ns=5)]

    job = RecordedJob(make_job(SPEC), change=change, warmup_steps=1)
    job.write(tmp_path)
    trace = read_smon([tmp_path])
    assert {row["step"] for row in rows_of(trace)} == {1, 2}
    assert max(row["microbatch"] for row in rows_of(trace)) < 90
    assert trace.recording is not None
    said = "; ".join(trace.recording.left_out)
    for words in ("1 warm-up step", "12 spans of evaluation", "6 spans recomputed in a backward", "6 spans aborted"):
        assert words in said
    assert (trace.recording.step_count, trace.recording.recorded_step_count) == (2, 2)


def test_only_steps_that_all_ranks_recorded_count(tmp_path: Path) -> None:
    job = RecordedJob(make_job(dataclasses.replace(SPEC, steps=6)))
    job.write(tmp_path)
    cut = next(tmp_path.glob("rank-00003*"))
    cut.unlink()
    RecordedJob(make_job(dataclasses.replace(SPEC, steps=4)), skip_ranks=(0, 1, 2, 4, 5)).write(tmp_path)
    trace = read_smon([tmp_path])
    assert {row["step"] for row in rows_of(trace)} == {0, 1, 2, 3}
    assert trace.recording is not None
    assert "2 steps that not all ranks sampled and finished" in trace.recording.left_out
    assert (trace.recording.step_count, trace.recording.recorded_step_count) == (4, 6)


def test_a_rank_that_was_cut_short_does_not_cost_the_others_their_steps(tmp_path: Path) -> None:
    job = RecordedJob(make_job(dataclasses.replace(SPEC, steps=6)))
    job.write(tmp_path)
    next(tmp_path.glob("rank-00003*")).unlink()
    RecordedJob(make_job(dataclasses.replace(SPEC, steps=2)), skip_ranks=(0, 1, 2, 4, 5)).write(tmp_path)
    trace = read_smon([tmp_path])
    assert {row["step"] for row in rows_of(trace)} == set(range(6))
    assert {row["rank"] for row in rows_of(trace)} == {0, 1, 2, 4, 5}
    assert trace.recording is not None
    assert "rank 3, which was cut short (2 steps)" in trace.recording.left_out
    assert (1, 1) not in trace.recording.members


def test_steps_asked_for_are_the_ones_there(tmp_path: Path) -> None:
    RecordedJob(make_job(SPEC)).write(tmp_path)
    for steps in (range(1, 2), {1}):
        trace = read_smon([tmp_path], steps)
        assert {row["step"] for row in rows_of(trace)} == {1}
        assert trace.recording is not None
        assert trace.recording.recorded_step_count == 1


def test_missing_ranks_are_named_and_the_others_stay(tmp_path: Path) -> None:
    job = RecordedJob(make_job(SPEC), skip_ranks=(4,))
    job.write(tmp_path)
    trace = read_smon([tmp_path])
    assert trace.recording is not None
    assert trace.recording.missing_ranks == (4,)
    assert {row["rank"] for row in rows_of(trace)} == {0, 1, 2, 3, 5}
    assert (trace.job.dp_size, trace.job.pp_size) == (2, 3)


def test_hosts_whose_clocks_differ_give_the_same_ops_within_the_bound(tmp_path: Path) -> None:
    job = RecordedJob(make_job(SPEC))
    job.write(tmp_path / "one")
    job.clocks = [HostClock(), HostClock(77_000_000_000, 2e-5), HostClock(-4_000_000_000_000)]
    job.write(tmp_path / "three")
    one, three = (rows_of(read_smon([tmp_path / name])) for name in ("one", "three"))
    recording = read_smon([tmp_path / "three"]).recording
    assert recording is not None
    assert recording.clock_bound_s is not None
    assert 0 < recording.clock_bound_s < 5e-3
    assert recording.clock_words == "clocks of 3 hosts put together by their messages"

    def key(row: dict[str, Any]) -> Any:
        return row["step"], row["dp_rank"], row["stage"], row["kind"], row["seq_id"]

    for mine, theirs in zip(sorted(one, key=key), sorted(three, key=key), strict=True):
        assert key(mine) == key(theirs)
        assert mine["start_ns"] / 1e9 == pytest.approx(theirs["start_ns"] / 1e9, abs=2 * recording.clock_bound_s)


def test_times_of_the_device_come_before_those_of_the_host(tmp_path: Path) -> None:
    spans = [
        TestSpan(
            kind="forward_compute",
            start_ns=1_000 * index,
            duration_ns=10,
            microbatch=index,
            time_source=1,
            device_start_ns=50_000 + 2_000 * index,
            device_duration_ns=1_500,
        )
        for index in range(2)
    ]
    # The device computes through most of this collection.
    spans.append(TestSpan(kind="gc", start_ns=50_500, duration_ns=1_200))
    write_rank(tmp_path, spans)
    trace = read_smon([tmp_path])
    times = [(row["kind"], row["start_ns"], row["duration_ns"]) for row in rows_of(trace)]
    assert times == [("forward_compute", 0, 1_500), ("gc", 1_500, 200), ("forward_compute", 2_000, 1_500)]
    assert trace.recording is not None
    assert trace.recording.time_sources == {"gpu_event": 2, "host": 1}


def test_spans_of_no_step_say_what_is_missing(tmp_path: Path) -> None:
    """As of a loop that nothing closes the steps of: all is the first step, which is warm-up, and never ends."""
    train = [
        TestSpan("forward_compute", start_ns=1000 * n, duration_ns=500, microbatch=n, op_index=n, flags=FLAGS["warmup"])
        for n in range(20)
    ]
    write_rank(tmp_path, [TestSpan("gc", duration_ns=9), *train])
    with pytest.raises(TraceError, match=r"recorded 20 computes but no step: put each .* into `with smon_rt\.step"):
        read_smon([tmp_path])


def test_one_step_of_one_rank_is_read(tmp_path: Path) -> None:
    write_rank(tmp_path, [TestSpan(kind="forward_compute", start_ns=10, duration_ns=5, microbatch=0)])
    trace = read_smon([tmp_path])
    assert rows_of(trace)[0]["chunk"] == 0
    assert trace.job.world_size == 1


def test_what_a_loop_does_between_two_steps_belongs_to_the_one_that_comes(tmp_path: Path) -> None:
    spans = []
    for step in range(3):
        # Recorded with the step that began last.
        load = {"step": max(step - 1, 0), "start_ns": 1_000 * step - 100, "duration_ns": 50, "op_index": step}
        compute = {"step": step, "start_ns": 1_000 * step, "duration_ns": 500, "microbatch": 0}
        spans += [TestSpan(kind="data_loading", **load), TestSpan(kind="forward_compute", **compute)]
    steps = [(step, 1_000 * step, 600, True, False) for step in range(3)]
    write_rank(tmp_path, spans, packets=[step_packet(steps)])
    rows = rows_of(read_smon([tmp_path]))
    assert [row["step_start_ns"] for row in rows] == [0, 0, 1_000, 1_000, 2_000, 2_000]
    assert [row["kind"] for row in rows_of(read_smon([tmp_path], range(2, 3)))] == ["data_loading", "forward_compute"]
    assert [(row["kind"], row["step"], row["seq_id"]) for row in rows] == [
        *(("data_loading", 0, 0), ("forward_compute", 0, 0)),
        *(("data_loading", 1, 0), ("forward_compute", 1, 0)),
        *(("data_loading", 2, 0), ("forward_compute", 2, 0)),
    ]


def test_a_send_that_was_looked_after_late_ends_when_its_message_was_received(tmp_path: Path) -> None:
    names = trace_pb2.Names(communicator=[trace_pb2.Communicator(id=1, name="pp", member_ranks=[0, 1])])
    compute = TestSpan(kind="forward_compute", start_ns=0, duration_ns=100, microbatch=0)
    ids: dict[str, int] = {"microbatch": 0, "comm_id": 1, "comm_seq": 1}
    for flags, time_source in ((0, WAIT_RETURN), (FLAGS["not_waited"], 0)):
        send = TestSpan(kind="forward_send", start_ns=110, duration_ns=900, time_source=time_source, flags=flags, **ids)
        received = TestSpan(kind="forward_recv", start_ns=50, duration_ns=80, time_source=WAIT_RETURN, **ids)
        for rank, span in enumerate((dataclasses.replace(send, peer=1), dataclasses.replace(received, peer=0))):
            layout = {"pp_size": 2, "stage": rank}
            packets = [packet(names=names)]
            write_rank(tmp_path, [compute, span], rank=rank, world_size=2, layout=layout, packets=packets)
        rows = {row["kind"]: row for row in rows_of(read_smon([tmp_path]))}
        assert (rows["forward_send"]["start_ns"], rows["forward_send"]["duration_ns"]) == (110, 20)
        assert rows["forward_send"]["is_waited"] == (0 if flags else 1)
        assert rows["forward_send"]["group_id"] == rows["forward_recv"]["group_id"] >= 0


def test_who_saw_the_end_of_a_communication_is_told_apart(tmp_path: Path) -> None:
    ends = {
        "waited": TestSpan(kind="grads_all_reduce", time_source=WAIT_RETURN, duration_ns=5),
        "by hand": TestSpan(kind="grads_all_reduce", duration_ns=5, op_index=1),
        "another thread": TestSpan(
            kind="grads_all_reduce", time_source=WAIT_RETURN, duration_ns=5, flags=FLAGS["other_thread"], op_index=2
        ),
        "the device": TestSpan(
            kind="grads_all_reduce", time_source=3, duration_ns=5, device_start_ns=3, device_duration_ns=5, op_index=3
        ),
        "nobody": TestSpan(kind="grads_all_reduce", duration_ns=5, flags=FLAGS["not_waited"], op_index=4),
        "the stream that computes": TestSpan(
            kind="grads_all_reduce", time_source=2, duration_ns=5, device_start_ns=3, device_duration_ns=5, op_index=5
        ),
    }
    write_rank(tmp_path, list(ends.values()))
    found = {row["seq_id"]: row["is_waited"] for row in rows_of(read_smon([tmp_path]))}
    assert found == dict(enumerate([1, 1, 2, 2, 0, 1]))


def test_data_that_another_thread_loads_holds_nobody_up(tmp_path: Path) -> None:
    train = [
        TestSpan(kind="forward_compute", start_ns=100, duration_ns=50, microbatch=0),
        TestSpan(kind="data_loading"),
    ]
    # A backward may end on another thread, and more of them than forwards.
    other = [TestSpan(kind="backward_compute", start_ns=200 + n, microbatch=n, op_index=n) for n in range(3)]
    other.append(TestSpan(kind="data_loading", start_ns=300, duration_ns=900, op_index=1))
    write_rank(tmp_path, packets=[span_packet(train, ring_id=1), span_packet(other, ring_id=2)])
    trace = read_smon([tmp_path])
    assert [row["kind"] for row in rows_of(trace)].count("data_loading") == 1
    assert trace.recording is not None
    assert "1 span of data loading in other threads" in trace.recording.left_out


def test_collectives_of_other_threads_are_left_out_but_for_the_backwards_own(tmp_path: Path) -> None:
    train, background, engine = [], [], []
    for step in range(4):
        at_ns = step * 1000
        train.append(TestSpan("forward_compute", step=step, start_ns=at_ns, duration_ns=300, microbatch=0))
        train.append(TestSpan("backward_compute", step=step, start_ns=at_ns + 300, duration_ns=600, microbatch=0))
        engine.append(TestSpan("collective", step=step, start_ns=at_ns + 350, duration_ns=20, op_index=0))
        background += [
            TestSpan("collective", step=step, start_ns=at_ns + 100 + 400 * n, duration_ns=30, op_index=n + 1)
            for n in range(2)
        ]
    # The training thread's own, whose end another thread has seen.
    seen = [TestSpan("collective", step=0, start_ns=950, duration_ns=10, op_index=9, flags=FLAGS["other_thread"])]
    threads = [span_packet(spans, ring_id=ring + 1) for ring, spans in enumerate((train, engine, background, seen))]
    write_rank(tmp_path, packets=threads)
    trace = read_smon([tmp_path])
    found = sorted(row["duration_ns"] for row in rows_of(trace) if row["kind"] == "collective")
    assert found == [10, 20, 20, 20, 20]
    assert trace.recording is not None
    assert "8 spans of collectives in other threads" in trace.recording.left_out


def test_numbers_that_make_no_sense_are_no_numbers(tmp_path: Path) -> None:
    largest = 2**31 - 1
    compute = TestSpan(kind="forward_compute", duration_ns=5, microbatch=largest, chunk=largest)
    collective = TestSpan(kind="grads_all_reduce", start_ns=9, duration_ns=5, comm_id=largest, comm_seq=1)
    write_rank(tmp_path, [compute, collective])
    trace = read_smon([tmp_path])
    assert [(row["microbatch"], row["chunk"], row["group_id"]) for row in rows_of(trace)] == [(-1, 0, -1), (-1, -1, -1)]
    assert trace.job.vpp_size == 1


def test_a_receive_begins_when_its_wait_did(tmp_path: Path) -> None:
    def receive(start_ns: int, end_ns: int, microbatch: int, flags: int = 0) -> TestSpan:
        ids = {"microbatch": microbatch, "op_index": microbatch, "flags": flags, "time_source": WAIT_RETURN}
        return TestSpan(kind="forward_recv", start_ns=start_ns, duration_ns=end_ns - start_ns, **ids)

    spans = [
        TestSpan(kind="forward_compute", start_ns=100, duration_ns=300, microbatch=0),
        receive(50, 410, 1),  # asked for before the compute, waited for behind it
        TestSpan(kind="forward_compute", start_ns=500, duration_ns=300, microbatch=1, op_index=1),
        receive(420, 900, 2),  # another message is issued between the compute and the wait
        TestSpan(kind="forward_send", start_ns=820, duration_ns=500, microbatch=1),
        TestSpan(kind="forward_compute", start_ns=1_000, duration_ns=300, microbatch=2, op_index=2),
        receive(480, 1_200, 3),  # seen within a compute: no wait
        receive(490, 1_400, 4, FLAGS["other_thread"]),
        receive(1_310, 1_500, 5),
    ]
    write_rank(tmp_path, spans)
    rows = [row for row in rows_of(read_smon([tmp_path])) if row["kind"] == "forward_recv"]
    times = {row["microbatch"]: (row["start_ns"] + 50, row["start_ns"] + 50 + row["duration_ns"]) for row in rows}
    assert times == {1: (400, 410), 2: (820, 900), 3: (480, 1_200), 4: (490, 1_400), 5: (1_310, 1_500)}


def test_a_span_with_impossible_times_costs_only_itself(tmp_path: Path) -> None:
    spans = [TestSpan(kind="forward_compute", start_ns=100, duration_ns=300, microbatch=0)]
    spans += [TestSpan(kind="gc", start_ns=500, duration_ns=2**61), TestSpan(kind="gc", start_ns=2**61, op_index=1)]
    write_rank(tmp_path, spans)
    trace = read_smon([tmp_path])
    assert [row["kind"] for row in rows_of(trace)] == ["forward_compute"]
    assert trace.recording is not None
    assert "2 spans with impossible times" in trace.recording.left_out
