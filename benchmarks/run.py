"""Measures the engine and the recorder and writes docs/benchmarks.md.

    python benchmarks/run.py            # all of it, some minutes
    python benchmarks/run.py --smoke    # seconds: each benchmark once and small, writes nothing

Both fail only on what repeats exactly: instruction counts of callgrind, and bytes a span. Times are printed beside
their targets and never asserted: on a shared machine they say as much about the neighbours.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import engine
import instructions
import peers
import record_python
import recorder
import step_overhead
import torch_hooks

ROOT = Path(__file__).resolve().parent.parent
BASELINES = ROOT / "benchmarks" / "baseline"
RESULT = ROOT / "docs" / "benchmarks.md"
_PEERS_S = 180.0  # for the steps beside other tools


@dataclass(frozen=True)
class Row:
    """One measured figure beside its target; `note` says how it was measured."""

    what: str
    value: float | None
    unit: str
    target: float
    note: str

    @property
    def is_gated(self) -> bool:
        """Whether a value beyond the target fails the run: counts, which repeat exactly, do; times never."""
        return self.what.startswith(("instructions", "bytes"))

    def cells(self) -> list[str]:
        value = "not measured" if self.value is None else f"{self.value:,.3g} {self.unit}"
        return [self.what, value, f"<= {self.target:,.3g} {self.unit}", self.note]


def targets() -> dict[str, tuple[str, float]]:
    files = sorted(BASELINES.glob("*.jsonl"))
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return {line["what"]: (line["unit"], line["target"]) for line in lines}


@dataclass(frozen=True)
class Floor:
    """What a call or a `with` costs from Python, in the same run as our spans."""

    what: str
    p50_ns: float
    p99_ns: float

    def cells(self) -> list[str]:
        return [self.what, f"{self.p50_ns:,.0f} ns", f"{self.p99_ns:,.0f} ns"]


def measure(smoke: bool) -> tuple[list[Row], list[Floor], peers.Peers]:
    known = targets()
    rows = []

    def record(what: str, value: float | None, note: str) -> None:
        unit, target = known[what]
        row = Row(what, value, unit, target, note)
        rows.append(row)
        # A small job says nothing about a target that is meant for a large one.
        cells = row.cells() if row.is_gated or not smoke else [f"smoke run of: {what}", row.cells()[1], note]
        print("  ".join(cells), flush=True)

    steps: list[Callable[[bool, engine.Record], None]] = [
        engine.published_trace,
        engine.cost_per_op,
        engine.large_job,
        instructions.count,
        recorder.native_pairs,
        recorder.drain,
        recorder.trace_bytes,
        instructions.count_recorder,
        instructions.count_nccl,
        instructions.count_python_pair,
        instructions.count_collective,
        instructions.count_transfer,
        instructions.count_step,
        instructions.count_plan,
        step_overhead.measure,
        torch_hooks.measure,
    ]
    for step in steps:
        step(smoke, record)
    floors = [Floor(*floor) for floor in record_python.measure(smoke, record)]
    for floor in floors:
        print("  ".join(floor.cells()), flush=True)
    return rows, floors, peers.measure(_PEERS_S, smoke)


def floors_section(floors: list[Floor]) -> str:
    """What the language itself costs."""
    return f"""## What Python itself costs

Timed in turn with our own spans, in the same run.

{peers.table(["what", "p50", "p99"], [floor.cells() for floor in floors])}"""


def page(rows: list[Row], floors: list[Floor], beside: peers.Peers) -> str:
    return f"""# Benchmarks

Made by `make bench` on {datetime.date.today().isoformat()}: {peers.processor()}, {os.cpu_count()} cores, Python
{platform.python_version()}. Times of a shared machine: medians, and ratios within one run; only instruction counts and
bytes, which repeat exactly, are a gate in CI. `smon bench` measures a step of your own ([cli.md](cli.md)).

Never run on a GPU: neither the engine nor the spans measured here use one.

{peers.table(["what", "measured", "target", "how"], [row.cells() for row in rows])}

{floors_section(floors)}

{peers.section(beside)}"""


def over_target(rows: list[Row]) -> list[Row]:
    """Rows that fail the run: counts beyond their target."""
    return [row for row in rows if row.is_gated and row.value is not None and row.value > row.target]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="each benchmark once and small; writes nothing")
    smoke = parser.parse_args().smoke
    rows, floors, beside = measure(smoke)
    if not smoke:
        RESULT.write_text(page(rows, floors, beside))
        print(f"wrote {RESULT.relative_to(ROOT)}")
    failed = over_target(rows)
    for row in failed:
        print(f"OVER TARGET: {row.what}: {row.value:,.4g} {row.unit} > {row.target:,.4g}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
