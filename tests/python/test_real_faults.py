"""benchmarks/real_faults.py: what its table says of jobs that were named right, wrong and at the wrong place."""

from __future__ import annotations

import datetime
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import real_faults  # noqa: E402
from real_faults import COLUMNS, HEADING, outcome, row, with_row  # noqa: E402

DATE = datetime.date(2026, 11, 30)
PLANTED = {"cause": "worker", "where": {"rank": 2, "stage": 0}}
PAGE = f"# Soak\n\n{HEADING}\n\nText.\n\n{COLUMNS}\n\n## Other\n\n| a | none | b |\n"


def report(cause: str, **where: int | None) -> dict[str, Any]:
    return {
        "verdict": {"cause": cause, "where": where, "gain_s_per_step": 0.1},
        "mean_step_time_s": {"base": 0.5},
    }


def test_a_row_counts_causes_and_places_apart() -> None:
    reports = [
        report("worker", rank=2, stage=0, dp_rank=1),
        report("worker", rank=0, stage=0),
        report("none", rank=None, stage=None),
    ]
    found = row("slow_worker", [outcome(PLANTED, each) for each in reports], DATE)
    assert found == "| 2026-11-30 | slow_worker | 2 of 3 | 1 of 3 | 20 to 20 %, median 20 % | none (1) |"


def test_a_cause_of_the_whole_job_that_is_said_to_be_one_rank_s_is_at_the_wrong_place() -> None:
    planted = {"cause": "gc", "where": {"rank": None}}
    assert outcome(planted, report("gc", rank=None)).is_place_right
    assert not outcome(planted, report("gc", rank=3)).is_place_right


def test_nothing_planted_gives_nothing_back() -> None:
    planted: dict[str, Any] = {"cause": "none", "where": {}}
    assert row("none", [outcome(planted, report("none"))], DATE) == "| 2026-11-30 | none | 1 of 1 | 1 of 1 | – | – |"


def test_rows_are_replaced_and_keep_the_order_of_the_faults() -> None:
    page = PAGE
    for fault, text in (("none", "first"), ("gc", "old"), ("slow_worker", "new"), ("gc", "new")):
        page = with_row(page, fault, f"| {text} | {fault} | 5 of 5 |")
    rows = "| new | slow_worker | 5 of 5 |\n| new | gc | 5 of 5 |\n| first | none | 5 of 5 |\n"
    assert page == PAGE.replace(COLUMNS + "\n", COLUMNS + "\n" + rows)


def test_a_page_without_the_table_is_refused() -> None:
    with pytest.raises(ValueError, match="no table"):
        with_row("# Soak\n", "gc", "| x |")


def test_the_page_that_is_written_to_has_the_table() -> None:
    page = (ROOT / "docs" / "soak.md").read_text(encoding="utf-8")
    assert "| x | gc | y |" in with_row(page, "gc", "| x | gc | y |")


def test_a_job_that_fails_is_an_error_with_what_it_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "faults.py").write_text("raise ValueError('no torch')")
    monkeypatch.setattr(real_faults, "ROOT", tmp_path)
    with pytest.raises(SystemExit, match=r"(?s)ValueError: no torch.*gc-1: failed with exit code 1"):
        real_faults.run_job(tmp_path / "gc-1", "gc")


@pytest.mark.parametrize("options", [("--fault=other",), ("--runs=0",)])
def test_nonsense_is_one_line_and_exit_2(options: tuple[str, ...]) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "real_faults.py"), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, len(done.stderr.strip().splitlines())) == (2, "", 1)
