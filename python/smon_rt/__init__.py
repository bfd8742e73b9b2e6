"""smon_rt: says what a training job loses to stragglers, to which cause, on which rank.

Importing this package must stay cheap, since training processes do it too: everything that needs the engine, numpy or
pyarrow is loaded on first use.

Example:
    >>> import smon_rt
    >>> report = smon_rt.analysis.analyze("trace.parquet")  # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from smon_rt.errors import SmonError, TraceError

if TYPE_CHECKING:
    from smon_rt import analysis

__version__ = "0.1.0"
__all__ = ["SmonError", "TraceError", "__version__", "analysis"]

_LAZY_SUBMODULES = frozenset({"analysis"})


def __getattr__(name: str) -> Any:
    if name in _LAZY_SUBMODULES:
        return importlib.import_module(f"smon_rt.{name}")
    raise AttributeError(f"module 'smon_rt' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(set(globals()) | _LAZY_SUBMODULES)
