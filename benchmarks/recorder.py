"""Times of the recorder's hot path: a begin and an end in each of its states, beside two readings of the clock."""

from __future__ import annotations

import json
import subprocess

from engine import Record
from instructions import PROGRAMS

#: What the targets call a state → benchmark of record_bench.
STATES = {
    "not recording": "not_recording",
    "unsampled step": "unsampled",
    "sampled": "sampled",
    "sampled, of a communicator": "collective_sampled",
    "unsampled, of a communicator": "collective_unsampled",
}


def native_pairs(smoke: bool, record: Record) -> None:
    """Median of batches of 64 pairs, one after the other on one thread, while a reader keeps the rings half empty."""
    program = PROGRAMS / "record_bench"
    if not program.exists():
        for state in STATES:
            record(f"begin and end, native, {state}", None, f"no {program.name}: run make build")
        return
    command = [str(program), f"--benchmark_min_time={0.01 if smoke else 0.5}", "--benchmark_format=json"]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    measured = {row["name"].partition("/")[0]: row for row in report["benchmarks"]}
    floor_ns = measured["clock_floor"]["p50_ns"]
    for state, name in STATES.items():
        row = measured[name]
        note = f"p99 {row['p99_ns']:.0f} ns, {row['dropped']:.0f} dropped; two readings of the clock {floor_ns:.0f} ns"
        record(f"begin and end, native, {state}", row["p50_ns"], note)
