"""data_loading: what a microbatch waits for in the next() of the iterator that the script gave to a schedule.

Megatron's training loop wraps each iterator in a `RerunDataIterator`, whose class is hooked, and torch's own are
recorded anyway. Any other one gets a stand-in for the length of a schedule's call, which hands on everything else that
is asked of it.

Only the first of the tensor-parallel members loads; the others get the batch by a broadcast, a `collective`. What loads
in an evaluation is part of its eval span.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from smon_rt._backend import native
from smon_rt.integrations.megatron import notices
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
_NAMES = (
    "forward_backward_no_pipelining",
    "forward_backward_pipelining_without_interleaving",
    "forward_backward_pipelining_with_interleaving",
)


class _Recorded:
    """Stands in for an iterator."""

    __slots__ = ("_smon_iterator",)

    def __init__(self, iterator: Any) -> None:
        object.__setattr__(self, "_smon_iterator", iterator)

    def __iter__(self) -> _Recorded:
        return self

    def __next__(self) -> Any:
        return _next(next, self._smon_iterator)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._smon_iterator, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._smon_iterator, name, value)

    def __len__(self) -> int:
        return len(self._smon_iterator)


def _wrap_schedules(patches: Patches) -> list[str]:
    module = sys.modules[_SCHEDULES]
    parameters = ("forward_step_func", "data_iterator", "model")
    return [patches.wrap(module, name, parameters, _with_recorded_data) for name in _NAMES]


def _wrap_rerun(patches: Patches) -> list[str]:
    return [patches.wrap(sys.modules[_RERUN].RerunDataIterator, "__next__", ("self",), _recorded_next)]


def _with_recorded_data(original: Method) -> Method:
    def forward_backward(*args: Any, **kwargs: Any) -> Any:
        if switch.is_on:
            try:
                notices.look(kwargs.get("model"))
                if "data_iterator" in kwargs:
                    kwargs["data_iterator"] = _recorded(kwargs["data_iterator"])
            except Exception as error:
                failed("megatron.data", error)
        return original(*args, **kwargs)

    return forward_backward


def _recorded(iterators: Any) -> Any:
    """The same, or stand-ins: a list has one iterator for each chunk of the model."""
    if isinstance(iterators, list):
        return [_recorded(one) for one in iterators]
    is_iterator = hasattr(type(iterators), "__next__")
    return _Recorded(iterators) if is_iterator and not isinstance(iterators, _hooked_classes()) else iterators


def _hooked_classes() -> tuple[type, ...]:
    owners = ((_RERUN, "RerunDataIterator"), (_LOADER, "_BaseDataLoaderIter"))
    found = (getattr(sys.modules.get(module_name), name, None) for module_name, name in owners)
    return (_Recorded, *(one for one in found if isinstance(one, type)))


def _recorded_next(original: Method) -> Method:
    def __next__(self: Any) -> Any:  # noqa: N807
        return _next(original, self) if switch.is_on else original(self)

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
