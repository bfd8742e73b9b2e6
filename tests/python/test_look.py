"""`smon PATH…` looks at what lies there, says the verdict and the next command."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from smon_rt import cli
from smon_rt.report.terminal import print_text
from smon_rt.synth import JobSpec, Pauses, Plant, SlowLink, make_job
from tests.python.clock_jobs import REALTIME_NS
from tests.python.recorded_jobs import RecordedJob
from tests.python.smon_files import step_packet, write_rank

SLOW = JobSpec(dp=2, pp=2, microbatches=4, steps=10, noise=0.02, plants=(Plant(0, 1.6, dp_rank=1),), seed=3)
HEALTHY = JobSpec(dp=2, pp=2, microbatches=4, steps=10, noise=0.01, comm_noise=0.01, seed=3)
HOUR_NS = 3_600_000_000_000


def record(folder: Path, spec: JobSpec = SLOW, **more: Any) -> Path:
    RecordedJob(make_job(spec), **more).write(folder)
    return folder


def smon(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = cli.run([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def labelled(text: str) -> dict[str, str]:
    """The first line of each label."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        label, _, words = line.partition(" ")
        if label:
            found.setdefault(label, words.strip())
    return found


def test_a_slow_job_gets_its_verdict_and_the_command_that_asks_for_its_repair(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = record(tmp_path / "run")
    code, out, err = smon(capsys, folder)
    assert (code, err) == (0, "")
    said = labelled(out)
    assert out.startswith("slowdown 1.")
    assert said["cause"].startswith("worker: rank")
    assert said["found"].endswith("4 of 4 ranks on 1 host, finished")
    assert said["next"].startswith(f"smon what-if {folder} --fix worker=1,0 ")
    for command in ("smon analyze", "smon export"):
        assert f"{command} {folder} " in out


def test_a_second_cause_has_its_place_and_advice_its_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plants = (Pauses("gc", 200.0, probability=0.5), SlowLink(0, 40.0))
    spec = JobSpec(dp=2, pp=3, microbatches=6, steps=20, noise=0.02, plants=plants, seed=3)
    make_job(spec).write(tmp_path / "run")
    code, out, _ = smon(capsys, tmp_path / "run")
    said = labelled(out)
    assert code == 0
    assert said["cause"].startswith("garbage collection")
    assert "pp communication (stage 0 to 1) gives back" in said["scope"]
    assert said["advice"].startswith("collect garbage every ")


def test_every_command_that_is_named_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = record(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    code, out, _ = smon(capsys, folder, "--json", "-")
    assert code == 0
    for command in json.loads(out)["next"]:
        assert smon(capsys, *command.split()[1:])[0] == 0, command
    assert (tmp_path / "report.html").exists()
    assert (tmp_path / "trace.pftrace").exists()


def test_the_next_commands_take_what_was_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = record(tmp_path / "run")
    code, out, _ = smon(capsys, folder, "--steps", "2-6", "--json", "-")
    assert code == 0
    for command in json.loads(out)["next"]:
        assert f" {folder} --steps 2-6 " in command


def test_no_name_reaches_the_terminal_raw_and_the_command_still_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = record(tmp_path / "esc\x1b[31m'\\\u202eé X")
    code, out, _ = smon(capsys, folder)
    assert code == 0
    assert out.replace("\n", " ").isprintable()
    word = re.search(r"smon analyze (\$'.*') --html", out)
    assert word is not None
    printed = subprocess.run(["bash", "-c", f"printf %s {word[1]}"], capture_output=True, check=True)
    assert printed.stdout == os.fsencode(folder)


def test_steps_that_were_not_recorded_are_said_to_be_those(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = smon(capsys, record(tmp_path / "run"), "--steps", "99-100")
    assert "has none of the steps asked for; `smon info` says which it has" in out + err
    assert code in (2, 3)


def test_without_a_path_it_asks_for_one(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = smon(capsys, "--steps", "2-3")
    assert code == 2
    assert "name a directory of traces" in err


def test_several_slow_workers_are_asked_for_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plants = tuple(Plant(0, 1.5, dp_rank=dp_rank) for dp_rank in (1, 3))
    spec = JobSpec(dp=6, pp=2, microbatches=4, steps=10, noise=0.02, plants=plants, seed=3)
    said = labelled(smon(capsys, record(tmp_path / "run", spec))[1])
    assert said["cause"].startswith("workers: ranks 1 and 3 (stage 0)")
    assert " --fix cause=worker " in said["next"]


def test_a_healthy_job_is_said_to_be_healthy_and_has_nothing_to_fix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = smon(capsys, record(tmp_path, HEALTHY))
    assert code == 0
    assert "no straggler worth fixing" in out.splitlines()[0]
    assert "what-if" not in out


def test_a_threshold_is_an_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = record(tmp_path)
    assert smon(capsys, folder, "--fail-above", "1.05")[0] == 1
    assert smon(capsys, "--fail-above", "3", folder)[0] == 0
    code, _, err = smon(capsys, folder, "--fail-above", "-1")
    assert code == 2
    assert "must be a number of zero or more" in err


def test_two_paths_are_one_job_on_two_nodes_and_a_quoted_glob_is_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(tmp_path / "node0")
    (tmp_path / "node1").mkdir()
    for path in sorted((tmp_path / "node0").iterdir())[2:]:
        shutil.move(path, tmp_path / "node1")
    assert smon(capsys, tmp_path / "node0")[0] == 3
    _, both, _ = smon(capsys, tmp_path / "node0", tmp_path / "node1")
    code, globbed, _ = smon(capsys, tmp_path / "node*")
    assert code == 0
    assert "4 of 4 ranks" in labelled(both)["found"]
    assert labelled(globbed)["cause"] == labelled(both)["cause"]


def test_a_missing_rank_is_incomplete_and_points_to_info(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = smon(capsys, record(tmp_path, skip_ranks=(3,)))
    assert code == 3
    assert "3 of 4 ranks" in out
    assert f"smon info {tmp_path}" in out


def test_a_live_job_is_live_and_one_that_finishes_nothing_for_long_looks_stuck(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = record(tmp_path / "run", closed=False)
    for path in folder.glob("*.smon"):
        # What the process of a rank replaces every few seconds, hung or not.
        path.with_suffix(".live").write_bytes(b"")
    monkeypatch.setattr(time, "time_ns", lambda: REALTIME_NS)
    code, out, _ = smon(capsys, folder)
    assert code == 0
    assert labelled(out)["found"].endswith("still running")
    assert out.startswith("slowdown")
    monkeypatch.setattr(time, "time_ns", lambda: REALTIME_NS + HOUR_NS)
    code, out, _ = smon(capsys, folder, "--json", tmp_path / "look.json")
    assert code == 0
    assert out.startswith("stuck    looks stuck: no rank has finished a step or a span for 3")
    assert labelled(out)["next"].startswith(f"smon info {folder}")
    # Whoever waits says nothing of who is waited for: no repair comes before that.
    action = labelled(out)["action"]
    assert action.startswith(f"see which rank is behind, and what it is inside: smon info {folder}; ")
    assert "to repair" not in action
    said = json.loads((tmp_path / "look.json").read_text())
    assert said["state"] == "stuck"
    assert 3500 < said["silent_s"] <= 3600


def test_a_stuck_job_that_is_else_well_or_cannot_be_analysed_has_no_other_action(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bare").mkdir()
    write_rank(tmp_path / "bare", packets=[step_packet([(0, 10**9, 10**9, False, False)])], closed=False)
    for folder in (record(tmp_path / "run", HEALTHY, closed=False), tmp_path / "bare"):
        for path in folder.glob("*.smon"):
            path.with_suffix(".live").write_bytes(b"")
        monkeypatch.setattr(time, "time_ns", lambda: REALTIME_NS + HOUR_NS)
        _, out, _ = smon(capsys, folder)
        assert out.startswith("stuck ")
        assert labelled(out)["action"] == f"see which rank is behind, and what it is inside: smon info {folder}"
        assert out.count("action ") == 1


def test_files_that_were_not_closed_are_no_live_job_without_a_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = smon(capsys, record(tmp_path, closed=False))
    assert code == 3
    assert labelled(out)["found"].endswith("not closed")


def test_a_directory_of_runs_is_listed_the_newest_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for age, name in enumerate(("new", "old one")):
        os.utime(record(tmp_path / name), (10**9 - age, 10**9 - age))
    code, out, _ = smon(capsys, tmp_path)
    assert code == 0
    assert out.splitlines()[0].startswith(f"found    2 runs in {tmp_path}")
    assert labelled(out)["next"] == f"smon {tmp_path}/new  (4 files)"
    assert f"smon '{tmp_path}/old one'" in out
    file = next((tmp_path / "new").glob("*.smon"))
    before = file.read_bytes()
    code, _, err = smon(capsys, tmp_path, "--json", file)
    assert (code, file.read_bytes()) == (2, before)
    assert "is what is analysed" in err
    _, out, _ = smon(capsys, tmp_path, "--json", "-")
    assert json.loads(out)["runs"] == [f"{tmp_path}/new", f"{tmp_path}/old one"]


def test_a_directory_of_one_run_is_that_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(tmp_path / "only")
    code, out, _ = smon(capsys, tmp_path)
    assert code == 0
    assert f"smon analyze {tmp_path}/only " in out


def test_another_run_in_the_same_directory_is_named_and_can_be_chosen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(tmp_path, who={"run_id": "first"})
    record(tmp_path, HEALTHY, who={"run_id": "second"})
    _, newest, _ = smon(capsys, tmp_path)
    name, other = ("first", "second") if "found    run first" in newest else ("second", "first")
    assert f"run {name} " in labelled(newest)["found"]
    assert f"others: --run {other} --attempt 0" in newest
    _, chosen, _ = smon(capsys, tmp_path, "--run", other)
    assert f"run {other} " in labelled(chosen)["found"]


def test_a_parquet_and_several_are_looked_at_one_after_the_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        make_job(SLOW).write(tmp_path / f"{name}.parquet")
    (tmp_path / "c.parquet").write_text("no trace")
    code, out, err = smon(capsys, tmp_path / "*.parquet", "--quiet")
    assert code == 2
    assert [line.partition(":")[0] for line in out.splitlines()] == [f"{tmp_path}/a.parquet", f"{tmp_path}/b.parquet"]
    assert err.count("\n") == 1
    code, out, _ = smon(capsys, tmp_path / "a.parquet")
    assert code == 0
    assert "dp 2, pp 2" in labelled(out)["found"]


@pytest.mark.parametrize("name", ["nothing.parquet", "./nothing", "text.txt", "empty"])
def test_what_is_no_trace_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    (tmp_path / "text.txt").write_text("hello")
    (tmp_path / "empty").mkdir()
    code, out, err = smon(capsys, tmp_path / name)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert Path(name).name in err


def test_a_mistyped_command_is_not_taken_for_a_path(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = smon(capsys, "analyse")
    assert code == 2
    assert "'analyse' is no command, and nothing lies there" in err


def test_a_terminal_keeps_to_its_width(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    _, out, _ = smon(capsys, record(tmp_path))
    stream = Terminal()
    print_text(out, [], stream=stream)
    shown = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in stream.getvalue().splitlines()]
    assert len(shown) > 10
    # Commands are copied: their lines are left to the terminal.
    assert max(len(line) for line in shown if " smon " not in line) <= 80


@pytest.mark.parametrize(
    "command",
    [
        (),
        ("analyze", "--quiet"),
        ("what-if", "--fix", "worker=1,0"),
        ("info",),
        ("export", "--format", "csv", "-o", "/dev/null"),
    ],
    ids=lambda command: command[0] if command else "PATH",
)
def test_every_command_takes_several_paths_and_quoted_globs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    record(tmp_path / "node0")
    (tmp_path / "node1").mkdir()
    for path in sorted((tmp_path / "node0").iterdir())[2:]:
        shutil.move(path, tmp_path / "node1")
    name, *more = command or ("",)
    first = [name] if name else []
    assert smon(capsys, *first, tmp_path / "node0", *more)[0] == 3
    assert smon(capsys, *first, tmp_path / "node0", tmp_path / "node1", *more)[0] == 0
    assert smon(capsys, *first, f"{tmp_path}/node*", *more)[0] == 0


@pytest.mark.parametrize("first", [(), ("diff",)], ids=["PATH", "diff"])
def test_what_is_read_is_never_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], first: tuple[str, ...]
) -> None:
    make_job(SLOW).write(tmp_path / "a.parquet")
    before = (tmp_path / "a.parquet").read_bytes()
    paths = [tmp_path / "a.parquet"] * (1 + len(first))
    for output in (tmp_path / "a.parquet", tmp_path / "a.yaml", tmp_path / "no" / "such.json", tmp_path):
        code, out, err = smon(capsys, *first, *paths, "--json", output)
        assert (code, out, err.count("\n")) == (2, "", 1)
    assert (tmp_path / "a.parquet").read_bytes() == before
