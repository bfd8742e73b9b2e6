"""What a plan was asked for, and what it did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from smon_rt.gc.schedule import Schedule

__all__ = ["Counts", "Options"]


@dataclass(frozen=True)
class Options:
    """What `plan` was asked for."""

    fixed: Schedule | None
    """None: "auto"."""
    warmup_steps: int
    memory_limit_bytes: int | None
    saves: Callable[[int], bool] | None
    """Whether a checkpoint is written at the end of this step."""


@dataclass
class Counts:
    """What a plan did."""

    planned: int = 0
    unplanned: int = 0
    guard: int = 0
    skipped: int = 0
    late: int = 0
    freed_objects: int = 0
    longest_pause_s: float = 0.0
    conflicts: list[str] = field(default_factory=list)
