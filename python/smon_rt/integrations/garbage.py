"""gc: Python's own collections, by gc.callbacks.

A collection is a span named by its generation and by who asked for it: "generation 2" (Python itself, or somebody's
gc.collect()), "planned generation 1", "guard generation 2" (smon_rt.gc). Metrics say what it did: `Collections` in
smon_rt.trace reads them. Those of the youngest generation are left out where no plan is on: there are thousands of
them, of some microseconds each. So are those before the first step that no plan asked for: imports set them off, and
they are no part of training.

Threading: Python runs one collection at a time, start and stop on one thread.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from smon_rt._backend import native
from smon_rt._memory import anonymous_bytes
from smon_rt.integrations.state import failed, switch
from smon_rt.kinds import KIND_NAMES

__all__ = ["Collection", "attach", "collect", "detach", "listeners"]

_GC = KIND_NAMES.index("gc")
#: Metrics of one collection, in the order in which they are recorded; the last has the collection's name before it.
METRICS = ("gc memory before bytes", "gc memory after bytes", "gc freed objects", "pause s")


@dataclass(frozen=True)
class Collection:
    """One collection, once it is over."""

    generation: int
    origin: str
    """"" (Python, or somebody's gc.collect()), "planned" or "guard"."""
    pause_s: float
    freed_objects: int
    memory_before_bytes: int
    """RssAnon; 0 where it is not known."""
    memory_after_bytes: int
    caller: str
    """Module and function that ran then; only of what a plan does not know of."""


class _Now:
    """The collection that runs."""

    token = 0
    is_open = False
    began_ns = 0
    memory_bytes = 0
    caller = ""
    origin = ""


#: Who attached: the integration, and a plan.
_users: set[str] = set()
#: Called after each collection, also of generation 0, while a plan is on.
listeners: list[Callable[[Collection], None]] = []


def attach(user: str = "integration") -> None:
    """Records collections from now on. Twice is once."""
    _users.add(user)
    if _callback not in gc.callbacks:
        gc.callbacks.append(_callback)


def detach(user: str = "integration") -> None:
    """No longer, if nobody else has attached."""
    _users.discard(user)
    if not _users and _callback in gc.callbacks:
        gc.callbacks.remove(_callback)


def collect(generation: int, origin: str) -> None:
    """A collection of the plan ("planned") or of its guard ("guard"), looked at from outside: what a signal raises
    meanwhile is raised here.
    """
    place = gc.callbacks.index(_callback) if _callback in gc.callbacks else len(gc.callbacks)
    del gc.callbacks[place : place + 1]
    _Now.origin = origin
    try:
        _begin(generation)
        freed_objects = gc.collect(generation)
        _end(generation, freed_objects)
    finally:
        if _Now.is_open:  # interrupted
            native.end(_Now.token)
        _Now.is_open, _Now.token, _Now.origin = False, 0, ""
        if _users and _callback not in gc.callbacks:
            gc.callbacks.insert(place, _callback)


def _on_collection(phase: str, info: dict[str, Any]) -> None:
    try:
        if phase == "start":
            _begin(info["generation"])
        elif _Now.is_open:
            _end(info["generation"], info["collected"])
    except BaseException as error:
        if _is_of_a_signal(error):
            raise
        failed("gc", error)


#: What Python has as its callback. Signals' handlers run as a function of Python is entered, and what one raises in a
#: callback, SIGTERM's sys.exit() or Ctrl-C, Python drops: it would be lost to the job.
_callback = native.raises_later(_on_collection)


def _is_of_a_signal(error: BaseException) -> bool:
    """Raised by a handler that ran in here, not by what is here."""
    if threading.current_thread() is not threading.main_thread():
        return False  # handlers run in the main thread only
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    is_ours = place is not None and str(place.tb_frame.f_globals.get("__name__")).startswith("smon_rt.")
    return not (is_ours and isinstance(error, Exception))


def _begin(generation: int) -> None:
    if not (listeners or (generation > 0 and switch.is_on and (_Now.origin or _is_training()))):
        return
    if _Now.is_open:  # its end was interrupted
        native.abort(_Now.token)
    _Now.is_open = True
    _Now.memory_bytes = anonymous_bytes()
    _Now.caller = _caller() if listeners and not _Now.origin else ""
    _Now.token = native.begin(_GC, name=_name(generation))
    _Now.began_ns = time.perf_counter_ns()


def _end(generation: int, freed_objects: int) -> None:
    if not _Now.is_open:
        return
    pause_s = (time.perf_counter_ns() - _Now.began_ns) / 1e9
    native.end(_Now.token)
    _Now.is_open = False
    done = Collection(
        generation=generation,
        origin=_Now.origin,
        pause_s=pause_s,
        freed_objects=freed_objects,
        memory_before_bytes=_Now.memory_bytes,
        memory_after_bytes=anonymous_bytes(),
        caller=_Now.caller,
    )
    # Every one that matters, in each step: they are few. Others where the step's spans are recorded, too.
    if done.origin or done.generation == 2 or native.is_sampled():
        values = (done.memory_before_bytes, done.memory_after_bytes, done.freed_objects, pause_s)
        for metric, value in zip((*METRICS[:-1], f"{_name(done.generation)} {METRICS[-1]}"), values, strict=True):
            native.metric(metric, value)
    for listener in listeners:
        listener(done)


def _is_training() -> bool:
    """Whether a step has begun here; one that a library in C began is known of once it is over."""
    return native.has_stepped() or native.status()["steps"] > 0


def _name(generation: int) -> str:
    return f"{_Now.origin} generation {generation}" if _Now.origin else f"generation {generation}"


def _caller() -> str:
    """Who ran when the collection began: gc.collect()'s caller, or whose allocation set it off."""
    frame = sys._getframe(3)
    return f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_name}"
