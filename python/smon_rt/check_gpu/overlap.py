"""Whether communication still overlaps with compute when spans are recorded around the two.

With CUDA_DEVICE_MAX_CONNECTIONS=1 the GPU has one queue, and an event between a launch and what should run beside it
makes the two wait for each other. The stand-in for communication is a kernel that waits on one multiprocessor.
"""

from __future__ import annotations

import contextlib
import functools
import math
import statistics
from collections.abc import Callable, Mapping
from typing import Any

import smon_rt
from smon_rt.check_gpu.gpu_work import GPU_KIND, HOST_KIND, cuda_torch, let_notice, recorded
from smon_rt.check_gpu.model import Finding, NotHere
from smon_rt.check_gpu.runner import ask

__all__ = ["CONNECTIONS", "finding_of", "measure", "run"]

CONNECTIONS = (1, 8, 32)
#: Of the overlap without recording.
LEAST_KEPT_RATIO = 0.95
#: Less than this share of the shorter one is no overlap that could be lost.
_LEAST_OVERLAP = 0.2
_ROUNDS, _MICROBATCHES = 9, 10
#: Long enough that the GPU is what takes the time, and not the launches.
_LEAST_COMPUTE_MS = 1.0
_SIZES = (1024, 2048, 4096, 8192)
_DEADLINE_S = 25.0


def run() -> Finding:
    """Each number of queues in a process of its own: the driver reads it once."""
    overlaps: dict[int, Mapping[str, Any]] = {}
    for count in CONNECTIONS:
        answer, ended = ask(f"{__name__}:measure", _DEADLINE_S, CUDA_DEVICE_MAX_CONNECTIONS=str(count))
        if "not_here" in answer:
            raise NotHere(answer["not_here"])
        if "facts" not in answer:
            raise RuntimeError(f"with {count} connections: {answer.get('error') or ended.words}: {ended.said[-300:]}")
        overlaps[count] = answer["facts"]
    return finding_of(overlaps)


def measure() -> dict[str, float]:
    """The overlap with and without recording, as shares of the shorter of the two, and what they take alone."""
    torch = cuda_torch()
    side = torch.cuda.Stream()
    compute, compute_ms = _product(torch)
    cycles_per_ms = 1e6 / _time_ms(torch, lambda: torch.cuda._sleep(1_000_000))
    cycles = int(compute_ms * cycles_per_ms)
    wait_ms = _time_ms(torch, lambda: torch.cuda._sleep(cycles))

    def microbatch(outer: Any, inner: Any) -> None:
        with outer:
            current = torch.cuda.current_stream()
            side.wait_stream(current)
            with inner, torch.cuda.stream(side):
                torch.cuda._sleep(cycles)
            compute()
            current.wait_stream(side)

    bare_ms, recorded_ms = [], []
    nothing = contextlib.nullcontext()
    with recorded():
        let_notice(torch)
        for _ in range(_ROUNDS):
            bare_ms.append(_time_ms(torch, lambda: microbatch(nothing, nothing)))
            with smon_rt.step():
                recorded_ms.append(_time_ms(torch, lambda: microbatch(smon_rt.span(GPU_KIND), smon_rt.span(HOST_KIND))))
    alone_ms = compute_ms + wait_ms
    shorter_ms = min(compute_ms, wait_ms)
    return {
        "compute_ms": compute_ms,
        "wait_ms": wait_ms,
        "bare_ms": statistics.median(bare_ms),
        "recorded_ms": statistics.median(recorded_ms),
        "overlap": (alone_ms - statistics.median(bare_ms)) / shorter_ms,
        "recorded_overlap": (alone_ms - statistics.median(recorded_ms)) / shorter_ms,
    }


def _product(torch: Any) -> tuple[Callable[[], object], float]:
    """A matrix product that takes long enough, and how long."""
    for size in _SIZES:
        matrix = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
        product = functools.partial(torch.mm, matrix, matrix, out=torch.empty_like(matrix))
        time_ms = _time_ms(torch, product)
        if time_ms >= _LEAST_COMPUTE_MS:
            break
    return product, time_ms


def _time_ms(torch: Any, work: Callable[[], object]) -> float:
    """What one of it takes on the GPU, of several in a row."""
    work()
    torch.cuda.synchronize()
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began.record()
    for _ in range(_MICROBATCHES):
        work()
    ended.record()
    torch.cuda.synchronize()
    return float(began.elapsed_time(ended)) / _MICROBATCHES


def finding_of(overlaps: Mapping[int, Mapping[str, Any]]) -> Finding:
    """What is kept of each overlap. Where nothing overlaps without recording either there is nothing to keep.

    Example:
        >>> halved, none = {"overlap": 0.9, "recorded_overlap": 0.45}, {"overlap": 0.0, "recorded_overlap": 0.0}
        >>> finding_of({1: halved, 8: none}).words
        'kept with 1: 50 %, 8: nothing overlaps anyway'
    """
    kept = {
        count: one["recorded_overlap"] / one["overlap"] if one["overlap"] >= _LEAST_OVERLAP else math.nan
        for count, one in overlaps.items()
    }
    if all(map(math.isnan, kept.values())):
        raise NotHere("nothing overlaps on this GPU without recording either: there is nothing to keep")
    words = ", ".join(
        f"{count}: {'nothing overlaps anyway' if math.isnan(ratio) else f'{100 * ratio:.0f} %'}"
        for count, ratio in kept.items()
    )
    is_met = all(math.isnan(ratio) or ratio >= LEAST_KEPT_RATIO for ratio in kept.values())
    figures = {"kept_ratio": kept, "by_connections": {str(count): one for count, one in overlaps.items()}}
    return Finding(is_met, f"kept with {words}", figures)
