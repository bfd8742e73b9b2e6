"""What DDP, torch.compile and Megatron put around models and optimizers, taken off; and what Megatron has to finish."""

from __future__ import annotations

import sys
from typing import Any

import torch

from smon_rt.checkpoint.tensors import CheckpointError

#: Of Megatron's wrappers, which hold the model as `module`.
_MEGATRON_WRAPPERS = frozenset({"DistributedDataParallel", "Float16Module"})


def unwrapped_model(wrapped: torch.nn.Module) -> torch.nn.Module:
    """The model itself: names of its tensors are the same with and without these wrappers."""
    model: Any = wrapped
    while True:
        if isinstance(model, torch.nn.parallel.DistributedDataParallel) or (
            _is_megatrons(model) and type(model).__name__ in _MEGATRON_WRAPPERS
        ):
            model = model.module
        elif "_orig_mod" in model._modules and type(model).__name__ == "OptimizedModule":
            model = model._modules["_orig_mod"]
        else:
            inner_model: torch.nn.Module = model
            return inner_model


def inner_optimizers(optimizer: Any) -> list[torch.optim.Optimizer]:
    """The optimizers of torch's kind, which hold tensors; of Megatron's several may be chained.

    Raises:
        CheckpointError: there is none in it.
    """
    if isinstance(optimizer, torch.optim.Optimizer):
        return [optimizer]
    chained = getattr(optimizer, "chained_optimizers", None)
    if chained is not None:
        return [inner for one in chained for inner in inner_optimizers(one)]
    if getattr(optimizer, "is_stub_optimizer", False):
        return []
    inner = getattr(optimizer, "optimizer", None)
    if inner is None:
        raise CheckpointError(f"a {type(optimizer).__name__} is no torch.optim.Optimizer, and holds none as .optimizer")
    return inner_optimizers(inner)


def scalers_of(optimizer: Any) -> list[Any]:
    """Megatron's own loss scalers, which belong to its optimizers."""
    chained = getattr(optimizer, "chained_optimizers", None)
    if chained is not None:
        return [scaler for one in chained for scaler in scalers_of(one)]
    scaler = getattr(optimizer, "grad_scaler", None)
    return [scaler] if scaler is not None and hasattr(scaler, "state_dict") and _is_megatrons(scaler) else []


def _is_megatrons(thing: Any) -> bool:
    return type(thing).__module__.startswith("megatron.")


def finish_gathers(models: list[Any]) -> None:
    """Megatron gathers updated parameters as late as in the next forward: what is captured must have them.

    A collective: on all ranks at the same step.
    """
    for model in models:
        config = getattr(model, "ddp_config", None)
        if config is not None and getattr(config, "overlap_param_gather", False) and _is_megatrons(model):
            model.start_param_sync(force_sync=True)


def refuse_unsharded(models: list[torch.nn.Module]) -> None:
    """FSDP2 shows whole parameters between its gather and its release; what is captured are the shards."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    kind = getattr(fsdp, "FSDPModule", None)
    if kind is None:
        return
    for model in models:
        for name, module in model.named_modules():
            if isinstance(module, kind):
                group = getattr(module._get_fsdp_state(), "_fsdp_param_group", None)
                if group is not None and not group.is_sharded:
                    raise CheckpointError(
                        f"{name or 'the model'} is not sharded now: call its reshard() before the step's end"
                    )
