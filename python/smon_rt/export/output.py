"""Binary output files that appear whole or not at all, compressed if their name says so."""

from __future__ import annotations

import contextlib
import gzip
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, BinaryIO, cast

from smon_rt.analysis.input_file import shown
from smon_rt.errors import SmonError


@contextlib.contextmanager
def open_output(path: str) -> Iterator[BinaryIO]:
    """A stream to `path`; `-` is stdout. The file takes its place when the block ends well, and leaves nothing else.

    Names that end in .gz are compressed. What is no regular file (a pipe, /dev/null) is written directly. Raises
    SmonError with one line where the file cannot be written.
    """
    try:
        if path == "-":
            with _compressed(path, sys.stdout.buffer) as stream:
                yield stream
            sys.stdout.buffer.flush()
            return
        # A link keeps pointing where it points; its target is what gets replaced.
        target = Path(path).resolve()
        if target.is_dir():
            raise SmonError(f"{shown(path)}: is a directory; name a file for the output")
        if target.exists() and not target.is_file():
            with target.open("wb") as direct, _compressed(path, direct) as stream:
                yield stream
            return
        with _replacing(target) as plain, _compressed(path, plain) as stream:
            yield stream
    except BrokenPipeError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SmonError(
            f"{shown(path)}: cannot write ({shown(reason)}); choose another place for the output"
        ) from error


@contextlib.contextmanager
def _replacing(target: Path) -> Iterator[BinaryIO]:
    descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name[:64]}.", dir=target.parent)
    try:
        with open(descriptor, "wb", buffering=1 << 20) as stream:  # noqa: PTH123
            yield stream
        # mkstemp makes files that only the owner can read; the output gets the rights of any new file.
        mask = os.umask(0)
        os.umask(mask)
        Path(temporary).chmod(0o666 & ~mask)
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _compressed(path: str, stream: BinaryIO | IO[bytes]) -> Iterator[BinaryIO]:
    if not path.endswith(".gz"):
        yield cast(BinaryIO, stream)
        return
    # No time and no name in the header: the same trace gives the same bytes.
    with gzip.GzipFile(filename="", mode="wb", compresslevel=5, fileobj=stream, mtime=0) as packed:
        yield cast(BinaryIO, packed)
