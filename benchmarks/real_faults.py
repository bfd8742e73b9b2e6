"""Runs examples/faults.py several times a fault, one job at a time, and keeps in docs/soak.md how often it was named.

    python benchmarks/real_faults.py [--runs 5] [--fault NAME]... [--folder build/real_faults]

A run takes about 45 s on two cores; a table's row is rewritten when all runs of its fault are through. A job that was
named wrong keeps its folder; those named right are removed. Exits with 1 if any was named wrong. Needs torch; no GPU.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FAULTS = ("slow_worker", "slow_stage", "long_sequences", "gc", "data_stall", "slow_link", "none")
PAGE = ROOT / "docs" / "soak.md"
HEADING = "## Planted faults in real jobs"
COLUMNS = "| date | fault | named | place right | gives back, of a step | named instead |\n|---|---|---|---|---|---|"
JOB_LIMIT_S = 600


@dataclass(frozen=True)
class Outcome:
    """What one job's verdict was; a gain is a share of the recorded step."""

    named: str
    is_named: bool
    is_place_right: bool
    gain: float | None


def main() -> int:
    parser = argparse.ArgumentParser(usage=argparse.SUPPRESS)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--fault", choices=FAULTS, action="append")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "real_faults")
    options = parser.parse_args()
    if options.runs < 1:
        parser.error("give 1 run or more")
    rows, is_right = [], True
    for fault in options.fault or FAULTS:
        outcomes = [run_job(options.folder / f"{fault}-{number}", fault) for number in range(1, options.runs + 1)]
        rows.append(row(fault, outcomes, datetime.date.today()))
        PAGE.write_text(with_row(PAGE.read_text(encoding="utf-8"), fault, rows[-1]), encoding="utf-8")
        is_right &= all(outcome.is_named and outcome.is_place_right for outcome in outcomes)
    print("\n".join([COLUMNS, *rows]))
    return 0 if is_right else 1


def run_job(folder: Path, fault: str) -> Outcome:
    """One job and what was found in it. Raises SystemExit with what was said if the job or its analysis fails."""
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, str(ROOT / "examples" / "faults.py"), str(folder), f"--fault={fault}"]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=JOB_LIMIT_S, check=False
    )
    last = done.stdout.rstrip().rpartition("\n")[2]
    if done.returncode not in (0, 1) or not last.startswith("faults: "):
        raise SystemExit(f"{done.stdout}\n{folder.name}: failed with exit code {done.returncode}, see above")
    # How busy the machine was belongs to what is printed: a job may have been drowned.
    print(f"{folder.name}: {last.removeprefix('faults: ')} (load {os.getloadavg()[0]:.1f})", flush=True)
    found = outcome(json.loads((folder / "planted.json").read_text()), json.loads((folder / "report.json").read_text()))
    if found.is_named and found.is_place_right:
        shutil.rmtree(folder)
    return found


def outcome(planted: dict[str, Any], report: dict[str, Any]) -> Outcome:
    verdict = report["verdict"]
    where = verdict.get("where") or {}
    is_named = verdict["cause"] == planted["cause"]
    gain = verdict.get("gain_s_per_step") if planted["cause"] != "none" else None
    return Outcome(
        named=verdict["cause"],
        is_named=is_named,
        is_place_right=is_named and all(where.get(field) == value for field, value in planted["where"].items()),
        gain=gain / report["mean_step_time_s"]["base"] if gain is not None and is_named else None,
    )


def row(fault: str, outcomes: list[Outcome], date: datetime.date) -> str:
    count = len(outcomes)
    gains = [100 * outcome.gain for outcome in outcomes if outcome.gain is not None]
    gain = f"{min(gains):.0f} to {max(gains):.0f} %, median {median(gains):.0f} %" if gains else "–"
    others = Counter(outcome.named for outcome in outcomes if not outcome.is_named)
    cells = [
        date.isoformat(),
        fault,
        f"{sum(outcome.is_named for outcome in outcomes)} of {count}",
        f"{sum(outcome.is_place_right for outcome in outcomes)} of {count}",
        gain,
        ", ".join(f"{name} ({times})" for name, times in others.most_common()) or "–",
    ]
    return f"| {' | '.join(cells)} |"


def with_row(page: str, fault: str, new: str) -> str:
    """The page with the fault's row of the section's table replaced, or added in the order of the faults.

    Raises ValueError if the page has no such table.
    """
    before, heading, rest = page.partition(HEADING)
    intro, columns, table = rest.partition(COLUMNS + "\n")
    if not heading or not columns:
        raise ValueError(f"no table under '{HEADING}'")
    lines = table.split("\n")
    end = next((index for index, line in enumerate(lines) if not line.startswith("|")), len(lines))
    rows = {line.split(" | ")[1]: line for line in lines[:end]} | {fault: new}
    ordered = [rows[name] for name in FAULTS if name in rows]
    return before + heading + intro + columns + "\n".join([*ordered, *lines[end:]])


if __name__ == "__main__":
    sys.exit(main())
