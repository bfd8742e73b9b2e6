"""Puts a captured state back, in place: everything is compared first, and nothing written if anything does not fit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from smon_rt.checkpoint.layout import VALUES
from smon_rt.checkpoint.rng import set_rng_state
from smon_rt.checkpoint.safetensors_header import Header, StoredTensor, read_header
from smon_rt.checkpoint.state import TRANSIENT, OptimizerParts, Place, TrainingState
from smon_rt.checkpoint.tensors import HOST, CheckpointError, fill, is_dtensor, local_of, stored_tensor
from smon_rt.checkpoint.values import decode, unpack


class Restore:
    """One content, compared with the state that it is to become.

    The content must stay mapped until `apply` has returned.

    Raises:
        CheckpointError: the content is damaged, or of another state; nothing was changed.
    """

    def __init__(self, state: TrainingState, content: memoryview) -> None:
        self._state = state
        self._content = content
        self._header: Header = read_header(content)
        stored = self._header.tensors.get(VALUES)
        if stored is None:
            raise CheckpointError("the checkpoint has no values")
        self._values, self._bytes = unpack(self._part(stored))
        self._writes: list[Callable[[], None]] = []
        try:
            self.step, self.next_step = int(self._values["step"]), int(self._values["next_step"])
            self.extra = self._decode(self._values["extra"])
            self._rng = self._decode(self._values["rng"])
            self._stateful = self._named("stateful", state.stateful)
            self._modules = self._named("modules", dict(state.modules_with_extra_state()))
            self._compare()
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"the checkpoint's values cannot be read: {error!r}") from error

    def apply(self) -> None:
        """Writes it all. What a scheduler's or the job's own load_state_dict raises, goes on to the caller."""
        for write in self._writes:
            write()
        for name, value in self._stateful.items():
            self._state.stateful[name].load_state_dict(value)
        modules = dict(self._state.modules_with_extra_state())
        for name, value in self._modules.items():
            modules[name].set_extra_state(value)
        set_rng_state(self._rng)  # the last: what comes before may draw

    def _part(self, stored: StoredTensor) -> memoryview:
        return self._content[stored.offset : stored.offset + stored.form.byte_count]

    def _decode(self, value: Any) -> Any:
        return decode(value, self._bytes, self._loose)

    def _loose(self, name: str) -> torch.Tensor:
        """A tensor of its own, where it was: on the host, or the GPU of this process."""
        stored = self._header.find(name)
        if stored is None:
            raise CheckpointError(f"the checkpoint has no tensor {name}")
        tensor = stored_tensor(stored.form, self._part(stored)).clone(memory_format=torch.preserve_format)
        return tensor if stored.form.device == HOST else tensor.cuda()

    def _named(self, kind: str, ours: dict[str, Any]) -> dict[str, Any]:
        theirs: dict[str, Any] = self._values[kind]
        if theirs.keys() != ours.keys():
            raise CheckpointError(f"the checkpoint has {sorted(theirs)}, this job {sorted(ours)}")
        return {name: self._decode(value) for name, value in theirs.items()}

    def _compare(self) -> None:
        found = self._state.find()
        own: set[str] = set()
        for place in found.places:
            if place.name.startswith(("model.", f"{TRANSIENT}.")) or place.name.endswith(".param"):
                own.add(place.name)
                self._compare_place(place)
        names = self._header.tensors.keys() | self._header.aliases.keys()
        if gone := sorted(name for name in names - own if name.startswith("model.")):
            raise CheckpointError(f"the checkpoint has {gone[0]}{_and_more(gone)}, which this model has not")
        theirs: list[Any] = self._values["optimizers"]
        if len(theirs) != len(found.optimizers):
            raise CheckpointError(
                f"the checkpoint is of {len(theirs)} optimizers, this job has {len(found.optimizers)}"
            )
        for at, (parts, values) in enumerate(zip(found.optimizers, theirs, strict=True)):
            self._compare_optimizer(at, parts, values)

    def _compare_place(self, place: Place) -> None:
        stored = self._header.find(place.name)
        own = local_of(place.tensor)
        is_same = stored is not None and (stored.form.dtype, stored.form.own_shape) == (own.dtype, tuple(own.shape))
        if stored is None or not is_same:
            if place.name.startswith(f"{TRANSIENT}."):
                return
            theirs = "nothing" if stored is None else f"{stored.form.dtype} {list(stored.form.own_shape)}"
            raise CheckpointError(f"{place.name} is {own.dtype} {list(own.shape)} here, in the checkpoint {theirs}")
        found = stored
        self._writes.append(lambda: fill(place.tensor, found.form, self._part(found)))

    def _compare_optimizer(self, at: int, parts: OptimizerParts, values: dict[str, Any]) -> None:
        groups, plain = self._decode(values["groups"]), self._decode(values["plain"])
        optimizer = parts.optimizer
        if len(groups) != len(optimizer.param_groups):
            raise CheckpointError(
                f"optimizer {at} has {len(optimizer.param_groups)} param_groups, in the checkpoint {len(groups)}"
            )
        keys = self._header.optimizer_keys[at] if at < len(self._header.optimizer_keys) else {}
        if unknown := sorted((keys.keys() | plain.keys()) - parts.params.keys()):
            raise CheckpointError(f"optimizer {at} has no parameter {unknown[0]}{_and_more(unknown)}")
        sources: dict[tuple[str, str], StoredTensor] = {}
        for name, held in keys.items():
            for key in held:
                stored = self._header.find(f"optimizer.{at}.{name}.{key}")
                if stored is None:
                    raise CheckpointError(f"the checkpoint has no {key} of {name} in optimizer {at}")
                sources[name, key] = stored
        self._writes.append(lambda: self._write_groups(optimizer, groups))
        for name, param in parts.params.items():
            of_name = {key: sources[name, key] for key in keys.get(name, ())}
            self._writes.append(partial(self._write_state, optimizer, param, of_name, plain.get(name, {})))

    @staticmethod
    def _write_groups(optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]) -> None:
        for ours, theirs in zip(optimizer.param_groups, groups, strict=True):
            for key, value in theirs.items():
                here = ours.get(key)
                if isinstance(here, torch.Tensor) and isinstance(value, torch.Tensor) and here.shape == value.shape:
                    here.detach().copy_(value)  # a scheduler may hold it too
                else:
                    ours[key] = value

    def _write_state(
        self,
        optimizer: torch.optim.Optimizer,
        param: torch.Tensor,
        tensors: dict[str, StoredTensor],
        plain: dict[Any, Any],
    ) -> None:
        before = optimizer.state.get(param)
        if not tensors and not plain:
            if before is not None:
                del optimizer.state[param]
            return
        state: dict[Any, Any] = {} if before is None else before
        for key in [key for key in state if key not in tensors and key not in plain]:
            del state[key]
        state.update(plain)
        for key, stored in tensors.items():
            here: Any = state.get(key)
            if not _takes(here, stored):
                state[key] = here = _made_for(param, stored)
            fill(here, stored.form, self._part(stored))
        optimizer.state[param] = state


def _takes(here: Any, stored: StoredTensor) -> bool:
    if not isinstance(here, torch.Tensor):
        return False
    own, form = local_of(here), stored.form
    return (own.dtype, tuple(own.shape), own.device.type == "cpu") == (form.dtype, form.own_shape, form.device == HOST)


def _made_for(param: torch.Tensor, stored: StoredTensor) -> Any:
    """An optimizer's tensor that is not there yet: sharded as its parameter is, if it was when it was captured."""
    form = stored.form
    device = torch.device("cpu") if form.device == HOST else local_of(param).device
    ordered = torch.empty(form.shape, dtype=form.dtype, device=device)
    inverse = sorted(range(len(form.permutation)), key=form.permutation.__getitem__)
    local = ordered.permute(inverse)
    if stored.is_sharded and is_dtensor(param):
        from torch.distributed.tensor import DTensor

        whole: Any = param
        return DTensor.from_local(
            local, whole.device_mesh, whole.placements, run_check=False, shape=whole.shape, stride=whole.stride()
        )
    return local


def _and_more(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""
