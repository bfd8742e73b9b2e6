"""An agent in a dict: takes captures as the library would, copying what is not volatile as late as it may."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch

from smon_rt.checkpoint.attaching import open_checkpoint
from smon_rt.checkpoint.calls import BEGUN, MEMORY, NOT_DUE, Addresses, HeldCopy, Label, OpenOptions
from smon_rt.checkpoint.identity import topology_of
from smon_rt.checkpoint.layout import Range
from smon_rt.checkpoint.rounds import LocalStore, Rounds
from smon_rt.checkpoint.state import TrainingState
from smon_rt.checkpoint.tensors import CheckpointError
from smon_rt.checkpoint.training_checkpoint import Checkpoint

Entry = tuple[dict[Any, Any], Any, torch.Tensor, torch.Tensor | None, int]


class PythonTable:
    """What the binding's table does, in words of Python."""

    def __init__(self, entries: list[Entry], sizes: list[tuple[Any, int]], addresses: list[int]) -> None:
        self._entries = [(*entry, self._look(entry)) for entry in entries]
        self._sizes = sizes
        self._addresses = list(addresses)

    @staticmethod
    def _look(entry: Entry) -> tuple[int, int]:
        own = entry[2] if entry[3] is None else entry[3]
        return own.data_ptr(), own.numel()

    def is_unchanged(self) -> bool:
        for container, key, tensor, local, slot, seen in self._entries:
            if container.get(key) is not tensor:
                return False
            if local is not None and tensor._local_tensor is not local:
                return False
            if self._look((container, key, tensor, local, slot)) != seen:
                return False
        return all(len(container) == size for container, size in self._sizes)

    def set(self, range_index: int, address: int) -> None:
        self._addresses[range_index] = address

    def addresses(self) -> list[int]:
        return self._addresses


class StandIn:
    """The library and its agent, of one rank. `copies` outlive it, as an agent's do."""

    def __init__(self, copies: dict[Label, bytearray] | None = None, incarnation: int = 0, every: int = 1) -> None:
        self.copies = {} if copies is None else copies
        self.newest = incarnation
        self.log: list[str] = []
        self.layouts = 0
        self.unfetchable: set[Label] = set()
        self._every = every
        self._header = b""
        self._ranges: list[Range] = []
        self._incarnation = 0
        self._pending: Callable[[], None] | None = None

    def open(self, options: OpenOptions) -> int:
        self.options = options
        return self.newest

    def close(self, job_is_over: bool) -> None:
        self.before_update(0)
        self.log.append(f"close {job_is_over}")

    def fence(self, incarnation: int) -> None:
        self.newest = incarnation
        self.log.append(f"fence {incarnation}")

    def list(self) -> list[HeldCopy]:
        topology = self.options.topology
        return [
            HeldCopy(label, MEMORY, True, False, len(content), "", topology, "")
            for label, content in self.copies.items()
        ]

    def pin(self, label: Label, kept: Sequence[Label]) -> None:
        self.log.append(f"pin {label.step}")
        for other in set(self.copies) - {label, *kept}:
            del self.copies[other]

    def fetch(self, label: Label, tier: int) -> memoryview:
        if label in self.unfetchable:
            raise CheckpointError(f"step {label.step} is damaged")
        return memoryview(self.copies[label])

    def release(self) -> None:
        self.log.append("release")

    def go_on(self, incarnation: int, next_step: int) -> None:
        self._incarnation = incarnation
        self.log.append(f"go on {next_step}")

    def reject(self, label: Label, reason: str) -> None:
        self.log.append(f"reject {label.step} {reason}")

    def set_layout(self, header: bytes, ranges: Sequence[Range]) -> None:
        self.layouts += 1
        self._header, self._ranges = header, list(ranges)

    def capture(self, step: int, addresses: Addresses, stream: int) -> int:
        if step % self._every:
            return NOT_DUE
        self.before_update(0)
        size = max([len(self._header), *(one.offset + one.byte_count for one in self._ranges)])
        content = bytearray(size)
        content[: len(self._header)] = self._header
        where, ranges = list(addresses.addresses()), self._ranges
        copy_all(content, ranges, where, is_volatile=True)

        def finish() -> None:
            copy_all(content, ranges, where, is_volatile=False)
            self.copies[Label(self._incarnation, step)] = content

        self._pending = finish
        return BEGUN

    def before_update(self, stream: int) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending()

    def status(self) -> dict[str, Any]:
        return {"is_connected": True, "captures": len(self.copies)}


def copy_all(content: bytearray, ranges: list[Range], where: list[int], *, is_volatile: bool) -> None:
    base = ctypes.addressof(ctypes.c_char.from_buffer(content))
    for one, address in zip(ranges, where, strict=True):
        if one.is_volatile == is_volatile and one.byte_count:
            ctypes.memmove(base + one.offset, address, one.byte_count)


def options_for(topology: str, every: int = 1) -> OpenOptions:
    return OpenOptions(
        run_id="test",
        rank=0,
        world_size=1,
        owner="rank=0",
        topology=topology,
        attempt="a",
        every=every,
        own_slots=2,
        disk_dir=None,
        disk_every=1,
        disk_keep=1,
        agent_ttl_s=1,
        agent_dir=None,
        copy_threads=0,
        timeout_s=5.0,
    )


def attach_to(agent: StandIn, state: TrainingState, every: int = 1, make_table: Any = PythonTable) -> Checkpoint:
    rounds = Rounds(LocalStore(), 0, 1, "test", 5.0)
    options = options_for(topology_of(state, state.find(), 1), every)
    return open_checkpoint(state, every, rounds, agent, make_table, options)
