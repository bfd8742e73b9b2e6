"""Instructions that the engine needs per op, counted by callgrind: the figure that no busy neighbour changes."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from engine import Record

PROGRAM = Path(__file__).resolve().parent.parent / "build" / "release" / "bin" / "engine_bench"
#: The engine's entry; what the program does to make the job is not counted.
ENTRY = "smon_rt::analysis::analyze(*"


def count(smoke: bool, record: Record) -> None:
    """A job of 128 steps, and how much more an op costs there than in one of 16 (complexity)."""
    del smoke  # the counts are the same every time: the short run is the run
    names = ("instructions per op, 128 steps", "instructions per op, 8 times the steps")
    missing = "no valgrind" if shutil.which("valgrind") is None else "" if PROGRAM.exists() else f"no {PROGRAM.name}"
    if missing:
        for name in names:
            record(name, None, f"{missing}: run make setup and make build")
        return
    short, long = instructions_per_op(16), instructions_per_op(128)
    record(names[0], long, "callgrind, dp 4, pp 4, 8 microbatches")
    record(names[1], long / short, f"{short:,.0f} with 16 steps")


def instructions_per_op(steps: int) -> float:
    # One iteration, named in the filter so that nothing else runs; google-benchmark's own calls are not collected.
    command = [
        "valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", f"--toggle-collect={ENTRY}",
        str(PROGRAM), f"--benchmark_filter=analyze_steps/{steps}$", "--benchmark_min_time=0", "--benchmark_format=json",
    ]  # fmt: skip
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    collected = re.search(r"Collected : (\d+)", done.stderr)
    ops = re.search(r'"ops": ([\d.e+]+)', done.stdout)
    iterations = re.search(r'"iterations": (\d+)', done.stdout)
    if collected is None or ops is None or iterations is None:
        raise RuntimeError(f"callgrind or the benchmark says something else than expected: {done.stderr[-500:]}")
    return int(collected.group(1)) / float(ops.group(1)) / int(iterations.group(1))
