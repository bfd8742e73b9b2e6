"""Grades the verdict on synthetic jobs whose truth is known; writes docs/accuracy.md.

    python benchmarks/accuracy.py [--seeds-from 0] [-o docs/accuracy.md] [--only TEXT] [--smoke]

The gain of a planted cause is the mean step time of the job minus that of the same random draws without that plant, by
the generator's own simulator. --seeds-from N takes another set of seeds, and with them other places and sizes; a set
that nobody tuned the analysis on tells whether it holds. --smoke grades the few jobs that must be right, and exits
with 1 when one is not.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from accuracy_jobs import AccuracyJob, accuracy_jobs
from accuracy_table import document

from smon_rt.analysis import Report, analyze
from smon_rt.synth import make_job

ROOT = Path(__file__).resolve().parent.parent
#: A planted cause counts from this part of the fault-free step on.
COSTS_RATIO = 0.05
#: When a cause in the report is named: as docs and verdict say it.
NAMED_GAIN_RATIO, NAMED_LOW_RATIO = 0.03, 0.01
#: The gain may be off by so much: of the truth, or of the fault-free step.
GAIN_ERROR_RATIO, STEP_ERROR_RATIO = 0.03, 0.005
_PLACED = ("worker", "stage", "tensor_parallel_member")


@dataclass(frozen=True)
class PlantGrade:
    """One planted cause: what it costs, and what the report says it does (None: not in the report, or elsewhere).

    `is_place_right`: whether what names it says where, and says no place of what is everywhere; None: not named.
    """

    text: str
    cause: str
    gain_s: float
    cost_ratio: float
    said_s: float | None
    is_named: bool
    is_gain_right: bool
    is_place_right: bool | None

    @property
    def counts(self) -> bool:
        return self.cost_ratio >= COSTS_RATIO

    @property
    def error_ratio(self) -> float | None:
        """How far the gain said is off, of the truth; None where there is nothing to compare."""
        return self.said_s / self.gain_s - 1 if self.said_s is not None and self.gain_s > 0 else None


@dataclass(frozen=True)
class JobGrade:
    """One job: what was planted, what was named first and besides, and what of that nobody planted."""

    job: AccuracyJob
    fault_free_s: float
    slowdown: float
    first: str
    named: list[str]
    wrong: list[str]
    plants: list[PlantGrade] = field(default_factory=list)

    @property
    def is_first_right(self) -> bool:
        """A planted cause that counts comes first, the right one; where none counts, nothing else is first."""
        costly = [plant for plant in self.plants if plant.counts]
        if not costly:
            return self.first == "none" or any(self.first == plant.cause for plant in self.plants)
        return any(plant.is_named and plant.cause == self.first for plant in costly)

    @property
    def is_right(self) -> bool:
        return self.is_first_right and not self.wrong and all(p.is_named for p in self.plants if p.counts)


def main() -> int:
    parser = _OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds-from", type=int, default=0, metavar="N", help="which set of seeds (0)")
    parser.add_argument("-o", "--output", type=Path, help="where the table goes (docs/accuracy.md for the set 0)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only jobs with TEXT in their names")
    parser.add_argument("--smoke", action="store_true", help="only the jobs that must be right")
    options = parser.parse_args()
    if not 0 <= options.seeds_from <= 1_000_000:
        parser.error(f"--seeds-from {options.seeds_from}: give a whole number from 0 to 1000000")
    jobs = [job for job in accuracy_jobs(options.seeds_from) if options.only in job.name]
    jobs = [job for job in jobs if job.smoke] if options.smoke else jobs
    if not jobs:
        parser.error(f"--only {options.only}: no job has that in its name")
    began_s = time.monotonic()
    grades = [_graded(job, number, len(jobs)) for number, job in enumerate(jobs, 1)]
    if options.smoke:
        return 0 if all(grade.is_right for grade in grades) else 1
    text = document(grades, options.seeds_from, time.monotonic() - began_s)
    output: Path | None = options.output
    if output is None and options.seeds_from == 0 and not options.only:
        output = ROOT / "docs" / "accuracy.md"
    if output is None:
        print(text)
    else:
        output.write_text(text, encoding="utf-8")
        print(f"wrote {output}")
    return 0


class _OneLineParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def _graded(job: AccuracyJob, number: int, count: int) -> JobGrade:
    began_s = time.monotonic()
    result = grade(job)
    mark = "right" if result.is_right else "WRONG"
    planted = ", ".join(f"{plant.text} ({100 * plant.cost_ratio:.0f} %)" for plant in result.plants) or "nothing"
    named = ", ".join(result.named) or "nothing"
    words = f"{job.name}: planted {planted}; first {result.first}, named {named}"
    print(f"[{number}/{count}] {mark}  {words}  ({time.monotonic() - began_s:.1f} s)", flush=True)
    return result


def grade(job: AccuracyJob) -> JobGrade:
    """Makes the job, has it analysed, and compares."""
    spec = job.spec
    with tempfile.TemporaryDirectory() as folder:
        synthetic = make_job(spec)
        path = Path(folder) / ("job.parquet" if spec.parquet_obstacle is None else "job")
        synthetic.write(path)
        report = analyze(path)
    first_ns, last_ns = make_job(dataclasses.replace(spec, plants=())).timeline.span_ns()
    step_s = float((last_ns - first_ns).mean() / 1e9)
    facts = synthetic.truth["plants"]
    named = _named(report)
    plants = [
        _plant_grade(str(plant), fact, report, named, step_s) for plant, fact in zip(spec.plants, facts, strict=True)
    ]
    planted = [(fact["cause"], fact["where"]) for fact in facts]
    # A cause that was planted, but costs too little to count, may be named or not.
    wrong = [entry["cause"] for entry in named if not any(_is_of(entry, *plant) for plant in planted)]
    return JobGrade(
        job=job,
        fault_free_s=step_s,
        slowdown=report.slowdown.value,
        first=report.verdict.cause,
        named=[entry["cause"] for entry in named],
        wrong=wrong,
        plants=plants,
    )


def _named(report: Report) -> list[dict[str, Any]]:
    """The causes that the report names, largest gain first."""
    found = json.loads(json.dumps(report.to_dict()))
    step_s = found["mean_step_time_s"]["base"]
    return [
        entry
        for entry in found["causes"]
        if entry["cause"] not in ("noise", "none")
        and entry["gain_s_per_step"] >= NAMED_GAIN_RATIO * step_s
        and (entry["low"] is None or entry["low"] > NAMED_LOW_RATIO * step_s)
    ]


def _is_of(entry: dict[str, Any], cause: str, where: dict[str, int]) -> bool:
    """Whether an entry of the report is this planted cause: a worker, member or stage must also be the right one."""
    if entry["cause"] != cause:
        return False
    return cause not in _PLACED or all(entry["where"][name] == value for name, value in where.items())


def _says_where(entry: dict[str, Any], fact: dict[str, Any], pp: int) -> bool:
    """Whether an entry has the coordinates of a plant and no others: what is everywhere has no place."""
    names = ("dp_rank", "stage", "peer_stage", "tp_rank")
    said = {name: entry["where"][name] for name in names}
    planted = {**dict.fromkeys(names), **fact["where"]}
    if fact["cause"] == "pp_communication":
        # A link has two ends, whichever comes first.
        planted["stage"], planted["peer_stage"] = sorted((planted["stage"], (planted["stage"] + 1) % pp))
    return said == planted


def _plant_grade(
    text: str, fact: dict[str, Any], report: Report, named: list[dict[str, Any]], step_s: float
) -> PlantGrade:
    gain_s = fact["gain_s_per_step"]
    entries = [entry for entry in report.to_dict()["causes"] if _is_of(entry, fact["cause"], fact["where"])]
    said_s = max((entry["gain_s_per_step"] for entry in entries), default=None)
    naming = [entry for entry in named if _is_of(entry, fact["cause"], fact["where"])]
    tolerance_s = max(GAIN_ERROR_RATIO * gain_s, STEP_ERROR_RATIO * step_s)
    return PlantGrade(
        text=text,
        cause=fact["cause"],
        gain_s=gain_s,
        cost_ratio=gain_s / step_s,
        said_s=said_s,
        is_named=bool(naming),
        is_gain_right=said_s is not None and abs(said_s - gain_s) <= tolerance_s,
        is_place_right=any(_says_where(entry, fact, report.job.pp) for entry in naming) if naming else None,
    )


if __name__ == "__main__":
    sys.exit(main())
