"""What a checkpoint says of itself."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from smon_rt.checkpoint.calls import Label


@dataclass(frozen=True)
class CheckpointStatus:
    """Labels are (incarnation, step), None where there is none yet.

    Attributes:
        promised, copied: of this rank, the newest that the agent keeps a slot for, and that is copied whole.
        agreed: the newest that every rank has: what a restart goes on from.
        durable: the newest that is complete on disk.
        captures, skips: of this rank; job_skips: steps that any rank skipped, last_skip: by whom and why.
        content_bytes: of one state; copied_bytes in copy_ns: of all captures.
        blocked_ns, last_blocked_ns: the training thread stood still for copies.
        gpu_wait_ns: streams of the GPU stood still, as far as known.
        failures: captures that this process could not even begin, last_failure: why.
        error: why nothing is captured now, "" if it is.
        agent: its process and folder.
    """

    is_connected: bool = False
    promised: Label | None = None
    copied: Label | None = None
    agreed: Label | None = None
    durable: Label | None = None
    captures: int = 0
    skips: int = 0
    job_skips: int = 0
    last_skip: str = ""
    content_bytes: int = 0
    copied_bytes: int = 0
    copy_ns: int = 0
    blocked_ns: int = 0
    last_blocked_ns: int = 0
    gpu_wait_ns: int = 0
    failures: int = 0
    last_failure: str = ""
    error: str = ""
    agent: str = ""

    @property
    def lag_steps(self) -> int | None:
        """How many steps a restart now would go back behind the newest copy of this rank; None: not known."""
        if self.copied is None or self.agreed is None or self.copied.incarnation != self.agreed.incarnation:
            return None
        return self.copied.step - self.agreed.step


_LABELS = ("promised", "copied", "agreed", "durable")
_NAMES = frozenset(one.name for one in fields(CheckpointStatus))


def status_of(native: dict[str, Any], **more: Any) -> CheckpointStatus:
    """From what the native part says, whose labels are pairs or None; what this version does not know is left out."""
    known = {name: value for name, value in native.items() if name in _NAMES}
    for name in _LABELS:
        pair = known.get(name)
        known[name] = None if pair is None else Label(*pair)
    return CheckpointStatus(**(known | more))
