"""What checkpoints in memory ask of a GPU: its state is copied beside the job's work, fast, and never torn."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping

from smon_rt.check_gpu.contract import PROGRAM
from smon_rt.check_gpu.model import Finding, NotHere

__all__ = ["finding_of", "measure", "run"]

#: Of the state that is copied: enough to take milliseconds, little enough for any GPU.
STATE_BYTES = 256 << 20
LEAST_SPEED_RATIO = 0.9
MOST_CALL_US = 200.0
MOST_WORK_RATIO = 1.1
_NOT_HERE = 2


def run() -> Finding:
    """On the first GPU."""
    return finding_of(measure(STATE_BYTES))


def measure(state_bytes: int) -> dict[str, float]:
    """The figures of `smon_contract cuda_copies`, each with its unit in its name."""
    if not PROGRAM.exists():
        raise NotHere(f"{PROGRAM.name} is not in this installation: build the project, or install its wheel")
    command = [str(PROGRAM), "cuda_copies", str(state_bytes)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode == _NOT_HERE:
        raise NotHere(done.stderr.strip())
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[1:])}: exit code {done.returncode}: {done.stderr.strip()[-300:]}")
    return {str(name): float(value) for name, value in json.loads(done.stdout).items()}


def finding_of(figures: Mapping[str, float]) -> Finding:
    """What the figures mean. That snapshots are torn without a gate shows that one that is torn would be seen.

    Example:
        >>> finding_of({"plain_copy_bytes_per_s": 5e10, "copier_bytes_per_s": 4.9e10, "begin_us": 30.0, "gate_us": 9.0,
        ...             "work_alone_s": 0.02, "work_beside_copies_s": 0.0202, "torn_count": 0.0,
        ...             "torn_without_gate_count": 20.0, "torn_rounds": 20.0}).words
        '49.0 GB/s (98 % of a plain copy), 30 µs a begin, 9 µs a gate, work 101 %, 0 of 20 torn (20 without gates)'
    """
    speed_ratio = figures["copier_bytes_per_s"] / figures["plain_copy_bytes_per_s"]
    work_ratio = figures["work_beside_copies_s"] / figures["work_alone_s"]
    is_met = (
        speed_ratio >= LEAST_SPEED_RATIO
        and work_ratio <= MOST_WORK_RATIO
        and max(figures["begin_us"], figures["gate_us"]) <= MOST_CALL_US
        and figures["torn_count"] == 0
        and figures["torn_without_gate_count"] > 0
    )
    words = (
        f"{figures['copier_bytes_per_s'] / 1e9:.1f} GB/s ({100 * speed_ratio:.0f} % of a plain copy), "
        f"{figures['begin_us']:.0f} µs a begin, {figures['gate_us']:.0f} µs a gate, work {100 * work_ratio:.0f} %, "
        f"{figures['torn_count']:.0f} of {figures['torn_rounds']:.0f} torn "
        f"({figures['torn_without_gate_count']:.0f} without gates)"
    )
    return Finding(is_met, words, {**figures, "speed_ratio": speed_ratio, "work_ratio": work_ratio})
