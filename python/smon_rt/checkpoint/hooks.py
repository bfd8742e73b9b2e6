"""Where a checkpoint acts by itself: before an optimizer steps, and at the next forward of a job that says no steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class Hooks:
    """Hooks in the models and optimizers of a job; `remove` takes them out.

    Args:
        before_update: called before each step of an optimizer.
        iteration_ended: called at the first forward in training mode after an optimizer has stepped.
    """

    def __init__(
        self,
        models: list[torch.nn.Module],
        optimizers: list[torch.optim.Optimizer],
        before_update: Callable[[], None],
        iteration_ended: Callable[[], None],
    ) -> None:
        self.has_stepped = False
        self._before_update = before_update
        self._iteration_ended = iteration_ended
        self._handles: list[Any] = [optimizer.register_step_pre_hook(self._on_step) for optimizer in optimizers]
        # Of several models (pipeline chunks) the first one's forward begins an iteration. Before other hooks, which
        # gather parameters.
        self._handles.append(models[0].register_forward_pre_hook(self._on_forward, prepend=True))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _on_step(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self._before_update()
        self.has_stepped = True

    def _on_forward(self, module: torch.nn.Module, _args: Any) -> None:
        if self.has_stepped and module.training:
            self.has_stepped = False
            self._iteration_ended()
