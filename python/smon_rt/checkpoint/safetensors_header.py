"""The header of a checkpoint's content, which is a safetensors file: made for a layout, read at a restore.

Eight bytes of length, JSON padded with spaces so that the tensors begin at a multiple of 4096, and the tensors without
holes, those of the largest elements first, so that each is aligned. What safetensors cannot say (other types, orders of
dimensions, names of the same memory, parts of sharded tensors) is JSON in `__metadata__`, under "smon_rt".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from smon_rt.checkpoint.tensors import DTYPE_NAMES, HOST, CheckpointError, TensorForm

_ALIGNMENT = 4096
_LONGEST_HEADER = 100_000_000  # safetensors' own limit
FORMAT = 1


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a content: its form, and where it lies."""

    form: TensorForm
    offset: int
    is_sharded: bool = False


def make_header(
    forms: Mapping[str, TensorForm],
    aliases: Mapping[str, str],
    shards: Mapping[str, Any],
    optimizer_keys: list[dict[str, list[str]]],
) -> tuple[bytes, dict[str, int]]:
    """The header of a file with these tensors, and at which offset of the file each lies.

    Args:
        forms: by name.
        aliases: further names of the same memory, each with the name that is stored.
        shards: of a DTensor what it is a part of, as plain values.
        optimizer_keys: of each optimizer, names of parameters and the keys under which it keeps tensors of them.
    """
    said_of = {"aliases": dict(aliases), "shards": dict(shards), "optimizer_keys": optimizer_keys}
    names = sorted(forms, key=lambda name: (-forms[name].dtype.itemsize, name))
    entries: dict[str, Any] = {"__metadata__": {"format": "pt", "smon_rt": _metadata(forms, said_of)}}
    at: dict[str, int] = {}
    end = 0
    for name in names:
        form = forms[name]
        at[name], end = end, end + form.byte_count
        stored_as = DTYPE_NAMES.get(form.dtype)
        shape = [form.byte_count] if stored_as is None else list(form.shape)
        entries[name] = {"dtype": stored_as or "U8", "shape": shape, "data_offsets": [at[name], end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    length = -(-(len(text) + 8) // _ALIGNMENT) * _ALIGNMENT
    if length - 8 > _LONGEST_HEADER:
        raise CheckpointError(
            f"names and shapes of {len(forms)} tensors take {length} bytes, more than safetensors allows"
        )
    header = (length - 8).to_bytes(8, "little") + text.ljust(length - 8)
    return header, {name: length + offset for name, offset in at.items()}


def _metadata(forms: Mapping[str, TensorForm], said_of: dict[str, Any]) -> str:
    dtypes = {name: str(form.dtype)[6:] for name, form in forms.items() if form.dtype not in DTYPE_NAMES}
    shapes = {name: list(forms[name].shape) for name in dtypes}
    orders = {
        name: list(form.permutation)
        for name, form in forms.items()
        if form.permutation != tuple(range(len(form.permutation)))
    }
    devices = {name: form.device for name, form in forms.items() if form.device != HOST}
    facts = {"dtypes": dtypes, "shapes": shapes, "permutations": orders, "devices": devices, **said_of}
    said = {"version": FORMAT, **{name: fact for name, fact in facts.items() if fact}}
    return json.dumps(said, separators=(",", ":"))


_DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}


@dataclass(frozen=True)
class Header:
    """What a content says of itself: its tensors by name, further names of theirs, and what optimizers keep."""

    tensors: dict[str, StoredTensor]
    aliases: dict[str, str]
    optimizer_keys: list[dict[str, list[str]]]

    def find(self, name: str) -> StoredTensor | None:
        return self.tensors.get(self.aliases.get(name, name))


def read_header(content: memoryview) -> Header:
    """Nothing is believed that does not fit.

    Raises:
        CheckpointError: it is no content of ours, or damaged.
    """
    try:
        length = 8 + int.from_bytes(content[:8], "little")
        if length > len(content):
            raise ValueError("it is cut off")
        entries = json.loads(bytes(content[8:length]))
        said = json.loads(entries.pop("__metadata__")["smon_rt"])
        if said["version"] != FORMAT:
            raise ValueError(f"it is of format {said['version']}, this is {FORMAT}")
        tensors = {name: _read_entry(name, entry, said, length, len(content)) for name, entry in entries.items()}
        aliases = {str(name): str(other) for name, other in said.get("aliases", {}).items()}
        keys = [
            {str(name): [str(key) for key in held] for name, held in one.items()}
            for one in said.get("optimizer_keys", [])
        ]
        if unknown := set(aliases.values()) - set(tensors):
            raise ValueError(f"there is no tensor {unknown.pop()!r}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"the checkpoint's header cannot be read: {error!r}") from error
    return Header(tensors, aliases, keys)


def _read_entry(name: str, entry: Any, said: Any, start: int, end: int) -> StoredTensor:
    dtype, shape = _DTYPES[entry["dtype"]], entry["shape"]
    if name in said.get("dtypes", {}):
        dtype, shape = getattr(torch, said["dtypes"][name]), said["shapes"][name]
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"{name} is of a type that is none")
    if not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"{name} has no shape")
    order = tuple(said.get("permutations", {}).get(name, range(len(shape))))
    if sorted(order) != list(range(len(shape))):
        raise ValueError(f"the dimensions of {name} have no order")
    form = TensorForm(dtype, tuple(shape), order, int(said.get("devices", {}).get(name, HOST)), is_staged=False)
    first, last = entry["data_offsets"]
    if first < 0 or last - first != form.byte_count or start + last > end:
        raise ValueError(f"{name} lies outside, or is not of its size")
    return StoredTensor(form, start + first, name in said.get("shards", {}))
