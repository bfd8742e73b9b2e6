"""Each operation of a process group is one span: from its issue to the return of the wait for it.

torch calls a pre-hook before it issues an operation and a post-hook after that (`ProcessGroup.register_pre_hook`, torch
2.15); neither knows when it completes. That is seen, in this order, by
- `Work.wait`, wrapped on its class and matched by identity, which holds only while the object lives: the hook keeps it
  until the caller has it, and has waited for it, and then no longer, since works keep tensors;
- `wait_tensor` of functional collectives, matched by where the result lies;
- the work's future, for operations of CPU tensors that C++ issues and waits for (DDP's reducer): flag other_thread,
  also where it is done at once, since the issuing thread computes meanwhile;
- nothing: the span then ends where it had been issued and says so (flag not_waited), when the work is dropped, or one
  step later.

The hooks and `Work.wait` are functions of C (csrc/bindings/collective_hooks.cc), which call what is here seldom: a
training step issues dozens of operations. Where torch takes them as functions of C++ (hook_functions.py), a transfer of
a step that is not sampled runs nothing of Python in them.

Threading: hooks run on any thread; what is here runs with the GIL, which C++ lets go of while the operation runs.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from smon_rt._backend import native
from smon_rt.integrations import p2p_labels
from smon_rt.integrations.state import OTHER_THREAD, failed, switch
from smon_rt.integrations.torch import compute, gradients
from smon_rt.integrations.torch.groups import Group
from smon_rt.kinds import KIND_NAMES

__all__ = [
    *("Operation", "begin", "end_all", "is_layout_known", "learn_torch", "make_hooks", "override"),
    *("switch_hooks", "waiting"),
]

_COLLECTIVE, _ALL_REDUCE, _REDUCE_SCATTER = map(
    KIND_NAMES.index, ("collective", "grads_all_reduce", "grads_reduce_scatter")
)
_FORWARD_SEND, _FORWARD_RECV, _BACKWARD_SEND, _BACKWARD_RECV = map(
    KIND_NAMES.index, ("forward_send", "forward_recv", "backward_send", "backward_recv")
)
#: Of torch's versions: the one whose structures csrc/bindings/torch_layout.h knows (ADR 0007).
_KNOWN_LAYOUT = "2.15."
_NOT_AN_OPERATION = ("SPLIT", "NEW_WINDOW")


class Operation:
    """What an operation of HookOpName is."""

    __slots__ = ("is_p2p", "is_send", "name", "reduces_to")

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_send = name == "SEND"
        self.is_p2p = name in ("SEND", "RECV")
        self.reduces_to = 0
        """The kind that it has when it reduces gradients, 0 if it cannot."""
        if name.startswith("ALLREDUCE"):
            self.reduces_to = _ALL_REDUCE
        elif name.startswith("REDUCE_SCATTER"):
            self.reduces_to = _REDUCE_SCATTER


class _OfThread(threading.local):
    """What this thread is at."""

    kinds: dict[str, int] | None = None
    """What an integration says of the operations that its calls issue: name of the operation → kind."""


class _Hooks:
    """Of process groups: they stay there, so this is how they are switched off."""

    are_on = False


_of_thread = _OfThread()
#: Number of HookOpName → what it is.
_operations: dict[int, Operation] = {}


def switch_hooks(are_on: bool) -> None:
    """Whether the hooks of process groups act, if anything is recorded."""
    _Hooks.are_on = are_on
    native.act_on_collectives(switch.recording if are_on and switch.is_on else 0)


def started() -> None:
    """A recording begins: communicators have new numbers in it."""
    switch_hooks(_Hooks.are_on)


def learn_torch(c10d: Any) -> str:
    """Reads once what the hooks need to know of torch, and returns why they cannot work, or "".

    Args:
        c10d: the module torch._C._distributed_c10d.
    """
    for name, member in c10d.HookOpName.__members__.items():
        if name not in _NOT_AN_OPERATION:
            _operations[int(member.value)] = Operation(name)
    wanted = [
        *((c10d.PreHookArgs, name) for name in ("op_id", "name")),
        (c10d.HookOpName, "value"),
        *((c10d.PreHookArgs, name) for name in ("input_tensors", "output_tensors", "root")),
        *((c10d.PostHookArgs, name) for name in ("op_id", "async_op", "work")),
    ]
    getters = []
    for owner, name in wanted:
        getter = getattr(vars(owner).get(name), "fget", None)
        if getter is None:
            return f"{owner.__name__} has no {name}"
        getters.append(getattr(getter, "__func__", getter))
    operations = {number: (one.is_p2p, one.is_send, one.reduces_to) for number, one in _operations.items()}
    arguments: list[Any] = [operations, *getters, getattr(sys.modules["torch"]._C, "_current_graph_task_id", None)]
    arguments += [gradients.are_gradients, compute.reduction_began, _end_with_future, _failed]
    native.learn_torch(*arguments)
    if is_layout_known():
        native.know_layout()
    return ""


def is_layout_known() -> bool:
    """Whether csrc/bindings/torch_layout.h declares the structures of this torch."""
    return str(sys.modules["torch"].__version__).startswith(_KNOWN_LAYOUT)


def make_hooks(group: Group) -> tuple[Callable[[Any], None], Callable[[Any], None]]:
    """The hooks of one process group. They never raise: torch would hand it to the caller of the collective."""
    return native.make_collective_hooks(group, group.rank, group.members)


def _failed(error: Exception) -> None:
    failed("torch.c10d", error)


class override:  # noqa: N801
    """Says what kind the operations are that this thread issues inside: name of the operation → kind."""

    def __init__(self, kinds: dict[str, int]) -> None:
        self._kinds = kinds
        self._before: tuple[dict[str, int] | None, bytes | None] = None, None

    def __enter__(self) -> None:
        self._before = _of_thread.kinds, native.exchange_kinds(_kinds_by_number(self._kinds))
        _of_thread.kinds = self._kinds

    def __exit__(self, *_exception: object) -> None:
        _of_thread.kinds = self._before[0]
        native.exchange_kinds(self._before[1])


_tables: dict[int, tuple[dict[str, int], bytes]] = {}


def _kinds_by_number(kinds: dict[str, int]) -> bytes:
    """For the hooks: a byte for each operation. Tables are few, and made once."""
    known = _tables.get(id(kinds))
    if known is None:
        table = bytearray([_COLLECTIVE]) * (max(_operations, default=-1) + 1)
        for number, operation in _operations.items():
            table[number] = kinds.get(operation.name, _COLLECTIVE)
        known = kinds, bytes(table)
        if _operations:
            _tables[id(kinds)] = known  # with the dict, whose identity must stay its own
    return known[1]


def _end_with_future(key: int, work: Any) -> None:
    def completed(_future: Any) -> None:
        try:
            native.end_awaited(key, OTHER_THREAD)
        except Exception as error:
            failed("torch.c10d", error)

    try:
        work.get_future().add_done_callback(completed)
    except Exception:  # this backend has none for this operation
        return


def waiting(original: Callable[..., Any], tensors_of: Callable[[Any], list[Any]]) -> Callable[..., Any]:
    """What `wait_tensor` and `wait_tensors` of functional collectives become."""
    is_compiling: Callable[[], bool] = sys.modules["torch"].compiler.is_compiling

    def wait_for(waited: Any) -> Any:
        if is_compiling() or not native.has_addresses():
            return original(waited)
        result = original(waited)
        try:
            for tensor in tensors_of(waited):
                native.end_awaited_at(tensor)
        except Exception as error:  # a tensor that is only being traced has no address
            failed("torch.wait_tensor", error)
        return result

    return wait_for


def begin(
    group: Group, operation: Operation, tensors: list[Any], root: int, origin: int, frame: Any, flags: int
) -> int:
    """Opens the span of an operation of a group without hooks; returns its token, 0 if it has none of its own."""
    native.close_forward(0)
    comm_id = group.comm_id if group.recording == switch.recording else group.register()
    peer = microbatch = chunk = -1
    kind = _COLLECTIVE
    payload_bytes = sum(tensor.nbytes for tensor in tensors)
    overridden = _of_thread.kinds
    if overridden is not None:
        kind = overridden.get(operation.name, _COLLECTIVE)
    if operation.is_p2p:
        peer = group.members[root] if root >= 0 else -1
        label = p2p_labels.take(tensors[0], operation.is_send) if tensors else None
        if label is not None:
            kind, microbatch, chunk = label
        elif overridden is None:
            kind = _direction(group.members[group.rank], peer, operation.is_send)
    elif overridden is None and operation.reduces_to and gradients.are_reduced(origin, frame, tensors):
        kind = operation.reduces_to
    return native.begin_operation(kind, microbatch, chunk, comm_id, peer, payload_bytes, flags)


def _direction(rank: int, peer: int, is_send: bool) -> int:
    """Kind of a transfer that nobody has explained: towards higher ranks is forward. Both sides find the same."""
    source, target = (rank, peer) if is_send else (peer, rank)
    if source < target:
        return _FORWARD_SEND if is_send else _FORWARD_RECV
    return _BACKWARD_SEND if is_send else _BACKWARD_RECV


def end_all() -> None:
    """Before recording stops: all of them."""
    native.act_on_collectives(0)
    native.end_all_operations()
