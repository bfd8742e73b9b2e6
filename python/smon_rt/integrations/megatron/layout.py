"""Where this rank is in a Megatron job, what its schedule is like, and the number of the script's iteration."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from smon_rt._backend import native
from smon_rt._layout import Layout
from smon_rt._recording import found_layout, known_layout
from smon_rt.integrations.megatron.pass_ids import Pipeline

__all__ = ["SCHEDULE_NAMES", "config_of", "describe", "iteration"]

#: Functions of megatron.core.pipeline_parallel.schedules → the schedule's name.
SCHEDULE_NAMES = {
    "forward_backward_no_pipelining": "no_pipelining",
    "forward_backward_pipelining_without_interleaving": "1f1b",
    "forward_backward_pipelining_with_interleaving": "interleaved_1f1b",
}
_STATE = "megatron.core.parallel_state"
#: What a pass calls its groups → coordinate and size in a layout.
_GROUPS = {
    "dp": ("dp_rank", "dp_size"),
    "pp": ("stage", "pp_size"),
    "tp": ("tp_rank", "tp_size"),
    "cp": ("cp_rank", "cp_size"),
}


def iteration() -> tuple[int | None, str]:
    """The iteration that the script is in, as far as it can be read, else None and why not.

    Megatron's own training loop keeps it in its arguments; the machine that repeats iterations, if it is used, counts
    them, through restarts.
    """
    training = sys.modules.get("megatron.training.global_vars")
    number = getattr(getattr(training, "_GLOBAL_ARGS", None), "curr_iteration", None)
    if isinstance(number, int):
        return number, ""
    machine = getattr(sys.modules.get("megatron.core.rerun_state_machine"), "_GLOBAL_RERUN_STATE_MACHINE", None)
    number = getattr(machine, "current_iteration", None)
    if isinstance(number, int) and number >= 0:
        return number, ""
    return None, "counted from 0, since the script's iteration cannot be read: smon_rt.step(k) says it"


def describe(schedule: str, call: dict[str, Any]) -> Pipeline | None:
    """Tells the recorder the layout of a pass, and returns its pipeline; None if the order of receives is not known.

    Args:
        schedule: name of the function.
        call: what it is called with, by name.
    """
    microbatches = int(call["num_microbatches"])
    chunks = len(call["model"]) if isinstance(call["model"], list) else 1
    config = config_of(call["model"])
    is_combined = bool(getattr(config, "overlap_moe_expert_parallel_comm", False))
    name = SCHEDULE_NAMES.get(schedule, schedule)
    layout = replace(
        _with_groups(known_layout(), call),
        vpp_size=chunks,
        microbatch_count=microbatches,
        schedule=f"combined_{name}" if is_combined else name,
    )
    if layout != known_layout():
        found_layout(layout)
        _say_expert_parallel()
    rank, size = _place(layout, call)
    if rank < 0 or size == 1 or is_combined or _has_other_messages(call):
        return None
    group_size = getattr(config, "microbatch_group_size_per_vp_stage", None) or size
    return Pipeline(rank, size, chunks, microbatches, group_size if chunks > 1 else microbatches)


def _place(layout: Layout, call: dict[str, Any]) -> tuple[int, int]:
    """Stage of this rank and how many there are, of the group that its messages go over."""
    group = getattr(call.get("p2p_communicator"), "pp_group", None)
    return (layout.stage, layout.pp_size) if group is None else (int(group.rank()), int(group.size()))


def _has_other_messages(call: dict[str, Any]) -> bool:
    """Several tensors a message, or stages that are not in a row (pipelines of several modules, core 0.20)."""
    is_multiple = any("MultiModule" in type(call.get(name)).__name__ for name in ("pg_collection", "p2p_communicator"))
    return is_multiple or call.get("adjust_tensor_shapes_fn") is not None


def config_of(model: Any) -> Any:
    """The configuration of a model, or of the first of its chunks; wrappers of data parallelism and of precision have
    it too, or lead to it. None if there is none."""
    one = model[0] if isinstance(model, list) and model else model
    for _ in range(8):
        config = getattr(one, "config", None)
        if config is not None:
            return config
        one = getattr(one, "module", None)
    return None


def _with_groups(layout: Layout, call: dict[str, Any]) -> Layout:
    """Coordinates by the groups that a pass is given, where there is no parallel_state to ask."""
    state, groups = sys.modules.get(_STATE), call.get("pg_collection")
    if groups is None or (state is not None and state.model_parallel_is_initialized()):
        return layout
    found: dict[str, int] = {}
    for name, (coordinate, size) in _GROUPS.items():
        group = getattr(groups, name, None)
        if group is not None and hasattr(group, "rank"):
            found |= {coordinate: int(group.rank()), size: int(group.size())}
    return replace(layout, **found)  # type: ignore[arg-type]  # coordinates and sizes alone


def _say_expert_parallel() -> None:
    """Experts lie within the ranks of data and context parallelism: they are no coordinate of their own."""
    state = sys.modules.get(_STATE)
    try:
        size = int(state.get_expert_model_parallel_world_size())  # type: ignore[union-attr]
        rank = int(state.get_expert_model_parallel_rank())  # type: ignore[union-attr]
    except Exception:  # another version, or no groups
        return
    if size > 1:
        native.set_fact("env.megatron.expert_parallel", f"rank {rank} of {size}")
