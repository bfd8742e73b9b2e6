"""Process groups as communicators of the trace: a name, the parallel dimension, the ranks that are in it."""

from __future__ import annotations

import sys
from typing import Any

from smon_rt._backend import native
from smon_rt.integrations.dimensions import dimension_of
from smon_rt.integrations.state import switch

__all__ = ["Group", "all_known", "describe", "existing", "known"]


class Group:
    """What hooks know of one process group. Holds no reference to it: the group holds its hooks."""

    __slots__ = ("comm_id", "description", "dimension", "is_on_gpu", "members", "name", "rank", "recording")

    def __init__(self, name: str, description: str, rank: int, members: list[int], is_on_gpu: bool = False) -> None:
        self.name = name
        self.description = description
        self.dimension = dimension_of(description)
        self.rank = rank
        self.members = members
        self.is_on_gpu = is_on_gpu
        self.comm_id = 0
        self.recording = 0

    def register(self) -> int:
        """The number of this communicator in the running recording. Slow, so only at its first op."""
        self.recording = switch.recording
        is_named = self.description not in ("", "undefined")
        name = f"{self.description} {self.name}" if is_named else self.name
        self.comm_id = native.register_communicator(name, self.dimension, self.members)
        if self.is_on_gpu:
            native.set_stream_waits(self.comm_id)
        return self.comm_id


#: All that were seen, by their names in torch; a group that is destroyed stays, its name does not come again.
_known: dict[str, Group] = {}


def describe(process_group: Any, members: list[int]) -> Group:
    """What hooks need to know of a process group."""
    name = str(getattr(process_group, "group_name", "") or "")
    description = str(getattr(process_group, "group_desc", "") or "")
    # Of a group for both, with gloo for what lies in the host's memory, messages and gradients are the GPU's.
    is_on_gpu = any(device.type == "cuda" for device in getattr(process_group, "_device_types", ()))
    group = Group(name, description, int(process_group.rank()), members, is_on_gpu)
    _known[name] = group
    return group


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
