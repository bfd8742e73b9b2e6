"""torch.distributed.pipelining: computes with microbatch and chunk, transfers that know what they are for, the layout.

What is recorded, by the classes of torch 2.15 (facts of a run are in the tests):

- forward_compute: `_PipelineStageBase.forward_one_chunk`; on the last stage up to the end of the loss, which the
  schedule computes right after it and which is part of what makes that stage slow.
- backward_compute: `backward_one_chunk`. A split backward (zero bubble) is two spans of the same microbatch and chunk:
  the one for the inputs, named backward_input, which receives and sends, and later `backward_weight_one_chunk`, named
  backward_weight.
- Sends and receives are recorded by the c10d hooks; the operations that `get_fwd_recv_ops` and its like return are told
  to them ahead. What stages exchange otherwise (shapes, in the first step) has no label: these are collectives inside a
  `startup` span.
- A forward-only pass (`schedule.eval`) is one eval span.

`chunk` is the place of a stage among those of this rank: stage_index // pp_size. It tells who is next only where stages
go round the ranks; where they go to and fro (ZBV, DualPipeV) messages have neither microbatch nor chunk, and pair by
number.

What runs in each step is of C (csrc/bindings/schedule_calls.cc and pipeline_calls.cc); here is what that asks for once
for each schedule, and seldom otherwise.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from smon_rt._backend import native
from smon_rt._layout import Layout, torch_distributed
from smon_rt._recording import found_layout, known_layout
from smon_rt.errors import words_of
from smon_rt.integrations import on_import
from smon_rt.integrations.patches import Method, Patches
from smon_rt.integrations.state import FORWARD_ONLY
from smon_rt.integrations.torch import collectives
from smon_rt.kinds import KIND_NAMES, KindName

__all__ = ["attach", "detach"]

_SCHEDULES = "torch.distributed.pipelining.schedules"
_EVAL, _STARTUP = map(KIND_NAMES.index, ("eval", "startup"))
#: Classes of schedules by the names that papers give them; another one keeps its class's name.
_SCHEDULE_NAMES = {
    "ScheduleGPipe": "gpipe",
    "Schedule1F1B": "1f1b",
    "ScheduleInterleaved1F1B": "interleaved_1f1b",
    "ScheduleLoopedBFS": "looped_bfs",
    "ScheduleInterleavedZeroBubble": "interleaved_zero_bubble",
    "ScheduleZBVZeroBubble": "zbv",
    "ScheduleDualPipeV": "dual_pipe_v",
}

#: Transfers of shapes and of forward-only passes are collectives of two.
_NOT_OF_MICROBATCHES: dict[str, int] = {}

_patches = Patches()


def attach() -> None:
    """Hooks into the schedules now, or when the job imports them. Twice is once."""
    if not _patches:
        on_import.when_imported(_SCHEDULES, _attach_now)


def detach() -> None:
    """Puts every replaced name back."""
    on_import.forget(_attach_now)
    _patches.restore()


def _attach_now() -> None:
    schedules, stage = sys.modules[_SCHEDULES], sys.modules["torch.distributed.pipelining.stage"]
    base = stage._PipelineStageBase
    wrapped = [
        (base, "forward_one_chunk", ("self", "fwd_chunk_id"), _recorded("forward")),
        (base, "backward_one_chunk", ("self", "bwd_chunk_id", "loss", "full_backward"), _recorded("backward")),
        (base, "backward_weight_one_chunk", ("self", "bwd_chunk_id"), _recorded("backward", 1)),
        (base, "get_fwd_recv_ops", ("self", "fwd_chunk_id"), _labelled("forward_recv")),
        (base, "get_fwd_send_ops", ("self", "fwd_chunk_id"), _labelled("forward_send")),
        (base, "get_bwd_recv_ops", ("self", "bwd_chunk_id"), _labelled("backward_recv")),
        (base, "get_bwd_send_ops", ("self", "bwd_chunk_id"), _labelled("backward_send")),
        (schedules._PipelineSchedule, "_maybe_compute_loss", ("self", "stage", "output"), _recorded("loss")),
        (
            schedules._PipelineSchedule,
            "_initialize_pp_stages",
            ("self", "stages", "args", "kwargs", "target", "fwd_initialized", "bwd_initialized"),
            _recorded("startup"),
        ),
        (schedules.PipelineScheduleSingle, "step", ("self", "args", "target"), _recorded("step")),
        (schedules.PipelineScheduleMulti, "step", ("self", "args", "target"), _recorded("step")),
    ]
    native.learn_schedules(_say_layout_guarded, _run_eval, _run_startup)
    problems = [_patches.wrap(*arguments) for arguments in wrapped]
    native.set_fact("hook.pipelining", "; ".join(filter(None, problems))[:200])


def _recorded(what: str, number: int = 0) -> Callable[[Method], Method]:
    """Of C, since a schedule calls these for each microbatch: csrc/bindings/pipeline_calls.cc."""

    def make(original: Method) -> Method:
        return native.recorded_stage_method(what, original, number)

    return make


def _labelled(kind: KindName) -> Callable[[Method], Method]:
    return _recorded("operations", KIND_NAMES.index(kind))


def _run_startup(original: Method, *args: Any, **kwargs: Any) -> Any:
    """Shapes are exchanged, before the first step."""
    with native.span(_STARTUP), collectives.override(_NOT_OF_MICROBATCHES):
        return original(*args, **kwargs)


def _run_eval(original: Method, *args: Any, **kwargs: Any) -> Any:
    """A forward-only pass."""
    with native.span(_EVAL, flags=FORWARD_ONLY), collectives.override(_NOT_OF_MICROBATCHES):
        return original(*args, **kwargs)


def _say_layout_guarded(schedule: Any) -> bool:
    try:
        return _say_layout(schedule)
    except Exception as error:
        native.set_fact("hook.pipelining.layout", words_of(error)[:200])
        return True


def _say_layout(schedule: Any) -> bool:
    """Says it in the header. Once in each recording, for each schedule that differs from the one before.

    Returns whether stages go round the ranks (0 1 0 1), and not to and fro (0 1 1 0).
    """
    stages = getattr(schedule, "_stages", None) or [schedule._stage]
    stage = stages[0]
    places = stage.stage_index_to_group_rank
    class_name = type(schedule).__name__
    layout = replace(
        known_layout(),
        pp_size=stage.group_size,
        stage=stage.group_rank,
        vpp_size=stage.num_stages // stage.group_size,
        microbatch_count=schedule._n_microbatches,
        schedule=_SCHEDULE_NAMES.get(class_name, class_name),
    )
    found_layout(_without_pipeline_in_dp(layout, stage.group))
    return all(place == index % stage.group_size for index, place in places.items())


def _without_pipeline_in_dp(layout: Layout, group: Any) -> Layout:
    """Corrects a layout that took all ranks for replicas, since nothing had said that they form pipelines.

    Pipelines of neighbours (0 1 | 2 3) or across the job (0 2 | 1 3) tell their place; of others it is not known.
    """
    distributed = torch_distributed()
    if distributed is None or layout.dp_size != (world_size := distributed.get_world_size()) or layout.pp_size == 1:
        return layout
    members = sorted(distributed.get_process_group_ranks(group))
    distances = {later - earlier for earlier, later in itertools.pairwise(members)}
    dp_size = world_size // layout.pp_size
    dp_rank = -1
    if distances == {1}:
        dp_rank = members[0] // layout.pp_size
    elif distances == {dp_size}:
        dp_rank = members[0]
    return replace(layout, dp_size=dp_size, dp_rank=dp_rank)
