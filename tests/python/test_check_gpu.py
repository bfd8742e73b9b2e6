"""`smon check-gpu`: its frame, on checks that end in every way, and what it says on a machine without a GPU."""

from __future__ import annotations

import datetime
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from smon_rt.check_gpu import CHECKS, Check, GpuCheck, Outcome, Row, run_checks
from smon_rt.check_gpu.facts import Facts, ask_driver
from smon_rt.check_gpu.model import Need
from smon_rt.check_gpu.process import Ended, child_environment
from smon_rt.check_gpu.runner import TOTAL_S, row_of
from smon_rt.check_gpu.text import check_table, list_table, result_text
from smon_rt.cli import run as run_command
from smon_rt.report.terminal import plain_table

ROOT = Path(__file__).resolve().parent.parent.parent
GPU = Facts(driver_version=13000, devices=("H200",), torch={"torch": "2.15.0", "cuda": "13.0"}, nccl_version=(2, 30, 7))
NO_GPU = Facts(no_gpu="no GPU: none here", no_torch="no GPU: none here")


def case(name: str, *, needs: tuple[Need, ...] = (), deadline_s: float = 30.0) -> Check:
    return Check(name, needs, "something", "≤ 5 µs a span", deadline_s, f"tests.python.check_gpu_cases:{name}")


def row(outcome: Outcome, *, needs: tuple[Need, ...] = ()) -> Row:
    return Row(case(outcome.name.lower(), needs=needs), outcome, "words", {}, 1.0)


def result(*rows: Row, facts: Facts = GPU) -> GpuCheck:
    return GpuCheck(datetime.datetime(2026, 11, 30, 12, tzinfo=datetime.timezone.utc), 12.0, facts, rows)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that nobody waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_each_way_to_end_is_a_row_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("CHECK_CHILD_FILE", str(tmp_path / "pid"))
    checks = [
        *(case(name) for name in ("meets", "misses", "lacks", "raises", "crashes", "crashes_at_exit")),
        case("hangs", deadline_s=5.0),
        case("meets", needs=(Need.GPU,)),
    ]
    seen: list[str] = []
    outcome = run_checks(checks, facts=NO_GPU, on_row=lambda each: seen.append(each.check.name))
    rows = {each.check.name: each for each in outcome.rows[:-1]}
    assert seen == [check.name for check in checks]
    assert {name: each.outcome.value for name, each in rows.items()} == {
        "meets": "met",
        "misses": "missed",
        "lacks": "not run",
        "raises": "crashed",
        "crashes": "crashed",
        "crashes_at_exit": "crashed",
        "hangs": "timed out",
    }
    assert rows["meets"].figures == {"span_us": 3.0, "worst_us": None}
    assert rows["misses"].said == "a line that explains it"
    assert rows["raises"].words == "ZeroDivisionError: division by zero"
    assert "SIGSEGV ended it" in rows["crashes"].words
    assert rows["crashes"].said == "about to crash"
    assert rows["crashes_at_exit"].words == "the process crashed: exit code 3, after it had answered"
    assert not is_alive(int((tmp_path / "pid").read_text()))
    assert outcome.rows[-1].words == "no GPU: none here"
    assert outcome.exit_code == 1
    json.dumps(outcome.to_json(), allow_nan=False)


def test_of_a_check_that_is_ended_no_job_and_no_file_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    for name, value in (("PYTHONPATH", ROOT), ("CHECK_CHILD_FILE", tmp_path / "pid"), ("TMPDIR", temporary)):
        monkeypatch.setenv(name, str(value))
    (ended,) = run_checks([case("hangs_in_a_job", deadline_s=8.0)], facts=NO_GPU).rows
    assert ended.outcome is Outcome.TIMED_OUT
    assert not is_alive(int((tmp_path / "pid").read_text()))
    assert list(temporary.iterdir()) == []


def test_a_result_that_cannot_be_written_is_told_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["check-gpu", "--only", "contract_fakes", "--json", "/dev/full"]) == 2
    out, err = capsys.readouterr()
    assert "12 checks hold" in out
    assert "No space left on device" in err


def test_what_no_time_is_left_for_is_not_run() -> None:
    outcome = run_checks([case("meets")], facts=GPU, total_s=0.0)
    assert outcome.rows[0].outcome is Outcome.NOT_RUN
    assert outcome.rows[0].words == "no time was left for it"


def test_all_deadlines_together_are_within_the_time_for_all() -> None:
    assert sum(check.deadline_s for check in CHECKS) <= TOTAL_S
    assert len({check.name for check in CHECKS}) == len(CHECKS)


@pytest.mark.parametrize(
    ("rows", "facts", "exit_code"),
    [
        ((row(Outcome.MET),), GPU, 0),
        ((row(Outcome.MET), row(Outcome.MISSED)), GPU, 1),
        ((row(Outcome.MET), row(Outcome.CRASHED), row(Outcome.NOT_RUN)), GPU, 1),
        ((row(Outcome.TIMED_OUT), row(Outcome.NOT_RUN, needs=(Need.GPU,))), NO_GPU, 1),
        ((row(Outcome.MET), row(Outcome.NOT_RUN, needs=(Need.GPU,))), NO_GPU, 2),
        ((row(Outcome.MET), row(Outcome.NOT_RUN, needs=(Need.GPU,))), GPU, 3),
        ((row(Outcome.MET),), NO_GPU, 0),  # nothing else was asked for
    ],
)
def test_exit_codes(rows: tuple[Row, ...], facts: Facts, exit_code: int) -> None:
    assert result(*rows, facts=facts).exit_code == exit_code


def test_a_process_that_ended_without_an_answer_crashed() -> None:
    found = row_of(case("meets"), {}, Ended(0, 1.0, ""))
    assert (found.outcome, found.words) == (Outcome.CRASHED, "the process crashed: exit code 0")


def test_what_a_machine_lacks() -> None:
    assert GPU.missing(Need.NCCL) == ""
    assert Facts(nccl_version=(2, 27, 3)).missing(Need.NCCL) == ""
    old = Facts(nccl_version=(2, 26, 2)).missing(Need.NCCL)
    assert old == "NCCL has such plug-ins from 2.27.3 on; here: 2.26.2"
    assert "here: none" in Facts().missing(Need.NCCL)
    assert NO_GPU.missing(Need.GPU) == NO_GPU.missing(Need.TORCH) == "no GPU: none here"
    assert ask_driver("libno_such_driver.so.1")["reason"].startswith("no GPU: libno_such_driver.so.1 is not here")


def test_checks_are_not_of_the_job_whose_shell_they_run_in() -> None:
    environ = {
        "RANK": "3",
        "SMON_RT_TRACE_DIR": "/job",
        "SMON_RT_LOG": "debug",
        "TORCHELASTIC_RUN_ID": "x",
        "HOME": "/",
    }
    assert child_environment(environ, SMON_RT_RUN_ID="y") == {
        "SMON_RT_LOG": "debug",
        "HOME": "/",
        "SMON_RT_RUN_ID": "y",
        "SMON_RT_VERDICT_WITHIN_S": "0",
    }


def test_the_text_says_what_counts_first() -> None:
    missed = Row(case("overlap"), Outcome.MISSED, "80 % kept", {"kept_ratio": 0.8}, 2.5, "one\ntwo")
    shown = result(row(Outcome.MET), missed)
    lines = result_text(shown).splitlines()
    assert lines[0].split(maxsplit=1) == ["result", "1 met, 1 not met, 0 not run, in 12 s"]
    assert lines[1].endswith("H200; driver 13.0, torch 2.15.0, cuda 13.0, nccl 2.30.7")
    assert "never run on a GPU" in lines[2]
    assert lines[3].split(maxsplit=1) == ["overlap", "missed: 80 % kept; must: ≤ 5 µs a span"]
    assert [line.strip() for line in lines[4:]] == ["one", "two"]
    assert "overlap  missed   80 % kept  ≤ 5 µs a span      2.5" in plain_table(check_table(shown.rows))
    without = result(row(Outcome.MET), row(Outcome.NOT_RUN, needs=(Need.GPU,)), facts=NO_GPU)
    words = "no GPU: none here; of what needs none: 1 met, 0 not met, 1 not run, in 12 s"
    assert result_text(without).split(maxsplit=1) == ["result", words]


def test_the_list_says_what_each_check_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["check-gpu", "--list", "--only", "killed"]) == 0
    assert capsys.readouterr().out.strip() == plain_table(list_table([c for c in CHECKS if c.name == "killed"]))


def test_a_check_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["check-gpu", "--only", "speed"]) == 2
    assert "there is no such check: one of contract_fakes, loader" in capsys.readouterr().err


def test_without_a_gpu_what_needs_none_is_met(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # as on a machine without one
    before = arenas()
    assert run_command(["check-gpu", "--json", str(tmp_path / "check.json")]) == 2, capsys.readouterr()
    out, err = capsys.readouterr()
    assert out.startswith("result no GPU: ")
    found: dict[str, Any] = json.loads((tmp_path / "check.json").read_text())
    needs_none = [check.name for check in CHECKS if not check.needs_gpu]
    outcomes = {each["name"]: each["outcome"] for each in found["checks"]}
    assert {name: outcome for name, outcome in outcomes.items() if outcome != "not run"} == dict.fromkeys(
        needs_none, "met"
    ), err
    assert datetime.datetime.fromisoformat(found["began"]).tzinfo is not None
    assert found["exit_code"] == 2
    assert found["facts"]["no_gpu"].startswith("no GPU: ")
    assert arenas() == before, "a check left shared memory"


def arenas() -> list[str]:
    return sorted(path.name for path in Path("/dev/shm").glob("smon-*check-*"))
