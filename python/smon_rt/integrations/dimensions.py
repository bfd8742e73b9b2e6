"""Names of the parallel dimensions, as jobs and frameworks spell them, and where this process is in a device mesh."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

__all__ = ["dimension_of", "mesh_coordinates", "note_meshes"]

_SYNONYMS: dict[str, tuple[str, ...]] = {
    "dp": ("dp", "ddp", "data", "data_parallel", "batch", "replica"),
    "dp_replicate": ("dp_replicate", "replicate", "hsdp_replicate"),
    "dp_shard": ("dp_shard", "shard", "fsdp", "hsdp_shard"),
    "pp": ("pp", "pipe", "pipeline", "pipeline_parallel", "stage"),
    "tp": ("tp", "tensor", "tensor_parallel", "mp", "model", "model_parallel"),
    "cp": ("cp", "context", "context_parallel", "sequence", "seq"),
    "ep": ("ep", "expert", "expert_parallel"),
    "world": ("default_pg", "world"),
}
#: Of several dimensions at once (flattened meshes), and Megatron's groups: they name a group, but no coordinate. Those
#: of Megatron that are not here have members in several dimensions, as those of embeddings, norms and experts.
_GROUP_NAMES = {
    "dp_cp": "dp",
    "dp_shard_cp": "dp",
    "data_parallel_group": "dp",
    "data_parallel_group_with_cp": "dp",
    "intra_partial_data_parallel_group_with_cp": "dp",
    "data_parallel_group_with_cp_ag": "dp",
    "pipeline_model_parallel_group": "pp",
    "tensor_model_parallel_group": "tp",
    "context_parallel_group": "cp",
    "expert_model_parallel_group": "ep",
}
_DIMENSIONS = {synonym: dimension for dimension, synonyms in _SYNONYMS.items() for synonym in synonyms}


def dimension_of(description: str) -> str:
    """The parallel dimension that a group's description names: dp, pp, tp, cp, ep, world, or "" if it names none.

    Example:
        >>> dimension_of("mesh_pp"), dimension_of("TENSOR_MODEL_PARALLEL_GROUP"), dimension_of("my group")
        ('pp', 'tp', '')
    """
    name = description.lower().removeprefix("mesh_").removesuffix("_gloo")
    found = _DIMENSIONS.get(name) or _GROUP_NAMES.get(name, "")
    return "dp" if found.startswith("dp_") else found


#: Meshes that were made since hooks are in. A dimension of all ranks has no group of its own that would name it.
_meshes: list[weakref.ref[Any]] = []


def note_meshes(original: Callable[..., Any]) -> Callable[..., Any]:
    """What `DeviceMesh.__init__` becomes."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, *args, **kwargs)
        _meshes.append(weakref.ref(self, _meshes.remove))

    return __init__


def mesh_coordinates() -> dict[str, tuple[int, int]]:
    """(coordinate, size) of this process in the dimensions that device meshes name; empty if there is no mesh.

    dp of a job that replicates and shards is their product.
    """
    found: dict[str, tuple[int, int]] = {}
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is not None:
        for group in list(c10d._world.pg_map):
            description = str(getattr(group, "group_desc", ""))
            if description.startswith("mesh_"):
                _add(found, description.removeprefix("mesh_"), group.rank(), group.size())
    for reference in tuple(_meshes):
        mesh = reference()
        coordinate = None if mesh is None else mesh.get_coordinate()
        names = getattr(mesh, "mesh_dim_names", None)
        if mesh is not None and coordinate is not None and names:
            for at, name in enumerate(names):
                _add(found, name, int(coordinate[at]), int(mesh.size(at)))
    replicate, shard = found.pop("dp_replicate", None), found.pop("dp_shard", None)
    if (replicate or shard) and "dp" not in found:
        replica, replicas = replicate or (0, 1)
        part, parts = shard or (0, 1)
        found["dp"] = (replica * parts + part, replicas * parts)
    return found


def _add(found: dict[str, tuple[int, int]], name: str, coordinate: int, size: int) -> None:
    dimension = _DIMENSIONS.get(name.lower())
    if dimension is not None:
        found[dimension] = (coordinate, size)
