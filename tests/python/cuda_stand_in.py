"""Stands in for torch on a GPU, as far as the checks of `smon check-gpu` use it: streams are queues with a time each.

Nothing is computed but when it would be done; a product's value is the square of its input's. With the project's fake
driver in the process (`driver`), the recorder takes its events in what is launched here.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

_PRODUCT_NS = 2_000_000
_CYCLE_NS = 1.0


@dataclass
class Tensor:
    """A value, None before a product that was captured was replayed."""

    value: float | None

    def item(self) -> float | None:
        return self.value


@dataclass(eq=False)
class Stream:
    ready_ns: float = 0.0
    """When all that was launched is done."""

    def wait_stream(self, other: Stream) -> None:
        self.ready_ns = max(self.ready_ns, other.ready_ns)


@dataclass
class Gpu:
    """One GPU, and the module that reaches it: `Gpu().torch`."""

    driver: ctypes.CDLL | None = None
    is_serial: Callable[[], bool] = lambda: False
    """Whether what is launched now waits for all streams, as behind an event where the GPU has one queue."""
    breaks_captures: bool = False
    """Whether a replay computes nothing, as after a capture that somebody disturbed."""
    streams: list[Stream] = field(default_factory=lambda: [Stream()])
    current: Stream = field(init=False)
    captured: list[Callable[[], None]] | None = None

    def __post_init__(self) -> None:
        self.current = self.streams[0]

    @property
    def torch(self) -> Any:
        cuda = SimpleNamespace(
            Stream=self._make_stream,
            Event=lambda enable_timing: _Event(self),
            CUDAGraph=lambda: _Graph(self),
            current_stream=lambda: self.current,
            stream=self._stream,
            synchronize=self.synchronize,
            _sleep=lambda cycles: self.launch(cycles * _CYCLE_NS),
        )
        return SimpleNamespace(
            cuda=cuda,
            bfloat16="bfloat16",
            int64="int64",
            zeros=lambda *_shape, **_options: Tensor(0.0),
            randn=lambda *_shape, **_options: Tensor(3.0),
            empty_like=lambda _other: Tensor(None),
            mm=self._mm,
            allclose=lambda one, other, **_tolerances: one.value == other.value,
        )

    def launch(self, duration_ns: float, effect: Callable[[], None] = lambda: None) -> None:
        if self.captured is not None and self.current is self.capturing:
            self.captured.append(effect)
            return
        if self.is_serial():
            self.synchronize()
        effect()
        self.current.ready_ns += duration_ns

    def synchronize(self) -> None:
        last_ns = max(stream.ready_ns for stream in self.streams)
        for stream in self.streams:
            stream.ready_ns = last_ns
        if self.driver is not None:
            self.driver.cuCtxSynchronize()

    def begin_capture(self) -> None:
        self.capturing, self.captured = self.current, []
        if self.driver is not None:
            # To the driver there is one stream here, the default one.
            self.driver.fake_cuda_capture(None, 1)

    def end_capture(self) -> list[Callable[[], None]]:
        captured, self.captured = self.captured or [], None
        if self.driver is not None:
            self.driver.fake_cuda_capture(None, 0)
        return captured

    def _mm(self, one: Tensor, other: Tensor, out: Tensor | None = None) -> Tensor:
        result = Tensor(None) if out is None else out

        def effect() -> None:
            assert one.value is not None
            assert other.value is not None
            result.value = one.value * other.value

        self.launch(_PRODUCT_NS, effect)
        return result

    def _make_stream(self) -> Stream:
        self.streams.append(Stream())
        return self.streams[-1]

    @contextlib.contextmanager
    def _stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before


@dataclass
class _Event:
    gpu: Gpu
    time_ns: float = 0.0

    def record(self) -> None:
        self.time_ns = self.gpu.current.ready_ns

    def elapsed_time(self, end: _Event) -> float:
        return (end.time_ns - self.time_ns) / 1e6


@dataclass
class _Graph:
    gpu: Gpu
    effects: list[Callable[[], None]] = field(default_factory=list)

    def capture_begin(self) -> None:
        self.gpu.begin_capture()

    def capture_end(self) -> None:
        self.effects = self.gpu.end_capture()

    def replay(self) -> None:
        for effect in self.effects:
            if not self.gpu.breaks_captures:
                self.gpu.launch(_PRODUCT_NS, effect)
