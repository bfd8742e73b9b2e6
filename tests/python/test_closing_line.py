"""Rank 0's last line: what was recorded, what it cost, and the verdict or the way to it."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from smon_rt._closing import absent_words
from tests.python.recording_process import RecordedJob, finish, job
from tests.python.smon_files import end

__all__ = ["job"]

_LOOP = """
assert smon_rt.start(DIR, sample_ratio=1.0, warmup_steps=0)
for k in range(6):
    with smon_rt.step(k):
        for kind in ("forward_compute", "backward_compute", "optimizer"):
            with smon_rt.span(kind, microbatch=0 if kind != "optimizer" else -1): time.sleep(0.002)
"""
_COUNTS = "rank 0: 24 spans of 6 of 6 steps, none dropped"
_LINE = rf"smon_rt: {_COUNTS}, own threads \d+\.\d % of a core; verdict: smon analyze {{}}\n"


def line(job: RecordedJob) -> str:
    return _LINE.format(re.escape(str(job.folder)))


@pytest.mark.parametrize("end", ["smon_rt.stop()", "smon_rt.stop(); smon_rt.stop()", "pass", "sys.exit(0)"])
def test_it_is_said_once_however_the_script_ends(job: RecordedJob, end: str) -> None:
    assert re.fullmatch(line(job), job.run(_LOOP + end).stderr)


@pytest.mark.parametrize(
    ("end", "environment"),
    [
        ("smon_rt.stop()", {"SMON_RT_LOG": "error"}),
        ("smon_rt.stop()", {"RANK": "1", "WORLD_SIZE": "2"}),
        ("smon_rt.stop(closing_line=False)", {}),
        ("smon_rt.stop(closing_line=False); sys.stderr.close()", {}),
        ("os._exit(0)", {}),
    ],
    ids=["log", "other_rank", "parameter", "closed_stderr", "killed"],
)
def test_it_is_not_said(job: RecordedJob, end: str, environment: dict[str, str]) -> None:
    assert finish(job.begin(_LOOP + end, None, **environment)).stderr == ""


def test_a_job_that_has_recorded_nothing_says_nothing(job: RecordedJob) -> None:
    assert job.run("assert smon_rt.start(DIR)\nsmon_rt.stop()").stderr == ""
    assert job.run("assert smon_rt.start()\nwith smon_rt.step(0): pass").stderr == ""


def test_spans_without_a_step_say_what_to_do(job: RecordedJob) -> None:
    stderr = job.run("assert smon_rt.start(DIR)\nwith smon_rt.span('forward_compute'): pass").stderr
    assert stderr == (
        "smon_rt: warning: no step was recorded (spans: 1), and without steps nothing can be analysed: "
        "put each step into `with smon_rt.step(k):`\n"
    )


@pytest.mark.parametrize(
    ("end", "exit_code"),
    [
        ("raise ValueError('config')", 1),
        ("try: raise ValueError('config')\nfinally: smon_rt.stop()", 1),
        ("try: sys.exit(3)\nfinally: smon_rt.stop()", 3),
    ],
    ids=["exit", "finally", "no_error"],
)
def test_a_script_that_raised_before_its_first_step_is_not_told_how_to_say_steps(
    job: RecordedJob, end: str, exit_code: int
) -> None:
    program = f"assert smon_rt.start(DIR)\nwith smon_rt.span('forward_compute'): pass\n{end}"
    lines = [line for line in job.run(program, exit_code=exit_code).stderr.splitlines() if line.startswith("smon_rt: ")]
    said = "smon_rt: the script raised before its first step: nothing to analyse (spans: 1)"
    if exit_code == 1:
        assert lines == [said]
    else:
        assert len(lines) == 1
        assert "put each step into" in lines[0]


def test_a_forked_child_says_nothing(job: RecordedJob) -> None:
    program = _LOOP + "child = os.fork()\nif child == 0: sys.exit(0)\nassert os.waitpid(child, 0)[1] == 0"
    # Python 3.12 warns of a fork beside threads, before.
    assert re.search("(^|\n)" + line(job) + "$", job.run(program).stderr)


def test_other_nodes_have_directories_too(job: RecordedJob) -> None:
    stderr = job.run(_LOOP, RANK="0", WORLD_SIZE="16", LOCAL_WORLD_SIZE="8").stderr
    assert stderr.endswith(f"smon analyze {job.folder} (and the directories of the other nodes)\n")


VERDICT = rf"smon_rt: slowdown 1\.\d\d.*; none.* \({_COUNTS}, .*; more: smon analyze {{}}\)\n"


@pytest.mark.parametrize(
    ("end", "environment"),
    [
        ("smon_rt.stop(verdict_within_s=50)", {}),
        ("smon_rt.stop()", {"SMON_RT_VERDICT_WITHIN_S": "50"}),
        ("pass", {"SMON_RT_VERDICT_WITHIN_S": "50"}),
        ("sys.exit(0)", {"SMON_RT_VERDICT_WITHIN_S": "a while"}),
    ],
    ids=["parameter", "variable", "exit", "default"],
)
def test_the_verdict_is_said_where_all_ranks_are_here(job: RecordedJob, end: str, environment: dict[str, str]) -> None:
    assert re.fullmatch(
        VERDICT.format(re.escape(str(job.folder))), finish(job.begin(_LOOP + end, None, **environment)).stderr
    )


def test_a_verdict_that_takes_too_long_is_left_to_the_command(job: RecordedJob) -> None:
    stderr = job.run(_LOOP + "smon_rt.stop(verdict_within_s=0.01)").stderr
    reason = r" \(it takes longer than 0\.01 s here: SMON_RT_VERDICT_WITHIN_S\)\n"
    assert re.fullmatch(line(job).removesuffix(r"\n") + reason, stderr)


@pytest.mark.parametrize(
    ("before", "environment"),
    [
        ("", {"RANK": "0", "WORLD_SIZE": "2"}),
        ("open(os.path.join(DIR, 'rank-00001.x-0.smon'), 'wb').truncate(100 << 20)\n", {}),
    ],
    ids=["a_rank_is_elsewhere", "much_to_read"],
)
def test_a_verdict_in_vain_is_not_waited_for(job: RecordedJob, before: str, environment: dict[str, str]) -> None:
    output = finish(job.begin(_LOOP + before + "smon_rt.stop(verdict_within_s=50)", None, **environment))
    absent = "no file here of rank 1; " if environment else ""
    assert re.fullmatch(line(job).replace("verdict:", f"{absent}verdict:"), output.stderr)


def test_ranks_that_could_not_write_are_said_without_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file of this launch, or one that nobody closed and to which nothing was written any more."""
    now_s = time.time()

    def write(rank: int, age_s: float, content: bytes = b"cut", run: str = "x") -> Path:
        path = tmp_path / f"rank-{rank:05d}.{run}-0.smon"
        path.write_bytes(content)
        os.utime(path, (now_s - age_s, now_s - age_s))
        return path

    own = str(write(0, 0))
    write(1, 3600)  # of an earlier launch
    write(2, 0)
    for rank in (3, 4):
        write(rank, 50)
    write(5, 50, end())
    write(5, 55, run="y")  # of an attempt before
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert absent_words(own, 5.0, 60) == (
        "no file here of ranks 1 and 6-7; ranks 3-4 wrote nothing for the last 50 s; "
    )
    assert absent_words(own, 5.0, 0).startswith("no file here of ranks 1 and 6-7; ")
    # A job of steps so long that nobody need have written since.
    assert "nothing" not in absent_words(own, 90.0, 3)
    for rank in (3, 4, 5):
        (tmp_path / f"rank-{rank:05d}.x-0.smon").unlink()
    (tmp_path / "rank-00005.y-0.smon").unlink()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")  # the other nodes have directories of their own
    assert absent_words(own, 5.0, 60) == "no file here of rank 1; "
    # All that wait for rank 0, which saves what was trained: nobody but it writes, and nobody is silent.
    for rank in (1, 2):
        write(rank, 90)
    assert absent_words(own, 200.0, 60) == ""
    assert absent_words(own, 100.0, 60) == "ranks 1-2 wrote nothing for the last 90 s; "


def test_the_end_by_an_exception_waits_for_nothing(job: RecordedJob) -> None:
    output = finish(job.begin(_LOOP + "raise ValueError('lost')", None, SMON_RT_VERDICT_WITHIN_S="50"), 1)
    assert "ValueError: lost" in output.stderr
    assert re.search(line(job) + "$", output.stderr)


def test_what_cannot_be_analysed_leaves_the_command_and_says_why(job: RecordedJob) -> None:
    program = "assert smon_rt.start(DIR)\nwith smon_rt.step(0): pass\nsmon_rt.stop(verdict_within_s=50)"
    stderr = job.run(program).stderr
    assert re.search(rf"verdict: smon analyze {re.escape(str(job.folder))} \(.*recorded no op.*\)\n$", stderr)
    assert stderr.count("\n") == 1


@pytest.mark.parametrize(("name", "value"), [("SMON_RT_VERDICT_WITHIN_S", "1e300"), ("LOCAL_WORLD_SIZE", "all")])
def test_odd_values_around_it_do_not_silence_it(job: RecordedJob, name: str, value: str) -> None:
    environment = {"SMON_RT_VERDICT_WITHIN_S": "50"} | {name: value}
    assert re.fullmatch(
        VERDICT.format(re.escape(str(job.folder))), finish(job.begin(_LOOP, None, **environment)).stderr
    )
