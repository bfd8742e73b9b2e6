"""`smon synth` on the command line."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from smon_rt.cli import run


def synth(*options: str, output: Path) -> int:
    return run(["synth", "-o", str(output), *options])


def test_it_writes_the_job_and_prints_the_truth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "slow.parquet"
    options = ("--dp=2", "--pp=2", "--steps=3", "--microbatches=4", "--plant=worker=1,0:1.5", "--plant=stage=1:1.2")
    assert synth(*options, output=output) == 0
    printed = capsys.readouterr().out
    truth = json.loads((tmp_path / "slow.truth.json").read_text())
    assert str(output) in printed
    assert f"slowdown {truth['slowdown']:.4f}" in printed
    assert f"worker=1,0:1.5: fixing it gives back {truth['plants'][0]['gain_s_per_step']:.4f} s a step" in printed
    assert truth["parameters"]["plants"] == ["worker=1,0:1.5", "stage=1:1.2"]
    assert (tmp_path / "slow.yaml").read_text().startswith("trial_name: slow\n")


def test_interleaved_and_overlapped_jobs_are_made_too(tmp_path: Path) -> None:
    options = ("--dp=2", "--pp=2", "--vpp=2", "--schedule=interleaved", "--overlap", "--steps=1", "--microbatches=4")
    assert synth(*options, output=tmp_path / "job.parquet") == 0


@pytest.mark.parametrize(
    "options",
    [
        ("--dp=0",),
        ("--dp=many",),
        ("--pp=4", "--vpp=2", "--microbatches=6"),
        ("--schedule=gpipe",),
        ("--noise=-1",),
        ("--noise=nan",),
        ("--plant=worker=9,0:2",),
        ("--plant=worker=0,0:0",),
        ("--plant=nobody",),
        ("--dp=1", "--overlap"),
        ("--forward-ms=0",),
        ("--seed=-4",),
        ("--unknown",),
    ],
)
def test_nonsense_is_one_line_and_exit_2_and_writes_nothing(
    options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert synth(*options, output=tmp_path / "job.parquet") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_directory_as_output_is_one_line_and_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert synth(output=tmp_path) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_one_is_singular(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert synth("--dp=1", "--pp=1", "--steps=1", "--microbatches=1", output=tmp_path / "job.parquet") == 0
    assert " 1 microbatch, 1 step, " in capsys.readouterr().out


def test_a_name_that_is_not_utf8_is_written_and_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / os.fsdecode(b"\xff.parquet")
    assert synth("--dp=1", "--pp=1", "--steps=1", output=output) == 0
    assert "\\udcff.parquet" in capsys.readouterr().out
    assert run(["analyze", str(output), "--quiet"]) == 0


def test_an_output_keeps_links_and_has_the_rights_of_any_file(tmp_path: Path) -> None:
    target, link = tmp_path / "target.parquet", tmp_path / "link.parquet"
    link.symlink_to(target)
    assert synth("--dp=1", "--pp=1", "--steps=1", output=link) == 0
    assert link.is_symlink()
    mask = os.umask(0)
    os.umask(mask)
    assert target.stat().st_mode & 0o777 == 0o666 & ~mask
    assert {path.name for path in tmp_path.iterdir()} == {
        *("target.parquet", "link.parquet", "link.yaml", "link.truth.json")
    }


def test_an_output_that_cannot_be_written_is_one_line_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.yaml").mkdir()
    assert synth("--dp=1", "--pp=1", "--steps=1", output=tmp_path / "job.parquet") == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert synth(output=tmp_path / "no" / "job.parquet") == 2
    assert "No such file or directory" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"job.yaml", "job.parquet"}


def test_many_short_steps_take_no_longer_than_their_rows(tmp_path: Path) -> None:
    options = ("--dp=1", "--pp=1", "--steps=20000", "--microbatches=1")
    begin = time.process_time()
    assert synth(*options, output=tmp_path / "job.parquet") == 0
    assert time.process_time() - begin < 20
