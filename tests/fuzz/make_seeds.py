"""Writes the seeds of analyze_fuzzer: small synthetic jobs in its row format.

    python tests/fuzz/make_seeds.py

Run again when the row format of analyze_fuzzer.cc changes.
"""

from __future__ import annotations

import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from smon_rt.analysis.importer import Trace, read_trace

CORPUS = Path(__file__).resolve().parent / "corpus" / "analyze_fuzzer"
TIME_SHIFT = 10  # about microseconds: a job of half an hour fits int32
JOBS = {
    "one_worker": "--dp 1 --pp 1 --tp 1 --microbatches 1 --steps 2",
    "pipeline": "--dp 1 --pp 2 --tp 1 --microbatches 2 --steps 1",
    "data_parallel": "--dp 2 --pp 1 --tp 1 --microbatches 1 --steps 2",
    "both": "--dp 2 --pp 2 --tp 1 --microbatches 2 --steps 2",
    "interleaved": "--dp 1 --pp 2 --tp 1 --vpp 2 --microbatches 2 --steps 1",
}


def encode(trace: Trace) -> bytes:
    job = trace.job
    encoded = bytearray(
        struct.pack("<6b", job.dp_size, job.pp_size, job.tp_size, job.cp_size, job.vpp_size, job.world_size)
    )
    rows = trace.ops.to_pylist()
    first_ns = min(row["start_ns"] for row in rows)
    names = ("dp_rank", "stage", "rank", "step", "kind", "seq_id", "chunk", "global_chunk", "microbatch")
    for row in rows:
        start = (row["start_ns"] - first_ns) >> TIME_SHIFT
        encoded += struct.pack("<9bBii", *(row[name] for name in names), TIME_SHIFT, start, row["duration_ns"])
    return bytes(encoded)


def main() -> int:
    CORPUS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for name, options in JOBS.items():
            path = Path(folder) / f"{name}.parquet"
            command = ["smon", "synth", "-o", str(path), *options.split(), "--seed", "1"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            encoded = encode(read_trace(str(path)))
            (CORPUS / name).write_bytes(encoded)
            print(f"{name}: {len(encoded)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
