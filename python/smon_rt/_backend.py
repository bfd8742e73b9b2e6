"""Finds the recorder: `smon_rt._runtime`, or a stand-in that records nothing where it cannot be loaded."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from smon_rt.environment import LogLevel, log_level

__all__ = ["IS_NATIVE", "native", "say"]

if TYPE_CHECKING:
    from smon_rt import _runtime as native
else:
    try:
        from smon_rt import _runtime as native
    except ImportError as error:
        from smon_rt import _inert as native

        native.reason = f"the recorder cannot be loaded, nothing is recorded: {' '.join(str(error).split())}"

#: Whether spans can be recorded at all.
IS_NATIVE: bool = native.__name__ == "smon_rt._runtime"


def say(level: LogLevel, message: str) -> None:
    """One line on stderr, as the library itself writes them; nothing if SMON_RT_LOG asks for less."""
    if level <= log_level() and sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(f"smon_rt: {level.name.lower()}: {message}\n")
