"""Opens what a user names as a trace: a local file or any fsspec URL. Says in one line why it cannot be read."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from smon_rt.errors import TraceError

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(::|://)")
_LONGEST_SHOWN_COUNT = 300
_MOST_SIBLINGS_COUNT = 256


@dataclass(frozen=True)
class InputFile:
    """An open, seekable, regular file.

    `name` is its path, safe to print on one line. `read_errors` are what its handle may raise: a local file OSError,
    a remote one anything, since every fsspec backend has exceptions of its own.
    """

    name: str
    handle: BinaryIO
    size_bytes: int
    read_errors: tuple[type[Exception], ...] = (OSError,)


def shown(text: object) -> str:
    """`text` on one printable line of bounded length: control characters and undecodable bytes are escaped."""
    line = "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode("ascii")
        for char in str(text)
    )
    if len(line) > _LONGEST_SHOWN_COUNT:
        half = _LONGEST_SHOWN_COUNT // 2
        line = f"{line[:half]}...{line[-half:]}"
    return line or "(empty name)"


def reason(error: BaseException) -> str:
    """The first line of an exception's own words, without the path that the caller puts in front anyway."""
    if isinstance(error, OSError) and error.strerror:
        return shown(error.strerror)
    first_line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return shown(first_line.rstrip("."))


def is_url(path: str) -> bool:
    """True when `path` goes through fsspec. A file that exists under that very name stays a local file."""
    return bool(_URL.match(path)) and not path.startswith("file://") and not _lexists(path)


def local_path(path: str) -> Path:
    """The local file that a plain path or a file:// URL means."""
    return Path(path.removeprefix("file://"))


@contextlib.contextmanager
def open_input(path: str) -> Iterator[InputFile]:
    """Opens a regular file for reading; raises TraceError for anything else, and never waits for a FIFO's writer."""
    with _open_url(path) if is_url(path) else _open_local(path) as source:
        yield source


def exists(path: str) -> bool:
    """True when something lies at `path`, readable or not (a dangling link counts: reading it will say so)."""
    if not is_url(path):
        return _lexists(path.removeprefix("file://"))
    try:
        filesystem, inner = _filesystem(path)
        return bool(filesystem.exists(inner))
    except Exception:
        # A backend that cannot answer is reported when the trace itself is opened.
        return False


def siblings(path: str, suffixes: tuple[str, ...]) -> list[str]:
    """Paths of at most 256 files beside `path` whose names end in one of `suffixes`, sorted."""
    try:
        if is_url(path):
            filesystem, inner = _filesystem(path)
            folder = path.rpartition("/")[0]
            names = [str(entry).rpartition("/")[2] for entry in filesystem.ls(inner.rpartition("/")[0], detail=False)]
            found = [f"{folder}/{name}" for name in names]
        else:
            found = [str(entry) for entry in local_path(path).parent.iterdir()]
    except Exception:
        # Foreign backends raise what they like; without a listing there is simply nothing beside the trace.
        return []
    return sorted(name for name in found if name.endswith(suffixes))[:_MOST_SIBLINGS_COUNT]


def beside(path: str, name: str) -> str:
    """The path of `name` in the folder of `path`."""
    if is_url(path):
        return f"{path.rpartition('/')[0]}/{name}"
    return str(local_path(path).with_name(name))


def _lexists(path: str) -> bool:
    try:
        return os.path.lexists(path)
    except ValueError:
        # A NUL character: no file can have that name.
        return False


@contextlib.contextmanager
def _open_local(path: str) -> Iterator[InputFile]:
    name = shown(path)
    file = local_path(path)
    if not path:
        raise TraceError("(empty name): no file given; give the trace's path")
    try:
        status = file.stat()
    except FileNotFoundError:
        what = "is a link to a missing file" if file.is_symlink() else "no such file"
        raise TraceError(f"{name}: {what}; check the path") from None
    except (OSError, ValueError) as error:
        raise TraceError(f"{name}: cannot be read ({reason(error)}); check the path") from None
    if stat.S_ISDIR(status.st_mode):
        raise TraceError(f"{name}: is a directory; give the trace file in it")
    if not stat.S_ISREG(status.st_mode):
        raise TraceError(f"{name}: is a {_file_type(status.st_mode)}, not a file; copy the trace into a regular file")
    try:
        # Not memory-mapped: a file that shrinks while it is read must give an error, where a mapping gives SIGBUS.
        handle = file.open("rb")
    except OSError as error:
        raise TraceError(f"{name}: cannot be read ({reason(error)}); check its permissions") from None
    with handle:
        yield InputFile(name, handle, status.st_size)


def _file_type(mode: int) -> str:
    tests = ((stat.S_ISFIFO, "pipe"), (stat.S_ISSOCK, "socket"), (stat.S_ISCHR, "device"), (stat.S_ISBLK, "device"))
    return next((label for test, label in tests if test(mode)), "special file")


def _filesystem(path: str) -> tuple[Any, str]:
    # Imported here: a local path must not pay for fsspec, nor fail for want of a remote backend.
    from fsspec.core import url_to_fs

    filesystem, inner = url_to_fs(path)
    return filesystem, str(inner)


@contextlib.contextmanager
def _open_url(path: str) -> Iterator[InputFile]:
    name = shown(path)
    try:
        filesystem, inner = _filesystem(path)
        info = filesystem.info(inner)
        # Backends report pipes and devices as "other"; opening one could wait forever.
        if info.get("type", "file") != "file":
            raise TraceError(f"{name}: is a {shown(info['type'])}, not a file; give the trace file")
        handle = filesystem.open(inner, "rb")
        size_bytes = handle.seek(0, os.SEEK_END)
        handle.seek(0)
    except TraceError:
        raise
    except FileNotFoundError:
        raise TraceError(f"{name}: no such file; check the URL") from None
    except Exception as error:
        # The backend's own, and ImportError when it is not installed.
        raise TraceError(f"{name}: cannot be opened ({reason(error)}); check the URL and its access") from None
    with handle:
        yield InputFile(name, handle, size_bytes, (Exception,))
