"""Directories that fail, processes that meet in one, jobs that start again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from smon_rt.trace import read_file, read_files
from smon_rt.trace.summary import incomplete_reasons
from tests.python.recording_process import START, RecordedJob, count_of, finish, job, wait_for_line

__all__ = ["job"]

_LOOP = """
for k in range(5):
    with smon_rt.step(k), smon_rt.span("forward_compute", microbatch=k): pass
"""


# As in two containers that share a directory: each process is number 1, with a /dev/shm of its own, and /proc may be
# the host's, where number 1 is somebody else.
_CONTAINER = ("unshare", "--mount", "--pid", "--fork")


@pytest.mark.parametrize("has_own_proc", [True, False])
def test_processes_of_one_pid_and_attempt_are_told_apart(job: RecordedJob, has_own_proc: bool) -> None:
    command = [*_CONTAINER, *(["--mount-proc"] if has_own_proc else [])]
    if subprocess.run([*command, "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], capture_output=True).returncode != 0:
        pytest.skip("namespaces need root and unshare")
    program = "import sys, smon_rt; smon_rt.start(sys.argv[1], attempt=0, sample_ratio=1.0, warmup_steps=0)" + _LOOP
    script = 'mount -t tmpfs tmpfs /dev/shm && exec "$@"'
    for _ in range(2):
        child = [*command, "sh", "-c", script, "sh", sys.executable, "-c", program, str(job.folder)]
        subprocess.run(child, check=True, env=job.environment(), timeout=60)
    traces = read_files([str(path) for path in job.files()])
    assert [trace.identity.pid for trace in traces] == [1, 1]
    assert [len(trace.steps) for trace in traces] == [5, 5]
    assert [count_of(trace, "forward_compute") for trace in traces] == [5, 5]
    assert sum(trace.repeated_span_count for trace in traces) == 0


def test_start_stop_start(job: RecordedJob) -> None:
    job.run("""
        for run in range(5):
            assert smon_rt.start(DIR, sample_ratio=1.0, warmup_steps=0)
            assert smon_rt.start(DIR)
            for k in range(run + 1):
                with smon_rt.step(k), smon_rt.span("user", name=f"run {run}"): pass
            assert smon_rt.stop() and not smon_rt.stop()
            assert smon_rt.status().recorded_spans == 2 * (run + 1)
            assert smon_rt.begin("user") == 0
    """)
    traces = sorted((read_file(path) for path in job.files()), key=lambda trace: trace.identity.attempt)
    assert [trace.identity.attempt for trace in traces] == [0, 1, 2, 3, 4]
    assert [count_of(trace, "user") for trace in traces] == [1, 2, 3, 4, 5]
    assert [list(trace.names.values()) for trace in traces] == [[f"run {run}"] for run in range(5)]


def test_a_start_that_fails_leaves_nothing(job: RecordedJob) -> None:
    program = """
        import resource
        smon_rt.status()  # loads what another user may not read
        if os.getuid() == 0: os.setuid(65534)  # root has as many threads as it likes
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        try: threading.Thread(target=int).start()
        except RuntimeError: pass
        else: sys.exit("there is no such limit here")
        assert not smon_rt.start(DIR)
        with smon_rt.step(0), smon_rt.span("user"): pass
        assert not smon_rt.stop()
    """
    with tempfile.TemporaryDirectory() as folder:  # one that another user reaches
        Path(folder).chmod(0o777)
        output = job.run(program, folder=Path(folder))
        assert list(Path(folder).iterdir()) == []
    assert "not recording: cannot start thread" in output.stderr
    assert job.arenas() == []


def test_a_span_that_spans_a_stop_is_harmless(job: RecordedJob) -> None:
    job.run("""
        kept = smon_rt.span("user", name="kept")
        assert smon_rt.start(DIR, sample_ratio=1.0)
        with kept:
            smon_rt.stop()
        with kept:
            assert smon_rt.start(DIR, sample_ratio=1.0)
            with smon_rt.step(0), kept: pass
        smon_rt.stop()
        assert smon_rt.status().recorded_spans == 2
    """)
    assert list(read_file(job.files()[1]).names.values()) == ["kept"]


def test_stopping_while_threads_record(job: RecordedJob) -> None:
    job.run("""
        stopping = threading.Event()
        def work():
            kept = smon_rt.span("user", name="x")
            while not stopping.is_set():
                with kept: smon_rt.metric("loss", 1.0)
                smon_rt.end(smon_rt.begin("optimizer", name="y"))
                smon_rt.status()
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads: thread.start()
        for _ in range(15):
            assert smon_rt.start(DIR, sample_ratio=1.0)
            with smon_rt.step(): time.sleep(0.002)
            smon_rt.pause(); smon_rt.resume()
            assert smon_rt.stop()
        stopping.set()
        for thread in threads: thread.join()
    """)
    for path in job.files():
        trace = read_file(path)
        assert (trace.end_reason, trace.damage, trace.missing_span_count) == ("stop", [], 0)
        assert set(trace.names.values()) <= {"x", "y", "loss"}


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a tmpfs with the given options; skips the test where that is not allowed."""
    folder = tmp_path / "disk"

    def mount(options: str) -> Path:
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"cannot mount a tmpfs ({options}): {done.stderr.strip()}")
        return folder

    yield mount
    if folder.is_mount():
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_read_only_directory_is_said_and_the_job_goes_on(
    job: RecordedJob, mounted: Callable[[str], Path], tmp_path: Path
) -> None:
    if os.geteuid() == 0:  # who may write anywhere but on a read-only file system
        _assert_goes_on_without_a_file(job, mounted("ro"))
    else:
        (tmp_path / "read_only").mkdir(mode=0o500)
        _assert_goes_on_without_a_file(job, tmp_path / "read_only")


@pytest.mark.parametrize("folder", ["/proc/nowhere", "/dev/null/traces"])
def test_a_directory_that_cannot_be_made_is_said_and_the_job_goes_on(job: RecordedJob, folder: str) -> None:
    _assert_goes_on_without_a_file(job, Path(folder))


def _assert_goes_on_without_a_file(job: RecordedJob, folder: Path) -> None:
    output = job.run(
        "assert smon_rt.start(DIR, sample_ratio=1.0)"
        + _LOOP
        + "status = smon_rt.status()\nassert status.steps == 5 and status.file_error, status\nsmon_rt.stop()",
        folder=folder,
    )
    (line,) = output.stderr.splitlines()
    assert str(folder) in line
    assert "recording goes on without a file" in line
    error = job.run(
        "try: smon_rt.start(DIR, strict=True)\nexcept smon_rt.RecordingError as error: print(error)", folder=folder
    ).stdout
    assert str(folder) in error


def test_a_directory_that_goes_away_stops_nothing(job: RecordedJob) -> None:
    child = job.begin(START + _LOOP + "print('ready', flush=True)\nsys.stdin.readline()" + _LOOP + "smon_rt.stop()")
    wait_for_line(child)
    shutil.rmtree(job.folder)
    finish(child)


def test_a_full_disk_costs_spans_and_nothing_else(job: RecordedJob, mounted: Callable[[str], Path]) -> None:
    small_disk = mounted("size=256k")
    output = job.run(
        START
        + """
        import random
        for k in range(300):
            with smon_rt.step(k):
                for i in range(200):
                    with smon_rt.span("user", microbatch=i, payload_bytes=random.getrandbits(40)): pass
            time.sleep(0.002)
        status = smon_rt.status()
        smon_rt.stop()
        status = smon_rt.status()
        assert status.written_spans < status.recorded_spans, status
        assert "No space left" in status.file_error, status
        """,
        folder=small_disk,
    )
    assert "No space left" in output.stderr
    assert len(output.stderr.splitlines()) < 5
    (path,) = small_disk.glob("*.smon")
    trace = read_file(path)
    assert trace.damage == []
    assert count_of(trace, "user") > 0
    assert "No space left" in trace.losses.sink_error
    (reason,) = incomplete_reasons(trace)
    assert "stopped writing" in reason


def test_two_live_processes_of_one_rank_and_attempt_are_refused_and_named(job: RecordedJob) -> None:
    first = job.begin(START + _LOOP + "print(os.getpid(), flush=True)\nsys.stdin.readline()\nsmon_rt.stop()", RANK="3")
    pid = wait_for_line(first)
    for restarts in ("", "0"):
        output = job.run(
            """
            print(os.getpid())
            assert smon_rt.start(DIR) is False
            with smon_rt.step(0), smon_rt.span("user"): pass
            try: smon_rt.start(DIR, strict=True)
            except smon_rt.RecordingError: pass
            else: raise AssertionError
            """,
            RANK="3",
            TORCHELASTIC_RESTART_COUNT=restarts,
        )
        line = output.stderr.splitlines()[0]
        assert line.startswith("smon_rt: error: not recording: ")
        assert f"process {pid} " in line
        assert f"({output.stdout.strip()})" in line
        assert "rank 3" in line
        assert len(output.stderr.splitlines()) == 2  # once a start
    assert first.stdin is not None
    first.stdin.write("\n")
    first.stdin.flush()
    finish(first)
    trace = job.trace()
    assert (count_of(trace, "forward_compute"), count_of(trace, "user")) == (5, 0)


def test_a_restarted_attempt_has_a_file_of_its_own(job: RecordedJob) -> None:
    for attempt in range(3):
        job.run(
            START + _LOOP + ("os.kill(os.getpid(), 9)" if attempt < 2 else ""),
            exit_code=-9 if attempt < 2 else 0,
            TORCHELASTIC_RESTART_COUNT=str(attempt),
            RANK="1",
            WORLD_SIZE="4",
            LOCAL_RANK="1",
        )
    assert [path.name for path in job.files()] == [f"rank-00001.{job.run_id}-{attempt}.smon" for attempt in range(3)]
    for attempt, path in enumerate(job.files()):
        identity = read_file(path).identity
        assert (identity.attempt, identity.rank, identity.world_size, identity.local_rank) == (attempt, 1, 4, 1)
        assert count_of(read_file(path), "forward_compute") == 5
    assert job.arenas() == []


def test_one_process_may_start_again_within_an_attempt(job: RecordedJob) -> None:
    job.run(
        "for _ in range(2):\n    assert smon_rt.start(DIR, sample_ratio=1.0, strict=True)\n"
        "    with smon_rt.step(0), smon_rt.span('user'): pass\n    smon_rt.stop()",
        TORCHELASTIC_RESTART_COUNT="0",
    )
    assert sum(count_of(read_file(path), "user") for path in job.files()) == 2


def test_the_environment_names_directory_ratio_and_warm_up(job: RecordedJob) -> None:
    job.run(
        """
        assert smon_rt.start()
        for k in range(40):
            with smon_rt.step(k), smon_rt.span("user"): pass
        smon_rt.stop()
        """,
        SMON_RT_TRACE_DIR=str(job.folder),
        SMON_RT_SAMPLE_RATIO="0",
        SMON_RT_WARMUP_STEPS="5",
    )
    trace = job.trace()
    assert trace.identity.sampling.sample_ratio == 0
    assert trace.steps.is_warmup.tolist() == [True] * 5 + [False] * 35
    assert trace.steps.is_sampled.tolist() == [True] * 25 + [False] * 15


def test_without_a_directory_there_is_no_file(job: RecordedJob) -> None:
    output = job.run("assert smon_rt.start()" + _LOOP + "assert smon_rt.status().file_path is None\nsmon_rt.stop()")
    assert output.stderr == ""
    assert not job.folder.exists()
