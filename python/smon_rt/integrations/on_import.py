"""Does something once a module has been imported: hooks wait for the job to load torch, and never load it.

A script may set variables that torch reads on import, so `smon run` must not import it first.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from smon_rt._backend import say
from smon_rt.environment import LogLevel

__all__ = ["forget", "when_imported"]


def when_imported(module_name: str, callback: Callable[[], object]) -> None:
    """Calls back now if the module is loaded, else once after its first import. What the callback raises is said.

    Args:
        module_name: full name; its parents are imported by Python first, as ever.
        callback: by the importing thread, when the module is complete.

    Example:
        >>> when_imported("json", lambda: print("loaded"))
        loaded
    """
    if module_name in _watcher.announced or _is_complete(module_name):
        _call(module_name, callback)
        return
    _watcher.waiting.setdefault(module_name, []).append(callback)
    if _watcher not in sys.meta_path:
        sys.meta_path.insert(0, _watcher)


def forget(callback: Callable[[], object]) -> None:
    """Takes back a callback that has not been called yet; nothing if there is none."""
    for module_name, callbacks in list(_watcher.waiting.items()):
        callbacks[:] = [waiting for waiting in callbacks if waiting is not callback]
        if not callbacks:
            del _watcher.waiting[module_name]
    _watcher.leave_if_idle()


def _is_complete(module_name: str) -> bool:
    module = sys.modules.get(module_name)
    return module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False)


def _call(module_name: str, callback: Callable[[], object]) -> None:
    try:
        callback()
    except Exception as error:
        say(LogLevel.WARNING, f"hooks into {module_name} are left out: {type(error).__name__}: {error}")


class _Watcher(importlib.abc.MetaPathFinder):
    """Sees a module being looked for, lets the others find it, and has the callbacks called after it ran."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[Callable[[], object]]] = {}
        self.announced: set[str] = set()  # complete, though Python calls them so only after the callbacks
        self._searching: set[str] = set()

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname not in self.waiting or fullname in self._searching:
            return None
        self._searching.add(fullname)  # the search below comes through here again
        try:
            spec = importlib.util.find_spec(fullname)
        except (ImportError, ValueError):
            return None  # the ordinary search says so in its own words
        finally:
            self._searching.discard(fullname)
        if spec is None or spec.loader is None or not hasattr(spec.loader, "exec_module"):
            return None
        spec.loader = _Announcing(spec.loader)
        return spec

    def ran(self, module_name: str) -> None:
        self.announced.add(module_name)
        for callback in self.waiting.pop(module_name, []):
            _call(module_name, callback)
        self.leave_if_idle()

    def leave_if_idle(self) -> None:
        if not self.waiting and self in sys.meta_path:
            sys.meta_path.remove(self)


class _Announcing(importlib.abc.Loader):
    """Runs a module by its own loader, which it then has as if nothing had happened, and announces it."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _watcher.ran(module.__name__)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


_watcher = _Watcher()
