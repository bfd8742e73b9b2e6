"""Puts the hooks into torch once it is loaded, and takes them out again.

Each is checked against what it expects; one that does not match is left out, and the header of the trace says why
("hook.torch.NAME"; empty: installed).
"""

from __future__ import annotations

import atexit
import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

from smon_rt._backend import native
from smon_rt.errors import words_of
from smon_rt.integrations import dimensions, nccl, on_import, state
from smon_rt.integrations.patches import Patches
from smon_rt.integrations.torch import (
    captures,
    collectives,
    compute,
    fallback,
    fsdp,
    gradients,
    groups,
    hook_functions,
    steps,
    uncompiled,
)

__all__ = ["attach", "detach", "say_facts"]

#: One for all groups: torch replaces a hook by another of its number.
_HOOK_ID = int.from_bytes(b"smon_rt\0", "big")

_C10D = "torch.distributed.distributed_c10d"
_FUNCTIONAL = "torch.distributed._functional_collectives"
_LOADER = "torch.utils.data.dataloader"
_MESH = "torch.distributed.device_mesh"
_GRAPHS = "torch.cuda.graphs"
_FSDP = "torch.distributed.fsdp._fully_shard._fsdp_param_group"


class _Attached:
    """What was put into torch."""

    is_on = False
    is_exit_watched = False
    patches = Patches()
    methods: ClassVar[list[tuple[Any, str, Any, Any]]] = []
    handles: ClassVar[list[Any]] = []
    roots: compute.Roots | None = None
    facts: ClassVar[dict[str, str]] = {}


#: Groups that have hooks, which they keep as long as the job runs, since torch's list of hooks takes no lock.
_hooked: weakref.WeakKeyDictionary[Any, tuple[Callable[[Any], None], Callable[[Any], None]]]
_hooked = weakref.WeakKeyDictionary()
#: Those of them whose hooks are objects of Python.
_hooked_by_python: weakref.WeakSet[Any] = weakref.WeakSet()


def attach() -> None:
    """Hooks into torch now, or when the job imports it. Twice is once.

    No collective may be in flight in process groups that exist already.
    """
    if not _Attached.is_on:
        _Attached.is_on = True
        on_import.when_imported("torch", _attach_now)


def detach() -> None:
    """Puts every replaced name back. The hooks of process groups stay there, switched off."""
    if not _Attached.is_on:
        return
    _Attached.is_on = False
    for callback in (_attach_now, *_LATER.values()):
        on_import.forget(callback)
    collectives.switch_hooks(False)
    collectives.end_all()
    for handle in _Attached.handles:
        handle.remove()
    _Attached.handles.clear()
    while _Attached.methods:
        owner, name, original, replacement = _Attached.methods.pop()
        if vars(owner).get(name) is replacement:
            setattr(owner, name, original)
    _Attached.patches.restore()
    if _Attached.roots is not None:
        _Attached.roots.restore()
        _Attached.roots = None
    for hooks, hook in _STATE_HOOKS:
        if hook in hooks:
            hooks.remove(hook)
    nccl.forget()


def say_facts() -> None:
    """A recording begins: which hooks there are, for its header."""
    collectives.started()
    if "torch" in sys.modules:
        nccl.started()
    if uncompiled.MODULE in sys.modules:  # again: modules of ours may have come since
        _attach_dynamo()
    for key, reason in _Attached.facts.items():
        native.set_fact(key, reason)


def _attach_now() -> None:
    for hooks, hook in _STATE_HOOKS:
        hooks.append(hook)
    nccl.started()
    collectives.switch_hooks(True)
    gradients.learn_files()
    _try("forward", _attach_forward)
    _try("backward", _attach_backward)
    _try("optimizer", _attach_optimizer)
    _try("grad_scaler", _attach_scaler)
    for module_name, attach_part in _LATER.items():
        on_import.when_imported(module_name, attach_part)


def _try(name: str, install: Callable[[], str]) -> None:
    """Installs one hook; the reason why not becomes a fact."""
    if not _Attached.is_on:
        return
    try:
        reason = install()
    except Exception as error:
        reason = words_of(error)
    key = f"hook.torch.{name}"
    _Attached.facts[key] = reason[:200]
    native.set_fact(key, reason[:200])


def _replace(owner: Any, name: str, replacement: Callable[..., Any]) -> None:
    """Replaces a method of a class in C++."""
    original = vars(owner)[name]
    functools.update_wrapper(replacement, getattr(owner, name))
    setattr(owner, name, replacement)
    _Attached.methods.append((owner, name, original, replacement))


def _attach_forward() -> str:
    _Attached.roots = compute.Roots(sys.modules["torch"])
    _Attached.roots.discover()
    return ""


def _attach_backward() -> str:
    compute.learn_torch(sys.modules["torch"])
    autograd = sys.modules["torch.autograd"]
    return _Attached.patches.wrap(autograd, "backward", ("tensors", "grad_tensors"), native.recorded_backward)


def _attach_optimizer() -> str:
    optimizer = sys.modules["torch.optim.optimizer"]
    before = getattr(optimizer, "register_optimizer_step_pre_hook", None)
    after = getattr(optimizer, "register_optimizer_step_post_hook", None)
    if before is None or after is None:
        return "torch.optim.optimizer.register_optimizer_step_pre_hook is not there"
    _Attached.handles += [before(native.before_optimizer), after(native.after_optimizer)]
    return ""


def _attach_scaler() -> str:
    scaler = sys.modules["torch.amp.grad_scaler"].GradScaler
    return _Attached.patches.wrap(scaler, "step", ("self", "optimizer"), steps.scaler_step)


def _attach_groups() -> None:
    _try("c10d", _attach_c10d)
    _try("work_wait", _attach_wait)


def _attach_c10d() -> str:
    c10d = sys.modules.get(_C10D)
    owner = getattr(sys.modules.get("torch._C._distributed_c10d"), "ProcessGroup", None)
    if c10d is None or owner is None:
        return "this torch has no torch.distributed"
    names = getattr(sys.modules["torch._C._distributed_c10d"], "HookOpName", None)
    if names is None or not hasattr(owner, "register_pre_hook") or not hasattr(owner, "register_post_hook"):
        reason = fallback.install(owner, _replace)
        return reason or "process groups of this torch take no hooks: their methods are wrapped instead"
    if "hook_id" not in str(owner.register_pre_hook.__doc__):
        return "ProcessGroup.register_pre_hook takes other arguments"
    if reason := collectives.learn_torch(sys.modules["torch._C._distributed_c10d"]):
        return reason
    _try("c10d_functions", lambda: hook_functions.learn(owner))
    expected = ("group_size", "group_rank", "global_ranks_in_group")
    reason = _Attached.patches.wrap(c10d, "_new_process_group_helper", expected, _watch_new_groups)
    for process_group, ranks in groups.existing():
        _hook(process_group, ranks)
    return reason


def _watch_new_groups(original: Callable[..., Any]) -> Callable[..., Any]:
    def _new_process_group_helper(
        group_size: int, group_rank: int, global_ranks_in_group: list[int], *args: Any, **kwargs: Any
    ) -> Any:
        result = original(group_size, group_rank, global_ranks_in_group, *args, **kwargs)
        try:
            process_group = result[0] if isinstance(result, tuple) else result
            if hasattr(process_group, "register_pre_hook"):  # this rank is a member
                _hook(process_group, list(global_ranks_in_group) or list(range(group_size)))
        except Exception as error:
            state.failed("torch.c10d", error)
        return result

    return _new_process_group_helper


def _hook(process_group: Any, ranks: list[int]) -> None:
    if process_group not in _hooked:
        _hooked[process_group] = collectives.make_hooks(groups.describe(process_group, ranks))
        _register(process_group)


def _register(process_group: Any) -> None:
    """Gives a group its hooks: functions of C++ where torch takes these, else objects of Python."""
    before, after = _hooked[process_group]
    if not (reason := hook_functions.register(process_group, _HOOK_ID, before)):
        return
    _try("c10d_functions", lambda: reason)
    if not _Attached.is_exit_watched:
        _Attached.is_exit_watched = True
        atexit.register(_unhook_at_exit)
    _hooked_by_python.add(process_group)
    process_group.register_pre_hook(_HOOK_ID, before)
    process_group.register_post_hook(_HOOK_ID, after)


def _unhook_at_exit() -> None:
    """A group that nobody destroyed goes away after the interpreter, and must not hold anything of Python's then."""
    for process_group in list(_hooked_by_python):
        process_group.unregister_pre_hook(_HOOK_ID)
        process_group.unregister_post_hook(_HOOK_ID)


def _attach_wait() -> str:
    work = getattr(sys.modules.get("torch._C._distributed_c10d"), "Work", None)
    if work is None:
        return "this torch has no torch.distributed"
    if "wait(self" not in str(work.wait.__doc__):
        return "Work.wait takes other arguments"
    bound = vars(sys.modules["torch._C._distributed_c10d"]).values()
    owners: list[Any] = [one for one in bound if isinstance(one, type) and issubclass(one, work)]
    for owner in owners:
        if "wait" in vars(owner):  # a few backends' works have one of their own
            _replace(owner, "wait", native.recorded_wait(owner.wait))
    return ""


def _attach_functional() -> None:
    module = sys.modules[_FUNCTIONAL]

    def one(original: Callable[..., Any]) -> Callable[..., Any]:
        return collectives.waiting(original, lambda tensor: [tensor])

    _try("wait_tensor", lambda: _Attached.patches.wrap(module, "wait_tensor", ("tensor",), one))
    if hasattr(module, "wait_tensors"):

        def several(original: Callable[..., Any]) -> Callable[..., Any]:
            return collectives.waiting(original, list)

        _try("wait_tensors", lambda: _Attached.patches.wrap(module, "wait_tensors", ("tensors",), several))


def _attach_data() -> None:
    iterator = sys.modules[_LOADER]._BaseDataLoaderIter
    _try("data", lambda: _Attached.patches.wrap(iterator, "__next__", ("self",), native.recorded_next))


def _attach_mesh() -> None:
    mesh = sys.modules[_MESH].DeviceMesh
    expected = ("self", "device_type", "mesh")
    _try("device_mesh", lambda: _Attached.patches.wrap(mesh, "__init__", expected, dimensions.note_meshes))


def _attach_fsdp() -> None:
    module = sys.modules[_FSDP]
    gather, reduce = ("fsdp_params", "group"), ("fsdp_params", "unsharded_grads", "reduce_scatter_group")
    _try("fsdp_all_gather", lambda: _Attached.patches.wrap(module, "foreach_all_gather", gather, fsdp.all_gather))
    _try("fsdp_reduce", lambda: _Attached.patches.wrap(module, "foreach_reduce", reduce, fsdp.reduce))


def _attach_graphs() -> None:
    _try("graph_captures", lambda: captures.install(_Attached.patches, sys.modules[_GRAPHS].CUDAGraph))


def _attach_dynamo() -> None:
    _try("compile", uncompiled.skip_our_code)


def _models_sought() -> None:
    if _Attached.roots is not None:
        _Attached.roots.step_ended()


def _stopping() -> None:
    native.close_forward(0)
    collectives.end_all()
    steps.reset()


#: Modules that jobs may import later than torch, or never → what is put into them
_LATER: dict[str, Callable[[], None]] = {
    _C10D: _attach_groups,
    _FUNCTIONAL: _attach_functional,
    _LOADER: _attach_data,
    _MESH: _attach_mesh,
    _FSDP: _attach_fsdp,
    _GRAPHS: _attach_graphs,
    uncompiled.MODULE: _attach_dynamo,
}
_STATE_HOOKS: tuple[tuple[list[Callable[[], None]], Callable[[], None]], ...] = (
    (state.on_models_sought, _models_sought),
    (state.on_stop, _stopping),
    (state.on_stop, nccl.stopping),
)
