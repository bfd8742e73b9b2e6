"""Runs the examples and prints how well a replay of what they recorded gives their steps back.

    python tools/measure_fidelity.py [--steps 30] [FOLDER]

The replay error of a step is |T_base / T_nodelay − 1|: what the host's gaps between ops make of it, and what the graph
does not explain. The launch slowdown T_base / T_nodelay says the same with its sign; unexplained is what is left when
the gaps are replayed as well. Early starts are ops that begin before what they wait for has ended. Needs torch.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import smon_rt

ROOT = Path(__file__).resolve().parent.parent
SCHEDULES = ("1F1B", "GPipe", "Interleaved1F1B", "InterleavedZeroBubble")


def jobs(folder: Path, steps: int) -> dict[str, dict[str, Any]]:
    """Name of an example → how tests/python/forked_ranks.py runs it."""
    examples, common = ROOT / "examples", [f"--steps={steps}"]
    found: dict[str, dict[str, Any]] = {
        "plain loop": {"script": str(examples / "plain_loop.py"), "arguments": common, "ranks": 1},
        "DDP": {"script": str(examples / "ddp.py"), "arguments": [*common, f"--dir={folder / 'DDP'}"], "ranks": 2},
        "FSDP2": {"script": str(examples / "fsdp2.py"), "arguments": common, "ranks": 2},
    }
    for name in ("plain loop", "FSDP2"):
        found[name]["run"] = str(folder / name)
    for schedule in SCHEDULES:
        name = f"pipelining, {schedule}"
        arguments = [*common, f"--dir={folder / name}", f"--schedule={schedule}"]
        found[name] = {"script": str(examples / "pipelining.py"), "arguments": arguments, "ranks": 4}
    return found


def percent(ratio: float | None) -> str:
    """A ratio in per cent."""
    return f"{'unknown':>9s}" if ratio is None else f"{100 * ratio:7.2f} %"


def line(name: str, folder: Path) -> str:
    """What the analysis says of one example."""
    try:
        report = smon_rt.analysis.analyze(str(folder / name))
    except smon_rt.SmonError as error:
        return f"{name:34s} {error}"
    fidelity, early = report.fidelity, report.fidelity.early_starts
    return (
        f"{name:34s} {1000 * report.mean_step_time_s.base:8.1f} ms {percent(fidelity.simulation_error_mean)} "
        f"{percent(fidelity.simulation_error_worst)} {report.launch_slowdown:9.3f} "
        f"{percent(fidelity.unexplained_error_mean)} {percent(fidelity.unexplained_error_worst)} "
        f"{early.count:6d} {1000 * early.worst_s:9.3f} ms"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--again", action="store_true", help="analyse what FOLDER has, and run nothing")
    parser.add_argument("folder", nargs="?", type=Path, help="where the traces stay; otherwise they go away")
    options = parser.parse_args()
    if options.again and options.folder is None:
        parser.error("--again needs the folder of an earlier run")
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        chosen = jobs(folder, options.steps)
        if not options.again:
            run(chosen)
        print_table(folder, list(chosen))
    return 0


def run(chosen: dict[str, dict[str, Any]]) -> None:
    """Runs the examples one after the other."""
    command = [sys.executable, str(ROOT / "tests" / "python" / "forked_ranks.py"), json.dumps([*chosen.values()])]
    environment = os.environ | {"SMON_RT_LOG": "error", "SMON_RT_SAMPLE_RATIO": "1"}
    subprocess.run(command, check=True, env=environment, stdout=sys.stderr)


def print_table(folder: Path, names: list[str]) -> None:
    """One line an example."""
    print(f"{'':34s} {'':11s} {'replay error':>19s} {'launch':>9s} {'unexplained':>19s} {'early starts':>19s}")
    print(f"{'example':34s} {'step':>11s} {'mean':>9s} {'worst':>9s} {'slowdown':>9s}", end=" ")
    print(f"{'mean':>9s} {'worst':>9s} {'count':>6s} {'worst':>12s}")
    for name in names:
        print(line(name, folder))


if __name__ == "__main__":
    sys.exit(main())
