"""Finds the recorder: `smon_rt._runtime`, or a stand-in that records nothing where there is none that fits."""

from __future__ import annotations

import contextlib
import select
import sys
from typing import TYPE_CHECKING, TextIO

from smon_rt.environment import LogLevel, log_level

__all__ = ["IS_NATIVE", "native", "say", "write_line"]

if TYPE_CHECKING:
    from smon_rt import _runtime as native
else:
    from smon_rt import _inert

    try:
        from smon_rt import _runtime as native

        # Half an installation, or a tree that was updated and not built: found out here, not in the middle of a step.
        if missing := [name for name in _inert.calls() if not hasattr(native, name)]:
            raise ImportError(f"it is not of this version, and has no {missing[0]}; install smon_rt again")
    except ImportError as error:
        native = _inert
        native.reason = f"the recorder cannot be loaded, nothing is recorded: {' '.join(str(error).split())}"

#: Whether spans can be recorded at all.
IS_NATIVE: bool = native.__name__ == "smon_rt._runtime"


def say(level: LogLevel, message: str) -> None:
    """One line on stderr, as the library itself writes them; nothing if SMON_RT_LOG asks for less."""
    if level <= log_level():
        write_line(f"smon_rt: {level.name.lower()}: {message}\n")


def write_line(line: str) -> None:
    """Writes to stderr if that takes the line at once: whatever it is, it neither blocks nor raises into the job."""
    with contextlib.suppress(Exception):
        if sys.stderr is not None and _takes_a_line(sys.stderr):
            sys.stderr.write(line)


def _takes_a_line(stream: TextIO) -> bool:
    """False for a pipe that is full, because nobody reads it."""
    try:
        descriptor = stream.fileno()
    except Exception:  # no file behind it, as in a notebook
        return True
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(0))
