"""smon-agent as a process: what it keeps, refuses, and outlives."""

from __future__ import annotations

import os
import random
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from smon_rt._proto import agent_pb2

from .agent_trainer import AGENT, TIMEOUT_S, AgentTrainer, label

CONTENT_BYTES = 5_000_000  # two chunks, the second not full

pytestmark = pytest.mark.skipif(not AGENT.exists(), reason=f"no {AGENT}: build the target smon-agent")


class Agent:
    def __init__(self, folder: Path, run_id: str = "run", ttl_s: int = 60) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [AGENT, "--folder", folder, "--run-id", run_id, "--ttl-s", str(ttl_s)], text=True
        )
        self.wait_until(lambda: (folder / "agent.sock").exists() and self.answers())

    def answers(self) -> bool:
        try:
            AgentTrainer(self.folder).close()
        except OSError:
            return False
        return True

    def wait_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.01)

    def log(self) -> str:
        return (self.folder / "agent.log").read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(TIMEOUT_S)

    def memory_kib(self, field: str) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(field + ":"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "smon" / "run"


@pytest.fixture
def agent(folder: Path) -> Iterator[Agent]:
    started = Agent(folder)
    yield started
    started.kill()


def state(step: int) -> bytes:
    return random.Random(step).randbytes(CONTENT_BYTES)


def wait_for_agreed(agent: Agent, trainer: AgentTrainer, step: agent_pb2.Label) -> None:
    agent.wait_until(lambda: trainer.status().agreed == step)


def restart(agent: Agent, incarnation: int) -> AgentTrainer:
    trainer = AgentTrainer(agent.folder)
    assert trainer.hello("second").HasField("welcome")
    assert trainer.fence(incarnation).HasField("done")
    return trainer


def test_what_was_captured_comes_back_bit_for_bit_after_a_restart(agent: Agent) -> None:
    first = AgentTrainer(agent.folder)
    first.begin(CONTENT_BYTES)
    for step in range(1, 6):
        assert first.capture(state(step)) == label(1, step)
    wait_for_agreed(agent, first, label(1, 5))
    first.close()

    second = restart(agent, 2)
    newest = second.list()[0]
    assert newest.label == label(1, 5)
    assert newest.is_intact
    assert second.pin(newest.label).HasField("done")
    assert second.fetch(newest.label) == (state(5), "")
    second.reserve(CONTENT_BYTES)
    assert second.go_on(6).HasField("done")
    assert second.capture(state(6)) == label(2, 6)
    wait_for_agreed(agent, second, label(2, 6))
    second.close()


def test_a_trainer_that_is_killed_while_it_writes_leaves_the_step_before(agent: Agent) -> None:
    program = (
        "import os, signal, sys, time; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path; from agent_trainer import AgentTrainer\n"
        "t = AgentTrainer(Path(sys.argv[2])); t.begin(5_000_000); t.capture(b'a' * 5_000_000)\n"
        "p = t.next_promise(); t.send(began={'label': p.label, 'slot': p.slot})\n"
        "t.slots[p.slot][4096:9000] = b'x' * 4904; os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    arguments = [sys.executable, "-c", program, str(Path(__file__).parent), str(agent.folder)]
    assert subprocess.run(arguments, timeout=60).returncode == -signal.SIGKILL
    second = restart(agent, 2)
    copies = second.list()
    assert [copy.label for copy in copies] == [label(1, 1)]
    second.pin(copies[0].label)
    assert second.fetch(copies[0].label) == (b"a" * CONTENT_BYTES, "")
    assert "has ended" in agent.log()
    second.close()


def test_a_flipped_byte_is_listed_as_such_and_refused(agent: Agent) -> None:
    first = AgentTrainer(agent.folder)
    first.begin(CONTENT_BYTES)
    first.capture(state(1))
    promise = first.next_promise()
    wait_for_agreed(agent, first, label(1, 1))
    (slot,) = set(first.slots) - {promise.slot}
    first.slots[slot][4096 + 4_500_000] ^= 1

    second = restart(agent, 2)
    (copy,) = second.list()
    assert copy.label == label(1, 1)
    assert not copy.is_intact
    assert "changed" in copy.reason
    second.pin(copy.label)
    content, reason = second.fetch(copy.label)
    assert content == b""
    assert "no copy" in reason
    first.close()
    second.close()


def test_a_copy_of_another_topology_is_refused_with_both_printed(agent: Agent) -> None:
    first = AgentTrainer(agent.folder)
    first.begin(CONTENT_BYTES)
    first.capture(state(1))
    wait_for_agreed(agent, first, label(1, 1))
    second = AgentTrainer(agent.folder)
    second.hello("second", topology="another world")
    second.fence(2)
    second.list()
    second.pin(label(1, 1))
    _, reason = second.fetch(label(1, 1))
    assert "'world'" in reason
    assert "'another world'" in reason
    first.close()
    second.close()


def test_a_copy_that_is_not_what_was_promised_is_dead(agent: Agent) -> None:
    trainer = AgentTrainer(agent.folder)
    trainer.begin(CONTENT_BYTES)
    promise = trainer.next_promise()
    trainer.send(began=agent_pb2.Began(label=promise.label, slot=promise.slot))
    trainer.write_slot(promise.slot, label(1, 77), state(1))
    trainer.send(copied=agent_pb2.Copied(label=promise.label, slot=promise.slot))
    agent.wait_until(lambda: trainer.status().skipped_steps == 1)
    assert not trainer.status().HasField("agreed")
    trainer.close()


def test_a_list_waits_until_all_ranks_are_fenced(agent: Agent) -> None:
    ranks = [AgentTrainer(agent.folder, rank, 2) for rank in range(2)]
    for trainer in ranks:
        trainer.hello()
    ranks[0].fence(1)
    ranks[0].send(list=agent_pb2.List(owner="rank=0"))
    ranks[0].socket.settimeout(0.2)
    with pytest.raises(TimeoutError):
        ranks[0].receive()
    ranks[0].socket.settimeout(TIMEOUT_S)
    ranks[1].fence(1)
    assert ranks[0].receive()[0].HasField("listing")
    for trainer in ranks:
        trainer.close()


def test_a_step_that_one_rank_skips_is_dead_for_all(agent: Agent) -> None:
    ranks = [AgentTrainer(agent.folder, rank, 2) for rank in range(2)]
    for step in ("hello", "fence", "list", "pin", "reserve", "go_on"):
        arguments = {"fence": (1,), "pin": (label(0, 0),), "reserve": (1000,), "go_on": (1,)}.get(step, ())
        for trainer in ranks:
            getattr(trainer, step)(*arguments)
    promise = ranks[1].next_promise()
    ranks[0].capture(b"a" * 1000)
    skipped = agent_pb2.Skipped(label=promise.label, cause=agent_pb2.SKIP_CANCELLED)
    ranks[1].send(skipped=skipped)
    agent.wait_until(lambda: ranks[0].status().skipped_steps == 1)
    last = ranks[0].status().last_skip
    assert (last.owner, last.cause, last.label) == ("rank=1", agent_pb2.SKIP_CANCELLED, promise.label)
    assert any(message.HasField("dead") for message in ranks[0].unasked)
    assert ranks[0].capture(b"b" * 1000) == ranks[1].capture(b"b" * 1000) == label(1, 2)
    wait_for_agreed(agent, ranks[0], label(1, 2))
    for trainer in ranks:
        trainer.close()


def test_writers_of_an_older_incarnation_are_refused(agent: Agent) -> None:
    zombie = AgentTrainer(agent.folder)
    zombie.begin(CONTENT_BYTES)
    second = restart(agent, 2)
    with pytest.raises((ConnectionError, BrokenPipeError)):
        zombie.fence(3)
    assert "is over" in second.fence(1).refused.reason
    zombie.close()
    second.close()


def test_an_agent_that_is_killed_gets_its_slots_back_from_the_trainer(agent: Agent) -> None:
    trainer = AgentTrainer(agent.folder)
    trainer.begin(CONTENT_BYTES)
    trainer.capture(state(1))
    wait_for_agreed(agent, trainer, label(1, 1))
    agent.kill()
    anew = Agent(agent.folder)
    back = AgentTrainer(agent.folder)
    assert back.hello().welcome.is_new
    adopt = agent_pb2.Adopt(layout_epoch=1, content_bytes=CONTENT_BYTES, slots=list(trainer.slots))
    reply, fds = back.ask(list(trainer.slot_fds.values()), adopt=adopt)
    assert list(reply.reserved.slots) == list(trainer.slots)
    for fd in fds:
        os.close(fd)
    back.incarnation = 1
    assert back.go_on(2).HasField("done")
    assert back.status().agreed == label(1, 1)
    back.slots, back.slot_fds = trainer.slots, trainer.slot_fds
    assert back.capture(state(2)) == label(1, 2)
    wait_for_agreed(anew, back, label(1, 2))
    back.close()
    anew.kill()


def test_a_trainer_that_loses_its_connection_while_it_writes_goes_on(agent: Agent) -> None:
    trainer = AgentTrainer(agent.folder)
    trainer.begin(CONTENT_BYTES)
    wait_for_agreed(agent, trainer, trainer.capture(state(1)))
    for step in (2, 4, 6):  # each time the slot would be lost, if nobody gave it back
        promise = trainer.next_promise()
        assert promise.label == label(1, step)
        trainer.send(began=agent_pb2.Began(label=promise.label, slot=promise.slot))
        trainer.status()  # the agent has heard of it
        trainer.connect_anew()
        assert not trainer.hello().welcome.is_new
        wait_for_agreed(agent, trainer, trainer.capture(state(step + 1)))
    assert trainer.status().last_skip.label == label(1, 6)
    trainer.close()


def test_foreign_descriptors_are_not_adopted(agent: Agent) -> None:
    trainer = AgentTrainer(agent.folder)
    trainer.hello()
    plain = os.memfd_create("plain")
    os.truncate(plain, 12288)
    reply, _ = trainer.ask([plain], adopt=agent_pb2.Adopt(layout_epoch=1, content_bytes=100, slots=[0]))
    assert "no memory of an agent's" in reply.refused.reason
    os.close(plain)
    trainer.close()


def test_a_rejected_state_stays_so_for_the_next_agent(agent: Agent) -> None:
    trainer = AgentTrainer(agent.folder)
    trainer.begin(CONTENT_BYTES)
    reject = agent_pb2.Reject(label=label(7, 30), reason="loss is not a number")
    assert trainer.ask(reject=reject)[0].HasField("done")
    trainer.close()
    agent.kill()
    anew = Agent(agent.folder)
    again = AgentTrainer(agent.folder)
    assert again.hello().welcome.incarnation == 7
    assert (agent.folder / "tried").read_text() == "7 30 loss is not a number\n"
    again.close()
    anew.kill()


def test_memory_that_is_not_there_is_refused_with_the_numbers(agent: Agent) -> None:
    trainer = AgentTrainer(agent.folder)
    trainer.hello()
    for content_bytes in (1 << 44, 1 << 62, (1 << 64) - 1, 0):
        reply, _ = trainer.ask(reserve=agent_pb2.Reserve(layout_epoch=1, content_bytes=content_bytes))
        assert reply.refused.reason, content_bytes
    reply, _ = trainer.ask(reserve=agent_pb2.Reserve(layout_epoch=1, content_bytes=1 << 44))
    assert "32.0 TiB" in reply.refused.reason
    assert "MemAvailable" in reply.refused.reason
    assert trainer.status().memory_bytes == 0
    trainer.close()


def test_a_new_layout_gets_new_slots_and_the_old_ones_are_freed_later(agent: Agent) -> None:
    trainer = AgentTrainer(agent.folder)
    trainer.begin(CONTENT_BYTES)
    trainer.capture(state(1))
    wait_for_agreed(agent, trainer, label(1, 1))
    trainer.unasked.clear()
    old = set(trainer.slots)
    trainer.reserve(1000, epoch=2)
    assert len(set(trainer.slots) - old) == 2
    assert [copy.label for copy in AgentTrainer(agent.folder).list()] == [label(1, 1)]
    trainer.close()


def test_bytes_that_are_no_message_are_refused_and_change_nothing(agent: Agent) -> None:
    generator = random.Random(3)
    trainer = AgentTrainer(agent.folder)
    trainer.begin(CONTENT_BYTES)
    trainer.capture(state(1))
    wait_for_agreed(agent, trainer, label(1, 1))
    seeds = [
        agent_pb2.TrainerMessage(hello=agent_pb2.Hello(protocol=1, run_id="run", owner="x", world_size=1)),
        agent_pb2.TrainerMessage(fetch=agent_pb2.Fetch(owner="rank=0", label=label(1, 1), tier=agent_pb2.TIER_MEMORY)),
        agent_pb2.TrainerMessage(adopt=agent_pb2.Adopt(slots=[0, 1], content_bytes=CONTENT_BYTES)),
    ]
    for _ in range(2000):
        packet = bytearray(generator.choice(seeds).SerializeToString())
        for _ in range(generator.randrange(1, 6)):
            packet[generator.randrange(len(packet))] = generator.randrange(256)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
            # Blocking, so that it waits where the agent's backlog is full.
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(TIMEOUT_S), 0))
            peer.connect(str(agent.folder / "agent.sock"))
            null = os.open(os.devnull, os.O_RDONLY)
            socket.send_fds(peer, [bytes(packet)], [null] * generator.randrange(9))
            os.close(null)
    assert trainer.status().agreed == label(1, 1)
    assert agent.process.poll() is None
    trainer.close()


def test_an_agreed_step_comes_back_from_disk_when_all_memory_is_lost(agent: Agent, tmp_path: Path) -> None:
    disk: dict[str, Any] = {"disk_dir": str(tmp_path / "disk"), "disk_every": 2, "disk_keep": 1}
    first = AgentTrainer(agent.folder)
    first.hello(**disk)
    first.fence(3)
    first.list()
    first.pin(label(0, 0))
    first.reserve(CONTENT_BYTES)
    first.go_on(1)
    for step in (1, 2, 3):
        first.capture(state(step))
        wait_for_agreed(agent, first, label(3, step))
    agent.wait_until(lambda: first.status().durable == label(3, 2))
    first.close()
    agent.kill()

    anew = Agent(agent.folder)
    second = AgentTrainer(agent.folder)
    assert second.hello("second", **disk).welcome.incarnation == 3
    second.fence(4)
    (copy,) = second.list()
    assert (copy.label, copy.tier) == (label(3, 2), agent_pb2.TIER_DISK)
    second.pin(copy.label)
    assert second.fetch(copy.label, agent_pb2.TIER_DISK) == (state(2), "")
    (file,) = (tmp_path / "disk").rglob("*.safetensors")
    damaged = bytearray(file.read_bytes())
    damaged[4_500_000] ^= 1
    file.write_bytes(damaged)
    content, reason = second.fetch(copy.label, agent_pb2.TIER_DISK)
    assert content == b""
    assert reason
    second.close()
    anew.kill()


def test_a_second_agent_of_a_folder_ends_at_once(agent: Agent) -> None:
    command = [str(AGENT), "--detach", "--folder", str(agent.folder), "--run-id", "run"]
    assert subprocess.run(command, timeout=60).returncode == 0
    assert agent.process.poll() is None
    trainer = AgentTrainer(agent.folder)
    assert trainer.hello().welcome.pid == agent.process.pid
    trainer.close()


def test_an_agent_of_another_run_says_so(agent: Agent) -> None:
    trainer = AgentTrainer(agent.folder, run_id="other")
    assert "'run', not of 'other'" in trainer.hello().refused.reason
    trainer.close()


def test_an_agent_ends_when_its_job_is_not_seen_for_the_ttl(folder: Path) -> None:
    short = Agent(folder, ttl_s=1)
    assert short.process.wait(TIMEOUT_S) == 0
    assert "was not seen for 1 s" in short.log()
    assert not (folder / "agent.sock").exists()


def test_an_agent_ends_when_all_ranks_have_said_bye(agent: Agent) -> None:
    trainer = AgentTrainer(agent.folder)
    trainer.begin(1000)
    assert trainer.ask(bye=agent_pb2.Bye())[0].HasField("done")
    assert agent.process.wait(TIMEOUT_S) == 0
    trainer.close()


def test_a_signal_ends_an_agent_tidily(agent: Agent) -> None:
    trainer = AgentTrainer(agent.folder)
    trainer.begin(CONTENT_BYTES)
    trainer.capture(state(1))
    agent.process.terminate()
    assert agent.process.wait(TIMEOUT_S) == 0
    assert "ends: signal 15" in agent.log()
    trainer.close()


def test_a_job_hears_of_agents_whose_jobs_are_gone(folder: Path, agent: Agent) -> None:
    orphan = Agent(folder.parent / "gone", run_id="gone run")
    trainer = AgentTrainer(folder)
    agent.wait_until(lambda: len(trainer.hello().welcome.orphans) == 1)
    (found,) = trainer.hello().welcome.orphans
    assert (found.run_id, found.pid) == ("gone run", orphan.process.pid)
    orphan.kill()
    assert not trainer.hello().welcome.orphans
    trainer.close()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_another_user_is_refused(agent: Agent) -> None:
    program = (
        "import os, socket, sys; os.chdir(sys.argv[1]); os.setuid(65534)\n"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.settimeout(20); s.connect('agent.sock')\n"
        "print(s.recv(1000)); print(s.recv(1000))\n"
    )
    agent.folder.chmod(0o711)
    (agent.folder / "agent.sock").chmod(0o666)
    arguments = [sys.executable, "-c", program, str(agent.folder)]
    result = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
    assert "it answers no other" in result.stdout, result
    assert result.stdout.endswith("b''\n"), result


@pytest.mark.parametrize(
    "arguments", [[], ["--folder", "relative", "--run-id", "r"], ["--ttl-s", "x"], ["--nothing", "1"]]
)
def test_bad_arguments_are_one_line_and_code_2(arguments: list[str]) -> None:
    result = subprocess.run([AGENT, *arguments], capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1


def test_memory_and_open_files_stay_flat_over_10_000_captures(agent: Agent) -> None:
    trainer = AgentTrainer(agent.folder)
    trainer.begin(20_000)
    content = b"a" * 20_000

    def used() -> tuple[int, int]:
        return agent.memory_kib("RssAnon"), len(list(Path(f"/proc/{agent.process.pid}/fd").iterdir()))

    for _ in range(500):
        trainer.capture(content)
    before = used()
    for _ in range(10_000):
        last = trainer.capture(content)
    wait_for_agreed(agent, trainer, last)
    after = used()
    assert after[1] == before[1]
    assert after[0] <= before[0] + 256  # KiB
    trainer.close()
