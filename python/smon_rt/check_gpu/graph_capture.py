"""Whether graphs can be captured while spans are recorded and events are polled.

torch captures in a mode in which a question about an event, from whatever thread, ends the capture. Spans inside a
capture have host times only and say so; events around a replay are as ever.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import smon_rt
from smon_rt.check_gpu.gpu_work import GPU_KIND, cuda_torch, let_notice, on_device_ratio, read_trace, recorded, spans_of
from smon_rt.check_gpu.model import Finding
from smon_rt.kinds import KindName

if TYPE_CHECKING:
    from smon_rt.trace.rank_trace import RankTrace

__all__ = ["GRAPHS", "finding_of", "run"]

GRAPHS = 20
LEAST_ON_DEVICE_RATIO = 0.95
_SIZE = 512
#: A capture stays open for several turns of the recorder's thread, while an event that it polls is not ready.
_OPEN_S = 0.01
_BUSY_CYCLES = 100_000_000
_CAPTURED_KIND: KindName = "backward_compute"
_REPLAYED_KIND: KindName = "eval"


def run() -> Finding:
    torch = cuda_torch()
    busy, capturing = torch.cuda.Stream(), torch.cuda.Stream()
    with recorded() as folder:
        for stream in (busy, capturing):
            with torch.cuda.stream(stream):
                let_notice(torch)
        wrong = [number for number in range(GRAPHS) if not _one_graph(torch, busy, capturing)]
        let_notice(torch)
        trace = read_trace(folder)
    return finding_of(trace, wrong)


def _one_graph(torch: Any, busy: Any, capturing: Any) -> bool:
    """Captures a product and replays it; whether it is right."""
    matrix = torch.randn(_SIZE, _SIZE, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(capturing):
        expected = torch.mm(
            matrix, matrix
        )  # also: what the library makes once for a stream cannot be made in a capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with smon_rt.step():
        with torch.cuda.stream(busy), smon_rt.span(GPU_KIND):
            torch.cuda._sleep(_BUSY_CYCLES)
        with torch.cuda.stream(capturing):
            graph.capture_begin()
            with smon_rt.span(_CAPTURED_KIND):
                out = torch.mm(matrix, matrix)
            time.sleep(_OPEN_S)
            graph.capture_end()
            with smon_rt.span(_REPLAYED_KIND):
                graph.replay()
        torch.cuda.synchronize()
    return bool(torch.allclose(out, expected, rtol=1e-3, atol=1e-3))


def finding_of(trace: RankTrace, wrong: list[int]) -> Finding:
    """Captures must not be disturbed, and their spans must say what they are."""
    from smon_rt.trace.kinds import FLAGS

    captured, replayed = spans_of(trace, _CAPTURED_KIND), spans_of(trace, _REPLAYED_KIND)
    flagged = int(((captured.flags & FLAGS["in_capture"]) != 0).sum())
    replayed_ratio, captured_on_device = on_device_ratio(replayed), int(captured.has_device_times.sum())
    figures = {
        "graphs": GRAPHS,
        "wrong": wrong,
        "captured_spans": len(captured),
        "flagged_spans": flagged,
        "captured_with_device_times": captured_on_device,
        "replayed_on_device_ratio": replayed_ratio,
    }
    is_met = (
        not wrong
        and len(captured) == flagged == GRAPHS
        and not captured_on_device
        and replayed_ratio >= LEAST_ON_DEVICE_RATIO
    )
    words = (
        f"{GRAPHS - len(wrong)} of {GRAPHS} graphs right, {flagged} spans say that they were captured, "
        f"{100 * replayed_ratio:.0f} % of the replays with times of the GPU"
    )
    return Finding(is_met, words, figures)
