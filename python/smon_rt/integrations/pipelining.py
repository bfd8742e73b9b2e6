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
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from smon_rt._backend import native
from smon_rt._layout import Layout, torch_distributed
from smon_rt._recording import found_layout, known_layout
from smon_rt.errors import words_of
from smon_rt.integrations import on_import, state
from smon_rt.integrations.patches import Method, Patches
from smon_rt.integrations.state import FORWARD_ONLY
from smon_rt.integrations.torch import collectives, compute, steps
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


class _Running:
    """The schedule that runs on a thread."""

    schedule: Any = None
    is_eval = False
    microbatch_offset = 0
    is_loop = True
    """Whether stages go round the ranks (0 1 0 1), and not to and fro (0 1 1 0)."""
    known_schedule = (0, 0)
    """Number of the recording, and identity of the schedule whose layout has been said in it."""
    step = -1
    """How many steps had ended at the last call: further calls in the same step are further microbatches."""


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.running = _Running()


_of_thread = _OfThread()
_ended_steps = 0


def attach() -> None:
    """Hooks into the schedules now, or when the job imports them. Twice is once."""
    if not _patches:
        on_import.when_imported(_SCHEDULES, _attach_now)


def detach() -> None:
    """Puts every replaced name back."""
    if _step_ended in state.on_step_end:
        state.on_step_end.remove(_step_ended)
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
            _startup,
        ),
        (schedules.PipelineScheduleSingle, "step", ("self", "args", "target"), _step),
        (schedules.PipelineScheduleMulti, "step", ("self", "args", "target"), _step),
    ]
    state.on_step_end.append(_step_ended)
    problems = [_patches.wrap(*arguments) for arguments in wrapped]
    native.set_fact("hook.pipelining", "; ".join(filter(None, problems))[:200])


def _step_ended() -> None:
    global _ended_steps
    _ended_steps += 1


def _recorded(what: str, number: int = 0) -> Callable[[Method], Method]:
    """Of C, since a schedule calls these for each microbatch: csrc/bindings/pipeline_calls.cc."""

    def make(original: Method) -> Method:
        return native.recorded_stage_method(what, original, number)

    return make


def _labelled(kind: KindName) -> Callable[[Method], Method]:
    return _recorded("operations", KIND_NAMES.index(kind))


def _startup(original: Method) -> Method:
    def _initialize_pp_stages(self: Any, *args: Any, **kwargs: Any) -> Any:
        # (stages, args, kwargs, target, fwd_initialized, bwd_initialized)
        is_done = len(args) > 5 and args[4] and args[5] == getattr(self, "_has_backward", None)
        if is_done or _of_thread.running.is_eval:
            return original(self, *args, **kwargs)
        with native.span(_STARTUP), collectives.override(_NOT_OF_MICROBATCHES):
            return original(self, *args, **kwargs)

    return _initialize_pp_stages


def _step(original: Method) -> Method:
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        running = _of_thread.running
        if running.schedule is not None:  # of a class that calls another's step
            return original(self, *args, **kwargs)
        try:
            _enter(self)
        except Exception as error:
            state.failed("pipelining", error)
        try:
            if running.is_eval:
                with native.span(_EVAL, flags=FORWARD_ONLY), collectives.override(_NOT_OF_MICROBATCHES):
                    return original(self, *args, **kwargs)
            return original(self, *args, **kwargs)
        finally:
            try:
                _leave()
            except Exception as error:
                state.failed("pipelining", error)

    return step


def _enter(schedule: Any) -> None:
    running = _of_thread.running
    running.schedule = schedule
    running.is_eval = getattr(schedule, "_has_backward", True) is False
    try:
        if not running.is_eval:
            steps.begin_unless_explicit()
            steps.interrupt()
            is_same = running.step == _ended_steps
            running.microbatch_offset = running.microbatch_offset + schedule._n_microbatches if is_same else 0
            running.step = _ended_steps
            compute.model_ran()
        _say_layout(schedule)
        native.enter_schedule(running.is_eval, running.is_loop, _loss_follows(schedule), running.microbatch_offset)
    except Exception as error:
        native.set_fact("hook.pipelining.layout", words_of(error)[:200])


def _loss_follows(schedule: Any) -> bool:
    """Whether the schedule's own code runs, which computes the loss next; the job's functions may do as they like."""
    return getattr(schedule, "_loss_fn", None) is not None and not getattr(schedule, "_comp_type_to_function_map", None)


def _leave() -> None:
    running = _of_thread.running
    native.leave_schedule()
    running.schedule = None
    running.is_eval = False


def _say_layout(schedule: Any) -> None:
    running = _of_thread.running
    schedule_now = (state.switch.recording, id(schedule))
    if schedule_now == running.known_schedule:
        return
    running.known_schedule = schedule_now
    stages = getattr(schedule, "_stages", None) or [schedule._stage]
    stage = stages[0]
    places = stage.stage_index_to_group_rank
    running.is_loop = all(place == index % stage.group_size for index, place in places.items())
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
