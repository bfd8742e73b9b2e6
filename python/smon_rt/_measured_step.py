"""What a step must be to be measured: it does its work when it is called, and leaves the recording alone."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable

from smon_rt import integrations as hooks
from smon_rt._backend import native
from smon_rt.errors import RecordingError

__all__ = ["StepError", "check_bare", "check_recorded", "idle_kind", "refuse_undone"]

_OWN_RECORDING = "measure: the step started a recording of its own: leave smon_rt.start to the measurement"
_STOPPED = "measure: the step stopped the recording: leave smon_rt.start and smon_rt.stop to the measurement"
_PAUSED = "measure: the step paused the recording: let it resume what it pauses"
_OWN_HOOKS = "measure: the step put hooks in or took them out: leave smon_rt.attach and smon_rt.detach outside it"


class StepError(RecordingError):
    """The step cannot be measured as it is."""


def idle_kind(function: Callable[[], object]) -> str:
    """What a function is whose call only makes an object, which has its work still to do; empty for others."""
    for one in (function, getattr(type(function), "__call__", None)):  # noqa: B004, the method itself is looked at
        if inspect.isasyncgenfunction(one):
            return "an async generator function"
        if inspect.isgeneratorfunction(one):
            return "a generator function"
        if inspect.iscoroutinefunction(one):
            return "a coroutine function"
    return ""


def refuse_undone(result: object) -> None:
    """Raises if a call returned its work instead of doing it, as decorated coroutines do."""
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        with contextlib.suppress(Exception):
            if inspect.iscoroutine(result):
                result.close()  # or Python warns that nobody awaited it
        kind = type(result).__name__
        raise StepError(f"measure: the step returned its work undone, as a {kind}: run it to its end inside the step")


def check_bare() -> None:
    """Raises if a recording is on or hooks are in, which only the step can have done."""
    if native.status()["is_started"]:
        raise StepError(_OWN_RECORDING)
    if hooks.attached():
        raise StepError(_OWN_HOOKS)


def check_recorded(path: str, attached: list[str]) -> None:
    """Raises unless the recording is the one that was started, with its hooks: its counters would be of other steps."""
    status = native.status()
    now = status["file_path"]
    if not status["is_started"]:
        raise StepError(_STOPPED)
    if now and now != path and not now.startswith(path.removesuffix(".smon") + "."):
        raise StepError(_OWN_RECORDING)
    if status["is_paused"]:
        raise StepError(_PAUSED)
    if hooks.attached() != attached:
        raise StepError(_OWN_HOOKS)
