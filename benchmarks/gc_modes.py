"""Ways to collect Python's garbage, side by side: real processes over gloo that train in step with each other.

    python benchmarks/gc_modes.py --write docs/gc.md   # a quarter of an hour
    python benchmarks/gc_modes.py --smoke

Every process holds a heap of some million objects, and leaves cyclic garbage in each step: some dies in its step, some
lives for a while first, as in caches and queues. Modes: Python's default; gc.disable(); a full collection every 100
steps (Megatron's --manual-gc); generation 1 every 50 (torchtitan); and smon_rt.gc.plan(). All in one run, one after the
other, in rounds of random order. A second table is of memory alone, over many short steps.

Exits with 1 if planned collections were not at the same steps on all ranks, or there were others.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import gc
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import smon_rt
from smon_rt._memory import anonymous_bytes

MODES = ("default", "disable", "megatron", "torchtitan", "plan")
WORDS = {
    "default": "Python's default",
    "disable": "`gc.disable()`",
    "megatron": "full every 100 steps (Megatron `--manual-gc`)",
    "torchtitan": "generation 1 every 50 steps (torchtitan)",
    "plan": "`smon_rt.gc.plan()`",
}
#: Left out of all times: warm-up, the first collection of everything, and what "auto" measures.
SETTLING_STEPS = 100
_MARKS = ("<!-- made by benchmarks/gc_modes.py -->", "<!-- end of what it made -->")


@dataclass(frozen=True)
class Load:
    """What a job does; objects are per process, garbage per step and process."""

    ranks: int = 4
    heap_objects: int = 2_000_000
    steps: int = 2000
    compute: int = 600
    """Rows of the matrices that are multiplied: about 10 ms."""
    short_cycles: int = 500
    aged_cycles: int = 500
    aged_steps: int = 50
    threads: int = 1
    interval: int | str = "auto"


@dataclass
class Ran:
    """What one process saw."""

    step_s: list[float] = field(default_factory=list)
    memory_bytes: list[int] = field(default_factory=list)
    collected: list[tuple[int, int, float]] = field(default_factory=list)
    """(step, generation, pause in s), those of generation 0 left out."""
    status: dict[str, Any] = field(default_factory=dict)


class Node:
    """One of two that know each other."""

    def __init__(self) -> None:
        self.other: Node | None = None
        self.values = [1.0, 2.0]


def cycle() -> Node:
    """Two objects that only a collection frees."""
    one, other = Node(), Node()
    one.other, other.other = other, one
    return one


def run_rank(mode: str, load: Load, rank: int, store: str) -> Ran:
    """The job, as one of its ranks."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(load.threads)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=load.ranks)
    heap = [[float(number)] for number in range(load.heap_objects)]
    aged: collections.deque[list[Node]] = collections.deque(maxlen=load.aged_steps)
    matrix, loss = torch.rand(load.compute, load.compute), torch.zeros(1)
    # Not all ranks allocate alike: their default collections come at steps of their own.
    short, old = (round(count * (1 + 0.1 * rank)) for count in (load.short_cycles, load.aged_cycles))
    ran = Ran()
    step, began_s = 0, 0.0

    def log(phase: str, info: dict[str, int]) -> None:
        nonlocal began_s
        if phase == "start":
            began_s = time.perf_counter()
        elif info["generation"] > 0 or mode == "plan":
            ran.collected.append((step, info["generation"], time.perf_counter() - began_s))

    gc.callbacks.append(log)
    between = _begin(mode, load.interval)
    dist.barrier()
    before_s = time.perf_counter()
    for step in range(load.steps):
        with smon_rt.step(step):
            between(step)
            for _ in range(short):
                cycle()
            aged.append([cycle() for _ in range(old)])
            if load.compute:
                torch.mm(matrix, matrix)
            dist.all_reduce(loss)
        now_s = time.perf_counter()
        ran.step_s.append(now_s - before_s)
        before_s = now_s
        if step % 50 == 0:
            ran.memory_bytes.append(anonymous_bytes())
    ran.memory_bytes.append(anonymous_bytes())
    ran.status = asdict(smon_rt.gc.status())
    gc.callbacks.remove(log)
    smon_rt.gc.stop()
    dist.barrier()
    del heap
    return ran


def _begin(mode: str, interval: int | str) -> Callable[[int], object]:
    """Sets a mode up, and returns what it does in each step."""
    if mode == "plan":
        smon_rt.gc.plan(interval)
    elif mode != "default":
        gc.disable()
    if mode == "megatron":
        gc.collect()
        return lambda step: gc.collect() if step and step % 100 == 0 else None
    if mode == "torchtitan":
        gc.collect(1)
        return lambda step: gc.collect(1) if step > 1 and step % 50 == 0 else None
    return lambda _step: None


def run_job(mode: str, load: Load) -> list[Ran]:
    """All ranks, as forks of this process, which has loaded torch once for all."""
    with tempfile.TemporaryDirectory() as folder:
        children = [_fork(mode, load, rank, folder) for rank in range(load.ranks)]
        ended = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
        if any(ended):
            raise RuntimeError(f"{mode}: ranks ended with {ended}")
        return [Ran(**json.loads((Path(folder) / str(rank)).read_text())) for rank in range(load.ranks)]


def _fork(mode: str, load: Load, rank: int, folder: str) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        ran = run_rank(mode, load, rank, f"{folder}/store")
        (Path(folder) / str(rank)).write_text(json.dumps(asdict(ran)))
        os._exit(0)
    except BaseException as error:
        print(f"{mode}, rank {rank}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)


def problems_of(mode: str, ranks: list[Ran]) -> list[str]:
    """What must not be: collections of a plan at different steps, or others beside them."""
    if mode != "plan":
        return []
    settled = [[(step, generation) for step, generation, _ in ran.collected if step > 2] for ran in ranks]
    problems = [] if all(each == settled[0] for each in settled) else ["planned collections are not at the same steps"]
    for rank, ran in enumerate(ranks):
        problems += [
            f"rank {rank}: {ran.status[name]} {name} collections; {ran.status['conflicts']}"
            for name in ("unplanned", "guard", "late")
            if ran.status[name]
        ]
    return problems


@dataclass(frozen=True)
class Row:
    """A mode's numbers; times of rank 0, memory of all ranks together."""

    mode: str
    p50_ms: float
    p99_ms: float
    worst_ms: float
    steps_per_s: float
    pauses: int
    pause_ms: float
    memory_first_mib: float
    memory_last_mib: float
    interval: str


def row_of(mode: str, rounds: list[list[Ran]], settling: int = SETTLING_STEPS) -> Row:
    """Over all rounds: percentiles of all steps, pauses of all ranks."""
    step_s = np.concatenate([np.array(ranks[0].step_s[settling:]) for ranks in rounds])
    late = [each for ranks in rounds for ran in ranks for each in ran.collected if each[0] >= settling]
    first, last = (
        np.mean([sum(ran.memory_bytes[at] for ran in ranks) for ranks in rounds]) / 2**20 for at in (settling // 50, -1)
    )
    status = rounds[-1][0].status
    why = f", {status['why']}" if status["why"] else ""
    return Row(
        mode=mode,
        p50_ms=float(np.percentile(step_s, 50)) * 1e3,
        p99_ms=float(np.percentile(step_s, 99)) * 1e3,
        worst_ms=float(step_s.max()) * 1e3,
        steps_per_s=len(step_s) / float(step_s.sum()),
        pauses=round(len(late) / len(rounds)),
        pause_ms=max((pause_s for _, _, pause_s in late), default=0.0) * 1e3,
        memory_first_mib=float(first),
        memory_last_mib=float(last),
        interval=f"every {status['interval_steps']} steps{why}" if mode == "plan" else "",
    )


def table_of_times(rows: list[Row]) -> list[str]:
    """Markdown; throughput against the default's."""
    base = next((row.steps_per_s for row in rows if row.mode == "default"), rows[0].steps_per_s)
    lines = [
        "| mode | step p50 | p99 | worst | steps/s | throughput | longest pause | RssAnon of all ranks, first → last |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        interval = f" ({row.interval})" if row.interval else ""
        lines.append(
            f"| {WORDS[row.mode]}{interval} | {row.p50_ms:.1f} ms | {row.p99_ms:.1f} ms | {row.worst_ms:,.0f} ms"
            f" | {row.steps_per_s:.2f} | {(row.steps_per_s / base - 1) * 100:+.1f} % | {row.pause_ms:,.1f} ms"
            f" | {row.memory_first_mib:,.0f} → {row.memory_last_mib:,.0f} MiB |"
        )
    return lines


def table_of_memory(rows: list[Row], steps: int) -> list[str]:
    """Markdown: what many steps leave."""
    lines = [
        f"| mode, {steps:,} short steps | RssAnon of all ranks after {SETTLING_STEPS} steps | at the end |",
        "|---|---|---|",
    ]
    return lines + [
        f"| {WORDS[row.mode]} | {row.memory_first_mib:,.0f} MiB | {row.memory_last_mib:,.0f} MiB |" for row in rows
    ]


def run_modes(modes: tuple[str, ...], load: Load, round_count: int) -> tuple[dict[str, list[list[Ran]]], list[str]]:
    """Each mode once in every round."""
    ran: dict[str, list[list[Ran]]] = {mode: [] for mode in modes}
    problems: list[str] = []
    for number in range(round_count):
        for mode in random.Random(number).sample(modes, len(modes)):
            began_s = time.perf_counter()
            ranks = run_job(mode, load)
            ran[mode].append(ranks)
            problems += problems_of(mode, ranks)
            print(f"round {number + 1}, {mode}: {time.perf_counter() - began_s:.0f} s", file=sys.stderr, flush=True)
    return ran, problems


def main() -> int:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="a page with a place for the tables, as docs/gc.md")
    parser.add_argument("--smoke", action="store_true", help="a small job, for CI")
    parser.add_argument("--steps", type=int, default=Load.steps)
    parser.add_argument("--heap-objects", type=int, default=Load.heap_objects)
    parser.add_argument("--ranks", type=int, default=Load.ranks)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--long-steps", type=int, default=20_000, help="of the table of memory")
    parser.add_argument("--modes", nargs="+", default=MODES, choices=MODES)
    arguments = parser.parse_args()
    import torch.distributed  # once for all ranks

    from smon_rt.gc import planner, publishing

    # A run of a minute cannot wait as long as a job may for an interval to be heard of.
    publishing.POLL_S, planner._MARGIN_POLLS = 0.05, 40
    if arguments.smoke:
        load = Load(ranks=2, heap_objects=100_000, steps=160, compute=64, short_cycles=100, interval=20)
        ran, problems = run_modes(tuple(arguments.modes), load, 1)
        long_ran: dict[str, list[list[Ran]]] = {}
        long_steps = 0
    else:
        load = Load(ranks=arguments.ranks, heap_objects=arguments.heap_objects, steps=arguments.steps)
        ran, problems = run_modes(tuple(arguments.modes), load, arguments.rounds)
        long_steps = arguments.long_steps
        long_load = Load(
            ranks=load.ranks, heap_objects=100_000, steps=long_steps, compute=0, short_cycles=30, aged_cycles=30
        )
        long_ran, more = run_modes(("disable", "torchtitan", "plan"), long_load, 1)
        problems += more
    lines = table_of_times([row_of(mode, rounds) for mode, rounds in ran.items()])
    if long_ran:
        lines += ["", *table_of_memory([row_of(mode, rounds) for mode, rounds in long_ran.items()], long_steps)]
    today = datetime.datetime.now(tz=datetime.timezone.utc).date()
    head = (
        f"{today}, {os.cpu_count()} cores, Python {sys.version.split()[0]}, torch {torch.__version__.split('+')[0]}:"
        f" {load.ranks} processes over gloo, {load.heap_objects:,} objects each, {load.steps:,} steps"
        f" (the first {SETTLING_STEPS} left out), {len(next(iter(ran.values())))} rounds; times of rank 0."
    )
    text = "\n".join([head, "", *lines])
    print(text)
    if arguments.write is not None:
        write_between(arguments.write, text)
    for problem in problems:
        print(f"FAILED {problem}", file=sys.stderr)
    return 1 if problems else 0


def write_between(page: Path, text: str) -> None:
    """Replaces what lies between the two marks."""
    before, _, rest = page.read_text().partition(_MARKS[0])
    _, _, after = rest.partition(_MARKS[1])
    page.write_text(f"{before}{_MARKS[0]}\n{text}\n{_MARKS[1]}{after}")


if __name__ == "__main__":
    sys.exit(main())
