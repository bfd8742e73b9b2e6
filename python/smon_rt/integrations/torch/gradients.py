"""Tells reductions of gradients from other collectives, by who issues them and what they reduce.

Nothing in torch says so. What is known:
- DDP's reducer issues from C++ inside the backward pass: below the hook there is the autograd engine's frame, or no
  Python at all (the engine's own threads, for a GPU). No other C++ in torch does that.
- A hook of Python inside the backward pass (a DDP communication hook, one after a gradient has accumulated) lies
  between the engine and c10d; the backward of an autograd function, which is part of the model, has its `apply` there.
- After the backward pass: the tensor is a parameter's gradient, or as long as all of them.
FSDP2 is told by its own integration.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

from smon_rt._backend import native
from smon_rt.integrations.state import switch

__all__ = ["ENGINE", "FUNCTIONAL", "PYTHON", "are_gradients", "are_reduced", "learn_files", "origin_of"]

#: Who issues an operation: C++ called by the autograd engine, the dispatcher, another C++, Python that waits itself.
ENGINE, FUNCTIONAL, CPP, PYTHON = range(4)
#: Frames between a hook in the backward pass and c10d: logging wrappers, the hook itself, its helpers.
_MAX_FRAMES = 24
#: After so many backward passes parameters are looked at again: a job may have added some.
_LOOK_AGAIN = 256

_origins: dict[str, int] = {}
_engine_file = ""
_function_file = ""
_graph_task: Any = None


class _Sizes:
    """How many elements gradients, and flat copies of all of a model's, can have."""

    def __init__(self, owners: list[list[int]]) -> None:
        self._single = frozenset(size for sizes in owners for size in sizes)
        # Of each owner: larger than its largest, and no larger than all of them. An unused one has no gradient.
        self._flat = frozenset((max(sizes), sum(sizes)) for sizes in owners if sizes)

    def may_be(self, size: int) -> bool:
        """False: a tensor of so many elements is neither."""
        return size in self._single or any(largest < size <= total for largest, total in self._flat)


class _Seen:
    """Where gradients are to be found. An object, since an attribute of a class is costly to set."""

    def __init__(self) -> None:
        self.modules: weakref.WeakSet[Any] = weakref.WeakSet()
        self.optimizers: weakref.WeakSet[Any] = weakref.WeakSet()

    addresses: frozenset[int] | None = None
    totals: frozenset[int] = frozenset()
    """Elements of all gradients of a model, or an optimizer: those of a flat copy."""
    sizes: _Sizes | None = None
    addresses_of = sizes_of = 0
    """How many backward passes had ended when that was found."""


_seen = _Seen()


def learn_files() -> None:
    """Where the code lies whose frames say who calls; torch is loaded."""
    global _engine_file, _function_file, _graph_task
    modules = {
        "torch.autograd.graph": ENGINE,
        "torch._ops": FUNCTIONAL,
        "torch.distributed.distributed_c10d": PYTHON,
    }
    for name, origin in modules.items():
        path = getattr(sys.modules.get(name), "__file__", None)
        if path:
            _origins[path] = origin
    _engine_file = sys.modules["torch.autograd.graph"].__file__ or ""
    _function_file = sys.modules["torch.autograd.function"].__file__ or ""
    _graph_task = getattr(sys.modules["torch"]._C, "_current_graph_task_id", None)
    native.learn_files(dict(_origins), _engine_file, _function_file)


def origin_of(frame: Any) -> int:
    """Who issues an operation, by the frame that called the hook; None: there is no Python below."""
    if frame is None:
        return ENGINE
    return _origins.get(frame.f_code.co_filename, CPP)


def is_in_backward() -> bool:
    """Whether this thread runs a backward pass, on whichever of the engine's threads."""
    return _graph_task is not None and _graph_task() != -1


def are_reduced(origin: int, frame: Any, tensors: list[Any]) -> bool:
    """Whether a reduction is one of gradients."""
    if is_in_backward():
        if origin == ENGINE:
            return True
        return origin == PYTHON and _is_called_by_hook(frame)
    return switch.must_look and origin == PYTHON and are_gradients(tensors)


def _is_called_by_hook(frame: Any) -> bool:
    for _ in range(_MAX_FRAMES):
        frame = frame.f_back
        if frame is None:
            return True  # on a thread of the engine
        path = frame.f_code.co_filename
        if path == _function_file:
            return False
        if path == _engine_file:
            return True
    return False


def are_gradients(tensors: list[Any]) -> bool:
    """Whether these are gradients, or a flat copy of all of a model's; asked between backward and optimizer only."""
    passes = switch.backward_passes
    if _seen.sizes is None or passes - _seen.sizes_of >= _LOOK_AGAIN:
        _seen.sizes_of = passes
        _seen.sizes = _Sizes([[p.numel() for p in parameters] for parameters in _parameters()])
    tensors = [tensor for tensor in tensors if _seen.sizes.may_be(tensor.numel())]
    if not tensors:
        return False  # as the activations of tensor parallelism, between the backward passes of a pipeline
    if _seen.addresses is None or passes != _seen.addresses_of:
        _seen.addresses_of = passes
        _find_gradients()
    addresses = _seen.addresses or frozenset()
    return any(t.data_ptr() in addresses or t.numel() in _seen.totals for t in tensors)


def _parameters() -> list[list[Any]]:
    """Of each model that ran, and each optimizer that stepped."""
    owners = [list(module.parameters()) for module in list(_seen.modules)]
    return owners + [[p for group in one.param_groups for p in group["params"]] for one in list(_seen.optimizers)]


def _find_gradients() -> None:
    """Once a backward pass, and only in jobs that reduce after it by themselves."""
    gradients = [[p.grad for p in parameters if p.grad is not None] for parameters in _parameters()]
    _seen.addresses = frozenset(gradient.data_ptr() for those in gradients for gradient in those)
    _seen.totals = frozenset(sum(gradient.numel() for gradient in those) for those in gradients if those)


def optimizer_stepped(optimizer: Any) -> None:
    """It steps for the first time, as far as a thread knows."""
    if optimizer not in _seen.optimizers:
        _seen.optimizers.add(optimizer)
        _seen.sizes = None


def forward_ran(module: Any) -> None:
    """A model whose parameters have gradients."""
    if module not in _seen.modules:
        _seen.modules.add(module)
        _seen.sizes = None
