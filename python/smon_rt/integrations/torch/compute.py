"""Forward and backward of plain (not pipelined) models, by microbatch.

forward_compute is from the call of the outermost module with parameters to the call of backward, so the loss, which is
mostly a function of the script, belongs to it; if anything else that is recorded comes between, it ended when the
module returned. backward_compute is `torch.autograd.backward` up to the end of computing: what DDP waits for after that
is its collectives' time. Calls without gradients are eval spans.

Outermost modules are found by wrapping `Module.__call__` between their calls, for the first steps only; after that only
the classes found then are wrapped. Whoever opens such a span himself (a script, a pipeline schedule) is left alone.

Threading: the job's own threads.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from smon_rt._backend import native
from smon_rt.integrations.state import FORWARD_ONLY, HOST, call_all, failed, mask, switch
from smon_rt.integrations.torch import gradients, steps
from smon_rt.kinds import KIND_NAMES

__all__ = ["Roots", "backward", "close_forward", "model_ran", "step_ended"]

_FORWARD, _BACKWARD, _EVAL = map(KIND_NAMES.index, ("forward_compute", "backward_compute", "eval"))
#: Whoever has one of these open records what this module would.
_COMPUTE = mask("forward_compute", "backward_compute", "forward_backward_combined", "eval", "startup")
_DISCOVERY_STEPS = 3
#: Python forgets what it knew of some thousand classes each time `Module.__call__` changes: a tenth of a millisecond.
_DISCOVERY_CALLS = 32

Call = Callable[..., Any]


class _Counts:
    """Of the current step. An object, since an attribute of a class is costly to set."""

    models = 0
    """Calls of outermost modules with parameters, recorded or not."""
    forwards = 0
    backwards = 0
    is_end_awaited = False
    """The engine will say when this backward pass has computed all."""


_counts = _Counts()


#: Called when a backward pass has returned: whatever it reduces is reduced.
on_backward_end: list[Callable[[], None]] = []

_ON_EVAL_END = [steps.go_on]


class Roots:
    """Wraps the calls of outermost modules, and puts everything back."""

    def __init__(self, torch: Any) -> None:
        self._module = torch.nn.Module
        self._call: Call = self._module.__call__
        self._is_compiling: Callable[[], bool] = torch.compiler.is_compiling
        self._is_grad_enabled: Callable[[], bool] = torch.is_grad_enabled
        self._classes: dict[type, tuple[Call | None, Call]] = {}
        self._discovery = self._wrapped(self._call)
        self._steps_left = 0
        self._calls_left = 0

    def discover(self, steps_count: int = _DISCOVERY_STEPS) -> None:
        """For some steps every outermost call is noticed."""
        self._steps_left = steps_count
        self._calls_left = _DISCOVERY_CALLS
        self._begin_discovery()

    def step_ended(self) -> None:
        """Ends the discovery, or begins one: gradients came from a model that was not seen."""
        if self._steps_left > 0:
            self._steps_left -= 1 if _counts.models else 0
            if self._steps_left == 0:
                self._end_discovery()
        elif _counts.backwards > 0 and _counts.models == 0:
            self.discover(1)

    def restore(self) -> None:
        """Puts every `__call__` back, except where someone has replaced ours since."""
        self._steps_left = 0
        self._end_discovery()
        for owner, (own_call, replacement) in self._classes.items():
            if vars(owner).get("__call__") is replacement:
                if own_call is None:
                    del owner.__call__
                else:
                    owner.__call__ = own_call  # type: ignore[method-assign]
        self._classes.clear()

    def _begin_discovery(self) -> None:
        if self._module.__call__ is self._call:  # else someone else has replaced it
            self._module.__call__ = self._discovery

    def _end_discovery(self) -> None:
        if self._module.__call__ is self._discovery:
            self._module.__call__ = self._call

    def _wrapped(self, original: Call) -> Call:
        is_compiling, root_call, is_inside = self._is_compiling, self._root_call, native.is_inside_model

        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            # First what torch.compile takes for a constant, so that it sees a plain call in what it compiles.
            if is_compiling() or is_inside() or not switch.is_on:
                return original(self, *args, **kwargs)
            return root_call(original, self, args, kwargs)

        return __call__

    def _root_call(self, original: Call, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        token = 0
        is_eval = False
        try:
            if self._is_recorded(module):
                is_eval = not self._is_grad_enabled()
                token = _begin_eval() if is_eval else _begin_forward(module)
        except Exception as error:
            failed("torch.forward", error)
        native.set_inside_model(True)
        # Not for the calls inside, which torch.compile may be looking at: what it has seen must stay as it was.
        self._end_discovery()
        try:
            result = original(module, *args, **kwargs)
        except BaseException:
            if token:
                native.set_forward(0)
                native.abort(token)
            raise
        finally:
            native.set_inside_model(False)
            if self._steps_left > 0 and self._calls_left > 0:
                self._calls_left -= 1
                self._begin_discovery()
        if is_eval:
            native.end(token)
            call_all(_ON_EVAL_END, "torch.forward")
        elif token:
            native.forward_returned()
        return result

    def _is_recorded(self, module: Any) -> bool:
        owner = type(module)
        if owner not in self._classes:
            if next(module.parameters(), None) is None:
                return False  # a loss, a transform: no model
            self._wrap_class(owner)
        _counts.models += 1
        # Recomputed activations are part of the backward pass, on whichever thread.
        return not gradients.is_in_backward()

    def _wrap_class(self, owner: type) -> None:
        if owner is self._module:
            return
        holder = next(cls for cls in owner.__mro__ if "__call__" in vars(cls))
        original = self._call if holder is self._module else vars(holder)["__call__"]
        own_call = original if holder is owner else None
        replacement = self._wrapped(original)
        try:
            owner.__call__ = replacement  # type: ignore[method-assign]
        except TypeError:  # not a class of Python
            return
        self._classes[owner] = own_call, replacement


def _begin_forward(module: Any) -> int:
    if forward := native.forward():
        return forward  # another part of the same microbatch's model
    steps.begin_unless_explicit()
    steps.interrupt()
    if native.find_open(_COMPUTE):
        return 0
    gradients.forward_ran(module)
    token = native.begin(_FORWARD, _counts.forwards, 0)
    _counts.forwards += 1
    native.set_forward(token)
    return token


def _begin_eval() -> int:
    native.close_forward(0)
    steps.interrupt()
    if native.find_open(_COMPUTE):
        return 0
    return native.begin(_EVAL, -1, -1, 0, 0, -1, 0, 0, 0, FORWARD_ONLY)


def close_forward() -> None:
    """Something else begins: the forward that is still awaiting its backward ended when its module returned."""
    native.close_forward(0)


def backward(original: Call) -> Call:
    """What `torch.autograd.backward` becomes."""
    is_compiling: Callable[[], bool] = sys.modules["torch"].compiler.is_compiling
    enter_stage, leave_stage, ended = native.enter_stage_backward, native.leave_stage_backward, gradients.backward_ended

    def recorded(*args: Any, **kwargs: Any) -> Any:
        if is_compiling() or not switch.is_on:
            return original(*args, **kwargs)
        if enter_stage():  # the backward of a pipeline's stage, which is recorded: nothing is left to find out
            _counts.is_end_awaited = False
            result = original(*args, **kwargs)
            leave_stage()
            ended()
            return result
        token = None
        try:
            # One inside another belongs to it: recomputed activations.
            token = None if gradients.is_in_backward() else _begin_backward()
        except Exception as error:
            failed("torch.backward", error)
        if token is None:
            return original(*args, **kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException:
            native.abort(token)
            raise
        if token:  # else whoever recorded it takes the end
            native.end_at(token, native.take_backward_end(), HOST, 0)
        call_all(on_backward_end, "torch.backward")
        return result

    return recorded


def _begin_backward() -> int:
    _counts.is_end_awaited = False
    native.take_backward_end()
    native.end_forward()
    steps.interrupt()
    microbatch = min(_counts.backwards, max(_counts.forwards - 1, 0))
    if native.find_open(_COMPUTE):
        return 0
    _counts.backwards += 1
    token = native.begin(_BACKWARD, microbatch, 0)
    native.await_backward_end(token)
    return token


def reduction_began() -> None:
    """The reducer issues its first collective of this backward pass: it will wait at the end, after computing.

    The engine calls what is queued here in order, and the reducer queues its wait after its last collective.
    """
    if _counts.is_end_awaited:
        return
    _counts.is_end_awaited = True
    sys.modules["torch"].autograd.Variable._execution_engine.queue_callback(native.backward_computed)


def model_ran() -> None:
    """A model's calls in this step are recorded elsewhere: none need be looked for."""
    _counts.models += 1


def step_ended() -> None:
    """Counts of microbatches begin again."""
    native.close_forward(FORWARD_ONLY)
    _counts.models = _counts.forwards = _counts.backwards = 0
