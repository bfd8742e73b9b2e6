"""The verdict is graded on synthetic jobs: a few must be right always, and the grades are what the page says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def accuracy(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "benchmarks" / "accuracy.py"), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


def test_the_jobs_that_must_be_right_are() -> None:
    done = accuracy("--smoke")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 13
    assert all("] right  " in line for line in lines)


def test_the_page_has_a_row_for_each_job_and_the_goals(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    assert accuracy("--only", "dp only", "--seeds-from", "3", "-o", str(page)).returncode == 0
    text = page.read_text(encoding="utf-8")
    names = ["worker: dp only", "sequence_length: dp only", "gc: dp only", "data_loading: dp only"]
    counts = "4 with one planted cause, 0 with several, 0 healthy, 0 with ranks that were not recorded"
    assert f"seeds 3, 4 jobs ({counts})" in text
    assert all(f"| {name} | 8 × 1 × 1 × 1 |" in text for name in names)
    assert "| every single cause that counts is named first | " in text
    assert "## Where the goals are not met" in text


@pytest.mark.parametrize(
    "options", [("--seeds-from", "-1"), ("--seeds-from", "x"), ("--only", "no such job"), ("--unknown",)]
)
def test_nonsense_is_one_line_and_exit_2(options: tuple[str, ...]) -> None:
    done = accuracy(*options)
    assert done.returncode == 2
    assert (done.stdout, len(done.stderr.strip().splitlines())) == ("", 1)


def test_there_are_enough_jobs_and_no_two_sets_share_a_seed() -> None:
    code = (
        "from collections import Counter; from accuracy_jobs import accuracy_jobs\n"
        "jobs, others = accuracy_jobs(0), accuracy_jobs(1)\n"
        "groups = Counter(job.group for job in jobs)\n"
        "assert groups['healthy'] >= 10 and groups['mixed'] >= 10 and sum(groups.values()) >= 60, groups\n"
        "seeds = {job.spec.seed for job in (*jobs, *others)}\n"
        "assert len(seeds) == len(jobs) + len(others)\n"
        "assert [job.name for job in jobs] == [job.name for job in others]\n"
        "assert len({job.name for job in jobs}) == len(jobs)\n"
        "pairs = [(job, other) for job, other in zip(jobs, others) if job.group in ('single', 'mixed')]\n"
        "changed = [job.spec.plants != other.spec.plants for job, other in pairs]\n"
        "assert sum(changed) > 0.9 * len(changed), changed\n"
        "assert jobs == accuracy_jobs(0)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT / "benchmarks", timeout=60)
