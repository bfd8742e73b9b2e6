"""How rank 0's choice reaches the others: over the store by which the job's processes met, on a thread of its own.

It names a step to come, far enough ahead for everybody to hear of it. Who hears later takes it from there on. The other
way goes only that a rank's guard had to help.

Threading: `publish`, `take`, `guard_helped` and `take_help` on the job's thread, never blocking; a daemon thread talks
to the store.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from smon_rt._backend import say
from smon_rt._layout import torch_distributed
from smon_rt.environment import LogLevel
from smon_rt.errors import words_of
from smon_rt.gc.schedule import Schedule

__all__ = ["POLL_S", "Channel"]

#: One small message to the store's host from each rank.
POLL_S = 2.0
_MOST_FAILURES = 3
#: Ranks begin their plans at the same step, so within a step of each other.
_MOST_SILENT_S = 60.0
_ON_ALL = "plan() belongs on all ranks, before the first step"


class Channel:
    """Schedules of one plan, in order.

    Args:
        plan_number: the how-manieth plan of this process it is: all ranks count alike.
        rank: rank 0 publishes, the others listen.
        first_step: at which this rank's plan began.
        poll_s: how often to look; POLL_S.
    """

    def __init__(self, plan_number: int, rank: int, first_step: int, poll_s: float | None = None) -> None:
        self._prefix = f"smon_rt/gc/{plan_number}/"
        self._rank, self._first_step = rank, first_step
        self._first_step_of_rank_0: int | None = None
        self._began_s = time.monotonic()
        self._has_sent_first_step = False
        self._is_apart_told = rank == 0
        self.poll_s = POLL_S if poll_s is None else poll_s
        self._outgoing: list[Schedule] = []
        self._incoming: list[Schedule] = []
        self._helped_count = 0  # of this rank, not told yet; on rank 0 of all others, heard of
        self._taken_count = 0
        self._wake = threading.Event()
        self._is_stopped = False
        self._thread: threading.Thread | None = None

    def start(self) -> bool:
        """False: there is no store."""
        if torch_distributed() is None:
            return False
        work = self._send if self._rank == 0 else self._listen
        self._thread = threading.Thread(target=self._run, args=(work,), name="smon_gc_plan", daemon=True)
        self._thread.start()
        return True

    def publish(self, schedule: Schedule) -> None:
        """Rank 0: tells the others."""
        self._outgoing.append(schedule)
        self._wake.set()

    def has_sent(self) -> bool:
        """Rank 0: whether all of it is in the store."""
        return not self._outgoing

    def take(self) -> Schedule | None:
        """The next that has come, once."""
        return self._incoming.pop(0) if self._incoming else None

    def take_apart(self) -> str:
        """Other ranks than 0, once: in what way rank 0's plan is another one; "" if it is not known to be."""
        if self._is_apart_told:
            return ""
        theirs = self._first_step_of_rank_0
        if theirs is None and time.monotonic() - self._began_s < _MOST_SILENT_S:
            return ""
        self._is_apart_told = True
        if theirs is None:
            return f"nothing was heard of a plan on rank 0 for {_MOST_SILENT_S:.0f} s: {_ON_ALL}"
        if theirs != self._first_step:
            return f"it began at step {self._first_step}, rank 0's at step {theirs}: {_ON_ALL}"
        return ""

    def guard_helped(self) -> None:
        """Other ranks than 0: an interval is too long here."""
        self._helped_count += 1
        self._wake.set()

    def take_help(self) -> bool:
        """Rank 0: whether a guard has helped since the last time."""
        heard, self._taken_count, known = self._helped_count, self._helped_count, self._taken_count
        return heard > known

    def stop(self) -> None:
        """Ends the thread, within about the time of one message: it must not run into the interpreter's end."""
        self._is_stopped = True
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=1.0)

    def _run(self, work: Callable[[Any, int], int]) -> None:
        failures = number = 0
        store: Any = None
        while not self._is_stopped and failures < _MOST_FAILURES:
            try:
                store = _own_store() if store is None else store
                number = work(store, number)
                failures = 0
            except Exception as error:  # the host of the store has gone, as at the end of a job
                failures += 1
                say(LogLevel.INFO, f"gc: the store does not answer: {words_of(error)}"[:300])
            if not self._is_stopped:
                self._wake.wait(self.poll_s)
                self._wake.clear()

    def _send(self, store: Any, number: int) -> int:
        if not self._has_sent_first_step:
            store.set(f"{self._prefix}first_step", str(self._first_step))
            self._has_sent_first_step = True
        while self._outgoing:
            store.set(f"{self._prefix}{number}", self._outgoing[0].encode())
            self._outgoing.pop(0)
            number += 1
        if store.check([self._prefix + "guard"]):
            self._helped_count = store.add(self._prefix + "guard", 0)
        return number

    def _listen(self, store: Any, number: int) -> int:
        if (count := self._helped_count) > 0:
            store.add(self._prefix + "guard", count)
            self._helped_count -= count
        if self._first_step_of_rank_0 is None and store.check([f"{self._prefix}first_step"]):
            self._first_step_of_rank_0 = int(store.get(f"{self._prefix}first_step"))
        while store.check([f"{self._prefix}{number}"]):
            text = store.get(f"{self._prefix}{number}").decode()
            number += 1
            self._incoming.append(Schedule.decode(text))
        return number


def _own_store() -> Any:
    """A connection of our own: the job's may be inside a wait of minutes."""
    distributed = torch_distributed()
    if distributed is None:
        raise ConnectionError("torch.distributed is not set up")
    store = distributed.distributed_c10d._get_default_store()
    try:
        return store.clone()
    except Exception:  # an older torch, or a store that cannot be
        return store
