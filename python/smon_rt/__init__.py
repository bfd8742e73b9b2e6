"""smon_rt: says what a training job loses to stragglers, to which cause, on which rank.

Importing this package must stay cheap, since training processes do it too: everything that needs the engine, numpy or
pyarrow is loaded on first use.

Example:
    >>> import smon_rt
    >>> smon_rt.start("traces")  # doctest: +SKIP
    >>> with smon_rt.step(0), smon_rt.span("forward_compute", microbatch=0):  # doctest: +SKIP
    ...     model(batch)
    >>> report = smon_rt.analysis.analyze("trace.parquet")  # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from smon_rt import _nccl_plugin
from smon_rt.errors import RecordingError, SmonError, TraceError

if TYPE_CHECKING:
    from smon_rt import analysis, bench, checkpoint, gc
    from smon_rt._layout import Layout
    from smon_rt._recording import (
        Status,
        abort,
        annotate,
        attach,
        begin,
        current,
        detach,
        end,
        is_sampled,
        metric,
        pause,
        request_sampling,
        resume,
        set_layout,
        span,
        start,
        status,
        step,
        stop,
        wrap,
    )
    from smon_rt.kinds import KIND_NAMES

__version__ = "0.1.0"
__all__ = [
    "KIND_NAMES",
    "Layout",
    "RecordingError",
    "SmonError",
    "Status",
    "TraceError",
    "__version__",
    "abort",
    "analysis",
    "annotate",
    "attach",
    "begin",
    "bench",
    "checkpoint",
    "current",
    "detach",
    "end",
    "gc",
    "is_sampled",
    "metric",
    "pause",
    "request_sampling",
    "resume",
    "set_layout",
    "span",
    "start",
    "status",
    "step",
    "stop",
    "wrap",
]

# NCCL decides at its first communicator, which a job may make before it starts recording.
_nccl_plugin.set_up()

_LAZY_SUBMODULES = frozenset({"analysis", "bench", "checkpoint", "gc"})
_RECORDING = frozenset(__all__) - _LAZY_SUBMODULES - set(globals())


def __getattr__(name: str) -> Any:
    if name in _LAZY_SUBMODULES:
        return importlib.import_module(f"smon_rt.{name}")
    if name in _RECORDING:
        value = getattr(importlib.import_module("smon_rt._recording"), name)
        globals()[name] = value  # a step must not come through here
        return value
    raise AttributeError(f"module 'smon_rt' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(set(globals()) | _LAZY_SUBMODULES | _RECORDING)
