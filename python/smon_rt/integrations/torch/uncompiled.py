"""Keeps torch.compile from looking at our own functions.

Hooks run wherever torch calls them, also within a compiled function that fell back to Python: there Dynamo would trace
them, compile them, guard on the numbers of spans in them and count recompilations of them against the job's limit.
What a hook calls on behalf of the job (a model's forward, a loader's next) is compiled as ever.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

MODULE = "torch._dynamo.eval_frame"
"""Whoever compiles has loaded this one."""

_PACKAGE = __name__.partition(".")[0]


def skip_our_code() -> str:
    """Has Dynamo run every function of smon_rt that is loaded as it is. Returns why not, or an empty text."""
    skip = getattr(sys.modules.get(MODULE), "skip_code", None)
    if skip is None:
        return f"{MODULE}.skip_code is not there: torch.compile may look at our hooks"
    for code in set(_our_code()):
        skip(code)
    return ""


def _our_code() -> Iterator[CodeType]:
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == _PACKAGE:
            for value in list(vars(module).values()):
                yield from _code_of(value, name)


def _code_of(value: Any, module_name: str) -> Iterator[CodeType]:
    """Of a function, or a class and all in it, that is defined in this module; closures are constants of theirs."""
    if getattr(value, "__module__", None) != module_name:
        return
    if isinstance(value, FunctionType):
        yield from _with_inner(value.__code__)
    elif isinstance(value, type):
        for member in vars(value).values():
            function = getattr(member, "__func__", getattr(member, "fget", member))
            if isinstance(function, FunctionType):
                yield from _with_inner(function.__code__)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)
