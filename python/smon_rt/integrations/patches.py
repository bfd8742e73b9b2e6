"""Replaces methods of other people's classes, after a look at what they take, and puts them back."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

__all__ = ["Patches"]

Method = Callable[..., Any]


class Patches:
    """The methods that one integration replaced.

    Example:
        >>> class Stage:
        ...     def run(self, microbatch): return microbatch
        >>> patches = Patches()
        >>> patches.wrap(Stage, "run", ("self", "microbatch"), lambda run: lambda self, i: run(self, i) + 1)
        ''
        >>> Stage().run(1)
        2
        >>> patches.restore()
        >>> Stage().run(1)
        1
    """

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def __bool__(self) -> bool:
        return bool(self._replaced)

    def wrap(self, owner: Any, name: str, parameters: tuple[str, ...], make: Callable[[Method], Method]) -> str:
        """Replaces owner.name by what `make` makes of it, and returns '', or why it was left alone.

        Args:
            owner: a class or module that defines `name` itself, since an inherited one would be wrapped twice.
            parameters: the first ones that the method must have, in this order; a method of another version, with other
                ones, would be recorded wrongly.
            make: gets the original, returns its replacement.
        """
        where = f"{getattr(owner, '__qualname__', None) or owner.__name__}.{name}"
        original = vars(owner).get(name)
        if not inspect.isfunction(original):
            return f"{where} is not there"
        try:
            found = tuple(inspect.signature(original).parameters)
        except (TypeError, ValueError):
            return f"{where} does not say what it takes"
        if found[: len(parameters)] != parameters:
            return f"{where} takes ({', '.join(found)}), expected ({', '.join(parameters)}, …)"
        replacement = functools.wraps(original)(make(original))
        setattr(owner, name, replacement)
        self._replaced.append((owner, name, original, replacement))
        return ""

    def restore(self) -> None:
        """Puts all originals back, except where someone has wrapped ours since: taking it away would remove theirs."""
        while self._replaced:
            owner, name, original, replacement = self._replaced.pop()
            if vars(owner).get(name) is replacement:
                setattr(owner, name, original)
