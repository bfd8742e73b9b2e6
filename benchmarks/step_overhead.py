"""What recording adds to a training step of 100 ms, sampled or not, against the same step without any of it.

    python benchmarks/step_overhead.py [--rounds 30] [--waiting]

The step is that of a stage in the middle of a pipeline of four: 1F1B with four microbatches, so sixteen messages, eight
computes and an optimizer's step, by torch's own schedule over torch's `fake` backend, which carries nothing and so
costs least. The stage's work is real: matrix products forward and backward, on one thread, as many as take 100 ms. With
`--waiting` it sleeps instead, as a host does whose GPU computes; the processor has forgotten our code by then, which is
the harsher case.

In each round the arms take turns in one process: nothing started, so none of our threads, and every hook out of torch,
process groups too; then recording started and hooks in, sampled and unsampled steps at random; then all out again, so
that what drifts hits both alike. The bare steps are dealt into two arms, so that the difference between these says what
the machine's noise alone makes of it.

Added is processor time of the whole process, with the recorder's threads, but without the products themselves: these
are the same code in all arms, and on a shared machine they vary by more than what is looked for. It is given as a share
of 100 ms: a round's figure is the median of all differences between a step of one arm and one of the other, the result
their mean over rounds without the outer fifth on each side, with a bootstrap interval over rounds. The same for all
processor time, and for wall time, is beside it.
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

BARE, CONTROL, UNSAMPLED, SAMPLED = ARMS = ("bare", "bare again", "unsampled", "sampled")
_STEP_S, _MICROBATCHES, _LAYERS, _WIDTH = 0.1, 4, 4, 256
_MESSAGES = 4 * _MICROBATCHES
_FIRST_SAMPLED = 1_000_000
_BOOTSTRAPS = 2000
_BLOCK = 6
#: Steps without products before any is timed. Hooks look longer at the first ones; and the interpreter, whose code
#: remembers classes that it has met, takes some 50 passes to learn those anew whose methods have been replaced or put
#: back. A job does that once, this one twice a round.
_WARM_UP = 64
#: What is measured of a step → its place in `Times`.
HOST, PROCESSOR, WALL = range(3)
Times = tuple[float, float, float]
Arms = dict[str, list[list[Times]]]
"""Arm → for each round the times of its steps."""


@dataclass
class Products:
    """The stage's work: how it is done, and how long it took in this step."""

    is_waiting: bool
    rows: int = 512
    wait_s: float = _STEP_S / (_MICROBATCHES * _LAYERS * 3)
    spent_s: float = 0.0
    is_left_out: bool = False

    def of(self, torch: Any, one: Any, other: Any, shape: tuple[int, int]) -> Any:
        """The product, or zeros of its shape after a wait."""
        if self.is_left_out:
            return torch.zeros(shape)
        if self.is_waiting:
            time.sleep(self.wait_s)
            return torch.zeros(shape)
        began_s = time.thread_time()
        product = (one @ other).clamp_(-1.0, 1.0)
        self.spent_s += time.thread_time() - began_s
        return product


@dataclass(frozen=True)
class Interval:
    """A trimmed mean, and where it lies with 95 %."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{100 * self.value:+.3f} % ({100 * self.low:+.3f} to {100 * self.high:+.3f})"


@dataclass
class Result:
    """All that was measured in one run."""

    arms: Arms = field(default_factory=lambda: {name: [] for name in ARMS})
    spans: float = 0.0
    dropped_spans: int = 0

    def median(self, arm: str, what: int) -> float:
        return statistics.median(times[what] for steps in self.arms[arm] for times in steps)

    def added(self, arm: str, what: int) -> Interval:
        """What an arm adds to a bare step, as a share of what that takes undisturbed."""
        rounds = []
        for own, bare, other in zip(self.arms[arm], self.arms[BARE], self.arms[CONTROL], strict=True):
            known = bare if arm == CONTROL else bare + other
            rounds.append(difference([times[what] for times in own], [times[what] for times in known]) / _STEP_S)
        return bootstrap(rounds)


def difference(own: list[float], bare: list[float]) -> float:
    """The median of all differences: one slow step is one of dozens."""
    return statistics.median(one - other for one in own for other in bare)


def trimmed(values: list[float]) -> float:
    """The mean without the outer fifth on each side: rounds in which a neighbour was busy do not count."""
    inner = sorted(values)[len(values) // 5 : len(values) - len(values) // 5]
    return statistics.fmean(inner)


def bootstrap(values: list[float], seed: int = 0) -> Interval:
    """Trimmed mean of values and its interval by resampling them."""
    draw = random.Random(seed).choices
    means = sorted(trimmed(draw(values, k=len(values))) for _ in range(_BOOTSTRAPS))
    return Interval(trimmed(values), means[_BOOTSTRAPS // 40], means[-_BOOTSTRAPS // 40])


def make_model(torch: Any, products: Products) -> Any:
    """Layers that know how long their products take."""

    class Product(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(context: Any, x: Any, weight: Any) -> Any:
            context.save_for_backward(x, weight)
            return products.of(torch, x, weight, (len(x), _WIDTH))

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            x, weight = context.saved_tensors
            return (
                products.of(torch, gradient, weight.t(), (len(x), _WIDTH)),
                products.of(torch, x.t(), gradient, (_WIDTH, _WIDTH)),
            )

    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            weights = (torch.randn(_WIDTH, _WIDTH) / _WIDTH for _ in range(_LAYERS))
            self.layers = torch.nn.ParameterList(map(torch.nn.Parameter, weights))

        def forward(self, x: Any) -> Any:
            for weight in self.layers:
                x = Product.apply(x, weight)
            return x

    return Model()


def fit(torch: Any, products: Products) -> None:
    """As many rows as make the products of a step take its time."""
    if products.is_waiting:
        products.rows = 16
        return
    one, other = torch.randn(products.rows, _WIDTH), torch.randn(_WIDTH, _WIDTH)
    times = []
    for _ in range(50):
        began_s = time.thread_time()
        (one @ other).clamp_(-1.0, 1.0)
        times.append(time.thread_time() - began_s)
    products.rows = round(products.rows * products.wait_s / statistics.median(times))


def make_step(torch: Any, products: Products) -> Callable[[], None]:
    """A training step of rank 1 in a pipeline of four."""
    pipelining = importlib.import_module("torch.distributed.pipelining")
    torch.set_num_threads(1)
    fit(torch, products)
    model = make_model(torch, products)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    example = torch.randn(products.rows, _WIDTH)
    options = {"input_args": (example.requires_grad_(),), "output_args": (example,)}
    stage = pipelining.PipelineStage(model, 1, 4, torch.device("cpu"), **options)
    schedule = pipelining.Schedule1F1B(stage, _MICROBATCHES, loss_fn=torch.nn.functional.mse_loss)

    def step() -> None:
        optimizer.zero_grad()
        schedule.step()
        optimizer.step()

    return step


class Recording:
    """All that we put into the process, in and out. The group has one thread and nothing in flight, so its hooks may
    go."""

    def __init__(self, group: Any, folder: str) -> None:
        self._group, self._folder = group, folder
        self._sampled_steps = self._recorded_spans = 0
        self.dropped_spans = 0

    def spans_of_a_step(self) -> float:
        return self._recorded_spans / max(self._sampled_steps, 1)

    def put_in(self) -> None:
        from smon_rt.integrations.torch import install

        run_id = f"bench-{os.getpid()}"
        assert smon_rt.start(self._folder, run_id=run_id, sample_ratio=0.0, warmup_steps=0, always_steps=0)
        assert smon_rt.request_sampling(10_000, first_step=_FIRST_SAMPLED)
        install._register(self._group)

    def take_out(self) -> None:
        from smon_rt.integrations.torch import install

        smon_rt.stop(closing_line=False)
        smon_rt.detach()
        self._group.unregister_pre_hook(install._HOOK_ID)
        self._group.unregister_post_hook(install._HOOK_ID)
        status = smon_rt.status()
        self._sampled_steps += status.sampled_steps
        self._recorded_spans += status.recorded_spans
        self.dropped_spans += status.dropped_spans


def run(rounds: int, is_waiting: bool, warm_up: int = _WARM_UP) -> Result:
    """Rounds of all arms, the first of which warms all up; in each, this many steps before an arm is timed."""
    torch = importlib.import_module("torch")
    distributed = importlib.import_module("torch.distributed")
    store = importlib.import_module("torch.testing._internal.distributed.fake_pg").FakeStore()
    distributed.init_process_group("fake", store=store, rank=1, world_size=4)
    products = Products(is_waiting)
    step = make_step(torch, products)
    result, chance, numbers = Result(), random.Random(1), itertools.count()

    def time_step(arm: str) -> Times:
        products.spent_s = 0.0
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        if arm in (BARE, CONTROL):
            step()
        else:
            with smon_rt.step(next(numbers) + (_FIRST_SAMPLED if arm == SAMPLED else 0)):
                step()
        cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
        return cpu_s - products.spent_s, cpu_s, wall_s

    def block(arms: tuple[str, str], count: int, times: dict[str, list[Times]]) -> None:
        products.is_left_out = True
        for _ in range(warm_up):
            time_step(arms[0])
        products.is_left_out = False
        time_step(arms[0])
        for arm in chance.sample([*arms] * count, 2 * count):
            times[arm].append(time_step(arm))

    def one_round(recording: Recording) -> dict[str, list[Times]]:
        times: dict[str, list[Times]] = {arm: [] for arm in ARMS}
        block((BARE, CONTROL), _BLOCK // 2, times)
        recording.put_in()
        block((UNSAMPLED, SAMPLED), _BLOCK, times)
        recording.take_out()
        block((BARE, CONTROL), _BLOCK // 2, times)
        return times

    with tempfile.TemporaryDirectory() as folder:
        recording = Recording(distributed.group.WORLD, folder)
        for number in range(-1, rounds):
            for arm, times in one_round(recording).items():
                if number >= 0:
                    result.arms[arm].append(times)
    distributed.destroy_process_group()  # the next benchmark makes its own
    result.spans, result.dropped_spans = recording.spans_of_a_step(), recording.dropped_spans
    return result


#: What a row is called → whether the stage waits. Arms of the first have the issue's targets.
STEPS = {"100 ms step": False, "100 ms step that waits": True}


def measure(smoke: bool, record: Record) -> None:
    """Rows of the page; nothing can be said without torch."""
    for what, is_waiting in STEPS.items():
        try:
            importlib.import_module("torch.distributed.pipelining")
            result = run(1, is_waiting, warm_up=4) if smoke else run(30, is_waiting)
        except ImportError:
            for name in ARMS[1:]:
                record(f"{what}, {name}, added", None, "torch is not importable")
            continue
        for name in ARMS[1:]:
            record(f"{what}, {name}, added", 100 * result.added(name, HOST).high, note(result, name))


def note(result: Result, arm: str) -> str:
    """How a row was measured."""
    host, cpu, wall = (result.added(arm, what) for what in (HOST, PROCESSOR, WALL))
    return f"upper end of {host}; all processor time {cpu}, wall {wall}; {each(result, arm)}; {facts(result)}"


def each(result: Result, arm: str) -> str:
    """What an arm adds in all, and shared out."""
    added_us = 1e6 * result.added(arm, HOST).value * _STEP_S
    return f"{added_us:.0f} µs: {added_us / max(result.spans, 1):.1f} a span, {added_us / _MESSAGES:.1f} a message"


def facts(result: Result) -> str:
    """What was measured."""
    steps = sum(map(len, result.arms[BARE]))
    wall_ms, host_ms = (1000 * result.median(BARE, what) for what in (WALL, HOST))
    spans = f"{result.spans:.0f} spans in a sampled one, {_MESSAGES} of them messages, {result.dropped_spans} dropped"
    return f"{steps} steps an arm of {wall_ms:.0f} ms, {host_ms:.1f} ms of them the host's own; {spans}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--waiting", action="store_true", help="the stage sleeps instead of computing")
    arguments = parser.parse_args()
    result = run(arguments.rounds, arguments.waiting)
    print(facts(result))
    for name in ARMS[1:]:
        host, cpu, wall = (result.added(name, what) for what in (HOST, PROCESSOR, WALL))
        print(f"{name:10s} adds {host}, all processor time {cpu}, wall {wall}; {each(result, name)}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
