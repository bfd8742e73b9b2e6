"""What a checkpoint in memory costs a training step, and how fast it comes back, beside other ways to keep a state.

    python benchmarks/checkpoint.py [--rounds 7] [--smoke]

Of CPU tensors in one process, for two states: 1 GiB in 100 tensors, and 256 MiB in 3,000. Of each round is timed: until
`step` returns (the training thread may go on), the wait in the optimizer's step (CPU tensors only: a GPU's own queue
waits for its copies), until the agent has hashed the copy and calls it agreed, and a restore with its verification in a
trainer that was started anew. Beside them a plain copy into memory that was touched before, and the other ways that are
installed. Figures are medians over rounds; nothing is asserted, since times on a shared machine say as much about the
neighbours. docs/checkpoint.md has a dated table.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from checkpoint_peers import Peer, Tensors, installed_peers, timed

import smon_rt.checkpoint

_MIB = 1 << 20
_WAIT_S = 60.0


@dataclass(frozen=True)
class Shape:
    """How much state there is, in how many tensors."""

    mib: int
    tensor_count: int

    def __str__(self) -> str:
        return f"{self.mib} MiB in {self.tensor_count:,} tensors"

    @property
    def byte_count(self) -> int:
        return self.mib * _MIB

    def tensors(self) -> Tensors:
        count = self.byte_count // 4 // self.tensor_count
        return {f"t{at}": torch.full((count,), float(at)) for at in range(self.tensor_count)}


SHAPES = (Shape(1024, 100), Shape(256, 3000))
SMALL_SHAPES = (Shape(8, 10), Shape(4, 300))


@dataclass
class Timed:
    """Seconds of each round, by what was timed."""

    seconds: dict[str, list[float]] = field(default_factory=dict)

    def add(self, what: str, seconds: float) -> None:
        self.seconds.setdefault(what, []).append(seconds)

    def median_ms(self, what: str) -> str:
        found = self.seconds.get(what)
        return f"{1000 * statistics.median(found):,.2f}" if found else "–"

    def gb_per_s(self, what: str, byte_count: int) -> float:
        return byte_count / statistics.median(self.seconds[what]) / 1e9


class Ours:
    """A trainer with an agent of its own, in folders that go with the benchmark."""

    def __init__(self, tensors: Tensors, folder: Path) -> None:
        self._model = torch.nn.Module()
        for name, tensor in tensors.items():
            self._model.register_parameter(name, torch.nn.Parameter(tensor, requires_grad=False))
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.0)
        self._attach: Callable[[], smon_rt.checkpoint.Checkpoint] = functools.partial(
            smon_rt.checkpoint.attach,
            self._model,
            self._optimizer,
            run_id=f"benchmark-{uuid.uuid4().hex[:8]}",
            agent_dir=str(folder),
            agent_ttl_s=60,
        )
        self._checkpoint = self._attach()
        self._checkpoint.restore()

    def measure(self, step: int, result: Timed) -> None:
        until_promised(self._checkpoint, step)
        began = time.perf_counter()
        result.add("returns", timed(self._checkpoint.step, step))
        result.add("optimizer waits", timed(self._optimizer.step))
        until_agreed(self._checkpoint, step)
        result.add("kept", time.perf_counter() - began)

    def measure_restore(self, result: Timed) -> None:
        self._checkpoint.close()
        began = time.perf_counter()
        self._checkpoint = self._attach()
        result.add("attach", time.perf_counter() - began)
        began = time.perf_counter()
        if self._checkpoint.restore() is None:
            raise RuntimeError(f"nothing was restored: {self._checkpoint.status()}")
        result.add("restore", time.perf_counter() - began)

    def close(self) -> None:
        self._checkpoint.close(job_is_over=True)


def until_promised(checkpoint: Any, step: int) -> None:
    _until(checkpoint, lambda status: status.promised is not None and status.promised.step >= step, f"step {step}")


def until_agreed(checkpoint: Any, step: int) -> None:
    _until(checkpoint, lambda status: status.agreed is not None and status.agreed.step >= step, f"step {step}")


def _until(checkpoint: Any, holds: Callable[[Any], bool], what: str) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not holds(checkpoint.status()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {_WAIT_S:.0f} s for {what}: {checkpoint.status()}")
        time.sleep(0.0005)


def measure_ours(shape: Shape, rounds: int, folder: Path) -> Timed:
    result, tensors = Timed(), shape.tensors()
    copies = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    ours = Ours(tensors, folder)
    try:
        for step in range(rounds + 2):
            warm = Timed() if step < 2 else result  # the first two touch the slots' memory
            warm.add("plain copy", timed(_copy_all, tensors, copies))
            ours.measure(step, warm)
        for _ in range(rounds):
            ours.measure_restore(result)
    finally:
        ours.close()
    return result


def _copy_all(tensors: Tensors, copies: Tensors) -> None:
    for name, tensor in tensors.items():
        copies[name].copy_(tensor)


def measure_peer(peer: Peer, shape: Shape, rounds: int) -> Timed:
    result, tensors = Timed(), shape.tensors()
    try:
        for step in range(1, rounds + 3):
            warm = Timed() if step < 3 else result
            began = time.perf_counter()
            warm.add("returns", timed(peer.save, tensors, step))
            peer.finish()
            warm.add("kept", time.perf_counter() - began)
        for _ in range(rounds):
            result.add("restore", timed(peer.load, tensors))
    finally:
        peer.close()
    return result


def print_table(shape: Shape, results: dict[str, Timed]) -> None:
    columns = ("returns", "optimizer waits", "kept", "restore")
    print(f"\n| {shape}, ms | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for name, result in results.items():
        print(f"| {name} | {' | '.join(map(result.median_ms, columns))} |")


def print_rates(shape: Shape, ours: Timed) -> None:
    plain = ours.gb_per_s("plain copy", shape.byte_count)
    copy_s = [sum(pair) for pair in zip(ours.seconds["returns"], ours.seconds["optimizer waits"], strict=True)]
    copied = shape.byte_count / statistics.median(copy_s) / 1e9
    restored = ours.gb_per_s("restore", shape.byte_count)
    print(
        f"\n{shape}: plain copy on one thread {plain:.1f} GB/s, ours until the optimizer goes on {copied:.1f} GB/s"
        f" ({100 * copied / plain:.0f} %), restore with verification {restored:.1f} GB/s,"
        f" attach {ours.median_ms('attach')} ms"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--smoke", action="store_true", help="small states, two rounds, to see that it runs")
    arguments = parser.parse_args()
    rounds = 2 if arguments.smoke else arguments.rounds
    with tempfile.TemporaryDirectory(prefix="smon-checkpoint-") as name:
        folder = Path(name)
        begin_job(folder)
        peers, missing = installed_peers()
        for shape in SMALL_SHAPES if arguments.smoke else SHAPES:
            ours = measure_ours(shape, rounds, folder)
            results = {"smon_rt": ours}
            for kind in peers:
                own_folder = folder / f"{kind.__name__}-{shape.tensor_count}"
                results[kind.name] = measure_peer(kind(own_folder), shape, rounds)
            print_table(shape, results)
            print_rates(shape, ours)
        print(*missing, sep="\n")
    return 0


def begin_job(folder: Path) -> None:
    """A job of one process, which some ways want."""
    os.environ.pop("TORCHELASTIC_RUN_ID", None)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=0, world_size=1)


if __name__ == "__main__":
    sys.exit(main())
