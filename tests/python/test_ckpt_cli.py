"""`smon ckpt ls|verify|export` against a real agent, a killed one, and hostile answers."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from smon_rt import cli
from smon_rt._proto import agent_pb2
from smon_rt.checkpoint_tools import disk_folder, exporting

from . import ckpt_jobs
from .agent_trainer import AgentTrainer, label
from .ckpt_jobs import CONTENT_BYTES, Job, needs_agent, refusal, run_json, state, wait_until

base, job = ckpt_jobs.base, ckpt_jobs.job  # fixtures


@needs_agent
def test_ls_says_what_an_agent_holds(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    job.begin()
    job.capture(3)
    job.trainer.send(skipped=agent_pb2.Skipped(label=job.trainer.next_promise().label, cause=agent_pb2.SKIP_CANCELLED))
    wait_until(lambda: job.trainer.status().skipped_steps == 1)
    (agent,) = run_json(capsys, "ls")["agents"]
    assert (agent["run"], agent["state"], agent["incarnation"]) == ("run", "live", 1)
    assert agent["agreed"] == {"incarnation": 1, "step": 3}
    assert agent["durable"] is None
    assert agent["last_skip"] == {"incarnation": 1, "step": 4, "owner": "rank=0", "cause": "cancelled"}
    assert agent["hash_gb_per_s"] > 0
    (rank,) = agent["ranks"]
    assert (rank["owner"], rank["content_bytes"], rank["captures"]) == ("rank=0", CONTENT_BYTES, 3)
    assert (rank["skips"], rank["lag_steps"], rank["blocked_s"]) == (1, 0, 1e-9)
    assert rank["captured"] == {"incarnation": 1, "step": 3}

    assert cli.run(["ckpt", "ls", "--run", "run"]) == 0
    text = capsys.readouterr().out
    assert "agreed: step 3 of incarnation 1; durable: none; skipped: 1" in text
    assert "step 4 of incarnation 1 by rank=0: its copy was not complete" in text
    assert "rank=0" in text
    assert "5.00 MB" in text


@needs_agent
def test_runs_are_told_apart(job: Job, base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = Job(base, "ünlike/run")
    try:
        assert {agent["run"] for agent in run_json(capsys, "ls")["agents"]} == {"run", "ünlike/run"}
        (agent,) = run_json(capsys, "ls", "--run", "ünlike/run")["agents"]
        assert agent["pid"] == other.process.pid
        assert "choose one with --run" in refusal(capsys, "export", str(base / "out"))
        assert "there are run, ünlike/run" in refusal(capsys, "ls", "--run", "none such")
    finally:
        other.end()


@needs_agent
def test_an_agent_whose_job_is_gone_is_an_orphan_and_a_killed_one_gone(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job(base)
    wait_until(lambda: run_json(capsys, "ls")["agents"][0]["state"] == "orphan")
    job.end()
    (agent,) = run_json(capsys, "ls")["agents"]
    assert (agent["run"], agent["state"]) == ("run", "gone")
    assert "is gone, and what it held" in (cli.run(["ckpt", "ls"]), capsys.readouterr().out)[1]
    assert "lives" in refusal(capsys, "verify")
    assert refusal(capsys, "export", str(base / "out"))


@needs_agent
def test_verify_names_the_copy_whose_byte_has_flipped(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    job.begin()
    job.capture(1)
    promise = job.trainer.next_promise()
    assert [copy["is_intact"] for copy in run_json(capsys, "verify")["copies"]] == [True]
    (slot,) = set(job.trainer.slots) - {promise.slot}
    job.trainer.slots[slot][4096 + 4_500_000] ^= 1
    assert cli.run(["ckpt", "verify"]) == 1
    text = capsys.readouterr().out
    assert "1 NOT intact" in text
    assert "DAMAGED  run run, rank=0, step 1 of incarnation 1, in memory" in text
    assert "no step that all ranks have" in refusal(capsys, "export", str(job.folder.parent / "out"))


@needs_agent
def test_export_writes_the_bytes_that_were_captured_and_never_over_others(
    job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job.begin()
    job.capture(2)
    out = tmp_path / "out"
    done = run_json(capsys, "export", str(out))
    assert (done["run"], done["incarnation"], done["step"]) == ("run", 1, 2)
    assert done["files"] == [str(out / "rank=0.safetensors")]
    assert [path.name for path in out.iterdir()] == ["rank=0.safetensors"]
    assert (out / "rank=0.safetensors").read_bytes() == state(2)
    assert "not empty" in refusal(capsys, "export", str(out))
    assert (out / "rank=0.safetensors").read_bytes() == state(2)
    assert "no step 77" in refusal(capsys, "export", str(tmp_path / "other"), "--step", "77")
    assert not (tmp_path / "other").exists()
    assert "cannot write" in refusal(capsys, "export", str(tmp_path / "no" / "parent"))


@needs_agent
def test_a_slot_that_the_job_writes_into_meanwhile_is_not_exported(
    job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job.begin()
    job.capture(1)
    promise = job.trainer.next_promise()
    (slot,) = set(job.trainer.slots) - {promise.slot}
    real = disk_folder.read_full

    def write_then_read(read: Callable[[int, int], bytes], size: int, offset: int) -> bytes:
        memory = job.trainer.slots[slot]
        memory[16:24] = (int.from_bytes(memory[16:24], "little") + 2).to_bytes(8, "little")
        return real(read, size, offset)

    monkeypatch.setattr(exporting, "read_full", write_then_read)
    assert "captured a newer step" in refusal(capsys, "export", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_bad_input_is_one_line(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    for words in (["ls", "/no/such"], ["ls", str(tmp_path / "empty")], ["verify", str(tmp_path / "file")]):
        assert words[1] in refusal(capsys, *words)
    assert refusal(capsys, "ls", "nul\0byte")
    assert "no agent of this user" in refusal(capsys, "verify")
    assert refusal(capsys, "export", str(tmp_path / "out"))
    assert "--step" in refusal(capsys, "export", "out", "--step", "-1")
    assert "--timeout" in refusal(capsys, "ls", "--timeout", "0")
    assert run_json(capsys, "ls") == {"agents": [], "disks": [], "problems": []}


def test_a_folder_that_others_may_write_into_is_refused(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base.mkdir()
    base.chmod(0o755)
    assert "chmod 0700" in refusal(capsys, "ls")
    base.rmdir()
    (tmp_path / "elsewhere").mkdir(0o700)
    base.symlink_to(tmp_path / "elsewhere")
    assert "is a link" in refusal(capsys, "ls")


class HostileAgent:
    """Holds the lock of a folder and answers each request with the same packets."""

    def __init__(self, base: Path, packets: list[bytes], fds: list[int] | None = None) -> None:
        folder = base / "hostile"
        folder.mkdir(mode=0o700, parents=True)
        base.chmod(0o700)
        self.packets, self.fds = packets, fds or []
        self.lock = os.open(folder / "agent.lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        os.write(self.lock, b"1 2 0 hostile\n")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(folder / "agent.sock"))
        self.listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self.listener.accept()
            except OSError:
                return
            with peer:
                try:
                    while peer.recv(1 << 16):
                        for packet in self.packets:
                            socket.send_fds(peer, [packet], self.fds)
                        if not self.packets:
                            time.sleep(2)
                except OSError:
                    continue

    def end(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        os.close(self.lock)


def packet(**content: Any) -> bytes:
    return agent_pb2.AgentMessage(**content).SerializeToString()


@pytest.mark.parametrize(
    ("packets", "said"),
    [
        ([], "does not answer within 0.5 s"),
        ([b"\xff\xff\xff"], "no message"),
        ([b"\0" * 70_000], "more than a packet has room for"),
        ([packet(done=agent_pb2.Done())], "answers with done"),
        ([packet(refused=agent_pb2.Refused(reason="go\naway\x1b[2J"))], "go\\naway"),
        ([packet(promise=agent_pb2.Promise())] * 3, "does not answer within"),
        ([b"\xa2\x06\x00"], "nothing that is known"),
    ],
)
def test_an_agent_that_answers_badly_is_said_in_one_line(
    packets: list[bytes], said: str, base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = HostileAgent(base, packets)
    try:
        descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        found = run_json(capsys, "ls", "--timeout", "0.5", code=3)
        (agent,) = found["agents"]
        assert (agent["run"], agent["state"]) == ("hostile", "silent")
        assert said in agent["problem"]
        assert "\n" not in agent["problem"]
        assert cli.run(["ckpt", "ls", "--timeout", "0.5"]) == 3
        text = capsys.readouterr().out
        assert "PROBLEM" in text
        assert "\x1b" not in text
        assert "hostile" in refusal(capsys, "export", str(base / "out"), "--timeout", "0.5")
        assert len(os.listdir("/proc/self/fd")) <= descriptors + 1  # noqa: PTH208  # the server's end
    finally:
        hostile.end()


def test_descriptors_that_nobody_asked_for_are_closed(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reading, writing = os.pipe()
    status = agent_pb2.Status(
        run_id="\x1b[2J", ranks=[agent_pb2.RankStatus(owner="x", copy_ns=1, content_bytes=1 << 63)]
    )
    hostile = HostileAgent(base, [packet(status=status)], [reading] * 4)
    try:
        run_json(capsys, "ls")
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        for _ in range(5):
            (agent,) = run_json(capsys, "ls")["agents"]
        assert agent["run"] == "\x1b[2J"
        assert cli.run(["ckpt", "ls"]) == 0
        assert "\x1b" not in capsys.readouterr().out
        assert len(os.listdir("/proc/self/fd")) <= before + 2  # noqa: PTH208
    finally:
        hostile.end()
        os.close(reading)
        os.close(writing)


@needs_agent
def test_a_file_that_appears_meanwhile_stays(
    job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job.begin()
    job.capture(1)
    out = tmp_path / "out"
    real = disk_folder.read_full

    def appear_then_read(read: Callable[[int, int], bytes], size: int, offset: int) -> bytes:
        (out / "rank=0.safetensors").write_text("another's")
        return real(read, size, offset)

    monkeypatch.setattr(exporting, "read_full", appear_then_read)
    assert "cannot write" in refusal(capsys, "export", str(out))
    assert [path.read_text() for path in out.iterdir()] == ["another's"]


@needs_agent
def test_a_step_that_only_one_of_two_ranks_has_is_not_exported(
    job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = [job.trainer, AgentTrainer(job.folder, rank=1)]
    for rank in ranks:
        rank.world_size = 2
        rank.hello()
    for rank in ranks:
        rank.fence(1)
    for rank in ranks:
        rank.list()
        rank.pin(label(0, 0))
        rank.reserve(CONTENT_BYTES)
    for rank in ranks:
        rank.go_on(1)
    for rank in ranks:
        rank.capture(state(rank.rank))
    wait_until(lambda: ranks[0].status().agreed == label(1, 1))
    ranks[0].capture(state(2))
    wait_until(lambda: run_json(capsys, "ls")["agents"][0]["ranks"][0]["captured"]["step"] == 2)
    (agent,) = run_json(capsys, "ls")["agents"]
    assert [rank["lag_steps"] for rank in agent["ranks"]] == [0, 1]
    assert "no step 2" in refusal(capsys, "export", str(tmp_path / "two"), "--step", "2")
    assert run_json(capsys, "export", str(tmp_path / "out"))["step"] == 1
    for rank in ranks:
        assert (tmp_path / "out" / f"rank={rank.rank}.safetensors").read_bytes() == state(rank.rank)
    ranks[1].close()


def test_importing_smon_rt_loads_no_tools() -> None:
    program = "import sys, smon_rt; print([m for m in sys.modules if 'checkpoint_tools' in m or m == 'xxhash'])"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout == "[]\n"
