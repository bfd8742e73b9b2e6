"""Steps of a loop that nobody counts: it says none, and is not recorded. The first optimizer's `step` ends one.

Uses torch's own hook (2.1 and newer), once the job has loaded torch; never loads it.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

from smon_rt.integrations import on_import
from smon_rt.integrations.state import failed

__all__ = ["OptimizerSteps"]

_MODULE = "torch.optim.optimizer"


class OptimizerSteps:
    """Counts them, until it hears that somebody else does.

    Args:
        step_begun: called with the number of each step that begins, as one ends.
    """

    def __init__(self, step_begun: Callable[[int], None]) -> None:
        self._step_begun = step_begun
        self._optimizer: Callable[[], Any] | None = None
        self._step = 0
        self._handle: Any = None

    def attach(self) -> None:
        """Now, or once torch is there."""
        on_import.when_imported(_MODULE, self._register)

    def detach(self) -> None:
        """No longer."""
        on_import.forget(self._register)
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.remove()

    def others_count(self) -> None:
        """Somebody says the steps."""
        if self._handle is not None:
            self.detach()

    def _register(self) -> None:
        register = getattr(sys.modules[_MODULE], "register_optimizer_step_post_hook", None)
        if register is not None:
            self._handle = register(self._stepped)

    def _stepped(self, optimizer: Any, _args: object, _kwargs: object) -> None:
        try:
            first = None if self._optimizer is None else self._optimizer()
            if first is None:
                self._optimizer = weakref.ref(optimizer)
            elif first is not optimizer:
                return
            self._step += 1
            self._step_begun(self._step)
        except Exception as error:
            failed("gc_plan", error)
