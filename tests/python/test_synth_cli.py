"""`smon synth` on the command line."""

from __future__ import annotations

import errno
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
        ("--plant=gc=40",),
        ("--plant=gc=0:40@0.1",),
        ("--plant=gc=40@2",),
        ("--plant=gc=40/0",),
        ("--plant=gc=9,0:40@0.1",),
        ("--plant=sequence_length=0",),
        ("--plant=sequence_length=1", "--plant=sequence_length=2"),
        ("--plant=pp_communication=3:5",),
        ("--plant=dp_communication=0,1:5",),
        ("--dp=1", "--plant=dp_communication=0:5"),
        ("--plant=host_launch_delay=nan",),
        ("--tail-ratio=1",),
        ("--fewer-microbatches=5",),
        ("--hosts=17",),
        ("--drop-ratio=-0.1",),
        ("--missing-rank=16",),
        ("--clock-drift-ppm=1000",),
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


def test_a_directory_gets_what_the_recorders_would_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "traces"
    options = ("--dp=2", "--pp=2", "--steps=3", "--microbatches=4", "--plant=gc=40@0.5", "--hosts=2")
    assert synth(*options, output=output) == 0
    assert f"wrote    {output}: 4 files, one a rank, and truth.json" in capsys.readouterr().out
    assert json.loads((output / "truth.json").read_text())["plants"][0]["cause"] == "gc"
    assert run(["info", str(output)]) == 0
    assert run(["analyze", str(output), "--quiet"]) == 0
    capsys.readouterr()
    assert synth(*options, output=output) == 2  # never over another job's files
    assert "has .smon files already" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    [
        ("--plant=gc=40@0.5",),
        ("--plant=data_loading=0,1:40/2",),
        ("--data-loading-ms=1",),
        ("--fewer-microbatches=2",),
        ("--hosts=2",),
        ("--drop-ratio=0.1",),
        ("--missing-rank=3",),
    ],
)
def test_what_a_parquet_cannot_hold_is_refused_by_name(
    options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert synth("--dp=2", "--pp=2", "--steps=2", *options, output=tmp_path / "job.parquet") == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "has no place for " + " ".join(options[0].split("=", 1)[: 2 if "plant" in options[0] else 1]) in line
    assert list(tmp_path.iterdir()) == []


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


@pytest.mark.parametrize("failing", ["rank-00002", "truth.json"])
def test_a_full_disk_leaves_no_part_of_a_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def write_bytes(path: Path, data: bytes) -> int:
        if path.name.startswith(failing):
            path.touch()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return path.open("wb").write(data)

    def replace(path: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))

    monkeypatch.setattr(Path, "write_bytes", write_bytes)
    if failing == "truth.json":
        monkeypatch.setattr(Path, "replace", replace)
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "notes.txt").write_text("mine")
    for folder in ("new", "kept"):
        assert synth("--dp=2", "--pp=2", "--steps=1", "--microbatches=2", output=tmp_path / folder) == 2
        said = capsys.readouterr().err
        assert "No space left on device" in said
        assert said.count("\n") == 1
    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*"))] == ["kept", "kept/notes.txt"]


def test_many_short_steps_take_no_longer_than_their_rows(tmp_path: Path) -> None:
    options = ("--dp=1", "--pp=1", "--steps=20000", "--microbatches=1")
    begin = time.process_time()
    assert synth(*options, output=tmp_path / "job.parquet") == 0
    assert time.process_time() - begin < 20
