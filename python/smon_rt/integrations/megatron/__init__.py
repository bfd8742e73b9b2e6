"""Megatron-core: schedules and their messages, reductions of gradients, optimizer, data, the layout.

Loads nothing of Megatron: each part waits for the module that it hooks into. What is hooked, and why something is not,
is in the header of the trace ("hook.megatron.PART"; empty: all of it is).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar

from smon_rt._backend import native
from smon_rt.errors import words_of
from smon_rt.integrations import on_import, state
from smon_rt.integrations.megatron import data, gradients, optimizer, p2p, passes, schedules
from smon_rt.integrations.patches import Patches
from smon_rt.integrations.torch import steps

__all__ = ["attach", "detach", "say_facts"]

#: Name of a part → the module that it waits for, and what replaces functions there: it returns a problem for each that
#: was left alone ("" for others).
_PARTS: dict[str, tuple[str, Callable[[Patches], list[str]]]] = {
    **schedules.PARTS,
    **p2p.PARTS,
    **gradients.PARTS,
    **optimizer.PARTS,
    **data.PARTS,
}
_STATE_HOOKS: tuple[tuple[list[Callable[[], None]], Callable[[], None]], ...] = (
    (state.on_step_end, passes.step_ended),
    (state.on_stop, passes.forget),
    (steps.on_optimizer_step, passes.optimizer_stepped),
)


class _Attached:
    """What was put into Megatron."""

    is_on = False
    patches = Patches()
    facts: ClassVar[dict[str, str]] = {}
    callbacks: ClassVar[list[Callable[[], Any]]] = []


def attach() -> None:
    """Hooks into Megatron now, or when the job imports it. Twice is once."""
    if _Attached.is_on:
        return
    _Attached.is_on = True
    for name, (module_name, wrap) in _PARTS.items():
        callback = functools.partial(_attach_part, name, wrap)
        _Attached.callbacks.append(callback)
        on_import.when_imported(module_name, callback)


def detach() -> None:
    """Puts every replaced name back."""
    if not _Attached.is_on:
        return
    _Attached.is_on = False
    passes.forget()
    for hooks, hook in _STATE_HOOKS:
        if hook in hooks:
            hooks.remove(hook)
    while _Attached.callbacks:
        on_import.forget(_Attached.callbacks.pop())
    _Attached.patches.restore()
    _Attached.facts.clear()


def say_facts() -> None:
    """A recording begins: which hooks there are, for its header."""
    for key, reason in _Attached.facts.items():
        native.set_fact(key, reason)


def _attach_part(name: str, wrap: Callable[[Patches], list[str]]) -> None:
    for hooks, hook in _STATE_HOOKS:  # not before the job has Megatron: any of them costs a step calls of Python
        if hook not in hooks:
            hooks.append(hook)
    try:
        reason = "; ".join(filter(None, wrap(_Attached.patches)))
    except Exception as error:  # a module of another version
        reason = words_of(error)
    key = f"hook.megatron.{name}"
    _Attached.facts[key] = reason
    native.set_fact(key, reason)
