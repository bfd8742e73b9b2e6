"""Work on a GPU, by torch, and its recording.

Spans of a microbatch's compute (`GPU_KIND`) have times of the GPU wherever a process has one; other kinds never.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smon_rt.check_gpu.model import NotHere
from smon_rt.kinds import KindName

if TYPE_CHECKING:
    from smon_rt.trace.rank_trace import RankTrace
    from smon_rt.trace.spans import SpanColumns

__all__ = ["GPU_KIND", "HOST_KIND", "cuda_torch", "on_device_ratio", "read_trace", "recorded", "square_product"]

GPU_KIND: KindName = "forward_compute"
HOST_KIND: KindName = "data_loading"
#: Has times of the GPU too, and is nothing that a check counts.
_WARM_UP_KIND: KindName = "optimizer"

#: The recorder's thread makes the events of a stream once it has seen it, and looks at events once they are there.
_NOTICED_WITHIN_S = 0.5


def cuda_torch() -> Any:
    """torch, with a context on the first GPU. NotHere without either."""
    try:
        import torch
    except ImportError as error:
        raise NotHere(f"torch is not here: {error}") from error
    if not torch.cuda.is_available():
        raise NotHere(f"torch {torch.__version__} sees no GPU")
    torch.zeros(1, device="cuda")
    return torch


@contextlib.contextmanager
def recorded() -> Iterator[Path]:
    """Records what is done inside, all of it, into a directory that is there until the end; `read_trace` reads it."""
    import smon_rt

    with tempfile.TemporaryDirectory(prefix="smon-check-") as name:
        smon_rt.start(name, sample_ratio=1.0, warmup_steps=0, integrations="none", strict=True)
        try:
            yield Path(name)
        finally:
            smon_rt.stop()


def let_notice(torch: Any) -> None:
    """Lets the recorder see the current stream, whose first span has host times only, and what was recorded on it."""
    import smon_rt

    with smon_rt.step(), smon_rt.span(_WARM_UP_KIND):
        torch.cuda.synchronize()
    time.sleep(_NOTICED_WITHIN_S)


def read_trace(folder: Path) -> RankTrace:
    """Ends the recording, and reads what it left."""
    import smon_rt
    from smon_rt.trace import read_directory

    smon_rt.stop()
    (trace,) = read_directory(folder)
    return trace


def spans_of(trace: RankTrace, kind: KindName = GPU_KIND) -> SpanColumns:
    """The spans of one kind, by start."""
    import numpy as np

    from smon_rt.trace.kinds import KIND_NUMBERS

    spans = trace.spans.take(trace.spans.kind == KIND_NUMBERS[kind])
    return spans.take(np.argsort(spans.start_ns, kind="stable"))


def on_device_ratio(spans: SpanColumns) -> float:
    """The share of spans with times of the GPU; 0 of none."""
    return float(spans.has_device_times.mean()) if len(spans) else 0.0


def square_product(torch: Any, size: int = 1024) -> Callable[[], None]:
    """Something to compute: the product of a matrix with itself, enqueued on the current stream."""
    matrix = torch.randn(size, size, device="cuda")
    out = torch.empty_like(matrix)

    def work() -> None:
        torch.mm(matrix, matrix, out=out)

    return work
