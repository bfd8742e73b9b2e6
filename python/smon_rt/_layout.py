"""Finds out where in the job this process is, from what torch and Megatron know. Loads neither, and wakes no GPU."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from smon_rt.errors import words_of
from smon_rt.integrations.dimensions import mesh_coordinates


@dataclass(frozen=True)
class Layout:
    """Coordinates of a process in the parallel dimensions, and their sizes.

    A coordinate that is not known is -1; a dimension that is not used has size 1.

    Example:
        >>> Layout(dp_rank=1, dp_size=2, stage=0, pp_size=4, microbatch_count=8).pp_size
        4
    """

    dp_rank: int = -1
    stage: int = -1
    tp_rank: int = -1
    cp_rank: int = -1
    expert_dp_rank: int = -1
    dp_size: int = 1
    pp_size: int = 1
    tp_size: int = 1
    cp_size: int = 1
    vpp_size: int = 1
    microbatch_count: int = 0
    schedule: str | None = None


@dataclass
class Discovery:
    """What was found: a layout or none, and facts for the header of the trace."""

    layout: Layout | None = None
    rank: int | None = None
    world_size: int | None = None
    facts: dict[str, str] = field(default_factory=dict)


def discover() -> Discovery:
    """Asks Megatron's parallel_state, then the device meshes, then torch.distributed, as far as the job uses them."""
    found = Discovery(facts=_versions() | _gpu())
    distributed = torch_distributed()
    if distributed is not None:
        found.rank, found.world_size = distributed.get_rank(), distributed.get_world_size()
    megatron = sys.modules.get("megatron.core.parallel_state")
    try:
        if megatron is not None and megatron.model_parallel_is_initialized():
            found.layout = _from_megatron(megatron)
            found.facts["hook.layout.megatron"] = ""
            return found
        found.facts["hook.layout.megatron"] = "megatron.core.parallel_state is not set up"
    except Exception as error:  # another version's parallel_state
        found.facts["hook.layout.megatron"] = f"parallel_state answered {words_of(error)}"[:200]
    if found.world_size is not None and (coordinates := mesh_coordinates()):
        found.layout = _from_mesh(coordinates, found.world_size)
        found.facts["hook.layout.device_mesh"] = ""
    elif found.rank is not None and found.world_size is not None:
        # Nothing tells what else the ranks could be: without model parallelism all of them hold replicas.
        found.layout = Layout(dp_rank=found.rank, dp_size=found.world_size)
        found.facts["hook.layout.torch_distributed"] = ""
    else:
        found.facts["hook.layout.torch_distributed"] = "torch.distributed is not set up"
    return found


def torch_distributed() -> ModuleType | None:
    """torch.distributed, if this process has loaded it and joined a group."""
    module = sys.modules.get("torch.distributed")
    if module is None or not getattr(module, "is_available", bool)():
        return None
    return module if module.is_initialized() else None


def _from_megatron(state: Any) -> Layout:
    virtual_size = state.get_virtual_pipeline_model_parallel_world_size()
    return Layout(
        dp_rank=state.get_data_parallel_rank(),
        stage=state.get_pipeline_model_parallel_rank(),
        tp_rank=state.get_tensor_model_parallel_rank(),
        cp_rank=state.get_context_parallel_rank(),
        expert_dp_rank=_or(state, "get_expert_data_parallel_rank", -1),
        dp_size=state.get_data_parallel_world_size(),
        pp_size=state.get_pipeline_model_parallel_world_size(),
        tp_size=state.get_tensor_model_parallel_world_size(),
        cp_size=state.get_context_parallel_world_size(),
        vpp_size=virtual_size or 1,
    )


def _from_mesh(coordinates: dict[str, tuple[int, int]], world_size: int) -> Layout:
    """From the dimensions that are named; what is left of the ranks are replicas."""
    nowhere = (-1, 1)
    stage, pp_size = coordinates.get("pp", nowhere)
    tp_rank, tp_size = coordinates.get("tp", nowhere)
    cp_rank, cp_size = coordinates.get("cp", nowhere)
    replicas = max(world_size // (pp_size * tp_size * cp_size), 1)
    dp_rank, dp_size = coordinates.get("dp", (0 if replicas == 1 else -1, replicas))
    return Layout(
        dp_rank=dp_rank,
        stage=stage,
        tp_rank=tp_rank,
        cp_rank=cp_rank,
        dp_size=dp_size,
        pp_size=pp_size,
        tp_size=tp_size,
        cp_size=cp_size,
    )


def _gpu() -> dict[str, str]:
    """The GPU that this process uses, if it does: asking must not make it use one."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    try:
        if cuda is not None and cuda.is_initialized():
            uuid = str(cuda.get_device_properties(cuda.current_device()).uuid)
            return {"gpu_uuid": uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"}
    except Exception:  # an older torch, or a GPU that is not one of NVIDIA's
        return {}
    return {}


def _or(state: Any, name: str, otherwise: int) -> int:
    """What a function gives that not every version has, or that wants a group which is not there."""
    try:
        return int(getattr(state, name)())
    except Exception:
        return otherwise


def _versions() -> dict[str, str]:
    facts = {"version.python": ".".join(map(str, sys.version_info[:3]))}
    for name, module_name in (("torch", "torch"), ("megatron_core", "megatron.core"), ("numpy", "numpy")):
        version = getattr(sys.modules.get(module_name), "__version__", None)
        if version is not None:
            facts[f"version.{name}"] = str(version)
    return facts
