"""What all ranks tell each other at a start: rounds over the job's store, each with a deadline naming who is missing.

Rank 0 collects and publishes, so that a round costs each rank two looks at the store and not one for each rank. It
decides nothing: every rank gets the same list and chooses by itself.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, Protocol

from smon_rt.checkpoint.tensors import CheckpointError

#: Between looks for what is not there yet: at first, and at most.
_FIRST_LOOK_S, _LOOK_S = 0.001, 0.05


class Store(Protocol):
    """What is used of torch.distributed's stores."""

    def set(self, key: str, value: str) -> Any: ...

    def get(self, key: str) -> bytes: ...

    def check(self, keys: list[str]) -> bool: ...


class LocalStore:
    """That of a job of one rank."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}

    def set(self, key: str, value: str) -> None:
        self._values[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self._values[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self._values for key in keys)


class Rounds:
    """Rounds of one attach. All ranks must play the same rounds in the same order.

    Args:
        prefix: another one for each attach of the job, the same on all ranks.
        timeout_s: of each round.
    """

    def __init__(self, store: Store, rank: int, world_size: int, prefix: str, timeout_s: float) -> None:
        self._store = store
        self.rank = rank
        self.world_size = world_size
        self._prefix = prefix
        self._timeout_s = timeout_s
        self._round = 0

    def gather(self, what: str, value: Any) -> list[Any]:
        """What each rank gave, by rank.

        Args:
            what: is done in this round, for the message if a rank does not come.
            value: plain, as JSON has it.

        Raises:
            CheckpointError: not all ranks came in time; the message names them.
        """
        self._round += 1
        base = f"{self._prefix}/{self._round}"
        deadline = time.monotonic() + self._timeout_s
        try:
            self._store.set(f"{base}/{self.rank}", json.dumps(value))
            keys = [f"{base}/{rank}" for rank in range(self.world_size)]
            if self.rank == 0:
                for rank, key in enumerate(keys):
                    if not self._comes(key, deadline):
                        raise CheckpointError(self._missing(what, keys, rank))
                self._store.set(f"{base}/all", json.dumps([json.loads(self._store.get(key)) for key in keys]))
            elif not self._comes(f"{base}/all", deadline + 1.0):  # rank 0's own deadline comes first, and names them
                raise CheckpointError(self._missing(what, keys, 0))
            values: list[Any] = json.loads(self._store.get(f"{base}/all"))
        except (RuntimeError, OSError, ValueError) as error:
            raise CheckpointError(f"{what}: the job's store does not answer: {error}") from error
        return values

    def _comes(self, key: str, deadline: float) -> bool:
        pause_s = _FIRST_LOOK_S
        while not self._store.check([key]):
            if time.monotonic() >= deadline:
                return False
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _LOOK_S)
        return True

    def _missing(self, what: str, keys: list[str], first: int) -> str:
        missing = [rank for rank, key in enumerate(keys) if not self._store.check([key])] or [first]
        shown = ", ".join(map(str, missing[:8])) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
        return f"{what}: waited {self._timeout_s:g} s for rank {shown}"


_attaches = 0


def rounds_of_job(timeout_s: float) -> Rounds:
    """Over torch.distributed's store; alone where the job has one process.

    Raises:
        CheckpointError: the job has several processes, and has not joined them yet.
    """
    global _attaches
    _attaches += 1
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    prefix = f"smon_rt.checkpoint/{restart}/{_attaches}"
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        from torch.distributed.distributed_c10d import _get_default_store

        rank, world_size = distributed.get_rank(), distributed.get_world_size()
        return Rounds(_get_default_store(), rank, world_size, prefix, timeout_s)
    if int(os.environ.get("WORLD_SIZE", "1") or 1) > 1:
        raise CheckpointError("WORLD_SIZE says several processes: call init_process_group before attach")
    return Rounds(LocalStore(), 0, 1, prefix, timeout_s)
