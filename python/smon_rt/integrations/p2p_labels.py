"""What a send or receive is for: integrations that know tell the c10d hook here, ahead of the call.

A pipeline schedule knows microbatch and chunk of a transfer but does not make it visible below; the hook sees a tensor
and a peer. They meet at the tensor's memory.

Threading: any thread; plain dict operations, no lock (a forked child would inherit it locked).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from smon_rt.kinds import KIND_NAMES, KindName

__all__ = ["Label", "clear", "expect", "take"]

#: Labels nobody took; beyond it the oldest go. A schedule has a few dozen transfers pending.
_MAX_PENDING = 4096
_SENDS: tuple[KindName, ...] = ("forward_send", "backward_send")
_RECVS: tuple[KindName, ...] = ("forward_recv", "backward_recv")
#: kind → (its number, whether it is a send)
_KINDS: dict[str, tuple[int, bool]] = {kind: (KIND_NAMES.index(kind), kind in _SENDS) for kind in (*_SENDS, *_RECVS)}


class Label(NamedTuple):
    """What a transfer is: number of its kind, and the ids of the local compute that it serves."""

    kind: int
    microbatch: int
    chunk: int


# (where the tensor's data is, whether it is sent) → labels, the first expected first
_pending: dict[tuple[int, bool], list[Label]] = {}


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
    number, is_send = found
    try:
        _pending.setdefault((_place(tensor), is_send), []).append(Label(number, microbatch, chunk))
        if len(_pending) > _MAX_PENDING:
            del _pending[next(iter(_pending))]
    except Exception:  # two threads at once, or not a tensor: the transfer then has no microbatch
        return


def take(tensor: Any, is_send: bool) -> Label | None:
    """The label that was expected for this transfer, once; None if there is none. For the hook."""
    if not _pending:
        return None
    try:
        place = (_place(tensor), is_send)
        labels = _pending.get(place)
        if not labels:
            return None
        label = labels.pop(0)
        if not labels:
            del _pending[place]
    except Exception:
        return None
    return label


def clear() -> None:
    """Forgets what was expected and did not come, so that memory that is used again gets no wrong label.

    For the end of a schedule's step, when all its transfers have been issued.
    """
    _pending.clear()


def _place(tensor: Any) -> int:
    """Where its data is; its identity if it has none. A view made on the way keeps the address, not the identity."""
    try:
        address = int(tensor.data_ptr())
    except Exception:  # a tensor without storage
        address = 0
    return address or id(tensor)
