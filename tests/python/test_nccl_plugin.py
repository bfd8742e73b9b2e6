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
from smon_rt.integrations.patches import Patches
from smon_rt.integrations.torch import captures

NAME = environment.NCCL_PROFILER_PLUGIN


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(NAME, "")
    monkeypatch.setenv(environment.NCCL_CHAIN, "")
    for name in (
        *(NAME, environment.NCCL_INSTANCE, environment.NCCL_CHAIN, environment.NCCL_NET_PLUGIN),
        *("LD_LIBRARY_PATH", "SMON_RT_DISABLE"),
    ):
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
    name = _nccl_plugin.USUAL_NAME.encode()
    cache.write_bytes(b"libm.so.6\0" + name + b"\0/opt/x/" + name + b"\0")
    monkeypatch.setattr(_nccl_plugin, "_LOADER_CACHE", str(cache))
    assert "is there" in _nccl_plugin.set_up()
    assert NAME not in os.environ
    cache.write_bytes(b"libm.so.6\0" + name + b".2\0/opt/x/" + name + b".2\0")
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


def test_a_profiler_in_the_network_plug_in_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = tmp_path / "libnccl-net.so"
    library.write_bytes(b"\x7fELF ncclNet_v10\0")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert _nccl_plugin.set_up() == "", "no profiler is in it"
    del os.environ[NAME]
    library.write_bytes(b"\x7fELF ncclNet_v10\0ncclProfiler_v4\0")
    assert str(library) in _nccl_plugin.set_up()
    assert NAME not in os.environ
    monkeypatch.setenv(environment.NCCL_NET_PLUGIN, "other, third")
    assert _nccl_plugin.set_up() == "", "NCCL loads others"
    del os.environ[NAME]
    library.rename(tmp_path / "libnccl-net-third.so")
    assert "libnccl-net-third.so is a profiler plug-in, too" in _nccl_plugin.set_up()
    monkeypatch.setenv(environment.NCCL_NET_PLUGIN, str(tmp_path / "libnccl-net-third.so"))
    assert "libnccl-net-third.so" in _nccl_plugin.set_up()


def test_what_is_no_file_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Opening a pipe that nobody writes to would not come back."""
    os.mkfifo(tmp_path / "libnccl-net.so")
    monkeypatch.setenv(environment.NCCL_NET_PLUGIN, str(tmp_path / "libnccl-net.so"))
    assert _nccl_plugin.set_up() == ""


def test_a_network_plug_in_that_only_the_loaders_cache_knows_is_looked_into(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = tmp_path / "libnccl-net.so"
    library.write_bytes(b"ncclProfiler_v4")
    cache = tmp_path / "cache"
    cache.write_bytes(b"libm.so.6\0libnccl-net.so\0" + os.fsencode(library) + b"\0/opt/x\0")
    monkeypatch.setattr(_nccl_plugin, "_LOADER_CACHE", str(cache))
    assert str(library) in _nccl_plugin.set_up()
    library.write_bytes(b"")
    assert _nccl_plugin.set_up() == "", "an empty file"


@pytest.mark.parametrize(
    ("wanted", "chosen", "expected"),
    [
        ("1", "example", "example"),
        ("1", "/opt/libnccl-profiler.so", "/opt/libnccl-profiler.so"),
        ("mine", "example", "mine"),
    ],
)
def test_a_plug_in_that_the_job_chose_comes_behind_ours_if_asked_for(
    wanted: str, chosen: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environment.NCCL_CHAIN, wanted)
    monkeypatch.setenv(NAME, chosen)
    assert _nccl_plugin.set_up() == ""
    assert os.environ[NAME] == _nccl_plugin.LIBRARY
    assert os.environ[environment.NCCL_CHAIN] == expected
    assert environment.NCCL_INSTANCE in os.environ
    assert _nccl_plugin.set_up() == "", "in a child, where ours is set already"
    assert os.environ[environment.NCCL_CHAIN] == expected


@pytest.mark.parametrize(("name", "content"), [("libnccl-profiler.so", b""), ("libnccl-net.so", b"ncclProfiler_v4")])
def test_what_nccl_finds_by_itself_comes_behind_ours_if_asked_for(
    name: str, content: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv(environment.NCCL_CHAIN, "1")
    assert _nccl_plugin.set_up() == ""
    assert os.environ[NAME] == _nccl_plugin.LIBRARY
    assert os.environ[environment.NCCL_CHAIN] in (name, str(tmp_path / name))


def test_nothing_is_put_behind_ours_where_the_job_has_nothing_or_wants_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.NCCL_CHAIN, "1")
    assert _nccl_plugin.set_up() == ""
    assert os.environ[environment.NCCL_CHAIN] == "1"
    monkeypatch.setenv(NAME, "none")
    assert "none" in _nccl_plugin.set_up()
    assert os.environ[NAME] == "none"


def test_why_nccl_tells_nothing() -> None:
    assert nccl.why_not(1, "", (2, 27, 3)) == ""
    assert nccl.why_not(0, "x stays", (2, 27, 3)) == "x stays"
    assert "2.21.5" in nccl.why_not(0, "", (2, 21, 5))
    assert "never came" in nccl.why_not(0, "", (2, 27, 3))


def test_a_job_whose_nccl_never_came_to_its_plug_in_says_so_in_the_third_step(monkeypatch: pytest.MonkeyPatch) -> None:
    facts: list[tuple[str, str]] = []
    job = SimpleNamespace(communicators=0, backend="cpu:gloo,cuda:gloo", refusal=f"{nccl.NOT_WANTED}: do")
    native = SimpleNamespace(
        status=lambda: {"nccl_communicators": job.communicators, "nccl_detail_refusal": job.refusal},
        set_fact=lambda *fact: facts.append(fact),
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
    monkeypatch.setattr(state.switch, "recording", state.switch.recording + 1)
    job.refusal = "nobody has tried it"
    for step in range(4):
        nccl.step_begun(step)
    assert facts[2:] == [(nccl.KEY, ""), (nccl.KERNELS_KEY, "nobody has tried it")]


def test_captures_of_graphs_are_told_whatever_becomes_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    open_captures: list[int] = []
    native = SimpleNamespace(capture_begin=lambda: open_captures.append(1), capture_end=lambda: open_captures.pop())
    monkeypatch.setattr(captures, "native", native)

    class Graph:
        fails_at = ""
        seen = 0

        def capture_begin(self, pool: object = None) -> None:
            Graph.seen = len(open_captures)
            if self.fails_at == "begin":
                raise RuntimeError(str(pool))

        def capture_end(self) -> None:
            if self.fails_at == "end":
                raise RuntimeError

    patches = Patches()
    assert captures.install(patches, Graph) == ""
    graph = Graph()
    graph.capture_begin()
    assert (Graph.seen, len(open_captures)) == (1, 1), "said before it begins"
    graph.capture_end()
    assert open_captures == []
    graph.fails_at = "begin"
    with pytest.raises(RuntimeError):
        graph.capture_begin(pool=3)
    assert open_captures == []
    graph.fails_at = ""
    graph.capture_begin()
    graph.fails_at = "end"
    with pytest.raises(RuntimeError):
        graph.capture_end()
    assert open_captures == []
    patches.restore()

    class Other:
        def begin(self) -> None: ...

    assert "not there" in captures.install(Patches(), Other)
    assert len(open_captures) == 1, "who cannot see captures takes all for one"


def test_captures_by_torch_of_this_version_are_told() -> None:
    graphs = pytest.importorskip("torch.cuda.graphs")
    patches = Patches()
    assert captures.install(patches, graphs.CUDAGraph) == ""
    patches.restore()
