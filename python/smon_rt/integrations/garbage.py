"""gc: Python's own collections, by gc.callbacks, named by the generation.

Those of the youngest generation are left out: there are thousands of them, of some microseconds each.
"""

from __future__ import annotations

import gc
from typing import Any

from smon_rt._backend import native
from smon_rt.integrations.state import failed, switch
from smon_rt.kinds import KIND_NAMES

__all__ = ["attach", "detach"]

_GC = KIND_NAMES.index("gc")
_NAMES = ("generation 0", "generation 1", "generation 2")

# Python runs one collection at a time, start and stop on one thread.
_token = 0


def attach() -> None:
    """Records collections from now on. Twice is once."""
    if _on_collection not in gc.callbacks:
        gc.callbacks.append(_on_collection)


def detach() -> None:
    """No longer."""
    if _on_collection in gc.callbacks:
        gc.callbacks.remove(_on_collection)


def _on_collection(phase: str, info: dict[str, Any]) -> None:
    global _token
    if phase == "start":
        generation = info["generation"]
        if generation == 0 or not switch.is_on:
            return
        try:
            _token = native.begin(_GC, name=_NAMES[generation])
        except Exception as error:
            failed("gc", error)
    elif _token:
        token, _token = _token, 0
        native.end(token)
