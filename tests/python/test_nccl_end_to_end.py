"""What NCCL's plug-in is told in two real processes is in the trace, `smon info` and the report. NCCL is not here."""

from __future__ import annotations

import json
import os
import signal

import jsonschema
import numpy as np
import pytest

from smon_rt import cli
from smon_rt.analysis import analyze
from smon_rt.analysis.units import data_size
from smon_rt.report.json_output import json_schema
from smon_rt.trace import read_directory, read_file
from smon_rt.trace.comm_words import ALGORITHM_NAMES, CHANNEL_STATE_NAMES, FUNCTION_NAMES
from smon_rt.trace.kinds import KIND_NUMBERS
from smon_rt.trace.rank_trace import RankTrace
from tests.python.recording_process import START, RecordedJob, finish, job, wait_for_line

__all__ = ["job"]

STEPS, REDUCTIONS = 6, 3
CHANNELS, PROXY_STEPS = 2, 4
CHUNK = 1 << 16

# A rank of a data-parallel pair: its hooks' spans, and inside them what NCCL does to its plug-in.
RANK = (
    START
    + """
from ctypes import byref, c_size_t
from smon_rt import _runtime
from smon_rt.check_gpu import plugin

rank = int(os.environ["RANK"])
smon_rt.set_layout(smon_rt.Layout(dp_rank=rank, dp_size=2))
comm_id = _runtime.register_communicator("dp", "dp", [0, 1])
version = {version}
table = (plugin._Table4 if version == 4 else plugin._Table5).in_dll(
    plugin.ctypes.CDLL(str(plugin.LIBRARY)), f"ncclProfiler_v{{version}}")
nccl = plugin._Driver(table, plugin.Driven(version))
nccl.init()

def state(handle, number, sent=0):
    nccl.call("state", handle, number, byref(c_size_t(sent)))

def transfer(operation, channel, is_send):
    event = plugin._proxy_op()
    event.part.proxy_op.channel, event.part.proxy_op.is_send, event.part.proxy_op.peer = channel, is_send, 1 - rank
    proxy = nccl.start(plugin._PROXY_OP, operation, event)
    for number in range({proxy_steps}):
        event = plugin._Event(rank=rank)
        event.part.step = number
        step = nccl.start(plugin._PROXY_STEP, proxy, event)
        for each, sent in ((8, 0), (20, 0), (9, {chunk})) if is_send else ((10, 0), (21, {chunk}), (11, {chunk})):
            state(step, each, sent)
        nccl.call("stop", step)
    return proxy

def all_reduce(sequence):
    call = nccl.start(plugin._COLL_API, None, plugin._coll_api())
    operation = nccl.start(plugin._COLL, call, plugin._coll(sequence))
    nccl.call("stop", operation)
    nccl.call("stop", call)
    proxies = [transfer(operation, channel, is_send) for channel in range({channels}) for is_send in (0, 1)]
    time.sleep(0.002)
    for proxy in proxies:
        nccl.call("stop", proxy)

def train(steps):
    for step in steps:
        with smon_rt.step(step):
            with smon_rt.span("forward_compute", microbatch=0):
                time.sleep(0.001)
            with smon_rt.span("backward_compute", microbatch=0):
                time.sleep(0.001)
            for reduction in range({reductions}):
                with smon_rt.span("grads_all_reduce", comm_id=comm_id, payload_bytes=4 << 20):
                    all_reduce({reductions} * step + reduction)
            with smon_rt.span("optimizer"):
                pass

train(range({steps}))
{ending}
"""
)


def run_pair(job: RecordedJob, ending: str, *, version: int = 6, **more: object) -> list[RankTrace]:
    program = RANK.format(
        **{"version": version, "steps": STEPS, "reductions": REDUCTIONS, "channels": CHANNELS} | more,
        proxy_steps=PROXY_STEPS,
        chunk=CHUNK,
        ending=ending,
    )
    children = [job.begin(program, RANK=str(rank), WORLD_SIZE="2") for rank in (0, 1)]
    for child in children:
        finish(child)
    traces = list(read_directory(job.folder))
    assert [trace.rank for trace in traces] == [0, 1]
    assert not any(trace.damage for trace in traces)
    return traces


END = "assert not nccl.driven.faults, nccl.driven.faults\nsmon_rt.stop()\n"


@pytest.mark.parametrize("version", [4, 5, 6])
def test_each_operation_is_in_the_trace_with_the_span_it_belongs_to(job: RecordedJob, version: int) -> None:
    for trace in run_pair(job, END, version=version):
        ops = trace.comm_ops
        assert ops.library_seq.tolist() == list(range(STEPS * REDUCTIONS))
        assert {FUNCTION_NAMES[number] for number in ops.function} == {"all_reduce"}
        assert {ALGORITHM_NAMES[number] for number in ops.algorithm} == {"ring"}
        assert set(ops.payload_bytes) == {4 << 20}
        assert set(ops.channel_count) == {2}
        assert set(ops.transfer_count) == {2 * CHANNELS}
        assert not ops.open_transfer_count.any()
        assert ops.is_enqueued.all()
        # Each within its span, on the same clock, and no sooner over than what it slept.
        spans = trace.spans.take(trace.spans.kind == KIND_NUMBERS["grads_all_reduce"])
        np.testing.assert_array_equal(ops.comm_seq, spans.comm_seq)
        np.testing.assert_array_equal(ops.step, spans.step)
        assert (ops.start_ns >= spans.start_ns).all()
        assert (ops.first_transfer_ns >= ops.start_ns + ops.enqueue_ns).all()
        assert (ops.first_transfer_ns + ops.transfer_ns <= spans.start_ns + spans.duration_ns).all()
        assert (ops.transfer_ns >= 2_000_000).all()
        counts = trace.comm_counts
        assert counts is not None
        assert (counts.ops, counts.joined_ops, counts.lost_ends) == (len(ops), len(ops), 0)
        channels = {(row.channel, row.is_send): row for row in trace.comm_channels}
        assert set(channels) == {(channel, is_send) for channel in range(CHANNELS) for is_send in (False, True)}
        done = len(ops) * PROXY_STEPS
        for row in channels.values():
            assert (row.begun, row.moved, row.done, row.moved_bytes) == (done, done, done, done * CHUNK)
            assert (CHANNEL_STATE_NAMES[row.state], row.peer, row.nccl_comm) == ("idle", 1 - trace.rank, 0x1234)
            assert row.comm_id == ops.comm_id[0]


def test_the_report_and_info_say_it(job: RecordedJob, capsys: pytest.CaptureFixture[str]) -> None:
    run_pair(job, END)
    report = analyze(job.folder)
    jsonschema.validate(json.loads(report.to_json()), json_schema())
    assert report.communication is not None
    (group,) = report.communication.groups
    facts = group.nccl
    assert facts is not None
    assert (facts.op_count, facts.algorithm, facts.protocol) == (2 * group.op_count, "ring", "simple")
    assert facts.channel_count == 2
    assert facts.transfer_s is not None
    assert facts.transfer_s >= 2e-3
    assert cli.run(["analyze", str(job.folder), "--html", str(job.folder / "report.html")]) == 0
    assert "ring simple, 2 channels" in (job.folder / "report.html").read_text(encoding="utf-8")
    capsys.readouterr()
    assert cli.run(["info", str(job.folder)]) == 0
    out = capsys.readouterr().out
    count = 2 * STEPS * REDUCTIONS
    assert f"{count} operations, 1 communicator on a rank, 100 % of them in spans, 36 in the files" in out
    sent_bytes = 2 * STEPS * REDUCTIONS * CHANNELS * PROXY_STEPS * CHUNK
    assert f"nccl     dp: 2 channels on 2 ranks, {data_size(sent_bytes)} sent\n" in out


def test_what_hangs_is_in_the_trace_as_far_as_it_came(job: RecordedJob) -> None:
    hang = """
        operation = nccl.start(plugin._COLL, None, plugin._coll(99))
        event = plugin._proxy_op()
        proxy = nccl.start(plugin._PROXY_OP, operation, event)
        step = nccl.start(plugin._PROXY_STEP, proxy, plugin._Event(rank=rank))
        state(step, 8)
        """
    for trace in run_pair(job, f"with smon_rt.step({STEPS}):{hang}\nsmon_rt.stop()\n"):
        last = trace.comm_ops.take(trace.comm_ops.library_seq == 99)
        assert (last.transfer_count.tolist(), last.open_transfer_count.tolist()) == ([1], [1])
        assert not last.is_enqueued.any()
        (hung,) = (row for row in trace.comm_channels if row.begun != row.done)
        assert (hung.channel, CHANNEL_STATE_NAMES[hung.state]) == (0, "send_gpu_wait")
        assert hung.state_ns >= trace.steps.start_ns[-1]


def test_operations_of_steps_that_are_not_sampled_are_counted_only(job: RecordedJob) -> None:
    program = RANK.replace("sample_ratio=1.0", "sample_ratio=0.0").format(
        version=6, steps=40, reductions=1, channels=1, proxy_steps=1, chunk=CHUNK, ending=END
    )
    job.run(program, RANK="0", WORLD_SIZE="1")
    trace = job.trace()
    sampled = trace.steps.step[trace.steps.is_sampled]
    assert 0 < len(sampled) < 40
    assert trace.comm_ops.step.tolist() == sampled.tolist()
    assert trace.comm_counts is not None
    assert trace.comm_counts.ops == 40


def test_a_kill_loses_the_operations_of_the_last_seconds_and_no_others(job: RecordedJob) -> None:
    ending = f"time.sleep(2.5)\ntrain(range({STEPS}, {STEPS + 1}))\nprint('there', flush=True)\ntime.sleep(60)\n"
    program = RANK.format(version=6, steps=STEPS, reductions=1, channels=1, proxy_steps=1, chunk=CHUNK, ending=ending)
    child = job.begin(program, RANK="0", WORLD_SIZE="1")
    wait_for_line(child)
    os.kill(child.pid, signal.SIGKILL)
    finish(child, -signal.SIGKILL)
    trace = job.trace()
    assert trace.comm_ops.step.tolist() == list(range(STEPS))
    assert trace.comm_counts is None, "those are written every five seconds"
    # What outlives the process: the next start puts its channels into its file.
    job.run("smon_rt.start(DIR, strict=True)\nsmon_rt.stop()\n", RANK="0", WORLD_SIZE="1")
    trace = read_file(min(job.files()))
    assert trace.leftover is not None
    (received, sent) = trace.comm_channels
    assert (sent.is_send, sent.done, received.done) == (True, STEPS + 1, STEPS + 1)
    assert sent.moved_bytes == (STEPS + 1) * CHUNK
