"""Whose state a rank holds, and what that state depends on: by both a copy is found again after a restart."""

from __future__ import annotations

import hashlib
import os
import platform
from collections import Counter
from pathlib import Path

from smon_rt._layout import Layout, discover
from smon_rt.checkpoint.state import Found, TrainingState
from smon_rt.checkpoint.tensors import local_of

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def node_of_process() -> str:
    """The same for all processes of one node; SMON_RT_NODE tells several apart on one machine."""
    try:
        machine = _BOOT_ID.read_text().strip()
    except OSError:
        machine = platform.node()
    return f"{machine} {os.environ.get('SMON_RT_NODE', '')}".strip()


def owner_of_process(rank: int) -> str:
    """Logical coordinates, which a rank keeps wherever it runs; its number where they are not known."""
    layout = discover().layout
    if layout is None or min(layout.dp_rank, layout.stage, layout.tp_rank, layout.cp_rank) < 0:
        return f"rank={rank}"
    if _size(layout) == layout.dp_size:
        return f"dp={layout.dp_rank}"
    return f"pp={layout.stage},dp={layout.dp_rank},cp={layout.cp_rank},tp={layout.tp_rank}"


def unique_owners(owners: list[str]) -> list[str]:
    """Ranks by number where the coordinates do not tell them apart; all ranks see the same list, and so agree."""
    is_unique = max(Counter(owners).values()) == 1
    return owners if is_unique else [f"rank={rank}" for rank in range(len(owners))]


def topology_of(state: TrainingState, found: Found, world_size: int) -> str:
    """For a person first: sizes of the parallel dimensions and of the model; then a digest of names, types, shapes.

    Optimizers' tensors are not in it, which come with the first step; their kinds are.
    """
    tensors = [place for place in found.places if place.name.startswith("model.")]
    digest = hashlib.blake2b(digest_size=8)
    byte_count = 0
    for place in tensors:
        local = local_of(place.tensor)
        byte_count += local.numel() * local.element_size()
        digest.update(f"{place.name} {local.dtype} {tuple(local.shape)}\n".encode())
    for optimizer in state.optimizers:
        digest.update(f"{type(optimizer).__name__} {len(optimizer.param_groups)}\n".encode())
    layout = discover().layout
    sizes = "" if layout is None else _sizes(layout)
    return f"world {world_size}{sizes}; {len(tensors)} tensors, {byte_count} bytes, {digest.hexdigest()}"


def _sizes(layout: Layout) -> str:
    named = {"dp": layout.dp_size, "pp": layout.pp_size, "tp": layout.tp_size, "cp": layout.cp_size}
    more = {"vpp": layout.vpp_size}
    used = [f"{name} {size}" for name, size in (named | more).items() if size > 1]
    return f": {', '.join(used)}" if used else ""


def _size(layout: Layout) -> int:
    return layout.dp_size * layout.pp_size * layout.tp_size * layout.cp_size
