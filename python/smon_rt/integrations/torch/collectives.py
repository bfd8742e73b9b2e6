"""Each operation of a process group is one span: from its issue to the return of the wait for it.

torch calls a pre-hook before it issues an operation and a post-hook after that (`ProcessGroup.register_pre_hook`, torch
2.15); neither knows when it completes. That is seen, in this order, by
- `Work.wait`, wrapped on its class and matched by identity, which holds only while the object lives: the hook keeps it
  until the caller has it, and then no longer, since works keep tensors;
- `wait_tensor` of functional collectives, matched by where the result lies;
- the work's future, for operations of CPU tensors that C++ issues and waits for (DDP's reducer): flag other_thread,
  also where it is done at once, since the issuing thread computes meanwhile;
- nothing: the span then ends where it had been issued and says so (flag not_waited), when the work is dropped, or one
  step later.

Threading: hooks run on any thread, with the GIL; C++ lets go of it while the operation runs.
"""

from __future__ import annotations

import itertools
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from smon_rt._backend import native
from smon_rt.integrations import p2p_labels
from smon_rt.integrations.state import HOST, NOT_WAITED, OTHER_THREAD, WAIT_RETURN, failed, mask, switch
from smon_rt.integrations.torch import compute, gradients, groups
from smon_rt.integrations.torch.groups import Group
from smon_rt.kinds import KIND_NAMES

__all__ = [
    *(
        "Operation",
        "abort",
        "backward_ended",
        "begin",
        "end_all",
        "end_unwaited",
        "issued",
        "learn_names",
        "make_hooks",
    ),
    *("override", "switch_hooks", "wait", "waiting"),
]

_COLLECTIVE, _ALL_REDUCE, _REDUCE_SCATTER = map(
    KIND_NAMES.index, ("collective", "grads_all_reduce", "grads_reduce_scatter")
)
_FORWARD_SEND, _FORWARD_RECV, _BACKWARD_SEND, _BACKWARD_RECV = map(
    KIND_NAMES.index, ("forward_send", "forward_recv", "backward_send", "backward_recv")
)
#: A span of these kinds that someone else has opened around the call: it is this operation.
_COMMUNICATION = mask(
    *("forward_send", "forward_recv", "backward_send", "backward_recv", "params_all_gather", "grads_reduce_scatter"),
    *("grads_all_reduce", "layernorm_grads_all_reduce", "embedding_grads_all_reduce", "separate_grads_all_reduce"),
    "collective",
)
#: A job that has more works open within a step loses the oldest early.
_MAX_PENDING = 4096
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


# Plain tuples: anything with names takes ten times as long to make.
#: A span that is open between the hooks: token, who issues it, where the result of a functional collective lies (else
#: 0), whether it is on the CPU, the step by our count.
Begun = tuple[int, int, int, bool, int]
#: A work that was issued: token, ticks then, weak reference to the work if Python waits for it, step.
_Pending = tuple[int, int, "_Reference | None", int]


class _Reference(weakref.ref[Any]):
    """A work that Python code may wait for."""

    __slots__ = ("key",)
    key: int


class _OfThread(threading.local):
    """What this thread is at."""

    work: Any = None
    """Issued last, until its caller has it: it must be the same object there."""
    kinds: dict[str, int] | None = None
    """What an integration says of the operations that its calls issue: name of the operation → kind."""


class _Hooks:
    """Of process groups: they stay there, so this is how they are switched off."""

    are_on = False


_of_thread = _OfThread()
#: Keys of works that are not found by identity.
_keys = itertools.count(-1, -1)
_operations: dict[int, Operation] = {}
_pending: dict[int, _Pending] = {}
_by_address: dict[int, int] = {}
_own_tokens: set[int] = set()
#: Works that the reducer of DDP waits for before the backward pass returns.
_reductions: list[int] = []
_steps = 0


def switch_hooks(are_on: bool) -> None:
    """Whether the hooks of process groups act."""
    _Hooks.are_on = are_on


def learn_names(names: Any) -> None:
    """Reads torch's enumeration of operations once: its members are slow to ask."""
    for name, member in names.__members__.items():
        if name not in _NOT_AN_OPERATION:
            _operations[int(member.value)] = Operation(name)


class override:  # noqa: N801
    """Says what kind the operations are that this thread issues inside."""

    def __init__(self, kinds: dict[str, int]) -> None:
        self._kinds = kinds
        self._before: dict[str, int] | None = None

    def __enter__(self) -> None:
        self._before, _of_thread.kinds = _of_thread.kinds, self._kinds

    def __exit__(self, *_exception: object) -> None:
        _of_thread.kinds = self._before


def make_hooks(group: Group) -> tuple[Callable[[Any], None], Callable[[Any], None]]:
    """The hooks of one process group. They never raise: torch would hand it to the caller of the collective."""

    def before(args: Any) -> None:
        if not (switch.is_on and _Hooks.are_on):
            return
        try:
            operation = _operations.get(args.name.value)
            if operation is None:
                return
            try:
                frame = sys._getframe(1)
            except ValueError:  # on a thread of the autograd engine the hook may be all the Python there is
                frame = None
            # Each of these is a call into torch, so only what is needed is read.
            tensors = args.input_tensors or args.output_tensors
            root = args.root if operation.is_p2p else -1
            address = 0
            origin = gradients.origin_of(frame)
            if origin == gradients.FUNCTIONAL:
                address = (args.output_tensors or tensors)[0].data_ptr()
            begun = begin(group, operation, tensors, root, origin, frame, address)
            if begun is not None:
                group.issued[args.op_id] = begun
        except Exception as error:
            failed("torch.c10d", error)

    def after(args: Any) -> None:
        if not group.issued:
            return
        try:
            begun = group.issued.pop(args.op_id, None)
            if begun is not None:
                work = args.work
                issued(begun, work, work is None and args.async_op)
        except Exception as error:
            failed("torch.c10d", error)

    return before, after


def begin(
    group: Group,
    operation: Operation,
    tensors: list[Any],
    root: int,
    origin: int,
    frame: Any,
    address: int = 0,
    flags: int = 0,
) -> Begun | None:
    """Opens the span of an operation that is about to be issued; None if it has none of its own."""
    compute.close_forward()
    comm_id = group.comm_id if group.recording == switch.recording else group.register()
    peer = microbatch = chunk = -1
    payload_bytes = tensors[0].nbytes if len(tensors) == 1 else sum(tensor.nbytes for tensor in tensors)
    overridden = _of_thread.kinds
    if operation.is_p2p:
        peer = group.members[root] if root >= 0 else -1
        label = p2p_labels.take(tensors[0], operation.is_send) if tensors else None
        if label is not None:
            kind, microbatch, chunk = label
        elif overridden is not None:
            kind = overridden.get(operation.name, _COLLECTIVE)
        else:
            kind = _direction(group.members[group.rank], peer, operation.is_send)
    elif overridden is not None:
        kind = overridden.get(operation.name, _COLLECTIVE)
    elif operation.reduces_to and gradients.are_reduced(origin, frame, tensors):
        kind = operation.reduces_to
        if origin == gradients.ENGINE:
            compute.reduction_began()
    else:
        kind = _COLLECTIVE
    outer = native.find_open(_COMMUNICATION)
    if outer and outer not in _own_tokens:
        native.annotate(outer, microbatch, chunk, 0, comm_id, peer, 0, payload_bytes)
        return None
    token = native.begin(kind, microbatch, chunk, 0, comm_id, peer, 0, payload_bytes, 0, flags)
    if not token:
        return None
    _own_tokens.add(token)
    return token, origin, address, bool(tensors) and tensors[0].is_cpu, _steps


def _direction(rank: int, peer: int, is_send: bool) -> int:
    """Kind of a transfer that nobody has explained: towards higher ranks is forward. Both sides find the same."""
    source, target = (rank, peer) if is_send else (peer, rank)
    if source < target:
        return _FORWARD_SEND if is_send else _FORWARD_RECV
    return _BACKWARD_SEND if is_send else _BACKWARD_RECV


def issued(begun: Begun, work: Any, is_coalesced: bool = False) -> None:
    """The operation has been issued: its span ends with the wait for this work, or now if there is none.

    Either it was done inside the call, or it is one of several that have one work together, which no hook sees.
    """
    token, origin, address, is_on_cpu, _ = begun
    if work is None:
        _end(token, 0, HOST if is_coalesced else WAIT_RETURN, NOT_WAITED if is_coalesced else 0)
        return
    if len(_pending) >= _MAX_PENDING:
        _end_as_issued(next(iter(_pending)))
    if origin == gradients.PYTHON:
        key = id(work)
        if key in _pending:  # one work of several operations, as of coalesced ones
            _end_as_issued(key)
        reference = _Reference(work, _dropped)
        reference.key = key
        _of_thread.work = work
        _pending[key] = token, native.ticks(), reference, _steps
        return
    key = next(_keys)
    _pending[key] = token, native.ticks(), None, _steps
    if address:
        _by_address[address] = key
    elif is_on_cpu:
        _end_with_future(key, work)
    if origin == gradients.ENGINE:
        _reductions.append(key)


def _dropped(reference: _Reference) -> None:
    """Nobody can wait for this work any more."""
    pending = _pending.get(reference.key)
    if pending is not None and pending[2] is reference:
        _end_as_issued(reference.key)


def _end_with_future(key: int, work: Any) -> None:
    def completed(_future: Any) -> None:
        try:
            pending = _pending.pop(key, None)
            if pending is not None:
                _end(pending[0], 0, WAIT_RETURN, OTHER_THREAD)
        except Exception as error:
            failed("torch.c10d", error)

    try:
        work.get_future().add_done_callback(completed)
    except Exception:  # this backend has none for this operation
        return


def backward_ended() -> None:
    """The backward pass has returned: the reducer has waited for all that it issued."""
    while _reductions:
        pending = _pending.pop(_reductions.pop(), None)
        if pending is not None:
            _end(pending[0], 0, WAIT_RETURN, OTHER_THREAD)


def wait(original: Callable[..., Any]) -> Callable[..., Any]:
    """What `Work.wait` becomes."""

    def wait_for_work(self: Any, *args: Any, **kwargs: Any) -> Any:
        pending = _pending.pop(id(self), None)
        if pending is None:
            return original(self, *args, **kwargs)
        try:
            result = original(self, *args, **kwargs)
        except BaseException:
            _own_tokens.discard(pending[0])
            native.abort(pending[0])
            raise
        _end(pending[0], 0, WAIT_RETURN, 0)
        return result

    return wait_for_work


def waited_tensor(address: int) -> None:
    """A functional collective's result, which lies there, has been waited for."""
    key = _by_address.pop(address, 0)
    pending = _pending.pop(key, None)
    if pending is not None:
        _end(pending[0], 0, WAIT_RETURN, 0)


def waiting(original: Callable[..., Any], tensors_of: Callable[[Any], list[Any]]) -> Callable[..., Any]:
    """What `wait_tensor` and `wait_tensors` of functional collectives become."""
    is_compiling: Callable[[], bool] = sys.modules["torch"].compiler.is_compiling

    def wait_for(waited: Any) -> Any:
        if is_compiling() or not _by_address:
            return original(waited)
        result = original(waited)
        try:
            for tensor in tensors_of(waited):
                waited_tensor(tensor.data_ptr())
        except Exception as error:  # a tensor that is only being traced has no address
            failed("torch.wait_tensor", error)
        return result

    return wait_for


def _end(token: int, ticks: int, source: int, flags: int) -> None:
    _own_tokens.discard(token)
    native.end_at(token, ticks, source, flags)


def _end_as_issued(key: int) -> None:
    pending = _pending.pop(key, None)
    if pending is not None:
        _end(pending[0], pending[1], HOST, NOT_WAITED)


def abort(begun: Begun | None) -> None:
    """The operation could not be issued."""
    if begun is not None:
        _own_tokens.discard(begun[0])
        native.abort(begun[0])


def end_unwaited() -> None:
    """At a step's end: works of the step before that nobody has waited for end where they had been issued."""
    global _steps
    _steps += 1
    _of_thread.work = None
    for group in groups.all_known():
        if group.issued:
            for op_id, begun in list(group.issued.items()):
                if begun[4] < _steps - 1:  # the operation raised, and torch called no post-hook
                    del group.issued[op_id]
                    abort(begun)
    if _pending:
        for key, pending in list(_pending.items()):
            if pending[3] < _steps - 1:
                _end_as_issued(key)
    # What was waited for where nobody saw it; identities and addresses come again.
    _reductions[:] = [key for key in _reductions if key in _pending]
    for address, key in list(_by_address.items()):
        if key not in _pending:
            del _by_address[address]


def end_all() -> None:
    """Before recording stops: all of them."""
    for group in groups.all_known():
        for begun in list(group.issued.values()):
            abort(begun)
        group.issued.clear()
    for key in list(_pending):
        _end_as_issued(key)
    _of_thread.work = None
    _by_address.clear()
    _own_tokens.clear()
