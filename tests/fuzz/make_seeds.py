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

from smon_rt import _analysis
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


#: The byte of rules: reference, and those of ids with group_id but without the other optional columns.
RULES = {"": 0, "_ids": 1}


def encode(trace: Trace, rules: int) -> bytes:
    job = trace.job
    encoded = bytearray(
        struct.pack("<7b", job.dp_size, job.pp_size, job.tp_size, job.cp_size, job.vpp_size, job.world_size, rules)
    )
    rows = trace.ops.to_pylist()
    first_ns = min(row["start_ns"] for row in rows)
    names = ("dp_rank", "stage", "rank", "step", "kind", "seq_id", "chunk", "global_chunk", "microbatch")
    groups: dict[tuple[object, ...], int] = {}
    for row in rows:
        start = (row["start_ns"] - first_ns) >> TIME_SHIFT
        key = group_key(row)
        group = -1 if key is None else groups.setdefault(key, len(groups)) % 128
        fields = (*(row[name] for name in names), group)
        encoded += struct.pack("<10bBii", *fields, TIME_SHIFT, start, row["duration_ns"])
    return bytes(encoded)


def group_key(row: dict[str, int]) -> tuple[object, ...] | None:
    """Equal for ops that communicate with each other, of pipelines with one chunk a stage."""
    kind = _analysis.KIND_NAMES[row["kind"]]
    if kind in ("forward_send", "forward_recv"):
        return (row["step"], row["dp_rank"], "forward", row["stage"] + (kind == "forward_send"), row["seq_id"])
    if kind in ("backward_send", "backward_recv"):
        return (row["step"], row["dp_rank"], "backward", row["stage"] - (kind == "backward_send"), row["seq_id"])
    if kind in ("params_all_gather", "grads_reduce_scatter", "separate_grads_all_reduce"):
        return (row["step"], kind, row["stage"], row["seq_id"])
    return (row["step"], kind) if kind == "optimizer_clip_main_grad" else None


def main() -> int:
    CORPUS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for name, options in JOBS.items():
            path = Path(folder) / f"{name}.parquet"
            command = ["smon", "synth", "-o", str(path), *options.split(), "--seed", "1"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            trace = read_trace(str(path))
            for suffix, rules in RULES.items():
                encoded = encode(trace, rules)
                (CORPUS / f"{name}{suffix}").write_bytes(encoded)
                print(f"{name}{suffix}: {len(encoded)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
