"""This process's memory, from /proc: what planned garbage collection and its spans ask for.

Threading: any thread. Cost: one pread of some µs a reading.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["anonymous_bytes", "available_bytes"]

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_CGROUP = Path("/sys/fs/cgroup")


class _Statm:
    """/proc/self/statm, kept open: -1 not yet, -2 it cannot be."""

    descriptor = -1


def anonymous_bytes() -> int:
    """RssAnon, the resident memory that no file is behind, in bytes; 0 where /proc does not say.

    Example:
        >>> anonymous_bytes() >= 0
        True
    """
    try:
        if _Statm.descriptor < 0:
            if _Statm.descriptor == -2:
                return 0
            _Statm.descriptor = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        fields = os.pread(_Statm.descriptor, 256, 0).split()
        # resident less shared, which is what lies in files and in shared memory
        return (int(fields[1]) - int(fields[2])) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        _Statm.descriptor = -2
        return 0


def available_bytes() -> int | None:
    """What this machine, or the container with a limit of its own, can still give, in bytes; None if nobody says."""
    found = [value for value in (_of_machine(), _of_cgroup()) if value is not None]
    return min(found) if found else None


def _of_machine() -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _of_cgroup() -> int | None:
    """Version 2: the least of its place in the tree and of all above, where schedulers set a job's limit, or as a
    container sees its own; version 1 as a container sees it.
    """
    with contextlib.suppress(OSError, ValueError, StopIteration):
        own = next(line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
        place = _CGROUP / own.lstrip("/")
        folders = [folder for folder in (place, *place.parents) if folder.is_relative_to(_CGROUP)]
        files = [folder / "memory.max" for folder in folders if (folder / "memory.max").is_file()]
        if files:
            lefts = [_left(file, file.with_name("memory.current")) for file in files]
            return min((left for left in lefts if left is not None), default=None)
    with contextlib.suppress(OSError, ValueError, StopIteration):
        folder = _CGROUP / "memory"
        return _left(folder / "memory.limit_in_bytes", folder / "memory.usage_in_bytes")
    return None


def _left(limit: Path, used: Path) -> int | None:
    text = limit.read_text().strip()
    return None if text == "max" else max(int(text) - int(used.read_text()), 0)


def _forked() -> None:
    if _Statm.descriptor >= 0:
        os.close(_Statm.descriptor)
    _Statm.descriptor = -1  # the parent's file is about the parent


os.register_at_fork(after_in_child=_forked)
