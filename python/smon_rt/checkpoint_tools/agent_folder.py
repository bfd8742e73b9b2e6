"""Where agents of this user are on this node, and what their lock files say.

The twin of csrc/checkpoint/agent_folder.cc and csrc/agent/agent_lock.cc.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from smon_rt.analysis.input_file import reason, shown
from smon_rt.environment import agent_base
from smon_rt.errors import SmonError

SOCKET_NAME = "agent.sock"
LOCK_NAME = "agent.lock"
_LONGEST_NAME = 64
_MOST_FOLDERS = 1024
_LONGEST_STATE = 1023
_UINT64 = (1 << 64) - 1


@dataclass(frozen=True)
class LockState:
    """What an agent says in its lock file; of one that is gone, what it said last."""

    is_held: bool  # the agent lives
    pid: int = 0
    memory_bytes: int = 0
    idle_s: int | None = None  # since its job was last seen; None: the job is there
    run_id: str | None = None


def fnv1a(data: bytes) -> int:
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & _UINT64
    return value


def plain_name(text: str) -> str:
    """A run's or node's name as a part of a path.

    Example:
        >>> plain_name("run-7")
        'run-7'
    """
    data = os.fsencode(text)
    name = re.sub(rb"[^0-9A-Za-z._-]", b"_", data[:_LONGEST_NAME])
    if not name or name.startswith(b"."):
        name = b"_" + name
    return name.decode() if name == data else f"{name.decode()}-{fnv1a(data):016x}"


def agents_folder() -> Path:
    """The folder that has one folder for each agent of this user."""
    return Path(agent_base()) / f"smon_rt-{os.geteuid()}"


def open_private(path: Path) -> int:
    """A descriptor of a folder that only this user can have put things into.

    Raises:
        FileNotFoundError: nothing is there.
        SmonError: it is a link, another user's, or open to others.
    """
    name = f"folder of the checkpoint agent {shown(path)}"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except NotADirectoryError:
        raise SmonError(f"{name}: is a link, or no folder: remove it") from None
    except (OSError, ValueError) as error:
        raise SmonError(f"{name}: {reason(error)}: another place can be given as SMON_RT_AGENT_DIR") from error
    status = os.fstat(fd)
    problem = None
    if status.st_uid != os.geteuid():
        problem = f"belongs to user {status.st_uid}, not to this one ({os.geteuid()}): set SMON_RT_AGENT_DIR"
    elif stat.S_IMODE(status.st_mode) & 0o077:
        problem = "is open to other users: chmod 0700 it, or remove it"
    if problem is not None:
        os.close(fd)
        raise SmonError(f"{name}: {problem}")
    return fd


def agent_folders() -> list[Path]:
    """The folders of agents of this user on this node, living or gone, by name."""
    folder = agents_folder()
    try:
        fd = open_private(folder)
    except FileNotFoundError:
        return []
    try:
        names = sorted(os.listdir(fd))  # noqa: PTH208
    finally:
        os.close(fd)
    return [folder / name for name in names[:_MOST_FOLDERS]]


def lock_state(folder_fd: int) -> LockState:
    """Whether an agent lives in a folder, and what it says; any bytes may be there."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        fd = os.open(LOCK_NAME, flags, dir_fd=folder_fd)
    except OSError:
        return LockState(is_held=False)
    try:
        is_held = _is_locked(fd)
        text = os.pread(fd, _LONGEST_STATE, 0)
    except OSError:
        return LockState(is_held=False)
    finally:
        os.close(fd)
    match = re.match(rb"([0-9]{1,10}) ([0-9]{1,20}) ([0-9]{1,19}) ([^\n\0]*)\n", text)
    if match is None:
        return LockState(is_held)
    idle_since_s = int(match[3])
    idle_s = None if idle_since_s == 0 else max(0, int(time.clock_gettime(time.CLOCK_MONOTONIC)) - idle_since_s)
    return LockState(is_held, int(match[1]), int(match[2]), idle_s, os.fsdecode(match[4]))


def _is_locked(fd: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    return True
