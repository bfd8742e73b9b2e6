"""What smon_rt costs beside its peers: an empty region, and a real training step of about 1, 10 and 100 ms.

    make peers                                    # installs the peers beside the project, measures, writes the page
    python benchmarks/peers.py [--seconds 180]    # prints; those of them that are installed

All of it is one run, in one process on one thread. In each round every tool has a block of steps, in random order. A
tool is begun for its block and ended after it, so that no step bears another's threads or hooks, and the first steps of
a block are not counted. What a tool adds is a share of the bare steps of the same round: the median over rounds, with a
bootstrap interval in which it lies with 95 %. Tools that record one step of ten have that mixture in each round.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import importlib
import os
import platform
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from peer_steps import REGIONS, SIZES, Job
from peer_tools import ONE_OF, BareAgain, Smon, Tool, all_tools, version_of
from record_python import Case

import smon_rt
from smon_rt._interleaved import Round, added, times_of, typical_s

# torch's profiler says on stderr when it begins and ends; read when torch is loaded.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"
TITLE = "## Beside its peers"
_SAMPLED_STEP = 1_000_000
_BURST, _SLOW_BURST = 1000, 50
#: Length of a step in ms → steps of a block, those before that are not counted. Mixtures have whole tens.
_BLOCKS = {1: (20, 6), 10: (10, 3), 100: (4, 1)}
#: Length of a step in ms → its share of the time.
_SHARES = {1: 0.2, 10: 0.3, 100: 0.5}
_FEWEST_ROUNDS = 5
T = TypeVar("T")
_PACKAGES = ("torch", "nvtx", "opentelemetry-sdk", "nvidia-resiliency-ext", "traceml-ai")


@dataclass(frozen=True)
class Block:
    """A tool's steps of one round, in both clocks: of the wall, and of the processor for all threads."""

    wall: Round
    cpu: Round


@dataclass
class Peers:
    """What was measured: of regions, of steps by their length, and what could not be."""

    regions: list[Case] = field(default_factory=list)
    steps: dict[int, dict[str, list[Block]]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    tools: list[Tool] = field(default_factory=list)
    load: float = field(default_factory=lambda: os.getloadavg()[0])
    """Of the machine before it began: on a busy one only the regions' medians mean much."""

    def attempt(self, tool: Tool, work: Callable[[], T]) -> T | None:
        """A tool that fails is out from there on, and what it had measured too."""
        try:
            return work()
        except Exception as error:
            self._drop(tool, error)
            return None

    def _drop(self, tool: Tool, error: Exception) -> None:
        reason = "is not installed" if isinstance(error, ModuleNotFoundError) else f"{type(error).__name__}: {error}"
        self.left_out[tool.name] = " ".join(reason.split())[:200]
        self.tools.remove(tool)
        for arms in self.steps.values():
            arms.pop(tool.name, None)
        print(f"peers: {tool.name} is left out: {self.left_out[tool.name]}", flush=True)


def measure(seconds: float, smoke: bool) -> Peers:
    """All of it; `seconds` is for the steps."""
    peers = Peers(tools=all_tools())
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        peers.left_out = {tool.name: "torch is not importable" for tool in peers.tools}
        peers.tools = []
        return peers
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for tool in list(peers.tools):
        peers.attempt(tool, tool.load)
    try:
        measure_regions(peers, 1 if smoke else 30)
        for length_ms in (1,) if smoke else SIZES:
            measure_steps(
                peers, length_ms, 0.0 if smoke else _SHARES[length_ms] * seconds, 1 if smoke else _FEWEST_ROUNDS
            )
    finally:
        torch.set_num_threads(threads)
    if smoke:
        print(f"smoke run of: {len(peers.tools)} tools beside each other, a step of 1 ms", flush=True)
    return peers


def measure_regions(peers: Peers, rounds: int) -> None:
    """An empty region of each tool, and begin and end of ours in each state."""
    tools = [tool for tool in peers.tools if tool.has_region]
    cases = {tool.name: Case(tool.name, _loop(tool)) for tool in peers.tools}
    ours = {
        f"{form}, {state}": Case(f"smon_rt, {form}, {state}", loop) for state in _STATES for form, loop in _OURS.items()
    }
    chance = random.Random(2)
    for _ in range(rounds):
        turns = [functools.partial(_time_ours, ours)]
        turns += [functools.partial(_time_tool, peers, tool, cases[tool.name]) for tool in tools if tool in peers.tools]
        chance.shuffle(turns)
        for turn in turns:
            turn()
    peers.regions = [*ours.values(), *(cases[tool.name] for tool in tools if tool in peers.tools)]


def _time_tool(peers: Peers, tool: Tool, case: Case) -> None:
    def work() -> None:
        tool.begin(0)
        try:
            case.loop(range(2))
            case.time(range(_SLOW_BURST if tool.is_slow else _BURST))
        finally:
            tool.end()

    peers.attempt(tool, work)


def _loop(tool: Tool) -> Callable[[range], None]:
    def loop(burst: range) -> None:
        region = tool.region
        assert region is not None
        for _ in burst:
            with region("user"):
                pass

    return loop


def _pair(burst: range) -> None:
    begin, end = smon_rt.begin, smon_rt.end
    for _ in burst:
        end(begin("user"))


def _with(burst: range) -> None:
    span = smon_rt.span
    for _ in burst:
        with span("user"):
            pass


_OURS = {"begin and end": _pair, "with": _with}
_STATES = ("not recording", "unsampled", "sampled")


def _time_ours(cases: dict[str, Case]) -> None:
    """In all states; each burst of a sampled step has an empty ring, so that nothing is dropped."""
    off, unsampled, sampled = ([cases[f"{form}, {state}"] for form in _OURS] for state in _STATES)
    for case in off:
        case.loop(range(2))
        case.time(range(_BURST))
    for ratio, turn in ((0.0, unsampled), (1.0, sampled)):
        for case in turn:
            tool = Smon(ratio)
            tool.begin(0)
            with smon_rt.step(_SAMPLED_STEP):
                case.loop(range(2))
                case.time(range(_BURST))
            tool.end()


def measure_steps(peers: Peers, length_ms: int, seconds: float, fewest_rounds: int) -> None:
    """Rounds of all tools until the time is over; the first warms all up and is not counted."""
    job = Job(length_ms)
    job.fit()
    arms: dict[str, list[Block]] = {tool.name: [] for tool in peers.tools}
    peers.steps[length_ms] = arms
    chance, began_s, done = random.Random(length_ms), time.perf_counter(), -1
    while _goes_on(done, fewest_rounds, time.perf_counter() - began_s, seconds):
        for tool in chance.sample(peers.tools, len(peers.tools)):
            one = peers.attempt(tool, functools.partial(block, tool, job))
            if one is not None and done >= 0:
                arms[tool.name].append(one)
        done += 1
    for cells in step_rows(arms) if seconds else ():  # a single round says nothing
        print(f"{length_ms} ms", *cells, sep="  ", flush=True)


def _goes_on(done: int, fewest_rounds: int, elapsed_s: float, seconds: float) -> bool:
    """So many rounds at least, but no busy machine takes more than three times as long."""
    if done < 1 or elapsed_s < seconds:
        return True
    return done < fewest_rounds and elapsed_s < 3 * seconds


def block(tool: Tool, job: Job) -> Block:
    """One tool's steps of a round."""
    count, first_steps = _BLOCKS[job.length_ms]
    first_steps = max(first_steps, tool.first_steps)
    if tool.sort(ONE_OF - 1) != 0:
        count = max(count, ONE_OF)
    sorts: dict[int, list[tuple[float, float]]] = {}
    tool.begin(first_steps)
    try:
        for number in range(-first_steps, count):
            cpu_s, wall_s = time.process_time(), time.perf_counter()
            tool.run(job, number)
            wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
            if number >= 0:
                sorts.setdefault(tool.sort(number), []).append((wall_s, cpu_s))
    finally:
        tool.end()
    return Block(*(Round(tuple(tuple(step[what] for step in sort) for sort in sorts.values())) for what in (0, 1)))


def step_rows(arms: dict[str, list[Block]]) -> list[list[str]]:
    """What of each tool is printed: times, what is added, in wall and in processor time, and that for each region."""
    walls = {name: [one.wall for one in blocks] for name, blocks in arms.items()}
    cpus = {name: [one.cpu for one in blocks] for name, blocks in arms.items()}
    bare_s = typical_s(walls[Tool.name])
    rows = []
    for name, rounds in walls.items():
        times = times_of(rounds)
        cells = [name, f"{1000 * times.median_s:.3f} ms", f"{1000 * times.p99_s:.3f} ms"]
        if name == Tool.name:
            cells += ["", "", ""]
        elif name == BareAgain.name:  # held against the other bare steps alone
            cells += [str(added(one[name], [one[Tool.name]])) for one in (walls, cpus)] + [""]
        else:
            share, cpu_share = (added(one[name], [one[Tool.name], one[BareAgain.name]]) for one in (walls, cpus))
            cells += [str(share), str(cpu_share), f"{1e6 * share.value * bare_s / REGIONS:.1f} µs"]
        rows.append(cells)
    return rows


def section(peers: Peers) -> str:
    """For the page."""
    versions = ", ".join(filter(None, map(version_of, _PACKAGES)))
    regions = [[case.what, f"{case.p50_ns:,.0f} ns", f"{case.p99_ns:,.0f} ns"] for case in peers.regions]
    used = "".join(f"- {tool.name}: {tool.how}\n" for tool in peers.tools)
    left_out = "".join(f"- {name}: not measured: {reason}\n" for name, reason in peers.left_out.items())
    return f"""{TITLE}

Made by `make peers` on {datetime.date.today().isoformat()}: {processor()}, {os.cpu_count()} cores,
Python {platform.python_version()}, {versions}.
One run, one process, one thread; tools take turns in random order. Load average before it: {peers.load:.1f}.

An empty region, from Python:

{table(["what", "p50", "p99"], regions)}

A training step of {REGIONS} regions on the processor: four microbatches, backward, clipping, SGD. *Added* is a share
of the bare step, with the interval in which it lies with 95 %; *processor time* the same of all threads; *a region*
what is added, shared out. What is within the interval of *bare again* shows nothing.
{"".join(_steps_table(length_ms, arms) for length_ms, arms in peers.steps.items())}
How each is used:

{used}{left_out}"""


def _steps_table(length_ms: int, arms: dict[str, list[Block]]) -> str:
    head = [f"{length_ms} ms, {len(arms[Tool.name])} rounds", "median", "p99", "added", "processor time", "a region"]
    return f"\n{table(head, step_rows(arms))}\n"


def table(head: list[str], rows: list[list[str]]) -> str:
    """As Markdown."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *rows])


def processor() -> str:
    """The processor's name, as far as the system tells."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def write(text: str) -> None:
    """Puts the section in the place of the one on the page; other sections stay."""
    page = PAGE.read_text()
    before, _, rest = page.partition(f"{TITLE}\n")
    _, found, after = rest.partition("\n## ")
    PAGE.write_text(f"{before.rstrip()}\n\n{text}{found}{after}")
    print(f"wrote {PAGE.relative_to(ROOT)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=180.0, help="for the steps, in all")
    parser.add_argument("--smoke", action="store_true", help="one round of the shortest step")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    arguments = parser.parse_args()
    peers = measure(arguments.seconds, arguments.smoke)
    text = section(peers)
    if arguments.write:
        write(text)
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
