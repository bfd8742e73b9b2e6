"""The layout of a capture: which range of memory goes where in the content, and when that is no longer so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from smon_rt.checkpoint.safetensors_header import make_header
from smon_rt.checkpoint.state import Found, Place, TrainingState
from smon_rt.checkpoint.tensors import CheckpointError, TensorForm, form_of, is_dtensor, local_of, staging_for

#: The tensor of bytes that holds what is no tensor.
VALUES = "smon_rt.values"
_LEAST_CAPACITY = 1 << 14


@dataclass(frozen=True)
class Range:
    """One range of a content, as smon_tensor_range has it."""

    offset: int
    byte_count: int
    address: int
    device: int
    is_volatile: bool


class CaptureLayout:
    """Names, forms and places of all that is captured, for as long as they stay the same.

    Threading: the training thread's.
    Cost: making one walks through the state; `fill_loose` takes as long as its loose tensors and values do.
    """

    def __init__(self, state: TrainingState, step: int, capacity: int = 0) -> None:
        self.found: Found = state.find()
        packed, loose = state.encode(step, self.found)
        self.capacity = max(capacity, _LEAST_CAPACITY)
        if len(packed) > self.capacity:  # room to grow, since a new layout costs a capture
            self.capacity = 1 << (len(packed) * 5 // 4 - 1).bit_length()
        self.values = torch.zeros(self.capacity, dtype=torch.uint8)
        self._bytes: Any = self.values.numpy().data
        #: Tensors with gaps, and what they are copied into.
        self.staged: list[tuple[Place, torch.Tensor]] = []
        self.loose_forms: dict[str, TensorForm] = {}
        self._loose_staged: dict[str, torch.Tensor] = {}
        self._forms: dict[str, TensorForm] = {}
        self.aliases: dict[str, str] = {}
        #: Places and their slots: the range that each is, None of staged ones.
        self.slots: list[tuple[Place, int | None]] = []
        self._sources: list[tuple[str, torch.Tensor, bool]] = []
        self._add_places()
        self.loose_start = len(self._sources)
        for name, tensor in loose.items():
            self._add_loose(name, tensor)
        self._sources.append((VALUES, self.values, True))
        self._forms[VALUES] = form_of(VALUES, self.values)
        keys = [parts.tensor_keys for parts in self.found.optimizers]
        self.header, offsets = make_header(self._forms, self.aliases, self._shards(), keys)
        self.ranges = [
            Range(offsets[name], self._forms[name].byte_count, tensor.data_ptr(), self._forms[name].device, is_volatile)
            for name, tensor, is_volatile in self._sources
        ]
        self._keep_loose(loose)
        self._write(packed)

    def _add_places(self) -> None:
        seen: dict[Any, int] = {}
        for place in self.found.places:
            form = form_of(place.name, place.tensor)
            own = local_of(place.tensor)
            if form.is_staged:
                staging = staging_for(own)
                self.staged.append((place, staging))
                self.slots.append((place, None))
                self._add(place.name, staging, form, is_volatile=True)
                continue
            # Tied parameters: one memory under several names is stored once.
            key = (own.data_ptr(), form) if own.numel() else (place.name, form)
            slot = seen.get(key)
            if slot is None:
                seen[key] = slot = len(self._sources)
                self._add(place.name, own, form, place.is_volatile)
            else:
                name, tensor, is_volatile = self._sources[slot]
                self.aliases[place.name] = name
                self._sources[slot] = (name, tensor, is_volatile or place.is_volatile)
            self.slots.append((place, slot))

    def _add(self, name: str, tensor: torch.Tensor, form: TensorForm, is_volatile: bool) -> None:
        if name in self._forms or name in self.aliases:
            raise CheckpointError(f"two tensors of the state are called {name}")
        self._forms[name] = form
        self._sources.append((name, tensor, is_volatile))

    def _add_loose(self, name: str, tensor: torch.Tensor) -> None:
        form = self.loose_forms[name] = form_of(name, _plain(name, tensor))
        if form.is_staged:
            tensor = self._loose_staged[name] = staging_for(tensor)
        self._add(name, tensor, form, is_volatile=True)

    def _shards(self) -> dict[str, Any]:
        return {place.name: _shard_of(place.tensor) for place in self.found.places if is_dtensor(place.tensor)}

    def fill_loose(self, packed: bytes, loose: dict[str, torch.Tensor]) -> list[int] | None:
        """Takes what this capture encoded: the addresses of loose tensors now, or None if they need a new layout."""
        if len(packed) > self.capacity or loose.keys() != self.loose_forms.keys():
            return None
        for name, tensor in loose.items():
            if form_of(name, _plain(name, tensor)) != self.loose_forms[name]:
                return None
        self._write(packed)
        return self._keep_loose(loose)

    def _keep_loose(self, loose: dict[str, torch.Tensor]) -> list[int]:
        #: Until the next capture: a GPU may copy from them after this returns.
        self._kept = dict(loose)
        addresses = []
        for name in self.loose_forms:
            staging = self._loose_staged.get(name)
            if staging is not None:
                staging.copy_(loose[name].detach())
            addresses.append((loose[name] if staging is None else staging).data_ptr())
        return addresses

    def fill_staged(self) -> None:
        """Copies tensors with gaps into dense ones."""
        for place, staging in self.staged:
            staging.copy_(local_of(place.tensor.detach()))

    def _write(self, packed: bytes) -> None:
        self._bytes[: len(packed)] = packed


def _plain(name: str, tensor: torch.Tensor) -> torch.Tensor:
    if is_dtensor(tensor):
        raise CheckpointError(f"{name} is a DTensor: give its to_local(), what it is a part of is not kept here")
    return tensor


def _shard_of(tensor: Any) -> dict[str, Any]:
    """Which part of a whole tensor a DTensor's local one is."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    mesh = tensor.device_mesh
    _, offset = compute_local_shape_and_global_offset(tensor.shape, mesh, tensor.placements)
    return {
        "global_shape": list(tensor.shape),
        "offset": list(offset),
        "placements": [str(placement) for placement in tensor.placements],
        "mesh_shape": list(mesh.shape),
        "mesh_dim_names": list(mesh.mesh_dim_names or ()),
        "coordinate": list(mesh.get_coordinate() or ()),
    }
