"""Hooks that torch calls as functions of C++, without the GIL: csrc/bindings/hook_functions.h says how it comes about.

Whether they act is found out in each process, before any of them is called: of torch's version, whose arguments must be
known; of the pybind11 that it is built with; and of each function, that torch has kept nothing of the object that it
was handed in. Wherever anything is otherwise, the group has the hooks that are objects of Python (ADR 0008).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from smon_rt._backend import native
from smon_rt.integrations.torch import collectives

__all__ = ["learn", "register"]


class _Functions:
    """Of all groups."""

    reason = "no process group has been looked at"
    """Why none has such hooks; empty: it may."""


def learn(owner: Any) -> str:
    """Finds out whether groups of this torch can have such hooks; returns why not, or "".

    Args:
        owner: the class ProcessGroup.
    """
    if not collectives.is_layout_known():
        _Functions.reason = "the arguments of this torch's hooks are not known"
    else:
        _Functions.reason = native.why_no_hook_functions(vars(owner)["register_pre_hook"])
    return _Functions.reason


def register(process_group: Any, hook_id: int, before: Callable[[Any], None]) -> str:
    """Gives a group such hooks; returns why it must have those of Python after all, under the same number, or "".

    Args:
        before: the first of the group's `make_hooks`.
    """
    if _Functions.reason:
        return _Functions.reason
    functions = native.make_hook_functions(before)
    if functions is None:
        return "there are too many process groups: the later ones have hooks of Python"
    for function, take in zip(
        functions, (process_group.register_pre_hook, process_group.register_post_hook), strict=True
    ):
        take(hook_id, function)
    watched = [weakref.ref(function) for function in functions]
    del functions, function
    if any(one() is not None for one in watched):
        _Functions.reason = "torch keeps the object that a function is handed over in"
    return _Functions.reason
