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
from smon_rt.integrations.state import FORWARD_ONLY, failed, mask, switch
from smon_rt.integrations.torch import gradients, steps
from smon_rt.kinds import KIND_NAMES

__all__ = ["Roots", "learn_torch", "reduction_began"]

_FORWARD, _EVAL = map(KIND_NAMES.index, ("forward_compute", "eval"))
#: Whoever has one of these open records what this module would.
_COMPUTE = mask("forward_compute", "backward_compute", "forward_backward_combined", "eval", "startup")
_DISCOVERY_STEPS = 3
#: Python forgets what it knew of some thousand classes each time `Module.__call__` changes: a tenth of a millisecond.
_DISCOVERY_CALLS = 32

Call = Callable[..., Any]


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
        switch.is_looking_for_models = True
        self._begin_discovery()

    def step_ended(self) -> None:
        """Ends the discovery, or begins one: gradients came from a model that was not seen."""
        if self._steps_left > 0:
            self._steps_left -= 1 if switch.models else 0
            if self._steps_left == 0:
                switch.is_looking_for_models = False
                self._end_discovery()
        elif switch.backwards > 0 and switch.models == 0:
            self.discover(1)

    def restore(self) -> None:
        """Puts every `__call__` back, except where someone has replaced ours since."""
        self._steps_left = 0
        switch.is_looking_for_models = False
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
            native.go_on_with_optimizer()
        elif token:
            native.forward_returned()
        return result

    def _is_recorded(self, module: Any) -> bool:
        owner = type(module)
        if owner not in self._classes:
            if next(module.parameters(), None) is None:
                return False  # a loss, a transform: no model
            self._wrap_class(owner)
        switch.models += 1
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
    native.interrupt_optimizer()
    if native.find_open(_COMPUTE):
        return 0
    gradients.forward_ran(module)
    token = native.begin(_FORWARD, switch.forwards, 0)
    switch.forwards += 1
    native.set_forward(token)
    return token


def _begin_eval() -> int:
    native.close_forward(0)
    native.interrupt_optimizer()
    if native.find_open(_COMPUTE):
        return 0
    return native.begin(_EVAL, -1, -1, 0, 0, -1, 0, 0, 0, FORWARD_ONLY)


def learn_torch(torch: Any) -> None:
    """What the backward's wrapper (csrc/bindings/pass_calls.cc) asks of torch."""
    native.learn_passes(torch.compiler.is_compiling, getattr(torch._C, "_current_graph_task_id", None))


def reduction_began() -> None:
    """The reducer issues its first collective of this backward pass: it will wait at the end, after computing.

    The engine calls what is queued here in order, and the reducer queues its wait after its last collective.
    """
    if switch.is_end_awaited:
        return
    switch.is_end_awaited = True
    sys.modules["torch"].autograd.Variable._execution_engine.queue_callback(native.backward_computed)
