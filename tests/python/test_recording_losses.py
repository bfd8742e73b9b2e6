"""What recording loses is counted by its reason: in `status()`, in the trace, in `smon info`, and said once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from smon_rt import cli
from smon_rt.trace import read_directory
from tests.python.recording_process import START, RecordedJob, finish, job, wait_for_line

__all__ = ["job"]


def test_spans_that_nobody_ends_do_not_blind_their_thread(job: RecordedJob, capsys: pytest.CaptureFixture[str]) -> None:
    output = job.run(
        START
        + """
        with smon_rt.span("user", name="all of it"):
            for k in range(60):
                with smon_rt.step(k):
                    for _ in range(50):
                        assert smon_rt.begin("forward_send") != 0, k
                    with smon_rt.span("optimizer"): pass
                time.sleep(0.001)
        status = smon_rt.status()
        assert status.dropped_spans == status.stale_tokens == status.misused_calls == 0, status
        assert 60 * 50 - 1024 <= status.reclaimed_spans <= 60 * 50, status
        smon_rt.stop()
        """
    )
    (line,) = [line for line in output.stderr.splitlines() if "never ended" in line]
    assert "most of them forward_send" in line
    trace = job.trace()
    assert trace.losses.reclaimed_spans >= 60 * 50 - 1024
    assert cli.run(["info", str(job.folder)]) == 0
    assert f"reclaimed spans {trace.losses.reclaimed_spans:,}" in capsys.readouterr().out


def test_misuse_and_steps_that_do_not_fit_are_counted(job: RecordedJob) -> None:
    output = job.run(
        """
        assert smon_rt.start(DIR, sample_ratio=1.0, warmup_steps=0)
        with smon_rt.step(2**32 - 2):
            with smon_rt.span("user"): pass
        assert smon_rt.status().misused_calls == smon_rt.status().saturated_steps == 0
        for number in (2**32 - 1, 2**40):
            with smon_rt.step(number):
                assert not smon_rt.is_sampled()
                with smon_rt.span("user"): pass
        with smon_rt.step(5):
            for _ in range(3): smon_rt.begin("nonsense")
            with smon_rt.span("user", microbatch="one"): pass
        assert smon_rt.status().saturated_steps == 2
        # A kind that does not exist is counted where it is understood and where it is dropped.
        assert smon_rt.status().misused_calls == 7, smon_rt.status()
        smon_rt.stop()
        """
    )
    assert output.stderr.count("2^32 - 1 or more") == 1
    trace = job.trace()
    assert (trace.losses.saturated_steps, trace.losses.misused_calls) == (2, 7)
    assert trace.steps.step.tolist() == [2**32 - 2, 2**32 - 1, 2**32 - 1, 5]
    assert trace.steps.is_sampled.tolist() == [True, False, False, True]


def test_names_without_room_are_counted_and_said_once(job: RecordedJob) -> None:
    output = job.run(
        """
        assert smon_rt.start(DIR, sample_ratio=1.0, warmup_steps=0, max_file_bytes=1_000_000)
        for k in range(50):
            with smon_rt.step(k):
                for i in range(100):
                    with smon_rt.span("user", name=f"batch {k} {i} " + "x" * 1000): pass
            time.sleep(0.002)
        assert smon_rt.status().misused_calls > 0
        with smon_rt.step(50), smon_rt.span("user", name="batch 0 0 " + "x" * 1000): pass
        smon_rt.stop()
        """
    )
    assert output.stderr.count("more names of spans and metrics than are kept") == 1
    (trace,) = read_directory(job.folder)
    assert (trace.damage, trace.missing_span_count, trace.end_reason) == ([], 0, "stop")
    # Each file begins with all names; it must not be full of them.
    assert len(job.files()) <= 6
    assert 3_900 < len(trace.names) < 4_200
    named = trace.spans.name_id[trace.spans.step == 50]
    assert trace.names[int(named.max())].startswith("batch 0 0 x")


def test_an_environment_that_is_not_utf8_hides_nobody(job: RecordedJob) -> None:
    job.run(
        START
        + """
        with smon_rt.step(0), smon_rt.span("user"): pass
        smon_rt.stop()
        """,
        NCCL_ALGO=os.fsdecode(b"\xffTree"),
    )
    trace = job.trace()
    assert trace.damage == []
    assert (trace.identity.world_size, trace.identity.environment["NCCL_ALGO"]) == (1, "\ufffdTree")


def test_a_process_that_reads_its_own_trace_stays_its_owner_in_every_pid_namespace(job: RecordedJob) -> None:
    unshare = shutil.which("unshare")
    apart = [unshare or "", "--pid", "--fork", "--mount-proc"]
    if unshare is None or subprocess.run([*apart, "true"], capture_output=True).returncode != 0:
        pytest.skip("may not make pid namespaces here")
    owner = job.begin(
        START
        + """
        from smon_rt.trace import read_directory
        with smon_rt.step(0), smon_rt.span("user"): pass
        for _ in range(2):
            (trace,) = read_directory(DIR)
            assert trace.arena is not None and trace.arena.is_alive
        pid = os.fork()
        if pid == 0:
            read_directory(DIR)
            os._exit(0)
        os.waitpid(pid, 0)
        print("read", flush=True)
        sys.stdin.readline()
        with smon_rt.step(1): pass
        smon_rt.stop()
        """
    )
    assert wait_for_line(owner) == "read"
    other = subprocess.run(
        [*apart, sys.executable, "-c", "import smon_rt, sys; print(smon_rt.start(sys.argv[1]))", str(job.folder)],
        env=job.environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert other.stdout == "False\n", other
    assert "of another pid namespace" in other.stderr or "already" in other.stderr, other.stderr
    assert len(job.arenas()) == 1
    assert owner.stdin is not None
    owner.stdin.write("\n")
    owner.stdin.flush()
    finish(owner)
    assert job.trace().steps.step.tolist() == [0, 1]
