"""Times of the engine: on a published trace, per op as jobs grow, and on a job of 8 million ops."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Protocol

from smon_rt import _analysis
from smon_rt.analysis.importer import Trace, read_trace

ROOT = Path(__file__).resolve().parent.parent


class Record(Protocol):
    """Takes one figure: what it is, its value (None: not measured), how it was measured."""

    def __call__(self, what: str, value: float | None, note: str) -> None: ...


def analyze_ms(trace: Trace) -> float:
    """The engine's own time, without reading."""
    return _analysis.analyze(trace.ops, trace.recorded_sizes())["timing_ms"]["analyze"]


def published_trace(smoke: bool, record: Record) -> None:
    shared = Path(os.environ.get("SMON_TEST_SHARED", ROOT.parent / "shared"))
    path = shared / "traces" / "trace-AR.parquet"
    if not path.exists():
        record("published trace AR, analyze", None, f"no {path.name}: set SMON_TEST_SHARED")
        return
    trace = read_trace(path)
    times = sorted(analyze_ms(trace) for _ in range(3 if smoke else 60))
    note = f"{trace.ops.num_rows:,} ops, median of {len(times)}, {times[0]:.1f} to {times[-1]:.1f}; one core"
    record("published trace AR, analyze", statistics.median(times), note)


def cost_per_op(smoke: bool, record: Record) -> None:
    """CPU time per op of one layout with ever more steps, in turn, so that the machine's moods hit all alike."""
    step_counts = (2, 9) if smoke else (9, 86, 858)
    with tempfile.TemporaryDirectory() as folder:
        traces = [
            synthesize(Path(folder), steps, "--dp", "8", "--pp", "8", "--microbatches", "32") for steps in step_counts
        ]
        times: list[list[float]] = [[] for _ in traces]
        for _ in range(1 if smoke else 9):
            for index, trace in enumerate(traces):
                for _ in range(max(1, 1_000_000 // trace.ops.num_rows)):
                    began_s = time.thread_time()
                    analyze_ms(trace)
                    times[index].append((time.thread_time() - began_s) / trace.ops.num_rows * 1e9)
    medians = [statistics.median(values) for values in times]
    each = ", ".join(f"{trace.ops.num_rows:,} ops {ns:.0f} ns" for trace, ns in zip(traces, medians, strict=True))
    record("cost per op, longest job to shortest", medians[-1] / medians[0], f"CPU time per op, medians: {each}")


def large_job(smoke: bool, record: Record) -> None:
    """`smon analyze` as a user runs it, in a process of its own."""
    layout = (
        ("--dp", "4", "--pp", "4", "--microbatches", "8")
        if smoke
        else ("--dp", "64", "--pp", "16", "--microbatches", "64")
    )
    with tempfile.TemporaryDirectory() as folder:
        trace = write_job(Path(folder), 20, *layout, "--plant", "worker=1,2:1.5")
        report = Path(folder) / "report.json"
        began_s = time.monotonic()
        memory_bytes = run_and_measure([*smon("analyze"), str(trace), "--quiet", "--json", str(report)])
        wall_s = time.monotonic() - began_s
        timing_ms = json.loads(report.read_text())["timing_ms"]
    note = f"{' '.join(layout)}, 20 steps, exact slowdown of every worker; one process"
    record("8 M ops, analyze", timing_ms["analyze"] / 1e3, note)
    record("8 M ops, whole command", wall_s, f"start, reading {timing_ms['read'] / 1e3:.1f} s, analysis, JSON")
    record("8 M ops, peak memory", memory_bytes / 2**30, "largest resident set of that process")


def synthesize(folder: Path, steps: int, *options: str) -> Trace:
    return read_trace(write_job(folder, steps, *options))


def write_job(folder: Path, steps: int, *options: str) -> Path:
    path = folder / f"job-{steps}.parquet"
    command = [*smon("synth"), "-o", str(path), "--steps", str(steps), "--seed", "3", *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return path


def smon(command: str) -> list[str]:
    return [sys.executable, "-c", "from smon_rt.cli import main; main()", command]


def run_and_measure(command: list[str]) -> int:
    """Runs `command` and returns its peak resident memory in bytes."""
    program = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True); "
        "print('peak KiB', resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    done = subprocess.run([sys.executable, "-c", program, *command], check=True, capture_output=True, text=True)
    peak = re.search(r"peak KiB (\d+)", done.stdout)
    assert peak is not None
    return int(peak.group(1)) * 1024
