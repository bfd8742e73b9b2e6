"""Whether times of the GPU, put on the host's line, are as right as they claim, and claim enough.

What is true is found another way: kernels read the GPU's own timer inside spans, and beside each of them others do so
between two readings of the host's clock, which leaves a few µs for where that timer is on the host's line.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import smon_rt
from smon_rt.check_gpu.gpu_work import GPU_KIND, cuda_torch, let_notice, read_trace, recorded, spans_of
from smon_rt.check_gpu.model import Finding, NotHere

if TYPE_CHECKING:
    from smon_rt.trace.rank_trace import RankTrace
    from smon_rt.trace.spans import SpanColumns

__all__ = ["Truth", "bracket", "finding_of", "run"]

STEPS, STEP_S = 60, 1.0
SPANS_A_STEP = 5
#: Allowed for the bound that the trace states: once a step of 1 s was sampled, and after 60 of them.
FIRST_BOUND_NS, LAST_BOUND_NS = 300_000, 50_000
LEAST_RIGHT_RATIO = 0.999
#: The timer moves on in steps of up to 1 µs.
_TIMER_NS = 1_000
_BRACKETS = 20


@dataclass(frozen=True)
class Truth:
    """When the GPU was inside a span, on the host's line: between these two, in ns of CLOCK_MONOTONIC."""

    earliest_ns: int
    latest_ns: int


def run() -> Finding:
    torch = cuda_torch()
    try:
        from smon_rt.check_gpu.globaltimer import read_timer
    except ImportError as error:
        raise NotHere(f"triton is not here, which reads the GPU's timer: {error}") from error
    out = torch.zeros(1, dtype=torch.int64, device="cuda")

    def timer_ns() -> int:
        read_timer(out, 0)
        return int(out.item())  # waits for it

    timer_ns()  # compiles
    truths: list[Truth] = []
    with recorded() as folder:
        let_notice(torch)
        for _ in range(STEPS):
            with smon_rt.step():
                for _ in range(SPANS_A_STEP):
                    truths.append(_one_span(read_timer, timer_ns, out))
                    time.sleep(STEP_S / SPANS_A_STEP)
        let_notice(torch)
        trace = read_trace(folder)
    return finding_of(trace, truths)


def _one_span(read_timer: Callable[[Any, int], None], timer_ns: Callable[[], int], out: Any) -> Truth:
    """Has the timer read inside a span, and says when that was."""
    with smon_rt.span(GPU_KIND):
        read_timer(out, 0)
    inside_ns = int(out.item())
    readings = []
    for _ in range(_BRACKETS):
        before_ns = time.monotonic_ns()
        read_ns = timer_ns()
        readings.append((before_ns, read_ns, time.monotonic_ns()))
    return bracket(inside_ns, readings)


def bracket(inside_ns: int, readings: Sequence[tuple[int, int, int]]) -> Truth:
    """The host's time of a reading of the timer, by others close to it: each lies between two of the host's readings.

    Example:
        >>> bracket(1_000_050, [(10_000, 1_000_100, 30_000), (40_000, 1_030_100, 45_000)])
        Truth(earliest_ns=8950, latest_ns=15950)
    """
    low_ns = max(before - read for before, read, _ in readings) - _TIMER_NS
    high_ns = min(after - read for _, read, after in readings) + _TIMER_NS
    return Truth(inside_ns + low_ns, inside_ns + high_ns)


def finding_of(trace: RankTrace, truths: Sequence[Truth]) -> Finding:
    """Spans hold the truth within the stated bound, and that bound becomes small."""
    spans = spans_of(trace)
    maps = sorted(
        (each for each in trace.clock_maps if each.device_clock in ("", "event")), key=lambda each: each.window_start_ns
    )
    misses_ns = _misses_ns(spans, maps, truths)
    on_device = len(misses_ns)
    right_ratio = sum(miss == 0 for miss in misses_ns) / max(len(misses_ns), 1)
    first_ns, last_ns = _first_bound_ns(maps, spans), maps[-1].bound_ns if maps else None
    figures = {
        "spans": len(truths),
        "with_device_times": on_device,
        "right_ratio": right_ratio,
        "worst_miss_ns": max(misses_ns, default=None),
        "first_bound_ns": first_ns,
        "last_bound_ns": last_ns,
        "truth_width_ns": max((truth.latest_ns - truth.earliest_ns for truth in truths), default=None),
    }
    is_met = (
        on_device >= 0.95 * len(truths) > 0
        and len(spans) == len(truths)
        and right_ratio >= LEAST_RIGHT_RATIO
        and first_ns is not None
        and last_ns is not None
        and first_ns <= FIRST_BOUND_NS
        and last_ns <= LAST_BOUND_NS
    )
    bounds = "no clock map"
    if first_ns is not None and last_ns is not None:
        bounds = f"bound {first_ns / 1000:.0f} µs at first, {last_ns / 1000:.0f} at last"
    words = f"{bounds}; {100 * right_ratio:.1f} % of {on_device} spans right within it"
    return Finding(is_met, words, figures)


def _misses_ns(spans: SpanColumns, maps: Sequence[Any], truths: Sequence[Truth]) -> list[int]:
    """By how much more than its bound each span with times of the GPU is off."""
    from smon_rt.trace.device_bounds import bounds_at

    bounds_ns = bounds_at(maps, spans.device_start_ns)
    if bounds_ns is None:
        return []
    starts_ns, durations_ns = spans.device_start_ns.tolist(), spans.device_duration_ns.tolist()
    rows = zip(starts_ns, durations_ns, bounds_ns.tolist(), spans.has_device_times.tolist(), truths, strict=False)
    misses_ns = []
    for start_ns, duration_ns, bound_ns, has_times, truth in rows:
        if has_times:
            too_late_ns = start_ns - bound_ns - truth.latest_ns
            too_early_ns = truth.earliest_ns - (start_ns + duration_ns + bound_ns)
            misses_ns.append(max(too_late_ns, too_early_ns, 0))
    return misses_ns


def _first_bound_ns(maps: Sequence[Any], spans: SpanColumns) -> int | None:
    """Of the first map that has seen a whole step."""
    seen_ns = int(spans.start_ns[0]) + round(STEP_S * 1e9) if len(spans) else 0
    return next((int(each.bound_ns) for each in maps if each.window_end_ns >= seen_ns), None)
