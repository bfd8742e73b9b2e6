"""A training step of 20 regions, on the processor, as long as it should be: real products, backward, clipping, SGD."""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

MICROBATCHES = 4
REGIONS = 4 * MICROBATCHES + 4
#: Length of a step in ms → layers and their width: longer steps are those of larger models.
SIZES = {1: (1, 32), 10: (6, 128), 100: (16, 256)}


class Job:
    """A model and its step, as parts that each are a region: (kind of smon_rt, work)."""

    def __init__(self, length_ms: int) -> None:
        self.torch: Any = importlib.import_module("torch")
        self.length_ms = length_ms
        self.rows = 2
        layers, self._width = SIZES[length_ms]
        nn = self.torch.nn
        blocks = [nn.Sequential(nn.Linear(self._width, self._width), nn.GELU()) for _ in range(layers)]
        self.model: Any = nn.Sequential(*blocks, nn.Linear(self._width, 8))
        self._optimizer: Any = self.torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9, foreach=True)
        self._batch: Any = None
        self._output: Any = None
        self._loss: Any = None
        microbatch: list[tuple[str, Callable[[], object]]] = [
            ("data_loading", self._load),
            ("forward_compute", self._forward),
            ("user", self._find_loss),
            ("backward_compute", self._backward),
        ]
        rest: list[tuple[str, Callable[[], object]]] = [
            ("optimizer_clip_main_grad", self._clip),
            ("optimizer", self._optimizer.step),
            ("user", self._optimizer.zero_grad),
            ("metric", lambda: self._loss.item()),
        ]
        self.parts = microbatch * MICROBATCHES + rest

    def _load(self) -> None:
        self._batch = self.torch.randn(self.rows, self._width)

    def _forward(self) -> None:
        self._output = self.model(self._batch)

    def _find_loss(self) -> None:
        self._loss = self._output.square().mean()

    def _backward(self) -> None:
        self._loss.backward()

    def _clip(self) -> None:
        self.torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)

    def bare(self) -> None:
        for _, work in self.parts:
            work()

    def with_regions(self, region: Callable[[str], AbstractContextManager[Any]]) -> None:
        for kind, work in self.parts:
            with region(kind):
                work()

    def fit(self) -> None:
        """As many rows a microbatch as make a step take its time."""
        rows, target_s = self.rows, self.length_ms / 1000
        few_s = self._usual_s(rows)
        many = 16 * rows
        many_s = self._usual_s(many)
        a_row_s = max((many_s - few_s) / (many - rows), 1e-9)
        self.rows = max(1, round(rows + (target_s - few_s) / a_row_s))
        for _ in range(2):
            self.rows = max(1, round(self.rows * target_s / self._usual_s(self.rows)))

    def _usual_s(self, rows: int) -> float:
        """Processor time of this thread, which does it all: neighbours do not change the step that is fitted."""
        self.rows = rows
        times = []
        for _ in range(6):
            began_s = time.thread_time()
            self.bare()
            times.append(time.thread_time() - began_s)
        return statistics.median(times[1:])
