"""Hooks wait for a module to be imported, replace its methods after a look, and put everything back."""

from __future__ import annotations

import copy
import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from smon_rt.integrations import on_import
from smon_rt.integrations.patches import Patches


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Name of a package that can be imported once."""
    name = f"imported_{tmp_path.name}".lower()
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("state = 'half'\nfrom . import inner\nstate = 'whole'\n")
    (tmp_path / name / "inner.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    finders = list(sys.meta_path)
    yield name
    for loaded in [loaded for loaded in sys.modules if loaded.split(".")[0] == name]:
        del sys.modules[loaded]
    assert sys.meta_path == finders, "the watcher has not left"


def test_a_callback_comes_once_when_the_module_is_whole(module: str) -> None:
    seen: list[str] = []
    on_import.when_imported(module, lambda: seen.append(sys.modules[module].state))
    assert seen == []
    imported = importlib.import_module(module)
    importlib.reload(imported)
    assert seen == ["whole"]
    assert imported.__spec__ is not None
    assert type(imported.__spec__.loader).__name__ == type(imported.__loader__).__name__ == "SourceFileLoader"


def test_who_looks_for_a_module_finds_its_own_loader(module: str) -> None:
    seen: list[str] = []
    on_import.when_imported(module, lambda: seen.append(sys.modules[module].state))
    spec = importlib.util.find_spec(module)
    assert spec is not None
    loader = spec.loader
    assert type(loader) is type(copy.copy(loader)) is SourceFileLoader
    assert seen == []
    made = importlib.util.module_from_spec(spec)
    assert made.__loader__ is loader
    sys.modules[module] = made
    loader.exec_module(made)
    assert seen == ["whole"]
    assert "exec_module" not in vars(loader)
    assert spec.loader is loader


def test_one_loader_of_several_modules_announces_each(monkeypatch: pytest.MonkeyPatch) -> None:
    class Importer(importlib.abc.MetaPathFinder, importlib.abc.Loader):
        def find_spec(self, fullname: str, _path: Any = None, _target: Any = None) -> Any:
            return importlib.util.spec_from_loader(fullname, self) if fullname.startswith("made_") else None

        def exec_module(self, module: ModuleType) -> None:
            setattr(module, "state", "whole")  # noqa: B010

    importer = Importer()
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, importer])
    seen: list[str] = []
    for name in ("made_1", "made_2"):
        on_import.when_imported(name, lambda name=name: seen.append(name))  # type: ignore[misc]
        for _ in range(3):
            assert importlib.util.find_spec(name) is not None
    for name in ("made_3", "made_1", "made_2"):
        assert importlib.import_module(name).state == "whole"
        del sys.modules[name]
    assert seen == ["made_1", "made_2"]


def test_a_loaded_module_is_not_waited_for(module: str) -> None:
    importlib.import_module(module)
    seen: list[str] = []
    on_import.when_imported(module, lambda: seen.append("now"))
    on_import.when_imported(f"{module}.inner", lambda: seen.append("inner"))
    assert seen == ["now", "inner"]


def test_a_callback_may_wait_for_further_modules(module: str) -> None:
    seen: list[str] = []

    def outer() -> None:
        on_import.when_imported(module, lambda: seen.append("same"))
        on_import.when_imported(f"{module}.inner", lambda: seen.append("inner"))

    on_import.when_imported(module, outer)
    importlib.import_module(module)
    assert seen == ["same", "inner"]


def test_an_import_never_fails_for_a_callback(module: str, capfd: pytest.CaptureFixture[str]) -> None:
    on_import.when_imported(module, lambda: 1 // 0)
    assert importlib.import_module(module).state == "whole"
    assert capfd.readouterr().err.endswith(f"hooks into {module} are left out: ZeroDivisionError: {_message()}\n")


def _message() -> str:
    try:
        return str(1 // 0)
    except ZeroDivisionError as error:
        return str(error)


def test_an_import_fails_as_ever(module: str) -> None:
    absent: Callable[[], object] = lambda: None  # noqa: E731
    on_import.when_imported(f"{module}.absent", absent)
    with pytest.raises(ModuleNotFoundError, match="absent"):
        importlib.import_module(f"{module}.absent")
    on_import.forget(absent)


def test_what_is_forgotten_does_not_come(module: str) -> None:
    seen: list[str] = []

    def callback() -> None:
        seen.append("called")

    on_import.when_imported(module, callback)
    on_import.forget(callback)
    importlib.import_module(module)
    assert seen == []


class _Owner:
    def method(self, microbatch: int, more: int = 0) -> int:
        return microbatch + more


class _Heir(_Owner):
    pass


def _double(original: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return 2 * original(self, *args, **kwargs)

    return method


def test_a_method_is_replaced_and_put_back() -> None:
    original = vars(_Owner)["method"]
    patches = Patches()
    assert patches.wrap(_Owner, "method", ("self", "microbatch"), _double) == ""
    assert (_Owner().method(1, more=2), _Owner.method.__name__) == (6, "method")
    patches.restore()
    assert vars(_Owner)["method"] is original
    assert not patches


@pytest.mark.parametrize(
    ("owner", "name", "parameters", "reason"),
    [
        (
            _Owner,
            "method",
            ("self", "chunk"),
            "_Owner.method takes (self, microbatch, more), expected (self, chunk, …)",
        ),
        (_Owner, "absent", ("self",), "_Owner.absent is not there"),
        (_Heir, "method", ("self", "microbatch"), "_Heir.method is not there"),
        (sys, "exit", (), "sys.exit is not there"),
    ],
)
def test_what_is_not_as_expected_is_left_alone(owner: Any, name: str, parameters: tuple[str, ...], reason: str) -> None:
    before = dict(vars(owner))
    assert Patches().wrap(owner, name, parameters, _double) == reason
    assert dict(vars(owner)) == before


def test_a_method_that_was_wrapped_again_is_not_taken_away() -> None:
    original = vars(_Owner)["method"]
    patches = Patches()
    patches.wrap(_Owner, "method", ("self",), _double)
    theirs = _double(_Owner.method)
    _Owner.method = theirs  # type: ignore[method-assign]
    try:
        patches.restore()
        assert vars(_Owner)["method"] is theirs
    finally:
        _Owner.method = original  # type: ignore[method-assign]
