"""Output files appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from smon_rt.errors import SmonError


def refuse_unwritable(path: str) -> None:
    """Says what `write_atomically` would say in the end, as far as it can be known before the work: SmonError."""
    with _as_one_line(path):
        target, is_direct = _target(path)
        if is_direct:
            return
        if not target.parent.exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        if not target.parent.is_dir() or not os.access(target.parent, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def write_text(destination: str, text: str) -> None:
    """Writes a line or document to a file as `write_atomically` does, or to stdout for `-`."""
    if destination == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
    else:
        write_atomically(destination, [text])


def write_atomically(path: str, parts: Iterable[str]) -> None:
    """Writes UTF-8 text beside `path`, then renames; a reader sees the old file or the new one.

    What is no regular file (/dev/null, a pipe) is written directly. Raises SmonError with one line.
    """
    with _as_one_line(path):
        target, is_direct = _target(path)
        if is_direct:
            with target.open("w", encoding="utf-8") as stream:
                stream.writelines(parts)
        else:
            _replace(target, parts)


def _target(path: str) -> tuple[Path, bool]:
    """Where it is written, and whether directly. A link keeps pointing where it points; its target is replaced."""
    target = Path(path).resolve()
    if target.is_dir():
        raise SmonError(f"{path}: is a directory: name a file for the output")
    return target, target.exists() and not target.is_file()


@contextlib.contextmanager
def _as_one_line(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SmonError(f"{path}: cannot write: {reason}: choose another place for the output") from error


def _replace(target: Path, parts: Iterable[str]) -> None:
    descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name[:64]}.", dir=target.parent)
    try:
        with open(descriptor, "w", encoding="utf-8", errors="surrogateescape") as stream:  # noqa: PTH123
            stream.writelines(parts)
        # mkstemp makes files that only the owner can read; the output gets the rights of any new file.
        mask = os.umask(0)
        os.umask(mask)
        Path(temporary).chmod(0o666 & ~mask)
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
