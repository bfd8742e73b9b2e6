"""data_loading: what a microbatch waits for in the next() of the iterator that the script gave to a schedule.

The job keeps its own iterator: what is hooked is `__next__` of the class that defines it, for the iterators of the
schedule's call that runs. Megatron's training loop wraps each in a `RerunDataIterator`, whose class is hooked from the
start, and torch's are recorded by its own integration. Classes that are not of Python (generators, map, islice) cannot
be hooked: of these only a DataLoader inside is seen, and the header says so.

Only the first of the tensor-parallel members loads; the others get the batch by a broadcast, a `collective`. What loads
in an evaluation is part of its eval span.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable
from typing import Any

from smon_rt._backend import native
from smon_rt.integrations.megatron import notices
from smon_rt.integrations.megatron.layout import SCHEDULE_NAMES
from smon_rt.integrations.patches import Method, Patches
from smon_rt.integrations.state import begin_unless_open, failed, mask, switch
from smon_rt.kinds import KIND_NAMES

__all__ = ["PARTS"]

_SCHEDULES = "megatron.core.pipeline_parallel.schedules"
_RERUN = "megatron.core.rerun_state_machine"
_LOADER = "torch.utils.data.dataloader"
_DATA_LOADING = KIND_NAMES.index("data_loading")
#: Whoever has one of these open records what this would.
_RECORDED = mask("data_loading", "eval")
#: A job that makes a class for each pass would have all of them kept.
_MOST_CLASSES = 32


class _Call(threading.local):
    """The schedule's call that runs on this thread."""

    iterators: tuple[Any, ...] = ()
    """What it was given: others of their classes load for something else, or ahead."""


class _Hooked:
    """Of all threads."""

    patches = Patches()
    classes = 0
    said: tuple[int, str] = (0, "")
    """The last recording in whose header it is said what is not seen, and that."""


_call = _Call()


def _wrap_schedules(patches: Patches) -> list[str]:
    _Hooked.patches, _Hooked.classes = patches, 0
    module = sys.modules[_SCHEDULES]
    parameters = ("forward_step_func", "data_iterator", "model")
    return [patches.wrap(module, name, parameters, _with_recorded_data) for name in SCHEDULE_NAMES]


def _wrap_rerun(patches: Patches) -> list[str]:
    return [patches.wrap(sys.modules[_RERUN].RerunDataIterator, "__next__", ("self",), _recorded_next)]


def _with_recorded_data(original: Method) -> Method:
    def forward_backward(*args: Any, **kwargs: Any) -> Any:
        if not switch.is_on:
            return original(*args, **kwargs)
        before = _call.iterators
        try:
            notices.look(kwargs.get("model"))
            _call.iterators = _iterators_in(kwargs.get("data_iterator"))
            _say("; ".join(dict.fromkeys(filter(None, map(_hook, _call.iterators)))))
        except Exception as error:
            failed("megatron.data", error)
        try:
            return original(*args, **kwargs)
        finally:
            _call.iterators = before

    return forward_backward


def _iterators_in(given: Any) -> tuple[Any, ...]:
    """A list has one for each chunk of the model, None where nothing is loaded."""
    return tuple(one for one in (given if isinstance(given, list) else [given]) if one is not None)


def _say(reason: str) -> None:
    if _Hooked.said != (switch.recording, reason):
        _Hooked.said = (switch.recording, reason)
        native.set_fact("hook.megatron.data_iterator", reason[:200])


def _hook(iterator: Any) -> str:
    """Hooks the `__next__` that `next` finds, and returns '', or why it is left alone."""
    name = type(iterator).__qualname__
    owner = next((one for one in type(iterator).__mro__ if "__next__" in vars(one)), None)
    if owner is None:
        return f"{name} has no __next__"
    if owner is getattr(sys.modules.get(_LOADER), "_BaseDataLoaderIter", None):
        return ""  # hooked by the integration of torch, if at all
    found = vars(owner)["__next__"]
    if not inspect.isfunction(found):
        return f"next() of {name} is not seen, since it is not of Python: only of a DataLoader inside"
    if found.__globals__.get("__name__") == __name__:
        return ""  # ours
    if type(owner).__setattr__ is not type.__setattr__:
        return f"next() of {name} is not seen: its class has its own way to be changed"
    if _Hooked.classes >= _MOST_CLASSES:
        return f"next() of {name} is not seen: the job has more than {_MOST_CLASSES} classes of iterators"
    _Hooked.classes += 1
    return _Hooked.patches.wrap(owner, "__next__", (), _recorded_next_of_call)


def _recorded_next(original: Method) -> Method:
    def __next__(self: Any) -> Any:  # noqa: N807
        return _next(original, self) if switch.is_on else original(self)

    return __next__


def _recorded_next_of_call(original: Method) -> Method:
    def __next__(self: Any) -> Any:  # noqa: N807
        is_given = switch.is_on and any(one is self for one in _call.iterators)
        return _next(original, self) if is_given else original(self)

    return __next__


def _next(original: Callable[[Any], Any], iterator: Any) -> Any:
    """A call that finds no batch any more is marked aborted."""
    token = begin_unless_open(_DATA_LOADING, _RECORDED, "megatron.data") if switch.is_on else 0
    try:
        batch = original(iterator)
    except BaseException:
        native.abort(token)
        raise
    native.end(token)
    return batch


PARTS: dict[str, tuple[str, Callable[[Patches], list[str]]]] = {
    "data": (_SCHEDULES, _wrap_schedules),
    "rerun_data": (_RERUN, _wrap_rerun),
}
