"""What records by itself: hooks in the frameworks that a job uses. Loads none of them."""

from __future__ import annotations

import atexit
import importlib
import sys
from collections.abc import Collection, Sequence
from types import ModuleType

from smon_rt.errors import RecordingError
from smon_rt.integrations import state

__all__ = ["NAMES", "attach", "attached", "check", "detach", "started", "stopping"]

#: What can be chosen → the module that does it.
NAMES: dict[str, str] = {
    "torch": "smon_rt.integrations.torch",
    "pipelining": "smon_rt.integrations.pipelining",
    "megatron": "smon_rt.integrations.megatron",
    "gc": "smon_rt.integrations.garbage",
}
_attached: list[ModuleType] = []


def check(function: str, integrations: str | Sequence[str]) -> list[str]:
    """Names of integrations, from "auto" (all), "none", one or several names.

    Raises:
        RecordingError: there is none of that name.

    Example:
        >>> check("start", "auto"), check("start", "none"), check("start", ["gc"])
        (['torch', 'pipelining', 'megatron', 'gc'], [], ['gc'])
    """
    if integrations == "auto":
        return list(NAMES)
    if integrations == "none":
        return []
    is_one = isinstance(integrations, str) or not isinstance(integrations, Collection)
    names: list[str] = [integrations] if is_one else list(integrations)  # type: ignore[list-item]
    for name in names:
        if not isinstance(name, str) or name not in NAMES:
            known = ", ".join(NAMES)
            raise RecordingError(f'{function}: no integration {name!r}: expected "auto", "none", or some of {known}')
    return names


def attach(integrations: str | Sequence[str] = "auto") -> None:
    """Has frameworks record by themselves: `start` does it, unless it was told "none".

    A framework that is not loaded yet is waited for, never loaded. No collective may be in flight in the process groups
    that exist already. Hooks do nothing until recording starts. What is attached stays.

    Args:
        integrations: "auto" (all), "none", or some of torch, pipelining, megatron, gc.

    Raises:
        RecordingError: there is no such integration.

    Example:
        >>> attach("none")
    """
    for name in check("attach", integrations):
        module = importlib.import_module(NAMES[name])
        module.attach()
        if module not in _attached:
            _attached.append(module)


def attached() -> list[str]:
    """Names of those that are attached."""
    return [name for name, place in NAMES.items() if sys.modules.get(place) in _attached]


def detach() -> None:
    """Puts every name back that `attach` or `start` replaced in frameworks. No collective may be in flight."""
    while _attached:
        _attached.pop().detach()


def started() -> None:
    """Recording has begun: hooks act from here on."""
    if state.switch.recording == 0:
        atexit.register(stopping)
    state.switch.recording += 1
    state.switch.is_stepped_by_script = False
    state.switch.step = -1
    state.switch.is_on = True
    for module in _attached:
        say_facts = getattr(module, "say_facts", None)
        if say_facts is not None:
            say_facts()


def stopping() -> None:
    """Recording is about to end: hooks let go of what is open, and act no more."""
    state.call_all(state.on_stop, "stop")
    state.switch.is_on = False
