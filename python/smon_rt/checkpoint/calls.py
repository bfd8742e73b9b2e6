"""What Python needs of the C interface for checkpoints (smon_rt.h), and its implementation over `smon_rt._runtime`.

Waiting calls raise `CheckpointError` with the reason that the interface gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from smon_rt.checkpoint.layout import Range

MEMORY, DISK = 1, 2
TIER_NAMES = {MEMORY: "memory", DISK: "disk"}

#: What `Calls.capture` returns: smon_capture.
BEGUN, NOT_DUE, SKIPPED = 0, 1, 2


class Label(NamedTuple):
    """Which state a copy is of: what a restart computes is newer than what it follows."""

    incarnation: int
    step: int


#: What every rank can make by itself, without a copy.
INITIAL = Label(0, 0)


@dataclass(frozen=True)
class HeldCopy:
    """A copy of this rank's state that the agent has."""

    label: Label
    tier: int
    is_intact: bool
    is_tried: bool
    content_bytes: int
    owner: str
    topology: str
    reason: str


@dataclass(frozen=True)
class OpenOptions:
    """smon_checkpoint_config, field by field; None and numbers below 0 mean its defaults."""

    run_id: str | None
    rank: int
    world_size: int
    owner: str
    topology: str
    attempt: str
    every: int
    own_slots: int
    disk_dir: str | None
    disk_every: int
    disk_keep: int
    agent_ttl_s: int
    agent_dir: str | None
    copy_threads: int
    timeout_s: float


class Addresses(Protocol):
    """Where the ranges of a layout lie, and whether all tensors are still where they were found."""

    def is_unchanged(self) -> bool:
        """False: a tensor is another one, moved or changed its size, or a container has more or fewer."""

    def set(self, range_index: int, address: int) -> None: ...

    def addresses(self) -> list[int]: ...


class Calls(Protocol):
    """One checkpoint of this process. Threading: the training thread's, as smon_rt.h says."""

    def open(self, options: OpenOptions) -> int:
        """The newest incarnation that the agent has heard of."""

    def close(self, job_is_over: bool) -> None: ...

    def fence(self, incarnation: int) -> None: ...

    def list(self) -> list[HeldCopy]: ...

    def pin(self, label: Label, kept: Sequence[Label]) -> None: ...

    def fetch(self, label: Label, tier: int) -> memoryview:
        """Mapped until `release`."""

    def release(self) -> None: ...

    def go_on(self, incarnation: int, next_step: int) -> None: ...

    def reject(self, label: Label, reason: str) -> None: ...

    def set_layout(self, header: bytes, ranges: Sequence[Range]) -> None: ...

    def capture(self, step: int, addresses: Addresses, stream: int) -> int: ...

    def before_update(self, stream: int) -> None: ...

    def status(self) -> dict[str, Any]: ...
