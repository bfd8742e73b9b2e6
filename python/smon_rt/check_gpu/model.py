"""What a check is, and what came of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

__all__ = ["Check", "Finding", "Need", "NotHere", "Outcome", "Row"]


class Need(str, Enum):
    """What a check cannot do without."""

    RECORDER = "the recorder"
    GPU = "a GPU and its driver"
    TORCH = "a torch that sees the GPU"
    NCCL = "NCCL from 2.27.3 on"


class Outcome(str, Enum):
    """What became of a check. Its process crashed or timed out: that is a finding too, and no other check's."""

    MET = "met"
    MISSED = "missed"
    NOT_RUN = "not run"
    CRASHED = "crashed"
    TIMED_OUT = "timed out"

    @property
    def is_bad(self) -> bool:
        """Whether it says that something is wrong."""
        return self in (Outcome.MISSED, Outcome.CRASHED, Outcome.TIMED_OUT)


class NotHere(Exception):  # noqa: N818
    """A check found that something it needs is not on this machine: it is not run, which is no fault."""


@dataclass(frozen=True)
class Check:
    """One thing that a machine must show, in a process of its own."""

    name: str
    needs: tuple[Need, ...]
    shows: str
    """What it is for, in a few words."""
    limit: str
    """What must hold, in words with numbers and units."""
    deadline_s: float
    """Its process is ended then."""
    function: str
    """`module:function` of this package; the function takes nothing and returns a `Finding`."""

    @property
    def needs_gpu(self) -> bool:
        return Need.GPU in self.needs


@dataclass(frozen=True)
class Finding:
    """What a check found."""

    is_met: bool
    words: str
    """One line with the figure that counts, and its unit."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """All figures, named with their units; plain values."""


@dataclass(frozen=True)
class Row:
    """A check and what came of it."""

    check: Check
    outcome: Outcome
    words: str
    figures: Mapping[str, Any] = field(default_factory=dict)
    took_s: float = 0.0
    said: str = ""
    """The last lines that its process wrote, if something is wrong."""

    def to_json(self) -> dict[str, Any]:
        """Plain values; numbers that are none are null."""
        check = asdict(self.check)
        check["needs"] = [need.value for need in self.check.needs]
        del check["function"]
        return {
            **check,
            "outcome": self.outcome.value,
            "found": self.words,
            "figures": plain(self.figures),
            "took_s": round(self.took_s, 3),
            "said": self.said,
        }


def plain(value: Any) -> Any:
    """What JSON can hold: numbers that are none become None, what is unknown becomes its text.

    Example:
        >>> plain({"a_ns": float("nan"), "b": (1, True)})
        {'a_ns': None, 'b': [1, True]}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return str(value)
