"""Copies a step out of an agent's memory or a disk tier: one safetensors file an owner, its bytes verbatim."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import struct
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from smon_rt._proto import agent_pb2
from smon_rt.analysis.input_file import reason, shown
from smon_rt.checkpoint_tools.agent_client import AgentClient, RefusedError
from smon_rt.checkpoint_tools.agent_folder import fnv1a
from smon_rt.checkpoint_tools.content_hash import CHUNK_BYTES, xxh3_64
from smon_rt.checkpoint_tools.disk_folder import DiskRun, read_full, verified_chunks
from smon_rt.checkpoint_tools.overview import AgentView, Label, Overview, label_of
from smon_rt.errors import SmonError

_TRIES = 3
_SLOT_MAGIC = 0x31544F4C534E4F4D
_HEADER = struct.Struct("<QIIQQIIQ")  # SlotHeader of csrc/checkpoint/slot_format.h, up to content_bytes
_CONTENT_OFFSET = 4096
_LONGEST_NAME = 128


class OverwrittenError(SmonError):
    """The job has captured another step into the slot meanwhile."""


@dataclass(frozen=True)
class Exported:
    run_id: str
    label: Label
    paths: list[Path]
    content_bytes: int


@dataclass(frozen=True)
class _Source:
    owner: str
    content_bytes: int
    chunks: Callable[[], Iterator[bytes]]


def export(found: Overview, directory: str, step: int | None, within_s: float) -> Exported:
    """Writes the newest complete step, or the newest one of this number, into a new or empty directory.

    Raises:
        SmonError: there is no such step, or of several runs, or it cannot be written; nothing is left then.
    """
    live = [agent for agent in found.agents if agent.status is not None]
    places: list[AgentView | DiskRun] = [*found.disks, *live]
    if not places:
        raise SmonError("; ".join(found.problems) or "no agent of this user is on this node: name a disk with --from")
    if len({place.run_id for place in places}) > 1 or len(places) > 1:
        runs = ", ".join(sorted({shown(place.run_id) for place in places}))
        raise SmonError(
            f"{len(places)} places hold checkpoints, of {runs}: choose one with --run, or --from its folder"
        )
    (place,) = places
    _refuse_filled(Path(directory))
    if isinstance(place, DiskRun):
        label, sources = _of_disk(place, step)
        return Exported(place.run_id, label, *_write(Path(directory), sources))
    for left in reversed(range(_TRIES)):
        try:
            with AgentClient(place.folder, within_s) as client:
                label, sources = _of_agent(client, place, step)
                return Exported(place.run_id, label, *_write(Path(directory), sources))
        except (OverwrittenError, RefusedError):  # noqa: PERF203
            if left == 0:
                raise
    raise AssertionError


def _of_disk(disk: DiskRun, step: int | None) -> tuple[Label, list[_Source]]:
    steps = [each for each in disk.steps if step is None or each.step == step]
    if not steps:
        has = ", ".join(str(each.step) for each in disk.steps[:10]) or "none"
        raise SmonError(f"{shown(disk.folder)}: no complete step{'' if step is None else f' {step}'}; it has: {has}")
    xxh3 = xxh3_64()
    chosen = steps[0]
    sources = [
        _Source(shard.owner, shard.content_bytes, lambda shard=shard: verified_chunks(shard, xxh3))  # type: ignore[misc]
        for shard in chosen.shards
    ]
    return chosen.label, sources


def _of_agent(client: AgentClient, place: AgentView, step: int | None) -> tuple[Label, list[_Source]]:
    status = client.status()
    agreed = label_of(status, "agreed") or (0, 0)
    owners = {rank.owner for rank in status.ranks}
    by_label: dict[Label, dict[str, agent_pb2.HeldCopy]] = {}
    for copy in client.copies():
        label = copy.label.incarnation, copy.label.step
        is_usable = copy.tier == agent_pb2.TIER_MEMORY and copy.is_intact and not copy.reason and label <= agreed
        if is_usable and (step is None or copy.label.step == step):
            by_label.setdefault(label, {})[copy.owner] = copy
    complete = [label for label, copies in by_label.items() if owners and owners <= copies.keys()]
    if not complete:
        wanted = "" if step is None else f" {step}"
        agreed_words = str(agreed[1]) if agreed != (0, 0) else "none"
        raise SmonError(
            f"run {shown(place.run_id)}: no step{wanted} that all ranks have is in memory (agreed: {agreed_words}); "
            "older ones may be on disk: --from DIR"
        )
    chosen = max(complete)
    sources = [
        _Source(owner, copy.content_bytes, lambda copy=copy: _slot_chunks(client, copy))  # type: ignore[misc]
        for owner, copy in sorted(by_label[chosen].items())
    ]
    return chosen, sources


def _slot_chunks(client: AgentClient, copy: agent_pb2.HeldCopy) -> Iterator[bytes]:
    """The content of a slot; ends with an error where the job wrote into it meanwhile."""
    fd, content_bytes = client.fetch(copy.owner, copy.label, agent_pb2.TIER_MEMORY)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or content_bytes != copy.content_bytes:
            raise SmonError(f"{shown(copy.owner)}: the agent sent something else than its copy")
        generation = _generation(fd, copy)
        for offset in range(0, content_bytes, CHUNK_BYTES):
            size = min(CHUNK_BYTES, content_bytes - offset)
            chunk = read_full(lambda count, at: os.pread(fd, count, at), size, _CONTENT_OFFSET + offset)
            if len(chunk) != size:
                raise SmonError(f"{shown(copy.owner)}: its copy is shorter than the agent says")
            yield chunk
        if _generation(fd, copy) != generation:
            raise _overwritten(copy)
    except OSError as error:
        raise SmonError(f"{shown(copy.owner)}: its copy cannot be read: {reason(error)}") from error
    finally:
        os.close(fd)


def _generation(fd: int, copy: agent_pb2.HeldCopy) -> int:
    header = os.pread(fd, _HEADER.size, 0)
    if len(header) != _HEADER.size:
        raise SmonError(f"{shown(copy.owner)}: its copy is shorter than the agent says")
    magic, _, _, generation, step, incarnation, _, content_bytes = _HEADER.unpack(header)
    if magic != _SLOT_MAGIC:
        raise SmonError(f"{shown(copy.owner)}: the agent sent something else than its copy")
    is_same = (incarnation, step, content_bytes) == (copy.label.incarnation, copy.label.step, copy.content_bytes)
    if generation % 2 or not is_same:
        raise _overwritten(copy)
    return int(generation)


def _overwritten(copy: agent_pb2.HeldCopy) -> OverwrittenError:
    return OverwrittenError(
        f"{shown(copy.owner)}: the job captured a newer step while step {copy.label.step} was copied; "
        "try again, or export what is on disk: --from DIR"
    )


def file_name(owner: str) -> str:
    """`dp=0,pp=1.safetensors`."""
    data = owner.encode("utf-8", "surrogatepass")
    name = re.sub(rb"[^0-9A-Za-z._=,-]", b"_", data[:_LONGEST_NAME])
    if not name or name.startswith(b"."):
        name = b"_" + name
    return (name.decode() if name == data else f"{name.decode()}-{fnv1a(data):016x}") + ".safetensors"


def _refuse_filled(directory: Path) -> None:
    try:
        if any(directory.iterdir()):
            raise SmonError(f"{shown(directory)}: is not empty, and nothing is overwritten: name another directory")
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        raise SmonError(f"{shown(directory)}: {reason(error)}: name a directory for the files") from error


def _write(directory: Path, sources: list[_Source]) -> tuple[list[Path], int]:
    """All files under other names first: a step is there whole, or not at all."""
    is_made = False
    temporaries: list[tuple[Path, Path]] = []
    placed: list[Path] = []
    try:
        with contextlib.suppress(FileExistsError):
            directory.mkdir()
            is_made = True
        for source in sources:
            descriptor, name = tempfile.mkstemp(prefix=".export.", dir=directory)
            temporaries.append((Path(name), directory / file_name(source.owner)))
            with open(descriptor, "wb", buffering=0) as stream:  # noqa: PTH123
                for chunk in source.chunks():
                    _write_all(stream.fileno(), chunk)
                os.fsync(stream.fileno())
        for temporary, target in temporaries:
            _place(temporary, target)
            placed.append(target)
        _sync(directory)
    except BaseException as error:
        for path in (*(temporary for temporary, _ in temporaries), *placed):
            path.unlink(missing_ok=True)
        if is_made:
            with contextlib.suppress(OSError):
                directory.rmdir()
        if isinstance(error, OSError | ValueError):
            raise SmonError(f"{shown(directory)}: cannot write: {reason(error)}: name another directory") from error
        raise
    return placed, sum(source.content_bytes for source in sources)


def _write_all(fd: int, chunk: bytes) -> None:
    view = memoryview(chunk)
    while view:
        view = view[os.write(fd, view) :]


def _place(temporary: Path, target: Path) -> None:
    """Renames, and never over another file: link(2) refuses where one has appeared meanwhile."""
    mask = os.umask(0)
    os.umask(mask)
    temporary.chmod(0o666 & ~mask)
    try:
        os.link(temporary, target)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK) or os.path.lexists(target):
            raise
        temporary.rename(target)  # a file system without hard links
    else:
        temporary.unlink()


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
