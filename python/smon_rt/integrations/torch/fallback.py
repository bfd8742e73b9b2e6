"""Process groups of a torch whose groups take no hooks: their methods are wrapped instead.

Sees what Python asks of a group, so not what C++ issues by itself (DDP's reducer, functional collectives). Spans have
the flag fallback_hook. `isend` and `irecv` themselves must stay what they are, since P2POp compares them.

Threading: the job's own threads.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from smon_rt._backend import native
from smon_rt.integrations.state import FALLBACK_HOOK, failed, switch
from smon_rt.integrations.torch import collectives, gradients, groups

__all__ = ["install"]

#: Method → (operation as HookOpName has it, which arguments hold the tensors that go in and come out, which the peer)
_METHODS: dict[str, tuple[str, int, int | None, int | None]] = {
    "send": ("SEND", 0, None, 1),
    "recv": ("RECV", 0, 0, 1),
    "recv_anysource": ("RECV", 0, 0, None),
    "allreduce": ("ALLREDUCE", 0, None, None),
    "allreduce_coalesced": ("ALLREDUCE_COALESCED", 0, None, None),
    "broadcast": ("BROADCAST", 0, None, None),
    "reduce": ("REDUCE", 0, None, None),
    "allgather": ("ALLGATHER", 1, 0, None),
    "_allgather_base": ("ALLGATHER_BASE", 1, 0, None),
    "all_gather_single": ("ALLGATHER_BASE", 1, 0, None),
    "allgather_into_tensor_coalesced": ("ALLGATHER_INTO_TENSOR_COALESCED", 1, 0, None),
    "all_gather_single_coalesced": ("ALLGATHER_INTO_TENSOR_COALESCED", 1, 0, None),
    "reduce_scatter": ("REDUCE_SCATTER", 1, 0, None),
    "_reduce_scatter_base": ("REDUCE_SCATTER_BASE", 1, 0, None),
    "reduce_scatter_single": ("REDUCE_SCATTER_BASE", 1, 0, None),
    "reduce_scatter_tensor_coalesced": ("REDUCE_SCATTER_TENSOR_COALESCED", 1, 0, None),
    "reduce_scatter_single_coalesced": ("REDUCE_SCATTER_TENSOR_COALESCED", 1, 0, None),
    "gather": ("GATHER", 1, 0, None),
    "scatter": ("SCATTER", 1, 0, None),
    "alltoall": ("ALLTOALL", 1, 0, None),
    "alltoall_base": ("ALLTOALL_BASE", 1, 0, None),
    "all_to_all_single": ("ALLTOALL_BASE", 1, 0, None),
    "barrier": ("BARRIER", 0, None, None),
}


def install(owner: Any, replace: Callable[[Any, str, Callable[..., Any]], None]) -> str:
    """Wraps the methods that ProcessGroup has; returns '', or why none was."""
    wrapped = 0
    for method, operation in _METHODS.items():
        original = getattr(owner, method, None)
        if callable(original):
            replace(owner, method, _recorded(original, *operation))
            wrapped += 1
    return "" if wrapped else "ProcessGroup has none of the methods that it is known for"


def _recorded(
    original: Callable[..., Any], name: str, inputs_at: int, outputs_at: int | None, peer_at: int | None
) -> Callable[..., Any]:
    operation = collectives.Operation(name)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        token = 0
        if switch.is_on:
            try:
                tensors = _tensors(args, inputs_at) or ([] if outputs_at is None else _tensors(args, outputs_at))
                peer = args[peer_at] if peer_at is not None and len(args) > peer_at else -1
                frame = sys._getframe(1)
                origin = gradients.origin_of(frame)
                token = collectives.begin(_group_of(self), operation, tensors, peer, origin, frame, FALLBACK_HOOK)
            except Exception as error:
                failed("torch.c10d_fallback", error)
        try:
            work = original(self, *args, **kwargs)
        except BaseException:
            native.abort_operation(token)
            raise
        if token:
            _issued(token, work)
        return work

    return call


def _issued(token: int, work: Any) -> None:
    try:
        native.issue_operation(token, gradients.PYTHON, 0, False, work)
    except Exception as error:
        failed("torch.c10d_fallback", error)


def _group_of(process_group: Any) -> groups.Group:
    known = groups.known(str(getattr(process_group, "group_name", "") or ""))
    if known is not None:
        return known
    ranks = sys.modules["torch.distributed.distributed_c10d"].get_process_group_ranks(process_group)
    return groups.describe(process_group, list(ranks))


def _tensors(args: tuple[Any, ...], at: int) -> list[Any]:
    """Tensors of an argument: one, a list, or lists of lists."""
    if at >= len(args):
        return []
    found = args[at]
    while isinstance(found, list | tuple) and found and isinstance(found[0], list | tuple):
        found = found[0]
    return list(found) if isinstance(found, list | tuple) else [found] if hasattr(found, "nbytes") else []
