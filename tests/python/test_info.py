"""`smon info` says what is in a trace and what is missing from it."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from smon_rt import cli
from smon_rt._proto import trace_pb2
from smon_rt.report.terminal import print_text
from smon_rt.report.trace_info import info_tables, info_text
from smon_rt.trace import arena
from smon_rt.trace.job_trace import JobReader
from smon_rt.trace.kinds import FLAGS, KIND_NUMBERS
from smon_rt.trace.rank_trace import OPEN_SPANS_RING
from smon_rt.trace.summary import summarize
from tests.python.arena_files import DEAD_PID, Arena, Ring, write_arena
from tests.python.smon_files import (
    TestSpan,
    end,
    file_name,
    identity,
    packet,
    span_packet,
    step_packet,
    write_rank,
)

HOOKS = [
    trace_pb2.Hook(name="megatron.forward_step", installed=True),
    trace_pb2.Hook(name="c10d", installed=False, reason="torch 2.3 has no hooks"),
]


def write_job(folder: Path, ranks: tuple[int, ...] = (0, 1, 2, 3), **more: Any) -> None:
    """A job of four ranks on two hosts: 20 steps, every other one sampled, which makes them 2 % slower."""
    for rank in ranks:
        spans = [
            TestSpan(kind=kind, step=step, start_ns=10**9 * step, duration_ns=9 * 10**5, microbatch=0)
            for step in range(1, 20, 2)
            for kind in ("forward_compute", "backward_compute")
        ]
        steps = [
            (step, 10**9 * step, 10**9 + step % 2 * 2 * 10**7 + step, step % 2 == 1, step < 2) for step in range(20)
        ]
        packets = [step_packet(steps), packet(recorder_cost=trace_pb2.RecorderCost(drain_cpu_ns=10**7))]
        if rank == 1:
            losses = trace_pb2.Losses(dropped_by_kind={KIND_NUMBERS["gc"]: 3}, stale_tokens=2, sink_error="disk full")
            losses.uncounted_sequences = 9
            packets.append(packet(losses=losses))
        who: dict[str, Any] = {
            "hooks": HOOKS,
            "layout": {"dp_size": 2, "pp_size": 2, "dp_rank": rank % 2, "stage": rank // 2, "schedule": "1f1b"},
            "host": f"node{rank // 2}",
            "boot_id": f"boot{rank // 2}",
            "versions": {"torch": "2.15.0"},
            "environment": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
        }
        write_rank(folder, spans, packets=packets, rank=rank, world_size=4, **(who | more))


def info(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.run(["info", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_whole_job_is_described_in_lines_and_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_job(tmp_path)
    code, out, err = info(capsys, str(tmp_path))
    assert (code, err) == (0, "")
    lines = dict(line.split(maxsplit=1) for line in out.partition("\n\n")[0].splitlines() if "not c10d" not in line)
    assert lines["job"] == "run job attempt 0: 4 of 4 ranks on 2 hosts (node0, node1)"
    assert lines["layout"] == "dp 2, pp 2, tp 1, cp 1, vpp 1, 1f1b"
    assert lines["steps"].startswith("20 steps (0 to 19), 10 sampled, 2 warm-up; a step takes 1.01 s")
    assert lines["spans"].startswith("80 spans of 2 kinds; ")
    assert lines["losses"] == "3 spans dropped (gc 3); stale tokens 2; uncounted sequences 9; rank 1: disk full"
    assert lines["hooks"] == "1 installed: megatron.forward_step"
    assert "hooks    not c10d: torch 2.3 has no hooks\n" in out
    assert lines["clocks"] == "tsc; no device clock; hosts by their realtime clocks (the analysis uses their messages)"
    assert lines["cost"].startswith("own threads use 0.05 % of a core at most; sampled steps take +2.00 %")
    assert lines["cost"].endswith("or call smon_rt.pause() at the same step on all ranks")
    assert lines["memory"] == "tmpfs"
    assert lines["files"].endswith("ranks: 4 closed")
    assert lines["settings"] == "torch 2.15.0, CUDA_DEVICE_MAX_CONNECTIONS 1"
    assert "MISSING" not in out
    tables = out.split("\n\n")[1:]
    assert [table.splitlines()[0] for table in tables] == ["Spans by kind", "Ranks"]
    assert tables[1].splitlines()[3].split() == [
        "rank",
        "1",
        "1",
        "0",
        "node0",
        "20",
        "10",
        "20",
        "3",
        *_rest(tables[1]),
    ]


def _rest(table: str) -> list[str]:
    return table.splitlines()[3].split()[-3:]


def test_a_terminal_gets_the_same_words_in_colour(tmp_path: Path) -> None:
    write_job(tmp_path, (0, 2))
    job = summarize(JobReader([tmp_path]))

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    plain, terminal = io.StringIO(), Terminal()
    for stream in (plain, terminal):
        print_text(info_text(job), info_tables(job), stream=stream, headline_style="bold yellow")
    assert "\x1b[" not in plain.getvalue()
    for words in ("ranks 1, 3: no files (2 of 4 ranks)", "forward_compute", "rank 2", "Spans by kind"):
        assert words in plain.getvalue()
        assert words in terminal.getvalue()


def test_json_holds_all_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_job(tmp_path, (0, 1, 3))
    code, out, err = info(capsys, str(tmp_path), "--json", "-")
    document = json.loads(out)
    assert (code, err) == (3, "")
    assert document["missing_ranks"] == [[2, 2]]
    assert document["incomplete"] == ["rank 2: no file"]
    assert [rank["rank"] for rank in document["ranks"]] == [0, 1, 3]
    assert document["ranks"][0]["overhead"]["ratio"] == pytest.approx(0.02, rel=1e-3)
    assert document["kinds"][0] == {
        "kind": "forward_compute",
        "span_count": 30,
        "total_s": pytest.approx(0.027),
        "device_span_count": 0,
    }
    assert document["losses"]["dropped_by_kind"] == {"gc": 3}
    assert document["hooks"][0] == {
        "name": "c10d",
        "is_installed": False,
        "reason": "torch 2.3 has no hooks",
        "rank_count": 3,
    }
    assert info(capsys, str(tmp_path), "--json", str(tmp_path / "out.json"))[0] == 3
    assert json.loads((tmp_path / "out.json").read_text(encoding="utf-8")) == document


def test_the_json_never_replaces_the_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_rank(tmp_path)
    before = path.read_bytes()
    link = tmp_path / "link.json"
    link.hardlink_to(path)
    for output in (path, link):
        code, _, err = info(capsys, str(tmp_path), "--json", str(output))
        assert code == 2
        assert "is what is read: choose another place for the output" in err
    assert path.read_bytes() == before
    assert path.stat().st_nlink == 2


def test_what_is_missing_is_said_and_is_the_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_job(tmp_path, (0, 1, 3))
    write_job(tmp_path, (2,), run_id="elder", attempt=1)
    path = tmp_path / file_name(1)
    path.write_bytes(path.read_bytes()[:-30])
    path = tmp_path / file_name(3)
    damaged = bytearray(path.read_bytes())
    damaged[-40] ^= 1
    path.write_bytes(damaged)
    code, out, err = info(capsys, str(tmp_path), "--quiet", "--run", "job")
    assert (code, err) == (3, "")
    first, second, third, *_ = out.splitlines()
    assert first == "missing: rank 2: no file"
    assert second == "missing: rank 1: its file is cut"
    assert third.startswith("missing: rank 3: ")
    assert "wrong checksum" in third
    _, out, _ = info(capsys, str(tmp_path), "--run", "job")
    assert "run elder attempt 1, 1 file: --run, --attempt" in out


def test_a_killed_process_is_completed_from_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = tmp_path / "shm"
    memory.mkdir()
    monkeypatch.setattr(arena, "SHARED_MEMORY", memory)
    spans = [TestSpan(kind="gc", start_ns=1_000_000 + index, duration_ns=1) for index in range(3)]
    folder = tmp_path / "traces"
    folder.mkdir()
    write_rank(folder, spans[:1], pid=DEAD_PID, closed=False)
    opened = TestSpan(kind="collective", step=12, start_ns=1_000_000, microbatch=3)
    kept = Arena([Ring(spans[1:], read=1, open_spans=[opened])], dropped_by_kind={KIND_NUMBERS["gc"]: 7})
    write_arena(memory, kept, identity(pid=DEAD_PID))
    code, out, _ = info(capsys, str(folder))
    assert code == 3
    assert "3 spans of 1 kind, 2 from the memory of killed processes" in out
    assert "7 spans dropped (gc 7)" in out
    assert "rank 0 in step 12 (training), inside collective of step 12 microbatch 3" in out
    assert "MISSING rank 0: its process was killed" in out
    assert "1 killed" in out


def test_a_file_that_another_start_completed_says_who_did_and_where_the_process_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once its memory is merged and gone, nothing but the file can say that its process was killed."""
    spans = [TestSpan(kind="gc"), TestSpan(kind="forward_compute", step=12, microbatch=3, flags=FLAGS["aborted"])]
    leftover = trace_pb2.Leftover(merged_by_pid=4711, realtime_ns=1_700_000_000_123_000_000, step=12, phase=1)
    packets = [span_packet(spans[1:], ring_id=OPEN_SPANS_RING), packet(leftover=leftover)]
    path = write_rank(tmp_path, spans[:1], packets=packets, closed=False)
    code, out, _ = info(capsys, str(tmp_path))
    assert code == 3
    assert "rank 0 in step 12 (training), inside forward_compute of step 12 microbatch 3" in out
    assert (
        "MISSING rank 0: its process was killed; its last spans were put into its file by process 4711 at 2023-11-14"
        " 22:13:20 UTC" in out
    )
    assert "1 killed" in out
    # One that ended by itself, and whose memory was found later, was not killed.
    path.write_bytes(path.read_bytes() + end())
    assert info(capsys, str(tmp_path))[0] == 0


def test_a_time_or_step_of_a_merge_that_makes_no_sense_is_damage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leftovers = [trace_pb2.Leftover(realtime_ns=2**63 - 1), trace_pb2.Leftover(step=-(2**63), phase=2**32 - 1)]
    for rank, leftover in enumerate(leftovers):
        write_rank(tmp_path, packets=[packet(leftover=leftover)], closed=False, rank=rank, world_size=2)
    code, out, err = info(capsys, str(tmp_path))
    assert (code, err) == (3, "")
    assert out.count("impossible") == 2


def test_ranks_that_run_are_where_they_are_the_one_behind_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one asks of a job that hangs: who is waited for."""
    memory = tmp_path / "shm"
    memory.mkdir()
    monkeypatch.setattr(arena, "SHARED_MEMORY", memory)
    monkeypatch.setattr(arena, "_runs", lambda pid, _: pid < DEAD_PID)
    folder = tmp_path / "traces"
    folder.mkdir()
    for rank in range(2):
        write_rank(folder, rank=rank, world_size=2, closed=False)
        kind = ("collective", "forward_compute")[rank]
        opened = TestSpan(kind=kind, step=12, start_ns=1_000_000, microbatch=rank - 1)
        write_arena(memory, Arena([Ring(open_spans=[opened])], pid=1000 + rank), identity(rank, 2))
    code, out, _ = info(capsys, str(folder))
    assert code == 0
    now = [line for line in out.splitlines() if line.startswith("now ")]
    assert [line.split(maxsplit=1)[1] for line in now] == [
        "rank 1 in step 12 (training), inside forward_compute of step 12 microbatch 0",
        "rank 0 in step 12 (training), inside collective of step 12",
    ]


def test_names_from_a_file_cannot_move_the_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hook = trace_pb2.Hook(name="evil\x1b[2J", installed=False, reason="line\nbreak")
    write_rank(tmp_path, host="host\x1b[31m", hooks=[hook], versions={"a\r": "b\x07"})
    code, out, _ = info(capsys, str(tmp_path))
    assert code == 0
    assert not {"\x1b", "\r", "\x07"} & set(out)
    assert "not evil\\x1b[2J: line\\nbreak" in out


def test_a_large_job_names_the_ranks_with_something_to_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(40):
        write_rank(tmp_path, rank=rank, world_size=40, closed=rank != 17)
    code, out, _ = info(capsys, str(tmp_path))
    assert code == 3
    table = out[out.index("Ranks\n") :]
    assert [line.split()[1] for line in table.splitlines()[2:3]] == ["17"]
    assert "1 of 40 ranks" in table


def test_analyze_says_what_a_trace_without_ops_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_rank(tmp_path)
    for given in (tmp_path, path):
        assert cli.run(["analyze", str(given)]) == 2
        assert "recorded no op of a training step: mark them with smon_rt.span" in capsys.readouterr().err


def test_nothing_readable_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert info(capsys, str(tmp_path))[0] == 2
    (tmp_path / file_name()).write_bytes(b"rubbish" * 9)
    code, out, err = info(capsys, str(tmp_path))
    assert (code, out) == (2, "")
    assert "is no trace of smon_rt" in err
    assert len(err.splitlines()) == 1
