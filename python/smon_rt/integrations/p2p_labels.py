"""What a send or receive is for: integrations that know tell the c10d hook here, ahead of the call.

A pipeline schedule knows microbatch and chunk of a transfer but does not make it visible below; the hook sees a tensor
and a peer. They meet at the tensor's memory. Beyond 4,096 labels that nobody took the oldest go: a schedule has a few
dozen transfers pending.

Threading: any thread. The table is csrc/bindings/collective_table.cc, where the hook looks it up.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from smon_rt._backend import native
from smon_rt.kinds import KIND_NAMES, KindName

__all__ = ["Label", "clear", "expect", "take"]

_TRANSFERS: tuple[KindName, ...] = ("forward_send", "forward_recv", "backward_send", "backward_recv")
_KINDS: dict[str, int] = {kind: KIND_NAMES.index(kind) for kind in _TRANSFERS}


class Label(NamedTuple):
    """What a transfer is: number of its kind, and the ids of the local compute that it serves."""

    kind: int
    microbatch: int
    chunk: int


def expect(tensor: Any, kind: KindName, microbatch: int = -1, chunk: int = -1) -> None:
    """Says what the next send, or the next receive, of this tensor is. Never raises.

    The label is used up by that transfer; a tensor that is sent twice is expected twice, in the same order.

    Args:
        tensor: the one that is handed to isend, irecv or P2POp.
        kind: forward_send, forward_recv, backward_send or backward_recv; another one is ignored.
        microbatch, chunk: of the compute on this rank that sends or awaits it, -1 if they do not apply.

    Example:
        >>> expect(tensor, "forward_send", microbatch=3)  # doctest: +SKIP
        >>> torch.distributed.isend(tensor, peer)  # doctest: +SKIP
    """
    found = _KINDS.get(kind)
    if found is None:
        return
    try:
        native.expect_transfer(tensor, found, microbatch, chunk)
    except Exception:  # not an id: the transfer then has no microbatch
        return


def take(tensor: Any, is_send: bool) -> Label | None:
    """The label that was expected for this transfer, once; None if there is none. For the hook."""
    label = native.take_transfer(tensor, is_send)
    return None if label is None else Label(*label)


def clear() -> None:
    """Forgets what was expected and did not come, so that memory that is used again gets no wrong label.

    For the end of a schedule's step, when all its transfers have been issued.
    """
    native.clear_transfers()
