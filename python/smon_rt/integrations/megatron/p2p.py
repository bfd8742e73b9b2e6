"""Messages between stages: tells the c10d hooks what the tensors are that Megatron sends and receives.

Whatever a schedule calls, `_communicate` does it: a call that sends and receives is several operations, each a span of
its own, with the return of its own wait as its end, also where a schedule waits later (`overlap_p2p_comm`). Shapes that
stages exchange ahead (`variable_seq_lengths`) are collectives of two.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

from smon_rt.integrations import p2p_labels
from smon_rt.integrations.megatron import passes
from smon_rt.integrations.megatron.pass_ids import PassIds
from smon_rt.integrations.patches import Method, Patches
from smon_rt.integrations.state import failed, switch
from smon_rt.integrations.torch import collectives
from smon_rt.kinds import KindName

__all__ = ["PARTS"]

_MODULE = "megatron.core.pipeline_parallel.p2p_communication"
#: Argument of the functions that issue operations → kind, whether it belongs to forwards, whether it is sent.
_TENSORS: dict[str, tuple[KindName, bool, bool]] = {
    "tensor_send_prev": ("backward_send", False, True),
    "tensor_recv_prev": ("forward_recv", True, False),
    "tensor_send_next": ("forward_send", True, True),
    "tensor_recv_next": ("backward_recv", False, False),
}
_NOT_OF_MICROBATCHES: dict[str, int] = {}


def _wrap(patches: Patches) -> list[str]:
    module = sys.modules[_MODULE]
    owner = getattr(module, "P2PCommunicator", None)
    is_method = owner is not None and "_communicate" in vars(owner)
    names = tuple(_TENSORS)
    problems = [patches.wrap(module, name, names, _labelled) for name in ("_batched_p2p_ops", "_p2p_ops")]
    # Before core 0.14 a function of the module.
    arguments = ("tensor_send_next", "tensor_send_prev", "recv_prev", "recv_next")
    if is_method:
        problems.append(patches.wrap(owner, "_communicate", ("self", *arguments), _communicate))
    else:
        problems.append(patches.wrap(module, "_communicate", arguments, _communicate))
    return problems


def _labelled(original: Method) -> Method:
    names = tuple(inspect.signature(original).parameters)

    def issue(*args: Any, **kwargs: Any) -> Any:
        ids = passes.running.ids if switch.is_on else None
        if ids is not None:
            try:
                _expect(ids, dict(zip(names, args, strict=False)) | kwargs)
            except Exception as error:
                failed("megatron.p2p", error)
        return original(*args, **kwargs)

    return issue


def _expect(ids_of: PassIds, call: dict[str, Any]) -> None:
    for name, (kind, is_forward, is_send) in _TENSORS.items():
        tensor = call.get(name)
        if tensor is not None:
            ids = ids_of.of_send(tensor, is_forward) if is_send else ids_of.of_receive(tensor, is_forward)
            p2p_labels.expect(tensor, kind, ids.microbatch, ids.chunk)


def _communicate(original: Method) -> Method:
    def communicate(*args: Any, **kwargs: Any) -> Any:
        if not switch.is_on:
            return original(*args, **kwargs)
        with collectives.override(_NOT_OF_MICROBATCHES):
            return original(*args, **kwargs)

    return communicate


PARTS: dict[str, tuple[str, Callable[[Patches], list[str]]]] = {"p2p": (_MODULE, _wrap)}
