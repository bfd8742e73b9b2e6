"""`smon ckpt` on the folder of a disk tier, sound or damaged."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from smon_rt import cli
from smon_rt.checkpoint_tools import content_hash
from smon_rt.checkpoint_tools.agent_folder import plain_name

from . import ckpt_jobs
from .agent_trainer import label
from .ckpt_jobs import Job, needs_agent, refusal, run_json, state, wait_until

base, disk = ckpt_jobs.base, ckpt_jobs.disk  # fixtures


@needs_agent
def test_a_disk_is_listed_verified_and_exported_without_its_agent(
    disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (listed,) = run_json(capsys, "ls", str(disk))["disks"]
    assert [(step["incarnation"], step["step"]) for step in listed["steps"]] == [(1, 2), (1, 1)]
    assert listed["run"] == "run"
    (of_folder,) = run_json(capsys, "ls", listed["folder"])["disks"]
    assert of_folder == listed
    copies = run_json(capsys, "verify", str(disk))["copies"]
    assert [(copy["step"], copy["is_intact"]) for copy in copies] == [(2, True), (1, True)]
    out = tmp_path / "out"
    assert cli.run(["ckpt", "export", str(out), "--from", str(disk), "--step", "1"]) == 0
    assert (out / "rank=0.safetensors").read_bytes() == state(1)
    assert cli.run(["ckpt", "export", str(tmp_path / "newest"), "--from", str(disk)]) == 0
    assert (tmp_path / "newest" / "rank=0.safetensors").read_bytes() == state(2)


@needs_agent
@pytest.mark.parametrize("damage", ["flip", "cut", "missing", "pipe", "link"])
def test_a_damaged_file_on_disk_is_named_and_not_exported(
    damage: str, disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file,) = disk.rglob("step-1-2/*.safetensors")
    content = bytearray(file.read_bytes())
    file.unlink()
    if damage == "flip":
        content[4_500_000] ^= 1
        file.write_bytes(content)
    elif damage == "cut":
        file.write_bytes(content[:-1])
    elif damage == "pipe":
        os.mkfifo(file)
    elif damage == "link":
        (tmp_path / "elsewhere").write_bytes(content)
        file.symlink_to(tmp_path / "elsewhere")
    copies = run_json(capsys, "verify", str(disk), code=1)["copies"]
    assert [(copy["step"], copy["is_intact"]) for copy in copies] == [(2, False), (1, True)]
    assert str(file) in copies[0]["reason"]
    assert str(file) in refusal(capsys, "export", str(tmp_path / "out"), "--from", str(disk))
    assert not (tmp_path / "out").exists()


_DAMAGES: list[Callable[[dict[str, Any]], Any]] = [
    lambda manifest: manifest.update(format=2),
    lambda manifest: manifest.update(chunk_bytes=1),
    lambda manifest: manifest.update(step=-2),
    lambda manifest: manifest.update(step=1),
    lambda manifest: manifest.update(step=2.0),
    lambda manifest: manifest.update(run_id=7),
    lambda manifest: manifest.update(shards=None),
    lambda manifest: manifest.update(shards=["x"]),
    lambda manifest: manifest.pop("shards"),
    lambda manifest: manifest["shards"].append(manifest["shards"][0]),
    lambda manifest: manifest["shards"][0].update(file="../../secret"),
    lambda manifest: manifest["shards"][0].update(content_bytes=1 << 60),
    lambda manifest: manifest["shards"][0].update(chunk_hashes="0123"),
    lambda manifest: manifest["shards"][0]["chunk_hashes"].append("0" * 16),
    lambda manifest: manifest["shards"][0].update(content_hash="no hash"),
]


@needs_agent
def test_any_damage_of_a_manifest_is_one_line(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = disk.rglob("step-1-2/manifest.json")
    sound = path.read_text()
    texts: list[bytes] = [b"", b"{", b"[]", b"null", b"\xff\xfe\x00", b"[" * 200_000, b"1" * 10_000, b'{"format": NaN}']
    for damage in _DAMAGES:
        manifest = json.loads(sound)
        damage(manifest)
        texts.append(json.dumps(manifest).encode())
    for text in texts:
        path.write_bytes(text)
        (listed,) = run_json(capsys, "ls", str(disk), code=3)["disks"]
        assert [step["step"] for step in listed["steps"]] == [1], text[:80]
        (problem,) = listed["problems"]
        assert str(path) in problem
        assert "\n" not in problem
        assert cli.run(["ckpt", "verify", str(disk)]) == 1
    path.write_text(sound)
    changed = json.loads(sound)
    changed["shards"][0]["content_hash"] = "0123456789abcdef"
    path.write_text(json.dumps(changed))
    assert [copy["is_intact"] for copy in run_json(capsys, "verify", str(disk), code=1)["copies"]] == [False, True]
    path.unlink()
    (listed,) = run_json(capsys, "ls", str(disk))["disks"]
    assert listed["incomplete"] == ["step-1-2"]


@needs_agent
def test_names_from_a_manifest_move_no_cursor(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = disk.rglob("step-1-2/manifest.json")
    manifest = json.loads(path.read_text())
    manifest["run_id"] = "\x1b[2J\ud800"
    manifest["shards"][0]["owner"] = "a\nb\x1b/../\ud800"
    path.write_text(json.dumps(manifest))
    assert cli.run(["ckpt", "ls", str(disk)]) == 0
    assert "\x1b" not in capsys.readouterr().out
    assert cli.run(["ckpt", "export", str(disk.parent / "out"), "--from", str(disk)]) == 0
    (file,) = (disk.parent / "out").iterdir()
    assert file.read_bytes() == state(2)


@needs_agent
def test_what_hashes_is_named_where_it_is_missing(
    disk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "xxhash", None)
    assert "smon-rt[checkpoint]" in refusal(capsys, "verify", str(disk))
    assert cli.run(["ckpt", "ls", str(disk)]) == 0


@needs_agent
def test_a_folder_that_may_not_be_read_hides_no_other(
    disk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (disk / "another").mkdir()
    real = Path.iterdir

    def refuse(path: Path) -> Iterator[Path]:
        if path.name == "another":
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(Path, "iterdir", refuse)  # root may read all
    found = run_json(capsys, "ls", str(disk), code=3)
    assert [(run["run"], len(run["steps"])) for run in found["disks"]] == [("another", 0), ("run", 2)]
    assert "Permission denied" in found["problems"][0]
    assert run_json(capsys, "ls", str(disk), "--run", "run")["problems"] == []


@needs_agent
@pytest.mark.parametrize("run_id", ["run-7.a_B", "ünlike/run", ".hidden", "x" * 100])
def test_folders_are_named_as_the_agent_names_them(
    run_id: str, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job(base, run_id, "agent")
    job.begin(disk_dir=str(tmp_path / "disk"), disk_every=1, disk_keep=1)
    job.trainer.capture(state(1))
    wait_until(lambda: job.trainer.status().durable == label(1, 1))
    job.end()
    (folder,) = (tmp_path / "disk").iterdir()
    assert folder.name == plain_name(run_id)
    (disk,) = run_json(capsys, "ls", str(tmp_path / "disk"), "--run", run_id)["disks"]
    assert disk["run"] == run_id


def test_hashes_are_those_of_the_agent() -> None:
    # XXH3-64 of nothing, from the reference implementation's own test vectors.
    assert content_hash.xxh3_64()(b"") == 0x2D06800538D394C2
