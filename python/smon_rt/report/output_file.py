"""Output files appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from smon_rt.errors import SmonError


def refuse_unwritable(path: str) -> None:
    """Says what `write_atomically` would say in the end, as far as it can be known before the work: SmonError."""
    target = Path(path)
    try:
        target = target.resolve()
        if target.is_dir():
            raise SmonError(f"{path}: is a directory: name a file for the output")
        if target.exists() and not target.is_file():
            return
        folder = target.parent
        reason = "No such file or directory" if not folder.exists() else "Permission denied"
        if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
            raise SmonError(f"{path}: cannot write: {reason}: choose another place for the output")
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SmonError(f"{path}: cannot write: {reason}: choose another place for the output") from error


def write_atomically(path: str, parts: Iterable[str]) -> None:
    """Writes UTF-8 text beside `path`, then renames; a reader sees the old file or the new one.

    What is no regular file (/dev/null, a pipe) is written directly. Raises SmonError with one line.
    """
    target = Path(path)
    try:
        # A link keeps pointing where it points; its target is what gets replaced.
        target = target.resolve()
        if target.exists() and not target.is_file():
            if target.is_dir():
                raise SmonError(f"{path}: is a directory: name a file for the output")
            with target.open("w", encoding="utf-8") as stream:
                stream.writelines(parts)
            return
        _replace(target, parts)
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
