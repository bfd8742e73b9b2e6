"""What a training state consists of: finds its tensors, and the plain values beside them.

Tensors that live in models and optimizers keep a place (`container[key]`) and are looked for there again at each
capture. What is made anew each time it is asked for (schedulers' state, random numbers, `extra`) goes through the
encoder each time; tensors in it are called loose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from smon_rt.checkpoint.frameworks import (
    finish_gathers,
    inner_optimizers,
    refuse_unsharded,
    scalers_of,
    unwrapped_model,
)
from smon_rt.checkpoint.rng import rng_state
from smon_rt.checkpoint.tensors import CheckpointError
from smon_rt.checkpoint.values import Encoder

#: Prefix of buffers that torch does not count to a model's state: restored where they are still there.
TRANSIENT = "transient"


@dataclass(frozen=True, eq=False)
class Place:
    """A tensor, and where it is: `container[key] is tensor`.

    is_volatile: others than an optimizer write it, at any time after the capture.
    """

    name: str
    container: dict[Any, Any]
    key: Any
    tensor: torch.Tensor
    is_volatile: bool


@dataclass
class OptimizerParts:
    """One optimizer's parameters, by name, and what it keeps of each."""

    optimizer: torch.optim.Optimizer
    params: dict[str, torch.Tensor] = field(default_factory=dict)
    #: Names of parameters → keys of their state that are tensors.
    tensor_keys: dict[str, list[Any]] = field(default_factory=dict)
    #: (name of the parameter, its state, key) of everything else.
    plain: list[tuple[str, dict[Any, Any], Any]] = field(default_factory=list)


@dataclass
class Found:
    """All places of a state, and the sizes of containers that tell when something came or went."""

    places: list[Place] = field(default_factory=list)
    sizes: list[tuple[Any, int]] = field(default_factory=list)
    optimizers: list[OptimizerParts] = field(default_factory=list)

    def watch(self, container: Any) -> None:
        self.sizes.append((container, len(container)))


class TrainingState:
    """The parts that a job named at attach.

    Args:
        models: as given, wrappers and all.
        optimizers: torch's or Megatron's.
        stateful: by name, everything else with state_dict and load_state_dict.
        extra: called at each capture, for plain values, bytes and tensors.
    """

    def __init__(
        self,
        models: list[torch.nn.Module],
        optimizers: list[Any],
        stateful: Mapping[str, Any],
        extra: Callable[[], Mapping[str, Any]] | None,
    ) -> None:
        self.models = models
        self.optimizers = [inner for optimizer in optimizers for inner in inner_optimizers(optimizer)]
        scalers = [scaler for optimizer in optimizers for scaler in scalers_of(optimizer)]
        self.stateful = dict(stateful) | {f"megatron_scaler.{at}": scaler for at, scaler in enumerate(scalers)}
        self.extra = extra

    def named_models(self) -> Iterator[tuple[str, torch.nn.Module]]:
        for at, model in enumerate(self.models):
            yield f"{at}." if len(self.models) > 1 else "", unwrapped_model(model)

    def finish_gathers(self) -> None:
        """Waits for parameters that are still under way from other ranks."""
        finish_gathers(self.models)

    def find(self) -> Found:
        """Walks through everything: at the start, and when something moved.

        Raises:
            CheckpointError: a tensor cannot be captured.
        """
        refuse_unsharded(self.models)
        found = Found()
        updated = {id(param) for optimizer in self.optimizers for param in _params_of(optimizer)}
        names: dict[int, str] = {}
        for prefix, model in self.named_models():
            _find_in_model(prefix, model, updated, found, names)
        for at, optimizer in enumerate(self.optimizers):
            found.optimizers.append(_find_in_optimizer(f"optimizer.{at}.", optimizer, found, names))
        return found

    def encode(self, step: int, found: Found) -> tuple[bytes, dict[str, torch.Tensor]]:
        """All that has no place: packed values, and loose tensors by name."""
        encoder = Encoder()
        values = {
            "step": step,
            "next_step": step + 1,
            "optimizers": [_optimizer_values(at, parts, encoder) for at, parts in enumerate(found.optimizers)],
            "stateful": {
                name: encoder.encode(thing.state_dict(), f"values.{name}") for name, thing in self.stateful.items()
            },
            "modules": {
                name: encoder.encode(module.get_extra_state(), f"values.{name}")
                for name, module in self.modules_with_extra_state()
            },
            "rng": encoder.encode(rng_state(), "values.rng"),
            "extra": encoder.encode(None if self.extra is None else self.extra(), "values.extra"),
        }
        return encoder.pack(values), encoder.tensors

    def modules_with_extra_state(self) -> list[tuple[str, torch.nn.Module]]:
        """Those that keep state in a way of their own (get_extra_state), by name."""
        return [
            (f"model.{prefix}{name}", module)
            for prefix, model in self.named_models()
            for name, module in model.named_modules()
            if type(module).get_extra_state is not torch.nn.Module.get_extra_state
        ]


def _params_of(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _find_in_model(prefix: str, model: torch.nn.Module, updated: set[int], found: Found, names: dict[int, str]) -> None:
    for path, module in model.named_modules():
        path = f"{prefix}{path}." if path else prefix
        found.watch(module._parameters)
        found.watch(module._buffers)
        found.watch(module._modules)
        for key, param in module._parameters.items():
            if param is not None:
                is_volatile = not (param.requires_grad or id(param) in updated)
                names.setdefault(id(param), f"{path}{key}")
                found.places.append(Place(f"model.{path}{key}", module._parameters, key, param, is_volatile))
        for key, buffer in module._buffers.items():
            if buffer is not None:
                kind = TRANSIENT if key in module._non_persistent_buffers_set else "model"
                found.places.append(Place(f"{kind}.{path}{key}", module._buffers, key, buffer, is_volatile=True))


def _find_in_optimizer(
    prefix: str, optimizer: torch.optim.Optimizer, found: Found, names: dict[int, str]
) -> OptimizerParts:
    parts = OptimizerParts(optimizer)
    known: set[int] = set()
    found.watch(optimizer.param_groups)
    found.watch(optimizer.state)
    for group_at, group in enumerate(optimizer.param_groups):
        found.watch(group["params"])
        for at, param in enumerate(group["params"]):
            name = names.get(id(param))
            if name is None:  # Megatron's fp32 shards: the optimizer's own
                name = f"group{group_at}.{at}"
                place = Place(f"{prefix}{name}.param", _OneParam(param), 0, param, is_volatile=False)
                found.places.append(place)
            parts.params[name] = param
            known.add(id(param))
            state = optimizer.state.get(param)
            if state is not None:
                _find_in_param_state(f"{prefix}{name}", name, state, found, parts)
    for param in optimizer.state:
        if id(param) not in known:
            raise CheckpointError(f"{prefix[:-1]}: state of {type(param).__name__} that is in none of its param_groups")
    return parts


class _OneParam(dict[int, torch.Tensor]):
    """Stands for a place in a list of parameters, whose tensors do not change once they are there."""

    def __init__(self, param: torch.Tensor) -> None:
        super().__init__({0: param})


def _find_in_param_state(path: str, name: str, state: dict[Any, Any], found: Found, parts: OptimizerParts) -> None:
    found.watch(state)
    for key, value in state.items():
        if isinstance(value, torch.Tensor):
            if not isinstance(key, str):
                raise CheckpointError(f"{path}: a tensor under the key {key!r}, which is no text")
            parts.tensor_keys.setdefault(name, []).append(key)
            found.places.append(Place(f"{path}.{key}", state, key, value, is_volatile=False))
        else:
            parts.plain.append((name, state, key))


def _optimizer_values(at: int, parts: OptimizerParts, encoder: Encoder) -> dict[str, Any]:
    groups = [{key: value for key, value in group.items() if key != "params"} for group in parts.optimizer.param_groups]
    plain: dict[str, dict[Any, Any]] = {}
    for name, state, key in parts.plain:
        if key in state and not isinstance(state[key], torch.Tensor):
            plain.setdefault(name, {})[key] = state[key]
    path = f"values.optimizer.{at}"
    return {
        "groups": encoder.encode(groups, f"{path}.groups"),
        "plain": encoder.encode(plain, f"{path}.state"),
    }
