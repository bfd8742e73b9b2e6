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
from smon_rt.errors import words_of

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
        say(LogLevel.WARNING, f"hooks into {module_name} are left out: {words_of(error)}")


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
        if spec is not None and spec.loader is not None:
            _Announcing.watch(spec.loader, fullname)
        return spec

    def ran(self, module_name: str) -> None:
        self.announced.add(module_name)
        for callback in self.waiting.pop(module_name, []):
            _call(module_name, callback)
        self.leave_if_idle()

    def leave_if_idle(self) -> None:
        if not self.waiting and self in sys.meta_path:
            sys.meta_path.remove(self)


class _Announcing:
    """A loader's `exec_module`, up to its run of one module, which it announces. The loader stays the object that it
    is, which the job may look at, and may be one for many modules."""

    def __init__(self, loader: Any, module_name: str) -> None:
        self._loader = loader
        self._module_name = module_name
        self._before = vars(loader).get("exec_module")
        self._run: Callable[[ModuleType], object] = loader.exec_module
        self.names: frozenset[str] = getattr(self._before, "names", frozenset()) | {module_name}

    @classmethod
    def watch(cls, loader: Any, module_name: str) -> None:
        """One that takes no attribute announces nothing."""
        try:
            if isinstance(loader, type) or module_name in getattr(vars(loader).get("exec_module"), "names", ()):
                return
            loader.exec_module = cls(loader, module_name)
        except (AttributeError, TypeError):
            return

    def __call__(self, module: ModuleType) -> None:
        if module.__name__ != self._module_name:
            self._run(module)
            return
        if vars(self._loader).get("exec_module") is self:
            if self._before is None:
                del self._loader.exec_module
            else:
                self._loader.exec_module = self._before
        self._run(module)
        _watcher.ran(self._module_name)


_watcher = _Watcher()
