"""Notices what else measures or steers the job, and says it in the header; leaves all of it alone.

It changes what is recorded: timers of Megatron's wait for the device, and with barriers for all ranks; a script that
collects garbage by itself has its collections where it wants them. What is there is looked at once in a recording, at
its first call of a schedule: as "env.megatron.NAME".
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any, ClassVar

from smon_rt._backend import native
from smon_rt.integrations.megatron.layout import config_of
from smon_rt.integrations.state import switch

__all__ = ["look"]


class _Looked:
    recording = 0
    """The last one in whose header it is said."""
    said: ClassVar[set[str]] = set()
    """What headers of this process have said, and go on saying until they are told otherwise."""


def look(model: Any) -> None:
    """Says in the header of this recording what is there, once. For the first call of a schedule.

    Args:
        model: as the schedule got it: a module, or a list of chunks.
    """
    if _Looked.recording == switch.recording:
        return
    _Looked.recording = switch.recording
    config = config_of(model)
    for name, find in _FINDERS.items():
        try:
            found = find(config)
        except Exception as error:  # of another version
            found = f"unknown: {type(error).__name__}"
        if found or name in _Looked.said:
            _Looked.said.add(name)
            native.set_fact(f"env.megatron.{name}", found[:200] or "none")


def _timers(config: Any) -> str:
    timers = getattr(config, "timers", None)
    if timers is None:
        return ""
    level = getattr(timers, "_log_level", None)
    words = "on" if level is None else f"level {level}"
    if level is not None and level > 0 and getattr(config, "barrier_with_L1_time", False):
        return f"{words} with barriers"
    return words


def _manual_gc(_config: Any) -> str:
    arguments = getattr(sys.modules.get("megatron.training.global_vars"), "_GLOBAL_ARGS", None)
    if getattr(arguments, "manual_gc", False):
        return f"manual, every {getattr(arguments, 'manual_gc_interval', '?')} steps"
    return "" if gc.isenabled() else "manual"


def _straggler_detector(_config: Any) -> str:
    detector = getattr(sys.modules.get("megatron.core.utils"), "__straggler__", None)
    if detector is None or not getattr(type(detector), "_configured", False):
        return ""
    return "on" if detector.enabled else "off"


def _opentelemetry(_config: Any) -> str:
    provider = getattr(sys.modules.get("opentelemetry.trace"), "_TRACER_PROVIDER", None)
    return "" if provider is None else type(provider).__name__


def _nvtx(_config: Any) -> str:
    return "on" if getattr(sys.modules.get("megatron.core.utils"), "_nvtx_enabled", False) else ""


_FINDERS: dict[str, Callable[[Any], str]] = {
    "timers": _timers,
    "gc": _manual_gc,
    "straggler_detector": _straggler_detector,
    "opentelemetry": _opentelemetry,
    "nvtx": _nvtx,
}
