"""A trainer of tests: speaks to a real smon-agent over its socket, message by message."""

from __future__ import annotations

import mmap
import os
import socket
import struct
from pathlib import Path

from smon_rt._proto import agent_pb2

#: Another build of it, with sanitizers, may be given.
AGENT = Path(
    os.environ.get("SMON_TEST_AGENT") or Path(__file__).parents[2] / "python" / "smon_rt" / "bin" / "smon-agent"
)
SLOT_MAGIC = 0x31544F4C534E4F4D
CONTENT_OFFSET = 4096
TIMEOUT_S = 20.0


def label(incarnation: int, step: int) -> agent_pb2.Label:
    return agent_pb2.Label(incarnation=incarnation, step=step)


class AgentTrainer:
    """One rank's side of the protocol. Every wait has a deadline."""

    def __init__(self, folder: Path, rank: int = 0, world_size: int = 1, run_id: str = "run") -> None:
        self.run_id, self.rank, self.world_size = run_id, rank, world_size
        self.owner = f"rank={rank}"
        self.topology = "world"
        self.incarnation = 0
        self.slots: dict[int, mmap.mmap] = {}
        self.slot_fds: dict[int, int] = {}
        self.unasked: list[agent_pb2.AgentMessage] = []
        self._folder = folder
        self.socket = self._connect()

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(TIMEOUT_S)
        connection.connect(str(self._folder / "agent.sock"))
        return connection

    def connect_anew(self) -> None:
        """After its connection was lost: what was on its way is lost with it."""
        self.socket.close()
        self.unasked.clear()
        self.socket = self._connect()

    def close(self) -> None:
        self.socket.close()
        for mapped in self.slots.values():
            mapped.close()
        for fd in self.slot_fds.values():
            os.close(fd)
        self.slots.clear()
        self.slot_fds.clear()

    def send(self, fds: list[int] | None = None, **content: object) -> None:
        packet = agent_pb2.TrainerMessage(**content).SerializeToString()  # type: ignore[arg-type]
        socket.send_fds(self.socket, [packet], fds or [])

    def receive(self) -> tuple[agent_pb2.AgentMessage, list[int]]:
        packet, fds, _, _ = socket.recv_fds(self.socket, 1 << 16, 8)
        if not packet:
            raise ConnectionError("the agent has closed the connection")
        return agent_pb2.AgentMessage.FromString(packet), fds

    def ask(self, fds: list[int] | None = None, **content: object) -> tuple[agent_pb2.AgentMessage, list[int]]:
        """The reply; what comes unasked before it is kept."""
        self.send(fds, **content)
        while True:
            message, got = self.receive()
            if message.WhichOneof("content") not in ("promise", "dead"):
                return message, got
            self.unasked.append(message)

    def next_promise(self) -> agent_pb2.Promise:
        while True:
            message = self.unasked.pop(0) if self.unasked else self.receive()[0]
            if message.HasField("promise"):
                return message.promise

    def hello(self, attempt: str = "first", **other: object) -> agent_pb2.AgentMessage:
        fields: dict[str, object] = {
            "protocol": 1,
            "run_id": self.run_id,
            "rank": self.rank,
            "world_size": self.world_size,
            "owner": self.owner,
            "topology": self.topology,
            "attempt": attempt,
            "every": 1,
            "own_slots": 2,
            "pid": os.getpid(),
        }
        return self.ask(hello=agent_pb2.Hello(**(fields | other)))[0]  # type: ignore[arg-type]

    def fence(self, incarnation: int) -> agent_pb2.AgentMessage:
        self.incarnation = incarnation
        return self.ask(fence=agent_pb2.Fence(incarnation=incarnation))[0]

    def list(self) -> list[agent_pb2.HeldCopy]:
        reply, _ = self.ask(list=agent_pb2.List(owner=self.owner))
        return list(reply.listing.copies)

    def pin(self, step: agent_pb2.Label) -> agent_pb2.AgentMessage:
        return self.ask(pin=agent_pb2.Pin(label=step))[0]

    def go_on(self, next_step: int) -> agent_pb2.AgentMessage:
        return self.ask(go_on=agent_pb2.GoOn(incarnation=self.incarnation, next_step=next_step))[0]

    def reserve(self, content_bytes: int, epoch: int = 1) -> agent_pb2.AgentMessage:
        reply, fds = self.ask(reserve=agent_pb2.Reserve(layout_epoch=epoch, content_bytes=content_bytes))
        for slot, fd in zip(reply.reserved.slots, fds, strict=True):
            self.slots[slot] = mmap.mmap(fd, 0)
            self.slot_fds[slot] = fd
        return reply

    def write_slot(self, slot: int, step: agent_pb2.Label, content: bytes, epoch: int = 1) -> None:
        """As a trainer does: generation odd, content, header, generation even."""
        memory = self.slots[slot]
        (generation,) = struct.unpack_from("<Q", memory, 16)
        struct.pack_into("<Q", memory, 16, generation | 1)
        memory[CONTENT_OFFSET : CONTENT_OFFSET + len(content)] = content
        struct.pack_into("<QII", memory, 0, SLOT_MAGIC, 1, epoch)
        struct.pack_into("<QIIQQ", memory, 24, step.step, step.incarnation, 0, len(content), 0)
        for offset, size, text in ((56, 256, self.run_id), (312, 256, self.owner), (568, 1024, self.topology)):
            memory[offset : offset + size] = text.encode().ljust(size, b"\0")
        struct.pack_into("<Q", memory, 16, (generation | 1) + 1)

    def capture(self, content: bytes) -> agent_pb2.Label:
        """Captures the step that is promised next."""
        promise = self.next_promise()
        self.send(began=agent_pb2.Began(label=promise.label, slot=promise.slot))
        self.write_slot(promise.slot, promise.label, content)
        self.send(copied=agent_pb2.Copied(label=promise.label, slot=promise.slot, copy_ns=1, blocked_ns=1))
        return promise.label

    def fetch(self, step: agent_pb2.Label, tier: agent_pb2.Tier = agent_pb2.TIER_MEMORY) -> tuple[bytes, str]:
        """The content, or why it is refused."""
        reply, fds = self.ask(fetch=agent_pb2.Fetch(owner=self.owner, label=step, tier=tier))
        if not reply.HasField("fetched"):
            return b"", reply.refused.reason
        content = os.pread(fds[0], reply.fetched.content_bytes, CONTENT_OFFSET)
        for fd in fds:
            os.close(fd)
        return content, ""

    def status(self) -> agent_pb2.Status:
        return self.ask(status=agent_pb2.StatusRequest())[0].status

    def begin(self, content_bytes: int, incarnation: int = 1, next_step: int = 1) -> None:
        """From hello to the first promise, from the initial state."""
        self.hello()
        self.fence(incarnation)
        self.list()
        self.pin(label(0, 0))
        self.reserve(content_bytes)
        self.go_on(next_step)
