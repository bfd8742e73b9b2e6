"""Tells the recorder when a stream is captured into a graph: NCCL is not asked meanwhile when its kernels run."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from smon_rt._backend import native
from smon_rt.integrations.patches import Patches

__all__ = ["begins", "ends", "install"]


def install(patches: Patches, graph: Any) -> str:
    """Wraps both ends of a capture by `torch.cuda.CUDAGraph`; why not, "" if it does.

    Who cannot be told apart from a capture that goes on is taken for one: NCCL is then never asked.
    """
    # What an exception leaves ends by the first half of capture_end, where there are two.
    end = "capture_end_pre" if "capture_end_pre" in vars(graph) else "capture_end"
    reason = patches.wrap(graph, end, ("self",), ends)
    if not reason:
        reason = patches.wrap(graph, "capture_begin", ("self",), begins)
    if reason:
        native.capture_begin()
    return reason


def begins(original: Callable[..., None]) -> Callable[..., None]:
    """A capture begins before its first operation, and not at all if that fails."""

    @functools.wraps(original)
    def capture_begin(*args: Any, **kwargs: Any) -> None:
        native.capture_begin()
        try:
            original(*args, **kwargs)
        except BaseException:
            native.capture_end()
            raise

    return capture_begin


def ends(original: Callable[..., None]) -> Callable[..., None]:
    """A capture ends, whether that works or not."""

    @functools.wraps(original)
    def capture_end(*args: Any, **kwargs: Any) -> None:
        try:
            original(*args, **kwargs)
        finally:
            native.capture_end()

    return capture_end
