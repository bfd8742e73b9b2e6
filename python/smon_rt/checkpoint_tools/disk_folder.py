"""Reads the folder of a disk tier, whatever bytes lie there: csrc/agent/disk_store.h says what it looks like."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smon_rt.analysis.input_file import reason, shown
from smon_rt.checkpoint_tools.content_hash import CHUNK_BYTES, Xxh3, chunk_count, hash_of_chunks
from smon_rt.errors import SmonError

MANIFEST_NAME = "manifest.json"
_FORMAT = 1
_MAX_MANIFEST_BYTES = 64 << 20
_MAX_CONTENT_BYTES = 1 << 46
_STEP = re.compile(r"step-(0|[1-9][0-9]{0,9})-(0|[1-9][0-9]{0,19})")
_MOST_FOLDERS = 4096
_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe must not be waited for


@dataclass(frozen=True)
class Shard:
    """One rank's state in a step on disk."""

    owner: str
    path: Path
    topology: str
    content_bytes: int
    content_hash: int
    chunk_hashes: tuple[int, ...] = field(repr=False)


@dataclass(frozen=True)
class DiskStep:
    """A complete step on disk."""

    run_id: str
    incarnation: int
    step: int
    folder: Path
    shards: tuple[Shard, ...]

    @property
    def label(self) -> tuple[int, int]:
        return self.incarnation, self.step

    @property
    def content_bytes(self) -> int:
        return sum(shard.content_bytes for shard in self.shards)


@dataclass(frozen=True)
class DiskRun:
    """What a directory has of one run: complete steps, the newest first."""

    folder: Path
    run_id: str  # of the newest manifest, else the folder's name
    steps: tuple[DiskStep, ...]
    incomplete: tuple[str, ...]  # folders of steps without a manifest: being written, or their writer was killed
    problems: tuple[str, ...]  # manifests that cannot be read, one line each


def read_disk(directory: str) -> list[DiskRun]:
    """The runs in a directory that was given as `disk_dir`, or the one whose own folder this is.

    Raises:
        SmonError: it is no directory, or holds no step.
    """
    path = Path(directory)
    names = _names(path)
    if any(_STEP.fullmatch(name) for name in names):
        return [_read_run(path, names)]
    runs: list[DiskRun] = []
    for name in names[:_MOST_FOLDERS]:
        folder = path / name
        if folder.is_symlink() or not os.path.isdir(folder):  # noqa: PTH112  # Path.is_dir raises where it may not look
            continue
        try:
            below = _names(folder)
        except SmonError as error:  # another user's, perhaps
            runs.append(DiskRun(folder, name, (), (), (str(error),)))
            continue
        if any(_STEP.fullmatch(each) for each in below):
            runs.append(_read_run(folder, below))
    if not runs:
        raise SmonError(f"{shown(directory)}: holds no step of a checkpoint: give what was given as disk_dir")
    return runs


def _names(path: Path) -> list[str]:
    try:
        return sorted(each.name for each in path.iterdir())
    except (OSError, ValueError) as error:
        raise SmonError(f"{shown(path)}: {reason(error)}: give a directory of checkpoints") from error


def _read_run(folder: Path, names: list[str]) -> DiskRun:
    matches = [match for match in map(_STEP.fullmatch, names) if match]
    labels = sorted(((int(match[1]), int(match[2])) for match in matches), reverse=True)
    steps: list[DiskStep] = []
    incomplete: list[str] = []
    problems: list[str] = []
    for label in labels[:_MOST_FOLDERS]:
        step_folder = folder / f"step-{label[0]}-{label[1]}"
        try:
            steps.append(read_manifest(step_folder, label))
        except FileNotFoundError:
            incomplete.append(step_folder.name)
        except SmonError as error:
            problems.append(str(error))
    run_id = steps[0].run_id if steps else folder.resolve().name
    return DiskRun(folder, run_id, tuple(steps), tuple(incomplete), tuple(problems))


def read_manifest(folder: Path, label: tuple[int, int]) -> DiskStep:
    """The manifest of a step's folder, believed only as far as it agrees with itself.

    Raises:
        FileNotFoundError: there is none.
        SmonError: it is damaged.
    """
    path = folder / MANIFEST_NAME
    try:
        document = json.loads(_read_small(path), parse_constant=_no_constant)
        if document["format"] != _FORMAT:
            raise ValueError("of a newer version")
        if document["chunk_bytes"] != CHUNK_BYTES or document["hash"] != "xxh3-64":
            raise ValueError("chunks of another size, or another hash")
        if (_number(document["incarnation"]), _number(document["step"])) != label:
            raise ValueError("of another step than its folder")
        shards = tuple(_shard(folder, value) for value in document["shards"])
        if len({shard.owner for shard in shards}) != len(shards):
            raise ValueError("an owner is named twice")
        return DiskStep(_text(document["run_id"]), *label, folder, shards)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise SmonError(f"{shown(path)}: {reason(error)}") from error
    except KeyError as error:
        raise SmonError(f"{shown(path)}: damaged: without {shown(error)}") from error
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise SmonError(f"{shown(path)}: damaged: {reason(error)}") from error


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _read_small(path: Path) -> bytes:
    fd = os.open(path, _OPEN_FLAGS)
    with open(fd, "rb") as stream:  # noqa: PTH123
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("is no file")
        if status.st_size > _MAX_MANIFEST_BYTES:
            raise ValueError("too large")
        return stream.read(_MAX_MANIFEST_BYTES)


def _shard(folder: Path, value: Any) -> Shard:
    owner, name = _text(value["owner"]), _text(value["file"])
    if not name or name.startswith(".") or "/" in name or "\0" in name:
        raise ValueError("a file's name leads out of the folder")
    content_bytes = _number(value["content_bytes"])
    hashes = value["chunk_hashes"]
    if not isinstance(hashes, list):
        raise ValueError("chunk_hashes is no list")
    if not 0 < content_bytes <= _MAX_CONTENT_BYTES or len(hashes) != chunk_count(content_bytes):
        raise ValueError(f"sizes and hashes of {owner} do not agree")
    chunk_hashes = tuple(_hash(each) for each in hashes)
    return Shard(
        owner, folder / name, _text(value["topology"]), content_bytes, _hash(value["content_hash"]), chunk_hashes
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a name is no text")
    return value


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise ValueError("a number is out of range")
    return value


def _hash(value: Any) -> int:
    if not isinstance(value, str) or re.fullmatch("[0-9a-fA-F]{16}", value) is None:
        raise ValueError("a hash is not 16 hexadecimal digits")
    return int(value, 16)


def verified_chunks(shard: Shard, xxh3: Xxh3) -> Iterator[bytes]:
    """The content of a shard, chunk by chunk, each once its hash was found right.

    Raises:
        SmonError: it is not what was captured.
    """
    if hash_of_chunks(xxh3, shard.chunk_hashes) != shard.content_hash:
        raise SmonError(f"{shown(shard.path)}: hashes in the manifest do not agree with each other")
    try:
        fd = os.open(shard.path, _OPEN_FLAGS)
        with open(fd, "rb", buffering=0):  # noqa: PTH123
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise SmonError(f"{shown(shard.path)}: is no file")
            if status.st_size != shard.content_bytes:
                sizes = f"{status.st_size} bytes, and its manifest says {shard.content_bytes}"
                raise SmonError(f"{shown(shard.path)}: {sizes}")
            for index, expected in enumerate(shard.chunk_hashes):
                offset = index * CHUNK_BYTES
                size = min(CHUNK_BYTES, shard.content_bytes - offset)
                chunk = read_full(lambda count, at: os.pread(fd, count, at), size, offset)
                if len(chunk) != size or xxh3(chunk) != expected:
                    raise SmonError(f"{shown(shard.path)}: bytes from {offset} on are not what was captured")
                yield chunk
    except (OSError, ValueError) as error:
        raise SmonError(f"{shown(shard.path)}: {reason(error)}") from error


def read_full(read: Callable[[int, int], bytes], size: int, offset: int) -> bytes:
    """`size` bytes from `offset` on; less only where there are no more."""
    parts: list[bytes] = []
    while size > 0 and (part := read(size, offset)):
        parts.append(part)
        size -= len(part)
        offset += len(part)
    return b"".join(parts)
