"""Process groups as communicators of the trace: a name, the parallel dimension, the ranks that are in it."""

from __future__ import annotations

import sys
from typing import Any

from smon_rt._backend import native
from smon_rt.integrations.state import switch

__all__ = ["Group", "coordinates", "describe", "dimension_of"]

#: What jobs call the parallel dimensions, in names of mesh dimensions and of Megatron's groups.
_SYNONYMS: dict[str, tuple[str, ...]] = {
    "dp": (
        *("dp", "ddp", "data", "data_parallel", "batch", "replica"),
        *("dp_cp", "dp_shard_cp", "data_parallel_group", "data_parallel_group_with_cp"),
        "intra_distributed_optimizer_instance_group",
    ),
    "dp_replicate": ("dp_replicate", "replicate", "hsdp_replicate"),
    "dp_shard": ("dp_shard", "shard", "fsdp", "hsdp_shard"),
    "pp": ("pp", "pipe", "pipeline", "pipeline_parallel", "stage", "pipeline_model_parallel_group"),
    "tp": ("tp", "tensor", "tensor_parallel", "mp", "model", "model_parallel", "tensor_model_parallel_group"),
    "cp": ("cp", "context", "context_parallel", "sequence", "seq", "context_parallel_group"),
    "ep": ("ep", "expert", "expert_parallel", "expert_model_parallel_group"),
    "world": ("default_pg", "world"),
}
_DIMENSIONS = {synonym: dimension for dimension, synonyms in _SYNONYMS.items() for synonym in synonyms}


def dimension_of(description: str) -> str:
    """The parallel dimension that a group's description names: dp, pp, tp, cp, ep, world, or "" if it names none.

    Example:
        >>> dimension_of("mesh_pp"), dimension_of("TENSOR_MODEL_PARALLEL_GROUP"), dimension_of("my group")
        ('pp', 'tp', '')
    """
    found = _DIMENSIONS.get(description.lower().removeprefix("mesh_"), "")
    return "dp" if found.startswith("dp_") else found


class Group:
    """What hooks know of one process group. Holds no reference to it: the group holds its hooks."""

    __slots__ = ("comm_id", "description", "dimension", "issued", "members", "name", "rank", "recording")

    def __init__(self, name: str, description: str, rank: int, members: list[int]) -> None:
        self.name = name
        self.description = description
        self.dimension = dimension_of(description)
        self.rank = rank
        self.members = members
        self.comm_id = 0
        self.recording = 0
        # op_id → what the pre-hook began, for the post-hook
        self.issued: dict[int, Any] = {}

    def register(self) -> int:
        """The number of this communicator in the running recording. Slow, so only at its first op."""
        self.recording = switch.recording
        is_named = self.description not in ("", "undefined")
        name = f"{self.description} {self.name}" if is_named else self.name
        self.comm_id = native.register_communicator(name, self.dimension, self.members)
        return self.comm_id


#: All that were seen, by their names in torch; a group that is destroyed stays, its name does not come again.
_known: dict[str, Group] = {}


def describe(process_group: Any, members: list[int]) -> Group:
    """What hooks need to know of a process group."""
    name = str(getattr(process_group, "group_name", "") or "")
    description = str(getattr(process_group, "group_desc", "") or "")
    group = Group(name, description, int(process_group.rank()), members)
    _known[name] = group
    return group


def coordinates() -> dict[str, tuple[int, int]]:
    """(coordinate, size) of this process in each parallel dimension that a mesh's groups name.

    dp of a job that replicates and shards is their product. Groups without a dimension tell nothing.
    """
    found: dict[str, tuple[int, int]] = {}
    for group in _known.values():
        name = group.description.lower().removeprefix("mesh_")
        if group.description.startswith("mesh_") and name in _DIMENSIONS and not name.endswith("_cp"):
            found[_DIMENSIONS[name]] = (group.rank, len(group.members))
    replicate, shard = found.pop("dp_replicate", None), found.pop("dp_shard", None)
    if (replicate or shard) and "dp" not in found:
        replica, replicas = replicate or (0, 1)
        part, parts = shard or (0, 1)
        found["dp"] = (replica * parts + part, replicas * parts)
    return found


def existing() -> list[tuple[Any, list[int]]]:
    """Process groups that this process is in already, with their global ranks."""
    distributed = sys.modules["torch.distributed"]
    c10d = sys.modules["torch.distributed.distributed_c10d"]
    if not distributed.is_initialized():
        return []
    return [(group, list(c10d.get_process_group_ranks(group))) for group in list(c10d._world.pg_map)]


def known(name: str) -> Group | None:
    """The group of that name, if it has been described."""
    return _known.get(name)


def all_known() -> list[Group]:
    """Every group that has been described."""
    return list(_known.values())
