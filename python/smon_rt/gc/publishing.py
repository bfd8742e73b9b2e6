"""How ranks come to one interval: over the store by which the job's processes met, on a thread of its own.

Rank 0 keeps one record there, of its plan: who it is, whether it asks, what it has decided. It asks before it decides,
and decides once every rank has answered: a rank without a plan, or one that the store is lost to, keeps all ranks where
they are. A decision names a step to come, far enough ahead for everybody to hear of it. The other way goes, beside
answers, only that a rank's guard had to help.

A record that has decided something when a rank first sees it is of a plan or a launch that has ended, since its rank 0
would have waited for this rank: stores can outlive a launch, as torchrun's does over restarts.

Threading: all but what the thread does is called on the job's thread, and never blocks; a daemon thread talks to the
store.
"""

from __future__ import annotations

import json
import secrets
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
#: A store that does not answer is asked ever more rarely, but never given up: who alone missed a decision would collect
#: at other steps than all others.
_MOST_POLL_S = 60.0
#: Ranks begin their plans at the same step, so within a step of each other.
_MOST_SILENT_S = 60.0
_MOST_NAMED = 4
_ON_ALL = "plan() belongs on all ranks, before the first step"
_RECORD = "smon_rt/gc/plan"


class Channel:
    """Decisions of one plan, in order.

    Args:
        rank: rank 0 decides, the others answer and follow.
        world_size: how many ranks there are.
        first_step: at which this rank's plan began.
        poll_s: how often to look; POLL_S.
    """

    def __init__(self, rank: int, world_size: int, first_step: int, poll_s: float | None = None) -> None:
        self.poll_s = POLL_S if poll_s is None else poll_s
        self._rank, self._world_size, self._first_step = rank, world_size, first_step
        self._nonce = secrets.token_hex(8) if rank == 0 else ""
        self._asked = self._decided = 0  # how often
        self._is_agreed = False
        self._schedule: Schedule | None = None  # rank 0: decided last; stays in the record for whoever comes late
        self._record = self._recorded()  # rank 0: what is to be in the store
        self._is_told = False  # and is
        self._is_ours = False  # others: the record is of the plan that this rank belongs to
        self._incoming: list[Schedule] = []
        self._words: list[str] = []
        self._waits_since_s: float | None = None if rank == 0 else time.monotonic()
        self._helped_count = 0  # of this rank, not told yet; on rank 0 of all others, heard of
        self._taken_count = 0
        self._wake = threading.Event()
        self._is_stopped = False
        self._thread: threading.Thread | None = None

    def start(self) -> bool:
        """False: there is no store."""
        if torch_distributed() is None:
            return False
        work = self._lead if self._rank == 0 else self._follow
        self._thread = threading.Thread(target=self._run, args=(work,), name="smon_gc_plan", daemon=True)
        self._thread.start()
        return True

    def ask(self) -> None:
        """Rank 0: whether all others are there to hear of a decision."""
        self._is_agreed = False
        self._asked += 1
        self._waits_since_s = time.monotonic()
        self._tell()

    def is_agreed(self) -> bool:
        """Rank 0: they are."""
        return self._is_agreed

    def publish(self, schedule: Schedule) -> None:
        """Rank 0, once all have agreed: decides."""
        self._schedule, self._decided = schedule, self._asked
        self._tell()

    def has_sent(self) -> bool:
        """Rank 0: whether all of it is in the store."""
        return self._is_told

    def take(self) -> Schedule | None:
        """The next that has been decided, once."""
        return self._incoming.pop(0) if self._incoming else None

    def take_words(self) -> str:
        """What is to be said of other ranks, once; "" for nothing."""
        return self._words.pop(0) if self._words else ""

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

    def _tell(self) -> None:
        self._record = self._recorded()
        self._is_told = False  # last: from here on the thread writes the record
        self._wake.set()

    def _recorded(self) -> str:
        decided = None if self._schedule is None else self._schedule.encode()
        return json.dumps([self._nonce, self._first_step, self._asked, self._decided, decided])

    def _run(self, work: Callable[[Any], None]) -> None:
        pause_s = self.poll_s
        store: Any = None
        while not self._is_stopped:
            try:
                store = _own_store() if store is None else store
                work(store)
                pause_s = self.poll_s
            except Exception as error:  # the host of the store has gone, as at the end of a job
                if pause_s == self.poll_s:
                    say(LogLevel.INFO, f"gc: the store does not answer: {words_of(error)}"[:300])
                store, self._is_told = None, False
                pause_s = min(2 * pause_s, _MOST_POLL_S)
            if not self._is_stopped:
                self._wake.wait(pause_s)
                self._wake.clear()

    def _lead(self, store: Any) -> None:
        while not self._is_told:
            self._is_told = True  # first: whoever asks or decides meanwhile takes it back
            store.set(_RECORD, self._record)
        if self._asked > self._decided and not self._is_agreed:
            self._is_agreed = bool(
                store.check([self._answer(self._asked, rank) for rank in range(1, self._world_size)])
            )
            if not self._is_agreed and self._has_waited():
                self._name_silent(store)
        if store.check([f"{_RECORD}/{self._nonce}/guard"]):
            self._helped_count = store.add(f"{_RECORD}/{self._nonce}/guard", 0)

    def _answer(self, asked: int, rank: int) -> str:
        return f"{_RECORD}/{self._nonce}/{asked}/{rank}"

    def _name_silent(self, store: Any) -> None:
        silent = [rank for rank in range(1, self._world_size) if not store.check([self._answer(self._asked, rank)])]
        if silent:
            named = ", ".join(str(rank) for rank in silent[:_MOST_NAMED])
            named += f" and {len(silent) - _MOST_NAMED} more" if len(silent) > _MOST_NAMED else ""
            reason = f"no plan there ({_ON_ALL}), or no way to the store"
            self._words.append(f"no other interval yet, since no answer has come from rank {named}: {reason}")

    def _follow(self, store: Any) -> None:
        if store.check([_RECORD]):
            self._read(store, *json.loads(store.get(_RECORD)))
        if not self._is_ours and self._has_waited():
            self._words.append(f"nothing was heard of this plan on rank 0 for {_MOST_SILENT_S:.0f} s: {_ON_ALL}")
        if self._is_ours and (count := self._helped_count) > 0:
            store.add(f"{_RECORD}/{self._nonce}/guard", count)
            self._helped_count -= count

    def _read(self, store: Any, nonce: str, first_step: int, asked: int, decided: int, schedule: str | None) -> None:
        if nonce != self._nonce:
            self._nonce, self._asked, self._decided = nonce, 0, 0
            self._is_ours = decided == 0
        if not self._is_ours:
            return
        if decided > self._decided and schedule is not None:
            if self._decided == 0 and first_step != self._first_step:
                self._words.append(f"it began at step {self._first_step}, rank 0's at step {first_step}: {_ON_ALL}")
            self._decided = decided
            self._incoming.append(Schedule.decode(schedule))
        if asked > self._asked:
            store.set(self._answer(asked, self._rank), "1")
            self._asked = asked

    def _has_waited(self) -> bool:
        """For too long; once."""
        if self._waits_since_s is None or time.monotonic() - self._waits_since_s < _MOST_SILENT_S:
            return False
        self._waits_since_s = None
        return True


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
