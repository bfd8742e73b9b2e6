"""Megatron's pipeline schedules: forward and backward of each microbatch, passes, evaluation.

What is recorded, by the functions of core 0.16.1, which schedules look up each time they call them:

- forward_compute: `forward_step`, which says microbatch and chunk; the loss is part of it.
- backward_compute: `backward_step`, which does not: see pass_ids.py.
- A pass that is `forward_only` is one eval span.
- forward_backward_combined: `combined_forward_backward_step`, which runs a forward and another microbatch's backward
  layer by layer in turns, is one span with the forward's ids. Where only one of them is left it is that.
- A pass that is replayed as a CUDA graph runs no Python: only its step is recorded, and the header says so.

A script that has fetched a schedule's function before recording began calls it past us: computes are recorded, messages
have no microbatch, and torch's optimizers end the steps.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

from smon_rt._backend import native
from smon_rt.integrations import p2p_labels
from smon_rt.integrations.megatron import passes
from smon_rt.integrations.megatron.layout import SCHEDULE_NAMES
from smon_rt.integrations.megatron.pass_ids import NO_IDS, Ids, PassIds
from smon_rt.integrations.megatron.passes import optimizer_stepped
from smon_rt.integrations.patches import Method, Patches
from smon_rt.integrations.state import FORWARD_ONLY, HOST, failed, say_once, switch
from smon_rt.integrations.torch import collectives
from smon_rt.kinds import KIND_NAMES

__all__ = ["PARTS", "optimizer_stepped"]

_SCHEDULES = "megatron.core.pipeline_parallel.schedules"
_COMBINED = "megatron.core.pipeline_parallel.combined_1f1b"
_FULL_GRAPH = "megatron.core.full_cuda_graph"
_FORWARD, _BACKWARD, _BOTH, _EVAL = map(
    KIND_NAMES.index, ("forward_compute", "backward_compute", "forward_backward_combined", "eval")
)
_FORWARD_STEP = ("forward_step_func", "data_iterator", "model", "num_microbatches", "input_tensor")
_BACKWARD_STEP = ("input_tensor", "output_tensor", "output_tensor_grad")
_COMBINED_STEP = ("forward_step_func", "data_iterator", "f_model", "num_microbatches", "input_tensor")
_PASS = ("forward_step_func", "data_iterator", "model", "num_microbatches")
#: Operations that belong to no microbatch: those of evaluation, and of the model. What reduces gradients in a backward
#: says so itself: gradients.py.
_PLAIN: dict[str, int] = {}

_Call = dict[str, Any]
_Begins = Callable[..., tuple[int, Ids]]
_Ends = Callable[[PassIds, int, Ids, Any], None]


def _wrap_schedules(patches: Patches) -> list[str]:
    module = sys.modules[_SCHEDULES]
    problems = [patches.wrap(module, name, _PASS, _pass) for name in SCHEDULE_NAMES]
    problems.append(patches.wrap(module, "forward_step", _FORWARD_STEP, _forward_step))
    problems.append(patches.wrap(module, "backward_step", _BACKWARD_STEP, _backward_step))
    if hasattr(module, "backward_step_multimodule"):  # since core 0.17
        problems.append(patches.wrap(module, "backward_step_multimodule", _BACKWARD_STEP, _backward_step))
    return problems


def _wrap_combined(patches: Patches) -> list[str]:
    module = sys.modules[_COMBINED]
    return [patches.wrap(module, "combined_forward_backward_step", _COMBINED_STEP, _combined_step)]


def _wrap_full_graph(patches: Patches) -> list[str]:
    owner = sys.modules[_FULL_GRAPH].FullCudaGraphWrapper
    return [patches.wrap(owner, "__call__", ("self",), _graph_pass)]


def _pass(original: Method) -> Method:
    names, schedule = tuple(inspect.signature(original).parameters), original.__name__

    def forward_backward(*args: Any, **kwargs: Any) -> Any:
        if not switch.is_on or passes.running.is_running:
            return original(*args, **kwargs)
        try:
            call = dict(zip(names, args, strict=False)) | kwargs
            if call.get("forward_only"):
                return _evaluate(original, args, kwargs)
            _begin(schedule, call)
            return original(*args, **kwargs)
        finally:
            _end()

    return forward_backward


def _evaluate(original: Method, args: tuple[Any, ...], kwargs: _Call) -> Any:
    passes.begin_unrecorded()
    native.close_forward(0)
    was_inside = native.is_inside_model()
    native.set_inside_model(True)
    try:
        with native.span(_EVAL, flags=FORWARD_ONLY), collectives.override(_PLAIN):
            return original(*args, **kwargs)
    finally:
        native.set_inside_model(was_inside)


def _begin(schedule: str, call: _Call) -> None:
    try:
        passes.begin(schedule, call)
    except Exception as error:
        failed("megatron.schedules", error)


def _end() -> None:
    try:
        passes.end()
        p2p_labels.clear()
    except Exception as error:
        failed("megatron.schedules", error)


def _recorded(original: Method, kind: int, wanted: tuple[str, ...], begins: _Begins, ends: _Ends) -> Method:
    """A compute, of this kind as a rule.

    Args:
        wanted: names of its arguments that `begins` gets after the pass, to say what it is; None for one not given.
        ends: gets what `begins` said, and the result.
    """
    names = list(inspect.signature(original).parameters)
    places = [(name, names.index(name) if name in names else len(names)) for name in wanted]

    def run(*args: Any, **kwargs: Any) -> Any:
        of_pass = passes.running.ids if switch.is_on else None
        if of_pass is None:
            return original(*args, **kwargs)
        what, ids = kind, NO_IDS
        try:
            given = [kwargs[name] if name in kwargs else args[at] if at < len(args) else None for name, at in places]
            what, ids = begins(of_pass, *given)
        except Exception as error:
            failed("megatron.schedules", error)
        token = native.begin(what, ids.microbatch, ids.chunk)
        native.await_backward_end(token)
        # Models that it calls are this compute, and need not find that out themselves.
        was_inside = native.is_inside_model()
        native.set_inside_model(True)
        try:
            with collectives.override(_PLAIN):
                result = original(*args, **kwargs)
        except BaseException:
            native.abort(token)
            raise
        finally:
            native.set_inside_model(was_inside)
        # What torch's DDP waits for at the end of its last backward is its collectives' time.
        native.end_at(token, native.take_backward_end(), HOST, 0)
        try:
            ends(of_pass, what, ids, result)
        except Exception as error:
            failed("megatron.schedules", error)
        return result

    return run


def _forward_step(original: Method) -> Method:
    wanted = ("current_microbatch", "vp_stage", "model", "input_tensor")
    recorded = _recorded(original, _FORWARD, wanted, _begins_forward, _ends_forward)

    def forward_step(*args: Any, **kwargs: Any) -> Any:
        if not switch.is_on or passes.running.is_running or _is_training():
            return recorded(*args, **kwargs)
        try:
            return _evaluate(original, args, kwargs)
        finally:
            _end()

    return forward_step


def _is_training() -> bool:
    """Whether a forward that is in no pass of ours is not one of evaluation."""
    torch = sys.modules.get("torch")
    return torch is None or bool(torch.is_grad_enabled())


def _begins_forward(of_pass: PassIds, microbatch: Any, chunk: Any, model: Any, tensors: Any) -> tuple[int, Ids]:
    ids = of_pass.of_forward(microbatch, chunk, model)
    _check_order(of_pass, tensors, ids)
    return _FORWARD, ids


def _ends_forward(of_pass: PassIds, kind: int, ids: Ids, result: Any) -> None:
    if kind != _BACKWARD:
        of_pass.computed(ids, result[0], is_forward=True)


def _backward_step(original: Method) -> Method:
    return _recorded(original, _BACKWARD, ("output_tensor", "output_tensor_grad"), _begins_backward, _ends_backward)


def _begins_backward(of_pass: PassIds, output: Any, gradients: Any) -> tuple[int, Ids]:
    ids = of_pass.of_backward(output)
    _check_order(of_pass, gradients, ids)
    return _BACKWARD, ids


def _ends_backward(of_pass: PassIds, _kind: int, ids: Ids, result: Any) -> None:
    of_pass.computed(ids, result, is_forward=False)


def _combined_step(original: Method) -> Method:
    wanted = ("current_microbatch", "f_model_chunk_id", "f_model", "b_model", "b_output_tensor")
    return _recorded(original, _BOTH, wanted, _begins_combined, _ends_forward)


def _begins_combined(
    of_pass: PassIds, microbatch: Any, chunk: Any, model: Any, backward_model: Any, output: Any
) -> tuple[int, Ids]:
    backward = NO_IDS if backward_model is None else of_pass.of_backward(output)
    if model is None:
        return _BACKWARD, backward
    return (_FORWARD if backward_model is None else _BOTH), of_pass.of_forward(microbatch, chunk, model)


def _graph_pass(original: Method) -> Method:
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        if not switch.is_on or passes.running.is_running or not _is_captured(self, kwargs):
            return original(self, *args, **kwargs)
        if kwargs.get("forward_only"):
            try:
                return _evaluate(original, (self, *args), kwargs)
            finally:
                _end()
        _begin(getattr(self.forward_backward_func, "__name__", "unknown"), kwargs)
        passes.begin_unrecorded()
        native.set_fact("hook.megatron.full_cuda_graph", "forward, backward and messages are not captured: in a graph")
        try:
            with collectives.override(_PLAIN):
                return original(self, *args, **kwargs)
        finally:
            _end()

    return __call__


def _is_captured(wrapper: Any, call: _Call) -> bool:
    """Whether the pass is a graph already, or becomes one in this call: hooks would see it once only."""
    try:
        stage = "validation" if call.get("forward_only") else "training"
        return wrapper.cuda_graph[stage] is not None or wrapper.curr_iteration[stage] >= wrapper.cuda_graph_warmup_steps
    except Exception as error:
        failed("megatron.full_cuda_graph", error)
        return False


def _check_order(of_pass: PassIds, tensors: Any, ids: Ids) -> None:
    if not of_pass.used(tensors, ids):
        of_pass.are_receives_known = False
        reason = f"what came for microbatch {ids.microbatch}, chunk {ids.chunk} was taken to be for another"
        native.set_fact("hook.megatron.p2p_order", reason)
        say_once(f"Megatron's messages pair by number: {reason}")


PARTS: dict[str, tuple[str, Callable[[Patches], list[str]]]] = {
    "schedules": (_SCHEDULES, _wrap_schedules),
    "combined_1f1b": (_COMBINED, _wrap_combined),
    "full_cuda_graph": (_FULL_GRAPH, _wrap_full_graph),
}
