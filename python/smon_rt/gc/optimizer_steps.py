"""Steps of a loop that nobody counts: it says none, and is not recorded. The first optimizer's `step` ends one; once
another has done many and the first none, as in a second phase of a training, that one's.

Uses torch's own hook (2.1 and newer), once the job has loaded torch; never loads it. The hook stays in torch, with
nothing to do: taken out while torch goes through its hooks, it would have that optimizer's step fail.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

from smon_rt.integrations import on_import
from smon_rt.integrations.state import failed

__all__ = ["OptimizerSteps"]

_MODULE = "torch.optim.optimizer"
#: Of one optimizer while the first does none: a critic that is trained more often stays below.
_MOST_OF_ANOTHER = 20


class OptimizerSteps:
    """Counts them, until it hears that somebody else does.

    Args:
        step_begun: called with the number of each step that begins, as one ends.
    """

    def __init__(self, step_begun: Callable[[int], None]) -> None:
        self._step_begun = step_begun
        self._optimizer: Callable[[], Any] | None = None
        self._others: Counter[int] = Counter()
        self._step = 0

    def attach(self) -> None:
        """Now, or once torch is there."""
        _Hook.counter = self
        on_import.when_imported(_MODULE, _register)

    def detach(self) -> None:
        """No longer: the plan stops, or somebody says the steps."""
        if _Hook.counter is self:
            on_import.forget(_register)
            _Hook.counter = None

    def stepped(self, optimizer: Any) -> None:
        """One of the job's optimizers has done its step."""
        first = None if self._optimizer is None else self._optimizer()
        if first is not None and first is not optimizer:
            self._others[id(optimizer)] += 1
            if self._others[id(optimizer)] <= _MOST_OF_ANOTHER:
                return
        if first is not optimizer:
            self._optimizer = weakref.ref(optimizer)
        self._others.clear()
        self._step += 1
        self._step_begun(self._step)


class _Hook:
    """The one of this process."""

    counter: OptimizerSteps | None = None
    is_registered = False


def _register() -> None:
    register = getattr(sys.modules[_MODULE], "register_optimizer_step_post_hook", None)
    if register is not None and not _Hook.is_registered:
        _Hook.is_registered = True
        register(_stepped)


def _stepped(optimizer: Any, _args: object, _kwargs: object) -> None:
    counter = _Hook.counter
    if counter is None:
        return
    try:
        counter.stepped(optimizer)
    except Exception as error:
        failed("gc_plan", error)
