"""Megatron's optimizers, and the norm of the gradients.

optimizer is the outermost `step` of Megatron's optimizers, most often `ChainedOptimizer`'s, up to the gather of the
parameters, if it does that itself and waits for it: who waits there waits for the slowest optimizer, which must not
count as his own. The torch optimizer inside is part of it; of several chained ones that gather in between, each later
one has a span of its own.

optimizer_clip_main_grad is the norm of the gradients, in it, which `ChainedOptimizer.step` and `clip_grad_norm` get
from the same function: the part of clipping in which ranks wait for each other. The all-reduce inside is a
`collective`. The function returns a number, so its end is seen on a GPU as well. Gradients are scaled by it as part of
the optimizer.

Threading: the job's own threads.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from smon_rt._backend import native
from smon_rt.integrations.megatron import schedules
from smon_rt.integrations.patches import Method, Patches
from smon_rt.integrations.state import begin_unless_open, failed, mask, switch
from smon_rt.integrations.torch.collectives import override
from smon_rt.kinds import KIND_NAMES

__all__ = ["PARTS", "parameters_are_ready"]

_MODULE = "megatron.core.optimizer.optimizer"
_OPTIMIZER = KIND_NAMES.index("optimizer")
_OPTIMIZER_MASK = mask("optimizer")
_CLIP = KIND_NAMES.index("optimizer_clip_main_grad")
_CLIP_MASK = mask("optimizer_clip_main_grad")
_NO_GRADIENTS: dict[str, int] = {}
_NORM_PARAMETERS = ("grads_for_norm", "norm_type", "grad_stats_parallel_group")


class _Running(threading.local):
    """The step of an optimizer that this thread is in."""

    is_inside = False
    token = 0
    """Of its span, 0 if that has ended."""


_running = _Running()


def parameters_are_ready() -> None:
    """The optimizer has done its work, and waits for other ranks' from here on."""
    token, _running.token = _running.token, 0
    native.end(token)


def _wrap(patches: Patches) -> list[str]:
    module = sys.modules[_MODULE]
    steps = [
        patches.wrap(getattr(module, name, module), "step", ("self",), _step)
        for name in ("ChainedOptimizer", "MixedPrecisionOptimizer", "FP32Optimizer")
    ]
    return [*steps, patches.wrap(module, "get_grad_norm_fp32", _NORM_PARAMETERS, _norm)]


def _step(original: Method) -> Method:
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not switch.is_on or _running.is_inside:
            return original(self, *args, **kwargs)
        _begin()
        try:
            result = original(self, *args, **kwargs)
        except BaseException:
            native.abort(_running.token)
            raise
        finally:
            _running.is_inside = False
        parameters_are_ready()
        _stepped()
        return result

    return step


def _begin() -> None:
    _running.is_inside = True
    _running.token = begin_unless_open(_OPTIMIZER, _OPTIMIZER_MASK, "megatron.optimizer")


def _stepped() -> None:
    try:
        schedules.optimizer_stepped()
    except Exception as error:
        failed("megatron.optimizer", error)


def _norm(original: Method) -> Method:
    def get_grad_norm_fp32(*args: Any, **kwargs: Any) -> Any:
        if not switch.is_on:
            return original(*args, **kwargs)
        token = begin_unless_open(_CLIP, _CLIP_MASK, "megatron.clip")
        try:
            with override(_NO_GRADIENTS):
                norm = original(*args, **kwargs)
        except BaseException:
            native.abort(token)
            raise
        native.end(token)
        return norm

    return get_grad_norm_fp32


PARTS: dict[str, tuple[str, Callable[[Patches], list[str]]]] = {"optimizer": (_MODULE, _wrap)}
