"""Megatron's pipeline schedules: forward and backward of each microbatch, steps, evaluation."""

from __future__ import annotations

import sys
from collections.abc import Callable

from smon_rt._backend import native
from smon_rt.integrations.patches import Method, Patches
from smon_rt.integrations.state import switch
from smon_rt.kinds import KIND_NAMES

__all__ = ["PARTS", "optimizer_stepped"]

_MODULE = "megatron.core.pipeline_parallel.schedules"
_FORWARD = KIND_NAMES.index("forward_compute")

_FORWARD_STEP = ("forward_step_func", "data_iterator", "model", "num_microbatches", "input_tensor")


def optimizer_stepped() -> None:
    """An optimizer has stepped: the next call of a schedule is one of another iteration."""


def _wrap(patches: Patches) -> list[str]:
    module = sys.modules[_MODULE]
    return [patches.wrap(module, "forward_step", _FORWARD_STEP, _forward_step)]


def _forward_step(original: Method) -> Method:
    def forward_step(*args: object, **kwargs: object) -> object:
        if not switch.is_on:
            return original(*args, **kwargs)
        microbatch = kwargs.get("current_microbatch")
        with native.span(_FORWARD, microbatch=microbatch if isinstance(microbatch, int) else -1):
            return original(*args, **kwargs)

    return forward_step


PARTS: dict[str, tuple[str, Callable[[Patches], list[str]]]] = {"schedules": (_MODULE, _wrap)}
