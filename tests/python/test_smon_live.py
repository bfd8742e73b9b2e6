"""A run that still records, or was killed, is analysed as far as it is there, and that is said."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from smon_rt import cli
from smon_rt.errors import TraceError
from smon_rt.trace.job_trace import read_job
from tests.python.recording_process import DEADLINE_S, START, RecordedJob, finish, job, wait_for_line

__all__ = ["job"]  # the fixture

TRAINS = (
    START
    + """
    def compute(kind, microbatch):
        with smon_rt.span(kind, microbatch=microbatch):
            time.sleep(0.002)

    def train(k):
        with smon_rt.step(k):
            for microbatch in range(2):
                compute("forward_compute", microbatch)
                compute("backward_compute", microbatch)
            with smon_rt.span("optimizer"):
                pass
    """
)


def report_of(folder: Path, capsys: pytest.CaptureFixture[str], exit_code: int) -> dict[str, Any]:
    assert cli.run(["analyze", str(folder), "--json", "-"]) == exit_code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def wait_for_steps(folder: Path, count: int) -> None:
    """Until the files hold so many steps: the recorder writes them when it has the time."""
    deadline_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline_s:
        # Until then nothing may be written at all.
        with contextlib.suppress(TraceError):
            if len(read_job([folder]).ranks[0].steps) >= count:
                return
    pytest.fail("the recorder wrote no steps")


def test_a_live_directory_gives_a_verdict_and_says_that_it_still_runs(
    job: RecordedJob, capsys: pytest.CaptureFixture[str]
) -> None:
    child = job.begin(
        TRAINS
        + """
    for k in range(30):
        train(k)
    print("recorded", flush=True)
    for k in range(30, 10_000_000):
        train(k)
        if os.path.exists(DIR + "/stop"):
            break
    smon_rt.stop()
    """
    )
    assert wait_for_line(child) == "recorded"
    wait_for_steps(job.folder, 20)
    for _ in range(3):
        # Each time it has grown, and may end in the middle of a packet.
        report = report_of(job.folder, capsys, exit_code=0)
        assert report["fidelity"]["is_live"]
        assert "still running" in report["verdict"]["text"].splitlines()[-1]
        assert report["step_count"] >= 19
        assert report["mean_step_time_s"]["base"] > 0.008
    (job.folder / "stop").touch()
    finish(child)
    report = report_of(job.folder, capsys, exit_code=0)
    assert not report["fidelity"]["is_live"]
    assert "still running" not in report["verdict"]["text"]


def test_a_killed_rank_is_analysed_to_its_end_and_named(job: RecordedJob, capsys: pytest.CaptureFixture[str]) -> None:
    child = job.begin(
        TRAINS
        + """
    for k in range(30):
        train(k)
    print("recorded", flush=True)
    sys.stdin.read()
    """
    )
    assert wait_for_line(child) == "recorded"
    os.kill(child.pid, signal.SIGKILL)
    finish(child, exit_code=-signal.SIGKILL)
    report = report_of(job.folder, capsys, exit_code=3)
    # What was not in the file yet is taken from the memory that the process left; its last step counts as begun.
    assert report["step_count"] >= 29
    assert "rank 0: its process was killed" in report["verdict"]["text"].splitlines()[-1]
    assert report["fidelity"]["unfinished"] == ["rank 0: its process was killed"]
    assert not report["fidelity"]["is_live"]
