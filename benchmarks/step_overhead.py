"""What recording adds to a step of 100 ms, sampled or not, against the same step without any of it, in one process.

    python benchmarks/step_overhead.py [--rounds 300]

The step is a pipeline's: four microbatches forward and backward, an all-reduce in each of their layers, an optimizer,
with all hooks in. What would run on a GPU is a timed wait, so that a step takes the same but for what the host does;
the host's own work is the schedule's and torch's, some milliseconds. Blocks of ten steps take turns: with the hooks out
and recording paused; with hooks, sampled and unsampled steps at random.

Reported is processor time of the whole process (with the recorder's own threads) that an arm adds, as a share of the
step's wall time: medians of differences within a round, with a bootstrap interval. Wall times are beside it; on a busy
machine they say more about the neighbours.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from engine import Record

import smon_rt

ARMS = ("not recording", "unsampled", "sampled")
_STEP_S, _MICROBATCHES, _LAYERS = 0.1, 4, 4
_FIRST_SAMPLED = 1_000_000
_BOOTSTRAPS = 1000
_BLOCK, _DISCOVERY = 10, 4


@dataclass
class Arm:
    """Times of its steps, one a round."""

    cpu_s: list[float] = field(default_factory=list)
    wall_s: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Interval:
    """A median, and where it lies with 95 %."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{100 * self.value:+.3f} % ({100 * self.low:+.3f} to {100 * self.high:+.3f})"


def bootstrap(values: list[float], seed: int = 0) -> Interval:
    """Median of values and its interval by resampling them."""
    draw = random.Random(seed).choices
    medians = sorted(statistics.median(draw(values, k=len(values))) for _ in range(_BOOTSTRAPS))
    return Interval(statistics.median(values), medians[_BOOTSTRAPS // 40], medians[-_BOOTSTRAPS // 40])


def make_step(torch: Any) -> Callable[[], None]:
    """A training step of a pipeline of one rank, whose processor time is small beside its waits."""
    distributed = torch.distributed
    pipelining = importlib.import_module("torch.distributed.pipelining")
    wait_s = 0.85 * _STEP_S / (_MICROBATCHES * _LAYERS * 2)

    class Wait(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(_context: Any, x: Any) -> Any:
            time.sleep(wait_s)
            return x.view_as(x)

        @staticmethod
        def backward(_context: Any, gradient: Any) -> Any:
            time.sleep(wait_s)
            return gradient

    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(_LAYERS))

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = Wait.apply(layer(x))
                distributed.all_reduce(x.detach())  # in place, as of tensor parallelism
            return x

    torch.set_num_threads(1)
    if not distributed.is_initialized():
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters())
    stage = pipelining.PipelineStage(model, 0, 1, torch.device("cpu"))
    schedule = pipelining.ScheduleGPipe(stage, _MICROBATCHES, loss_fn=torch.nn.functional.mse_loss)
    x, y = torch.randn(16, 16), torch.randn(16, 16)

    def step() -> None:
        optimizer.zero_grad()
        schedule.step(x, target=y)
        optimizer.step()

    return step


def run(rounds: int) -> tuple[dict[str, Arm], smon_rt.Status]:
    """Blocks of steps take turns: without hooks, then with hooks sampled and unsampled ones at random."""
    step = make_step(importlib.import_module("torch"))
    arms = {name: Arm() for name in ARMS}
    chance = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        run_id = f"bench-{os.getpid()}"
        assert smon_rt.start(folder, run_id=run_id, sample_ratio=0.0, warmup_steps=0, always_steps=0)
        assert smon_rt.request_sampling(10_000, first_step=_FIRST_SAMPLED)
        numbers = itertools.count()
        for block in range(-1, -(-rounds // _BLOCK)):  # the first warms all up
            smon_rt.detach()
            smon_rt.pause()
            without = [time_step(step, ARMS[0], next(numbers)) for _ in range(_BLOCK)]
            smon_rt.resume()
            smon_rt.attach()
            for _ in range(_DISCOVERY):  # hooks look longer at the first steps
                time_step(step, ARMS[1], next(numbers))
            order = chance.sample([*ARMS[1:]] * _BLOCK, 2 * _BLOCK)
            recorded = [(name, time_step(step, name, next(numbers))) for name in order]
            if block >= 0:
                for name, times in [*((ARMS[0], times) for times in without), *recorded]:
                    arms[name].cpu_s.append(times[0])
                    arms[name].wall_s.append(times[1])
        smon_rt.stop(closing_line=False)
        return arms, smon_rt.status()


def time_step(step: Callable[[], None], arm: str, number: int) -> tuple[float, float]:
    """Processor time of the process and wall time of one step."""
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    if arm == ARMS[0]:
        step()
    else:
        with smon_rt.step(number if arm == "unsampled" else _FIRST_SAMPLED + number):
            step()
    return time.process_time() - cpu_s, time.perf_counter() - wall_s


def added(arm: Arm, base: Arm) -> tuple[Interval, Interval]:
    """What an arm adds to a step, in processor time and in wall time, each as a share of the step."""
    step_s = statistics.median(base.wall_s)
    cpu = bootstrap([(own - other) / step_s for own, other in zip(arm.cpu_s, base.cpu_s, strict=True)])
    return cpu, bootstrap([own / other - 1 for own, other in zip(arm.wall_s, base.wall_s, strict=True)])


def measure(smoke: bool, record: Record) -> None:
    """Two rows of the page; nothing can be said without torch."""
    whats = {name: f"100 ms step, {name}, added" for name in ARMS[1:]}
    try:
        importlib.import_module("torch.distributed.pipelining")
    except ImportError:
        for what in whats.values():
            record(what, None, "torch is not importable")
        return
    arms, status = run(_BLOCK if smoke else 300)
    importlib.import_module("torch.distributed").destroy_process_group()  # the next benchmark makes its own
    for name, what in whats.items():
        cpu, wall = added(arms[name], arms[ARMS[0]])
        record(what, 100 * cpu.high, f"upper end of processor time {cpu}; wall {wall}; {facts(arms, status)}")


def facts(arms: dict[str, Arm], status: smon_rt.Status) -> str:
    """What was measured."""
    base = arms[ARMS[0]]
    step_ms, cpu_ms = (1000 * statistics.median(values) for values in (base.wall_s, base.cpu_s))
    spans = status.recorded_spans / max(status.sampled_steps, 1)
    how = f"{len(base.wall_s)} steps an arm of {step_ms:.0f} ms, {cpu_ms:.1f} ms of them computing"
    return f"{how}; {spans:.0f} spans in a sampled one, {status.dropped_spans} dropped"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300)
    arms, status = run(parser.parse_args().rounds)
    print(facts(arms, status))
    for name in ARMS[1:]:
        cpu, wall = added(arms[name], arms[ARMS[0]])
        print(f"{name:10s} adds: processor time {cpu}, wall {wall}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
