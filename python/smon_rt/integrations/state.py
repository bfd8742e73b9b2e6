"""What the hooks of all integrations share: whether they act, and what they say when they cannot.

What hooks look at in each step is in C++ (`switch`), as are the hooks that run in each: a step in which no integration
has asked for Python runs none.

Threading: plain values that hooks read on any thread; written by attach, detach, start and stop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from smon_rt._backend import native, say
from smon_rt.environment import LogLevel
from smon_rt.errors import words_of
from smon_rt.kinds import KIND_NAMES, KindName

__all__ = [
    *("FALLBACK_HOOK", "FORWARD_ONLY", "HOST", "NOT_WAITED", "OTHER_THREAD", "WAIT_RETURN"),
    *("begin_counted_step", "begin_step", "begin_unless_open", "call_all", "end_step", "failed", "mask"),
    *("say_once", "switch"),
    *("on_models_sought", "on_step_begin", "on_step_begun", "on_step_end", "on_stop", "step_begun"),
]

# Bits of span_flag and numbers of TimeSource in csrc/format/span.h; a test holds them against the reader's.
FORWARD_ONLY = 1 << 2
FALLBACK_HOOK = 1 << 4
OTHER_THREAD = 1 << 6
NOT_WAITED = 1 << 9
HOST = 0
WAIT_RETURN = 4


#: Whether hooks act, and what else they look at. Those that cannot be taken out again (c10d's) look here first.
switch = native.switch

#: Called before the first step begins: the job has set up by then what it is made of.
on_step_begin: list[Callable[[], None]] = []
#: Called once each step has begun, with its number, whether it is recorded or not. Whoever has nothing to do for a
#: while is not in it: an empty list costs a step nothing.
on_step_begun: list[Callable[[int], None]] = []
#: Called at the end of each step, as the one before: what integrations still hold of it is let go.
on_step_end: list[Callable[[], None]] = []
#: Called at the end of a step in which outermost models were looked for, or should have been.
on_models_sought: list[Callable[[], None]] = []
#: Called before recording stops: what is open ends.
on_stop: list[Callable[[], None]] = []

_said: set[str] = set()


def begin_counted_step() -> None:
    """A step begins, of a script that does not say its own."""
    begin_step(None)


def begin_step(number: int | None) -> None:
    """A step begins that a hook has found, with the script's number or counted on. Never raises."""
    _prepare()
    native.step_begin(number)
    step_begun(number)


#: Tells whoever acts by the step's number, which a script gives as it likes; None: counted. Never raises.
step_begun: Callable[[Any], None] = native.step_begun
#: The step ends, and with it what hooks still hold of it. Never raises.
end_step: Callable[[], None] = native.end_step


def _prepare() -> None:
    call_all(on_step_begin, "step_begin")


def _tell_begun(number: int) -> None:
    try:
        for hook in (*on_step_begun,):  # one that has done takes itself out
            hook(number)
    except Exception as error:
        failed("step_begun", error)


def _tell_end() -> None:
    call_all(on_step_end, "step_end")
    if switch.is_looking_for_models or (switch.backwards > 0 and switch.models == 0):
        call_all(on_models_sought, "torch.forward")


def begin_unless_open(kind: int, kinds: int, where: str) -> int:
    """Begins a span on behalf of a hook, unless this thread has one of these kinds (`mask`) open, which records the
    same. Returns its token, or 0. Never raises."""
    try:
        return 0 if native.find_open(kinds) else native.begin(kind)
    except Exception as error:
        failed(where, error)
        return 0


def call_all(hooks: list[Callable[[], None]], where: str) -> None:
    """Calls them; of what they raise, one is said, and the rest of them left out this time."""
    try:
        for hook in hooks:
            hook()
    except Exception as error:
        failed(where, error)


def failed(where: str, error: BaseException) -> None:
    """A hook could not do its work: said once, and in the header of the trace. Never raises."""
    if where in _said:
        return
    _said.add(where)
    reason = f"failed: {words_of(error)}"[:200]
    try:
        say(LogLevel.WARNING, f"the hook {where} {reason}; what it sees is not recorded (said once)")
        native.set_fact(f"hook.{where}", reason)
    except Exception:
        return


def say_once(message: str) -> None:
    """A line on stderr, the first time."""
    if message not in _said:
        _said.add(message)
        say(LogLevel.WARNING, f"{message} (said once)")


def mask(*kinds: KindName) -> int:
    """Kinds as bits, for `find_open`."""
    return sum(1 << KIND_NAMES.index(kind) for kind in kinds)


native.learn_failed(failed)
native.learn_steps(_prepare, on_step_begun, _tell_begun, on_step_end, _tell_end)
