"""What recording did, in numbers; `smon_rt` offers it."""

from __future__ import annotations

from dataclasses import dataclass

from smon_rt._backend import native
from smon_rt.kinds import KIND_NAMES


@dataclass(frozen=True)
class Status:
    """What recording did since `start`, or did until `stop`.

    Example:
        >>> import smon_rt
        >>> smon_rt.status().dropped_spans
        0
    """

    is_started: bool
    is_paused: bool
    step: int | None
    """The step begun last; None before the first."""
    recorded_spans: int
    written_spans: int
    """Of these, in the file."""
    dropped_spans: int
    dropped_by_kind: dict[str, int]
    foreign_tokens: int
    """Ends of tokens that nobody gave."""
    stale_tokens: int
    """Ends of spans that had ended."""
    threads_without_ring: int
    sampled_steps: int
    steps: int
    file_bytes: int
    drain_cpu_ns: int
    file_path: str | None
    file_error: str | None
    """Why nothing is written; None if it is, or if there is no directory."""
    uncounted_sequences: int = 0
    """Operations without a place in their communicator's order: more communicators and peers than can be counted."""
    unwritten_spans: int = 0
    """Taken from the rings after the file had failed."""
    reclaimed_spans: int = 0
    """Open since an earlier step, and given up because their thread had no room for another span."""
    saturated_steps: int = 0
    """Steps numbered 2**32 - 1 or more: their spans are not recorded."""
    misused_calls: int = 0
    """Calls whose arguments made no sense, in whole or in part."""
    nccl_communicators: int = 0
    """That NCCL opened since it loaded our library as its profiler plug-in; 0 where it did not. So are those below."""
    nccl_ops: int = 0
    """Operations that NCCL enqueued while recording was on."""
    nccl_joined_ops: int = 0
    """Of these, those that belong to a span."""
    nccl_foreign_handles: int = 0
    """Of other processes, as NCCL's PXN brings them."""
    nccl_stale_handles: int = 0
    """Of what had ended already."""
    nccl_lost_ends: int = 0
    """Of what never ended, and was given up when its room was needed."""
    nccl_rejected_times: int = 0
    """Of kernels, that cannot be true."""
    nccl_untracked: int = 0
    """Communicators and channels beyond those there is room for."""
    nccl_kernel_ops: int = 0
    """Operations that were asked when their kernels run: `start(nccl_detail=True)`."""
    nccl_detail_refusal: str | None = None
    """Why NCCL was not asked for that; None if it was."""


def status() -> Status:
    """Counters of this process; nothing is reset."""
    values = native.status()
    dropped = {KIND_NAMES[number]: count for number, count in values["dropped_by_kind"].items()}
    return Status(
        **(
            values
            | {
                "dropped_by_kind": dropped,
                "step": values["step"] if values["step"] >= 0 else None,
                "file_path": values["file_path"] or None,
                "file_error": values["file_error"] or None,
                "nccl_detail_refusal": values["nccl_detail_refusal"] or None,
            }
        )
    )
