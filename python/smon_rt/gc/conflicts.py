"""Who else has a say in Python's garbage collection: they are respected, and named.

Loads none of them: looks in sys.modules.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["is_capturing", "rival_of", "rival_scheduler", "save_interval"]

#: Module → what collects there.
_RIVALS = {
    "torchtitan.tools.utils": "torchtitan's GarbageCollection",
    "torchtitan.utils": "torchtitan's GarbageCollection",
    "megatron.training.training": "Megatron's --manual-gc",
}


def rival_scheduler() -> str | None:
    """Somebody who collects at planned steps already: the name, or None. A plan beside it would only collect twice."""
    arguments = _megatron_arguments()
    if getattr(arguments, "manual_gc", False):
        return f"Megatron's --manual-gc (interval {getattr(arguments, 'manual_gc_interval', 0)})"
    if not gc.isenabled():
        for name, words in _RIVALS.items():
            if name.startswith("torchtitan.") and _has_one(getattr(sys.modules.get(name), "GarbageCollection", None)):
                return words
    return None


def _has_one(kind: Any) -> bool:
    """An object of it: the module may have been loaded for something else. Looks at all objects, once in a job that has
    switched collections off.
    """
    return kind is not None and any(type(each) is kind for each in gc.get_objects())


def rival_of(caller: str) -> str | None:
    """The same, found by who asked for a collection ("module.function")."""
    return _RIVALS.get(caller.rpartition(".")[0])


def save_interval() -> int:
    """Steps between two checkpoints, as Megatron's arguments say; 0: not known."""
    value = getattr(_megatron_arguments(), "save_interval", None)
    return value if isinstance(value, int) and value > 0 else 0


def is_capturing() -> bool:
    """Whether a CUDA graph is being captured on the current stream, where a collection may free what it must not."""
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    try:
        return cuda is not None and cuda.is_initialized() and bool(cuda.is_current_stream_capturing())
    except Exception:  # an older torch, or one without CUDA
        return False


def _megatron_arguments() -> Any:
    get_args: Callable[[], Any] | None = getattr(sys.modules.get("megatron.training.global_vars"), "get_args", None)
    try:
        return None if get_args is None else get_args()
    except Exception:  # not set yet
        return None
