"""Which profiler plug-in NCCL is told to load, and what the trace says of it. NCCL itself is not here."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from smon_rt import _nccl_plugin, environment
from smon_rt.integrations import nccl, state

NAME = environment.NCCL_PROFILER_PLUGIN


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(NAME, "")
    for name in (NAME, environment.NCCL_INSTANCE, "LD_LIBRARY_PATH", "SMON_RT_DISABLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(_nccl_plugin, "_SYSTEM_FOLDERS", ())
    monkeypatch.setattr(_nccl_plugin, "_LOADER_CACHE", str(tmp_path / "no-cache"))


def test_importing_the_package_names_the_library_to_nccl() -> None:
    assert _nccl_plugin.set_up() == ""
    assert Path(os.environ[NAME]).samefile(Path(_nccl_plugin.__file__).parent / "lib" / "libsmon_rt.so")
    pid, device, inode = map(int, os.environ[environment.NCCL_INSTANCE].split(":"))
    status = Path(os.environ[NAME]).stat()
    assert (pid, device, inode) == (os.getpid(), status.st_dev, status.st_ino)


@pytest.mark.parametrize("choice", ["none", "example", "/opt/libnccl-profiler.so"])
def test_a_plug_in_that_the_job_chose_stays(choice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, choice)
    assert choice in _nccl_plugin.set_up()
    assert os.environ[NAME] == choice
    assert environment.NCCL_INSTANCE not in os.environ


def test_our_own_choice_is_known_in_a_child_also_through_a_link(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    link = tmp_path / "link.so"
    link.symlink_to(_nccl_plugin.LIBRARY)
    monkeypatch.setenv(NAME, str(link))
    monkeypatch.setenv(environment.NCCL_INSTANCE, "1:2:3")  # the parent's
    assert _nccl_plugin.set_up() == ""
    assert os.environ[NAME] == str(link)
    assert os.environ[environment.NCCL_INSTANCE].startswith(f"{os.getpid()}:")


def test_a_plug_in_that_nccl_finds_by_itself_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / _nccl_plugin.USUAL_NAME).touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere:{tmp_path}")
    assert str(tmp_path) in _nccl_plugin.set_up()
    assert NAME not in os.environ
    monkeypatch.delenv("LD_LIBRARY_PATH")
    cache = tmp_path / "cache"
    cache.write_bytes(b"libm.so.6\0" + _nccl_plugin.USUAL_NAME.encode() + b"\0/opt/x\0")
    monkeypatch.setattr(_nccl_plugin, "_LOADER_CACHE", str(cache))
    assert "is there" in _nccl_plugin.set_up()
    assert NAME not in os.environ
    cache.write_bytes(b"libm.so.6\0" + _nccl_plugin.USUAL_NAME.encode() + b".2\0")
    assert _nccl_plugin.set_up() == "", "another name"


def test_disabled_or_without_a_library_nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMON_RT_DISABLE", "1")
    assert _nccl_plugin.set_up() == "SMON_RT_DISABLE is set"
    monkeypatch.delenv("SMON_RT_DISABLE")
    monkeypatch.setattr(_nccl_plugin, "LIBRARY", "/nowhere/libsmon_rt.so")
    assert _nccl_plugin.set_up() == "there is no /nowhere/libsmon_rt.so"
    assert NAME not in os.environ


def test_a_path_that_nccl_would_cut_gets_a_short_link(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["d" * 100] * 3)
    deep.mkdir(parents=True)
    library = deep / "libsmon_rt.so"
    shutil.copy(_nccl_plugin.LIBRARY, library)
    for _ in range(2):  # there already
        short = _nccl_plugin.short_name(str(library), str(tmp_path))
        assert len(short) <= _nccl_plugin.LONGEST_NAME
        assert Path(short).samefile(library)
    Path(short).unlink()
    Path(short).touch()
    with pytest.raises(FileExistsError, match="is something else"):
        _nccl_plugin.short_name(str(library), str(tmp_path))
    assert _nccl_plugin.short_name("/lib/short.so") == "/lib/short.so"


def test_what_goes_wrong_is_a_reason_and_never_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> bool:
        raise OSError("no disk")

    monkeypatch.setattr(environment, "is_disabled", broken)
    assert _nccl_plugin.set_up() == "OSError: no disk"
    assert _nccl_plugin.reason() == "OSError: no disk"


def test_why_nccl_tells_nothing() -> None:
    assert nccl.why_not(1, "", (2, 27, 3)) == ""
    assert nccl.why_not(0, "x stays", (2, 27, 3)) == "x stays"
    assert "2.21.5" in nccl.why_not(0, "", (2, 21, 5))
    assert "never came" in nccl.why_not(0, "", (2, 27, 3))


def test_a_job_whose_nccl_never_came_to_its_plug_in_says_so_in_the_third_step(monkeypatch: pytest.MonkeyPatch) -> None:
    facts: list[tuple[str, str]] = []
    job = SimpleNamespace(communicators=0, backend="cpu:gloo,cuda:gloo")
    native = SimpleNamespace(
        status=lambda: {"nccl_communicators": job.communicators}, set_fact=lambda *fact: facts.append(fact)
    )
    distributed = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_backend_config=lambda: job.backend
    )
    monkeypatch.setattr(nccl, "native", native)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(distributed=distributed))
    monkeypatch.setattr(state.switch, "recording", state.switch.recording + 1)
    for step in range(4):
        nccl.step_begun(step)
    nccl.stopping()
    assert facts == [], "a job without NCCL"
    monkeypatch.setattr(state.switch, "recording", state.switch.recording + 1)
    job.backend = "cpu:gloo,cuda:nccl"
    nccl.step_begun(0)
    nccl.step_begun(1)
    assert facts == []
    _nccl_plugin.set_up()
    for step in range(2, 5):
        nccl.step_begun(step)
    assert [key for key, _ in facts] == [nccl.KEY]
    assert "never came" in facts[0][1]
    job.communicators = 2
    nccl.stopping()
    nccl.stopping()
    assert facts[1:] == [(nccl.KEY, "")], "later than expected"
