"""data_loading: what the job waits for in the next() of a DataLoader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from smon_rt._backend import native
from smon_rt.integrations.state import begin_unless_open, call_all, mask, switch
from smon_rt.integrations.torch import steps
from smon_rt.kinds import KIND_NAMES

__all__ = ["next_batch"]

_DATA_LOADING = KIND_NAMES.index("data_loading")
#: Whoever has one of these open records what this would: evaluations are one span.
_RECORDED = mask("data_loading", "eval")


def next_batch(original: Callable[..., Any]) -> Callable[..., Any]:
    """What `_BaseDataLoaderIter.__next__` becomes. A call that finds no batch any more is marked aborted."""

    def __next__(self: Any) -> Any:  # noqa: N807
        if not switch.is_on:
            return original(self)
        call_all(steps.on_other_work, "torch.data")
        token = begin_unless_open(_DATA_LOADING, _RECORDED, "torch.data")
        try:
            batch = original(self)
        except BaseException:
            native.abort(token)
            raise
        native.end(token)
        return batch

    return __next__
