"""Times of the recorder: a begin and an end in each of its states, beside two readings of the clock; the drain thread;
and the bytes that a span takes in a file."""

from __future__ import annotations

import json
import subprocess
from typing import Any

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


#: What a drained span is called → benchmark of drain_bench.
DRAINS = {"to memory": "BM_DrainToMemory", "to a file": "BM_DrainToFile"}
#: Spans of a training step as drain_bench and format_bench make them: with host times, with device times too.
SPANS = {"host times": "host", "device times": "device"}
_PACKET_SPANS = 2048  # the most that the drain thread puts into one


def _run(program: str, *arguments: str) -> dict[str, dict[str, Any]] | None:
    """Rows of a benchmark program by their names; None if it is not built."""
    path = PROGRAMS / program
    if not path.exists():
        return None
    command = [str(path), "--benchmark_format=json", *arguments]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {row["name"]: row for row in report["benchmarks"]}


def drain(smoke: bool, record: Record) -> None:
    """Look, convert, encode, write: processor time of one thread. 200 ns a span are 5 M spans/s."""
    measured = _run("drain_bench", f"--benchmark_min_time={0.05 if smoke else 1}")
    for where, name in DRAINS.items():
        what = f"drain, one span, {where}"
        if measured is None:
            record(what, None, "no drain_bench: run make build")
            continue
        row = measured[name]
        rate = row["spans/s"]
        record(what, 1e9 / rate, f"{rate / 1e6:.1f} M spans/s on one core; {row['dropped']:.0f} dropped")


def trace_bytes(smoke: bool, record: Record) -> None:
    """Bytes a span in packets as large as the drain thread makes them: the same every time."""
    del smoke
    measured = _run("format_bench", "--benchmark_filter=BM_EncodeSpans", "--benchmark_min_time=0")
    for times, name in SPANS.items():
        what = f"bytes per span, {times}"
        if measured is None:
            record(what, None, "no format_bench: run make build")
            continue
        row = measured[f"BM_EncodeSpans/{name}/{_PACKET_SPANS}"]
        record(what, row["bytes_per_span"], f"packets of {_PACKET_SPANS} spans of simulated training steps")


def native_pairs(smoke: bool, record: Record) -> None:
    """Median of batches of 64 pairs, one after the other on one thread, while a reader keeps the rings half empty."""
    rows = _run("record_bench", f"--benchmark_min_time={0.01 if smoke else 0.5}")
    if rows is None:
        for state in STATES:
            record(f"begin and end, native, {state}", None, "no record_bench: run make build")
        return
    measured = {name.partition("/")[0]: row for name, row in rows.items()}
    floor_ns = measured["clock_floor"]["p50_ns"]
    for state, name in STATES.items():
        row = measured[name]
        note = f"p99 {row['p99_ns']:.0f} ns, {row['dropped']:.0f} dropped; two readings of the clock {floor_ns:.0f} ns"
        record(f"begin and end, native, {state}", row["p50_ns"], note)
