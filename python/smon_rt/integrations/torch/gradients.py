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
from typing import Any, ClassVar

__all__ = ["ENGINE", "FUNCTIONAL", "PYTHON", "are_reduced", "learn_files", "origin_of"]

#: Who issues an operation: C++ called by the autograd engine, the dispatcher, another C++, Python that waits itself.
ENGINE, FUNCTIONAL, CPP, PYTHON = range(4)
#: Frames between a hook in the backward pass and c10d: logging wrappers, the hook itself, its helpers.
_MAX_FRAMES = 24

_origins: dict[str, int] = {}
_engine_file = ""
_function_file = ""
_graph_task: Any = None


class _Seen:
    """Where gradients are to be found."""

    modules: ClassVar[weakref.WeakSet[Any]] = weakref.WeakSet()
    optimizers: ClassVar[weakref.WeakSet[Any]] = weakref.WeakSet()
    must_look = False
    """A backward pass has ended, and no optimizer has stepped since."""
    addresses: frozenset[int] | None = None
    totals: frozenset[int] = frozenset()
    """Elements of all gradients of a model, or an optimizer: those of a flat copy."""


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
    return _Seen.must_look and origin == PYTHON and _are_gradients(tensors)


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


def _are_gradients(tensors: list[Any]) -> bool:
    if _Seen.addresses is None:
        _find_gradients()
    addresses = _Seen.addresses or frozenset()
    return any(t.data_ptr() in addresses or t.numel() in _Seen.totals for t in tensors)


def _find_gradients() -> None:
    """Once a step, and only in jobs that reduce after the backward pass by themselves."""
    owners = [list(module.parameters()) for module in list(_Seen.modules)]
    owners += [[p for group in one.param_groups for p in group["params"]] for one in list(_Seen.optimizers)]
    gradients = [[p.grad for p in parameters if p.grad is not None] for parameters in owners]
    _Seen.addresses = frozenset(gradient.data_ptr() for those in gradients for gradient in those)
    _Seen.totals = frozenset(sum(gradient.numel() for gradient in those) for those in gradients if those)


def backward_ended() -> None:
    """Gradients are there now."""
    _Seen.must_look = True
    _Seen.addresses = None


def optimizer_stepped(optimizer: Any) -> None:
    """Gradients have been used."""
    _Seen.must_look = False
    _Seen.optimizers.add(optimizer)


def forward_ran(module: Any) -> None:
    """A model whose parameters have gradients."""
    _Seen.modules.add(module)
