"""Files of several directories become one job: its newest run, its ranks, and what is missing from it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from smon_rt import TraceError, cli
from smon_rt._proto import trace_pb2
from smon_rt.report.trace_info import info_text
from smon_rt.trace import read_directory, read_file, read_files, read_job
from smon_rt.trace.job_trace import JobReader, OtherRun
from smon_rt.trace.summary import state_of, summarize
from tests.python.smon_files import (
    TestSpan,
    end,
    file_name,
    identity,
    packet,
    snapshot,
    span_packet,
    step_packet,
    write_rank,
)

SPANS = [TestSpan(start_ns=10 * index, duration_ns=5, step=index) for index in range(6)]


def test_ranks_of_several_directories_are_put_together(tmp_path: Path) -> None:
    for rank in (0, 1, 3, 6, 7):
        folder = tmp_path / f"node{rank // 4}"
        folder.mkdir(exist_ok=True)
        write_rank(folder, SPANS, rank=rank, world_size=9, host=folder.name, boot_id=folder.name)
    job = read_job([tmp_path / "node0", tmp_path / "node1"])
    assert [trace.rank for trace in job.ranks] == [0, 1, 3, 6, 7]
    assert job.missing_ranges() == [(2, 2), (4, 5), (8, 8)]
    assert job.missing_text() == "2, 4–5, 8"
    assert job.missing_count == 4
    by_glob = read_directory(str(tmp_path / "node*"))
    by_files = read_directory(sorted(tmp_path.glob("node*/*.smon")))
    assert [trace.rank for trace in by_glob] == [trace.rank for trace in by_files] == [0, 1, 3, 6, 7]
    assert len({trace.host_key for trace in by_glob}) == 2


def test_a_path_named_twice_is_read_once(tmp_path: Path) -> None:
    path = write_rank(tmp_path, SPANS)
    (trace,) = read_directory([tmp_path, path, f"{tmp_path}/../{tmp_path.name}"])
    assert len(trace.spans) == 6
    assert trace.repeated_span_count == 0


def test_the_newest_run_and_attempt_are_taken_unless_told(tmp_path: Path) -> None:
    def write(run_id: str, attempt: int, started_ns: int, spans: int) -> None:
        clock = snapshot(1_000, started_ns)
        write_rank(tmp_path, SPANS[:spans], clock=clock, run_id=run_id, attempt=attempt)

    write("b", 0, 5_000, 1)
    write("a", 0, 6_000, 2)
    write("a", 2, 9_000, 3)
    write("a", 10, 7_000, 4)
    job = read_job([tmp_path])
    assert (job.run_id, job.attempt, len(job.ranks[0].spans)) == ("a", 10, 4)
    assert [(other.run_id, other.attempt) for other in job.other_runs] == [("a", 0), ("a", 2), ("b", 0)]
    assert len(read_job([tmp_path], run_id="b").ranks[0].spans) == 1
    assert len(read_job([tmp_path], run_id="a", attempt=2).ranks[0].spans) == 3
    assert read_job([tmp_path], attempt=0).run_id == "a"
    with pytest.raises(TraceError, match="no files of run c here; there is run a attempt 0, run a attempt 2"):
        read_job([tmp_path], run_id="c")


def test_a_second_launch_under_the_same_name_is_the_job(tmp_path: Path) -> None:
    def write(rank: int, pid: int, began_ns: int, spans: int) -> None:
        more = snapshot(9_000, began_ns + 8_000)
        who: dict[str, Any] = {"pid": pid, "rank": rank, "world_size": 2, "file_index": pid % 2}
        write_rank(tmp_path, SPANS[:spans], clock=snapshot(1_000, began_ns), packets=[more], **who)

    for rank in range(2):
        write(rank, 100 + 2 * rank, 1_000_000, 6)
        write(rank, 101 + 2 * rank, 2_000_000, 2)  # it recorded less
    reader = JobReader([tmp_path])
    for _ in range(2):  # as the analysis of a live job does
        ranks = list(reader)
        assert [(trace.identity.pid, len(trace.spans), trace.damage) for trace in ranks] == [(101, 2, []), (103, 2, [])]
        assert reader.job.other_runs == [OtherRun("job", 0, 2)]
    assert "an earlier launch of run job attempt 0, 2 files" in info_text(summarize(JobReader([tmp_path])))


def test_files_without_a_clock_are_as_old_as_the_file(tmp_path: Path) -> None:
    for run_id, time_s in (("old", 1_000), ("new", 2_000), ("older", 500)):
        path = write_rank(tmp_path, SPANS, clock=b"\x0a\x00", run_id=run_id)
        os.utime(path, (time_s, time_s))
    assert read_job([tmp_path]).run_id == "new"


def test_rotated_files_are_one_trace(tmp_path: Path) -> None:
    parts = [span_packet(SPANS[:2]), span_packet(SPANS[2:5], first_index=2), span_packet(SPANS[5:], first_index=5)]
    for index in (2, 0, 1):
        path = tmp_path / file_name(file_index=index)
        last = end() if index == 2 else b""
        path.write_bytes(packet(identity=identity(file_index=index)) + snapshot() + parts[index] + last)
    (trace,) = read_directory(tmp_path)
    assert trace.spans.step.tolist() == [0, 1, 2, 3, 4, 5]
    assert [Path(path).name for path in trace.files] == [file_name(file_index=index) for index in range(3)]
    assert (trace.end_reason, trace.missing_span_count, len(trace.clocks)) == ("stop", 0, 3)
    assert trace.file_bytes == sum(Path(path).stat().st_size for path in trace.files)
    # What rotation threw away is not called lost; a file missing in the middle is.
    (tmp_path / file_name(file_index=0)).unlink()
    assert read_directory(tmp_path)[0].missing_span_count == 0
    path = tmp_path / file_name(file_index=0)
    path.write_bytes(packet(identity=identity()) + parts[0])
    (tmp_path / file_name(file_index=1)).unlink()
    assert read_directory(tmp_path)[0].missing_span_count == 3


def test_a_full_file_without_its_next_one_is_not_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for index in range(3):
        content = packet(identity=identity(file_index=index)) + span_packet(SPANS[:2], first_index=2 * index)
        (tmp_path / file_name(file_index=index)).write_bytes(content + (end("rotated") if index < 2 else end()))
    assert cli.run(["info", str(tmp_path)]) == 0
    assert read_directory(tmp_path)[0].end_reason == "stop"
    capsys.readouterr()
    (tmp_path / file_name(file_index=2)).unlink()
    (trace,) = read_directory(tmp_path)
    assert (trace.end_reason, trace.lacks_next_file, state_of(trace)) == (None, True, "open")
    assert cli.run(["info", str(tmp_path)]) == 3
    assert f"rank 0: the file after {file_name(file_index=1)} is missing" in capsys.readouterr().out


def test_a_file_joined_to_itself_is_taken_once(tmp_path: Path) -> None:
    spans = [TestSpan(start_ns=1_000 + 100 * index, op_index=index) for index in range(5)]
    steps = [(step, 1_000_000 * (step + 1), 500_000, step % 2 == 0, step < 3) for step in range(8)]
    cost = packet(recorder_cost=trace_pb2.RecorderCost(drain_cpu_ns=5, span_count=5, file_bytes=77))
    path = write_rank(tmp_path, spans, packets=[step_packet(steps[:4]), step_packet(steps[4:]), cost])
    alone = read_file(path)
    joined = tmp_path / "joined.smon"
    joined.write_bytes(path.read_bytes() * 3)
    for trace in (read_file(joined), *read_files([str(path), str(joined)])):
        assert len(trace.spans) == len(alone.spans) == 5
        for name in ("step", "start_ns", "duration_ns", "is_sampled", "is_warmup"):
            assert getattr(trace.steps, name).tolist() == getattr(alone.steps, name).tolist(), name
        assert trace.cost == alone.cost
        assert trace.repeated_step_count in (16, 24)
        assert trace.missing_span_count == 0
    # A step that was begun anew under the number that it had is another one.
    again = write_rank(tmp_path, packets=[step_packet([steps[3], (3, 9_000_000, 1, False, False)])], run_id="again")
    assert read_file(again).steps.step.tolist() == [3, 3]


def test_joined_files_are_taken_apart(tmp_path: Path) -> None:
    paths = [write_rank(tmp_path, SPANS[: rank + 1], rank=rank, world_size=3) for rank in range(3)]
    joined = tmp_path / "all.smon"
    joined.write_bytes(b"".join(path.read_bytes() for path in paths))
    assert [len(trace.spans) for trace in read_files([str(joined)])] == [1, 2, 3]
    job = read_job([joined])
    assert [trace.rank for trace in job.ranks] == [0, 1, 2]
    assert job.missing_count == 0
    with pytest.raises(TraceError, match="holds 3 processes"):
        read_file(joined)


def test_one_unreadable_file_does_not_hide_the_others(tmp_path: Path) -> None:
    write_rank(tmp_path, SPANS, rank=0, world_size=3)
    (tmp_path / file_name(1)).write_bytes(b"")
    (tmp_path / file_name(2)).write_bytes(b"rubbish" * 100)
    job = read_job([tmp_path])
    assert job.missing_text() == "1–2"
    assert ["is empty" in line or "is no trace" in line for line in job.unreadable] == [True, True]


def test_two_processes_of_one_rank_are_not_mixed(tmp_path: Path) -> None:
    for pid, count in ((5, 2), (6, 4)):
        folder = tmp_path / str(pid)
        folder.mkdir()
        write_rank(folder, SPANS[:count], pid=pid)
    (trace,) = read_directory([tmp_path / "5", tmp_path / "6"])
    assert (trace.identity.pid, len(trace.spans)) == (6, 4)
    assert "another process (pid 5) recorded rank 0 too" in str(trace.damage[-1])


def test_a_restart_with_the_same_pid_is_another_process(tmp_path: Path) -> None:
    """In a container every process is number 1; only when it started tells one from the next."""
    spans = [TestSpan(step=step, start_ns=1000 * step, duration_ns=10) for step in range(6)]
    write_rank(tmp_path, spans[:4], pid=1, boot_id="boot", process_start_ticks=100)
    write_rank(tmp_path, spans, pid=1, boot_id="boot", process_start_ticks=200, file_index=1)
    (trace,) = read_directory(tmp_path)
    assert trace.identity.process_start_ticks == 200
    assert (len(trace.spans), trace.repeated_span_count, trace.missing_span_count) == (6, 0, 0)
    assert any("another process (pid 1) recorded rank 0 too" in str(part) for part in trace.damage)


def test_claims_about_ranks_cost_nothing(tmp_path: Path) -> None:
    write_rank(tmp_path, SPANS, rank=2**31 - 2, world_size=2**31 - 1, pid=1)
    job = read_job([tmp_path])
    assert job.missing_count == 2**31 - 2
    assert job.missing_text() == "0–2147483645"
    write_rank(tmp_path, SPANS, rank=-5 % 100, world_size=-3, run_id="z")
    assert read_job([tmp_path], run_id="z").missing_count == 0


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "holds no .smon file"),
        ("missing", "no such file"),
        ("*.none", "no such file"),
        ("x\0y", "no file has a NUL"),
    ],
)
def test_paths_without_a_trace_are_refused(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(TraceError, match=said):
        read_directory(f"{tmp_path}/{name}")
