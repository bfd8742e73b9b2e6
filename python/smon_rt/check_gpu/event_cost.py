"""What a span with times of the GPU costs the thread that records it: two events and a question about captures."""

from __future__ import annotations

import statistics
import time
from typing import Any

import smon_rt
from smon_rt.check_gpu.gpu_work import (
    GPU_KIND,
    HOST_KIND,
    cuda_torch,
    let_notice,
    on_device_ratio,
    read_trace,
    recorded,
    spans_of,
)
from smon_rt.check_gpu.model import Finding
from smon_rt.kinds import KindName

__all__ = ["LIMIT_US", "finding_of", "run"]

#: Over a host span. Some 100 such spans a step of 100 ms are then 1 % of a sampled step, and 0.1 % of all.
LIMIT_US = 10.0
LEAST_ON_DEVICE_RATIO = 0.99
_BLOCKS, _PAIRS = 30, 50
#: Between two spans, so that they share no event.
_APART_NS = 20_000


def run() -> Finding:
    torch = cuda_torch()
    with recorded() as folder:
        let_notice(torch)
        times_ns: dict[KindName, list[int]] = {GPU_KIND: [], HOST_KIND: []}
        with smon_rt.step():
            for _ in range(_BLOCKS):
                for kind, times in times_ns.items():
                    times += _pairs(kind)
                torch.cuda.synchronize()
                time.sleep(0.02)  # events come back to the pool
        trace = read_trace(folder)
    return finding_of(times_ns[GPU_KIND], times_ns[HOST_KIND], on_device_ratio(spans_of(trace)))


def _pairs(kind: KindName) -> list[int]:
    """Nanoseconds of each begin and end."""
    clock_ns, begin, end = time.perf_counter_ns, smon_rt.begin, smon_rt.end
    times_ns = []
    for _ in range(_PAIRS):
        began_ns = clock_ns()
        end(begin(kind))
        ended_ns = clock_ns()
        times_ns.append(ended_ns - began_ns)
        while clock_ns() - ended_ns < _APART_NS:
            pass
    return times_ns


def finding_of(gpu_ns: list[int], host_ns: list[int], device_ratio: float) -> Finding:
    """The usual difference must be small, and the spans must have what they cost for.

    Example:
        >>> finding_of([4000, 4200, 9000], [200, 300, 200], 1.0).words
        '4.0 µs more than a host span of 0.2 µs; 100 % with times of the GPU'
    """
    gpu_us, host_us = (statistics.median(times) / 1000 for times in (gpu_ns, host_ns))
    more_us = gpu_us - host_us
    figures: dict[str, Any] = {
        "gpu_span_us": gpu_us,
        "gpu_span_p99_us": sorted(gpu_ns)[len(gpu_ns) * 99 // 100] / 1000,
        "host_span_us": host_us,
        "more_us": more_us,
        "on_device_ratio": device_ratio,
    }
    words = (
        f"{more_us:.1f} µs more than a host span of {host_us:.1f} µs; {100 * device_ratio:.0f} % with times of the GPU"
    )
    return Finding(more_us <= LIMIT_US and device_ratio >= LEAST_ON_DEVICE_RATIO, words, figures)
