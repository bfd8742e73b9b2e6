"""How jobs end: without `stop`, or killed. Their exit is what it was, and what they recorded is there."""

from __future__ import annotations

import os
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any

from smon_rt.check_gpu.job import EXIT_CODE, SPANS
from smon_rt.check_gpu.model import Finding
from smon_rt.check_gpu.process import Ended, child_environment, run_process

__all__ = ["is_whole", "recorded_figures", "run_exit", "run_gpu_exit", "run_gpu_killed", "run_job", "run_killed"]

_JOB = "smon_rt.check_gpu.job"
_JOB_DEADLINE_S = 15.0
_KILLED = -9
#: Of the spans on a GPU so many have its times at least: the others were too close to the end.
_LEAST_ON_DEVICE_RATIO = 0.9


def run_exit() -> Finding:
    """`sys.exit` in the middle of a step."""
    return _exit("host")


def run_gpu_exit() -> Finding:
    """The same with kernels and events under way."""
    return _exit("gpu")


def run_killed() -> Finding:
    """SIGKILL in the middle of a step: the last spans are in memory, and the next start puts them into the file."""
    return _killed("host")


def run_gpu_killed() -> Finding:
    """The same with kernels and events under way."""
    return _killed("gpu")


def _exit(where: str) -> Finding:
    with tempfile.TemporaryDirectory(prefix="smon-check-") as name:
        ended = run_job(Path(name), "exit", where)
        figures = {"exit_code": ended.exit_code, "took_s": ended.took_s, **recorded_figures(Path(name), where)}
    is_met = ended.exit_code == EXIT_CODE and figures["state"] == "closed"
    return Finding(is_met and is_whole(figures), _words(ended, figures), figures)


def _killed(where: str) -> Finding:
    with tempfile.TemporaryDirectory(prefix="smon-check-") as name:
        run_id = f"check-{uuid.uuid4().hex[:12]}"
        ended = run_job(Path(name), "killed", where, run_id)
        figures = {"exit_code": ended.exit_code, **recorded_figures(Path(name), where, run_id)}
        # The next one, of whatever name, takes over what the dead one left; it also leaves no memory behind.
        after = run_job(Path(name), "stop", "host")
        merged = recorded_figures(Path(name), where, run_id)
        figures |= {"next_exit_code": after.exit_code, "merged_spans": merged["spans"]}
    is_met = ended.exit_code == _KILLED and figures["state"] == "killed" and after.exit_code == 0
    is_met = is_met and merged["is_merged"] and merged["spans"] == figures["spans"]
    return Finding(is_met and is_whole(figures), _words(ended, figures), figures)


def run_job(folder: Path, how: str, where: str, run_id: str = "", **more: str) -> Ended:
    """Runs `job.py`, which records into a directory, with more variables of the environment if they are given."""
    environment = child_environment(os.environ, SMON_RT_RUN_ID=run_id or f"check-{uuid.uuid4().hex[:12]}", **more)
    with tempfile.TemporaryDirectory(prefix="smon-check-") as elsewhere:
        command = [sys.executable, "-m", _JOB, str(folder), how, where]
        return run_process(command, _JOB_DEADLINE_S, Path(elsewhere), environment, has_own_group=False)


def recorded_figures(folder: Path, where: str, run_id: str | None = None) -> dict[str, Any]:
    """What is there of a job's trace: in its file, and in memory that outlived it."""
    from smon_rt.trace import read_directory
    from smon_rt.trace.kinds import KIND_NUMBERS
    from smon_rt.trace.summary import state_of

    (trace,) = read_directory(folder, run_id=run_id)
    spans = trace.spans.take(trace.spans.kind == KIND_NUMBERS["forward_compute"])
    return {
        "state": state_of(trace),
        "spans": len(spans),
        "on_device_ratio": float(spans.has_device_times.mean()) if where == "gpu" and len(spans) else None,
        "damage": [str(part) for part in trace.damage],
        "is_merged": trace.leftover is not None,
    }


def is_whole(figures: dict[str, Any]) -> bool:
    """Whether all spans are there, with times of the GPU where they should have some."""
    on_device = figures["on_device_ratio"]
    return (
        figures["spans"] == SPANS
        and not figures["damage"]
        and (on_device is None or on_device >= _LEAST_ON_DEVICE_RATIO)
    )


def _words(ended: Ended, figures: dict[str, Any]) -> str:
    words = f"{ended.words}, trace {figures['state']}, {figures['spans']} of {SPANS} spans"
    if figures["on_device_ratio"] is not None:
        words += f", {100 * figures['on_device_ratio']:.0f} % with times of the GPU"
    return words + ("" if not figures["damage"] else f", damage: {figures['damage'][0]}")
