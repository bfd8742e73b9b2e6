"""What recording adds to a step of a small transformer, sampled and not, against steps without any of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import smon_rt
from smon_rt.check_gpu.gpu_work import cuda_torch
from smon_rt.check_gpu.model import Finding

if TYPE_CHECKING:
    from smon_rt.bench import Measurement

__all__ = ["finding_of", "make_step", "run"]

#: Shares of a bare step. A limit is missed where the lower end of the 95 % interval is beyond it.
UNSAMPLED_LIMIT, SAMPLED_LIMIT = 0.001, 0.005
_SECONDS = 30.0
_WIDTH, _LAYERS, _SAMPLES, _TOKENS, _MICROBATCHES = 512, 4, 8, 256, 4


def run() -> Finding:
    from smon_rt.bench import measure

    step = make_step(cuda_torch())
    for _ in range(5):
        step()
    return finding_of(measure(step, seconds=_SECONDS))


def make_step(torch: Any, device: str = "cuda", width: int = _WIDTH, tokens: int = _TOKENS) -> Callable[[], None]:
    """A training step: a forward and a backward for each microbatch, the optimizer, and a wait for the GPU."""
    layer = torch.nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, _LAYERS, enable_nested_tensor=False).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(_SAMPLES, tokens, width, device=device)

    def step() -> None:
        with smon_rt.step():
            for microbatch in range(_MICROBATCHES):
                forward = smon_rt.span("forward_compute", microbatch=microbatch)
                with forward, torch.autocast(device, dtype=torch.bfloat16):
                    loss = model(batch).float().square().mean()
                with smon_rt.span("backward_compute", microbatch=microbatch):
                    loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            torch.cuda.synchronize()

    return step


def finding_of(measured: Measurement) -> Finding:
    """Only what is surely beyond a limit is a miss: a machine has its noise."""
    unsampled, sampled = measured.unsampled_added, measured.sampled_added
    is_met = unsampled.low <= UNSAMPLED_LIMIT and sampled.low <= SAMPLED_LIMIT and not measured.dropped_spans
    words = (
        f"sampled {sampled}, unsampled {unsampled} of a step of {1000 * measured.bare.median_s:.2f} ms, "
        f"noise {measured.noise}; {measured.dropped_spans} spans dropped"
    )
    return Finding(is_met, words, measured.to_json())
