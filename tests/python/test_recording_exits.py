"""However a process ends, its exit code is its own, nothing hangs, and what it recorded is found."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest

from smon_rt.trace import read_file
from smon_rt.trace.kinds import FLAGS
from smon_rt.trace.summary import state_of
from tests.python.recording_process import START, RecordedJob, count_of, finish, flags_of, job, wait_for_line

__all__ = ["job"]

_RECORD = (
    START
    + """
def record(steps):
    for k in range(steps):
        with smon_rt.step(k):
            for i in range(4):
                with smon_rt.span("forward_compute", microbatch=i): pass
record(5)
"""
)


@pytest.mark.parametrize(
    ("end", "exit_code"),
    [
        ("pass", 0),
        ("sys.exit(3)", 3),
        ("raise ValueError('planted')", 1),
        ("smon_rt.begin('user'); sys.exit(3)", 3),
        ("smon_rt.pause(); sys.exit(3)", 3),
        ("smon_rt.stop(); smon_rt.stop(); sys.exit(4)", 4),
        ("import atexit; atexit.register(smon_rt.stop); sys.exit(5)", 5),
    ],
    ids=["end", "sys_exit", "exception", "open_span", "paused", "stopped_twice", "atexit"],
)
def test_an_exit_without_stop_leaves_a_whole_file(job: RecordedJob, end: str, exit_code: int) -> None:
    job.run(_RECORD + end, exit_code=exit_code)
    trace = job.trace()
    assert (trace.end_reason is None, trace.is_cut, trace.damage) == (False, False, [])
    assert count_of(trace, "forward_compute") == 20
    assert trace.missing_span_count == 0
    assert job.arenas() == []


def test_a_span_that_is_open_at_the_end_is_in_the_file_as_aborted(job: RecordedJob) -> None:
    job.run(START + "smon_rt.begin('user', 7)\nwith smon_rt.step(0): pass")
    assert flags_of(job.trace(), "user")[0] & FLAGS["aborted"]


@pytest.mark.parametrize("program", ["", "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"])
def test_sigterm_ends_a_process_as_it_would_without_us(job: RecordedJob, program: str) -> None:
    child = job.begin(_RECORD + f"import signal\n{program}print('ready', flush=True)\nwhile True: time.sleep(0.01)")
    assert wait_for_line(child) == "ready"
    child.send_signal(signal.SIGTERM)
    finish(child, 0 if program else -signal.SIGTERM)
    if not program:
        job.run("assert smon_rt.start(DIR)")  # puts into the dead one's file what it still had in memory
    trace = read_file(job.files()[0])
    assert count_of(trace, "forward_compute") == 20
    assert trace.missing_span_count == 0


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "os._exit(7)", "os.abort()"])
def test_the_next_start_finds_the_last_spans_of_a_killed_process(job: RecordedJob, end: str) -> None:
    exit_code = {"os.k": -signal.SIGKILL, "os._": 7, "os.a": -signal.SIGABRT}[end[:4]]
    job.run(_RECORD + f"smon_rt.begin('user', 9)\n{end}", exit_code=exit_code)
    assert len(job.arenas()) == 1
    job.run("assert smon_rt.start(DIR)\nsmon_rt.stop()")
    assert job.arenas() == []
    killed, _ = job.files()
    trace = read_file(killed)
    assert count_of(trace, "forward_compute") == 20
    assert [flags & FLAGS["aborted"] for flags in flags_of(trace, "user")] == [FLAGS["aborted"]]
    assert (trace.missing_span_count, trace.repeated_span_count, trace.is_cut, trace.damage) == (0, 0, False, [])
    # The file says how its process ended, although its memory is gone.
    assert trace.leftover is not None
    assert (state_of(trace), trace.leftover.step) == ("killed", 4)


def test_a_process_that_is_killed_while_it_records_loses_nothing_silently(job: RecordedJob) -> None:
    child = job.begin(
        START
        + """
        print("ready", flush=True)
        k = 0
        while True:
            with smon_rt.step(k):
                for i in range(8):
                    with smon_rt.span("forward_compute", microbatch=i): pass
            k += 1
            if k % 64 == 0: time.sleep(0.001)
        """
    )
    wait_for_line(child)
    _wait_until(lambda: any(path.stat().st_size > 20_000 for path in job.files()))
    child.send_signal(signal.SIGKILL)
    finish(child, -signal.SIGKILL)
    job.run("assert smon_rt.start(DIR)\nsmon_rt.stop()")
    trace = read_file(job.files()[0])
    indices = sorted(trace.spans.ring_index[trace.spans.ring_id == 1].tolist())
    assert indices == list(range(len(indices)))
    assert (trace.missing_span_count, trace.repeated_span_count, trace.damage) == (0, 0, [])


def test_the_interpreter_may_end_while_threads_are_inside_spans(job: RecordedJob) -> None:
    job.run(
        START
        + """
        seen = threading.Event()
        def forever():
            for k in range(1_000_000_000):
                with smon_rt.span("user"):
                    with smon_rt.span("optimizer"): time.sleep(0.0001)
                if k == 10: seen.set()
        def spin():
            while True: smon_rt.end(smon_rt.begin("data_loading"))
        for target in (forever, forever, spin): threading.Thread(target=target, daemon=True).start()
        with smon_rt.step(0): seen.wait(20)
        sys.exit(3)
        """,
        exit_code=3,
    )
    trace = job.trace()
    assert count_of(trace, "user") > 10
    assert (trace.end_reason is None, trace.damage) == (False, [])


def test_spans_of_exit_handlers_are_recorded(job: RecordedJob) -> None:
    job.run(
        START
        + """
        import atexit
        class Late:
            def __del__(self):
                with smon_rt.span("checkpoint_wait"): pass
        late = Late()
        @atexit.register
        def save():
            with smon_rt.span("checkpoint_snapshot"): pass
        with smon_rt.step(0): pass
        """
    )
    assert count_of(job.trace(), "checkpoint_snapshot") == 1


def test_collections_inside_spans_do_no_harm(job: RecordedJob) -> None:
    job.run(
        START
        + """
        import gc
        gc.set_threshold(1, 1, 1)
        class Node:
            def __init__(self): self.me = self
            def __del__(self):
                with smon_rt.span("user"): pass
        def on_gc(phase, info, spans=[]):
            if phase == "start": spans.append(smon_rt.begin("gc"))
            else: smon_rt.end(spans.pop())
        gc.callbacks.append(on_gc)
        for k in range(20):
            with smon_rt.step(k):
                for i in range(5):
                    with smon_rt.span("forward_compute", microbatch=i): Node()
                gc.collect()
        gc.callbacks.clear()
        smon_rt.stop()
        status = smon_rt.status()
        assert status.stale_tokens == status.foreign_tokens == 0, status
        """
    )
    trace = job.trace()
    assert count_of(trace, "forward_compute") == count_of(trace, "user") == 100
    assert count_of(trace, "gc") >= 20


def _wait_until(condition: Callable[[], bool], limit_s: float = 30.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "not within the deadline"
        time.sleep(0.002)
