"""A start or restart of the job: fence, list, choose, pin, fetch, go on. On all ranks at once, in rounds.

Nobody coordinates: every rank chooses from the same lists, by the same rule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from smon_rt.checkpoint.calls import INITIAL, TIER_NAMES, Calls, HeldCopy, Label
from smon_rt.checkpoint.rounds import Rounds
from smon_rt.checkpoint.tensors import CheckpointError


@dataclass(frozen=True)
class Choice:
    """What all ranks restore: each from its own tier, the first that it has. `kept`: older ones that all have."""

    label: Label
    tiers: tuple[int, ...]
    kept: tuple[Label, ...]


#: (rank, incarnation, step, tier) of copies that could not be fetched.
Failed = set[tuple[int, int, int, int]]


def choose(lists: list[list[list[int]]], failed: Failed) -> Choice | None:
    """The newest state of which every rank has a usable copy; None: there is none.

    Args:
        lists: of each rank its usable copies, as (incarnation, step, tier).

    Example:
        >>> choose([[[1, 8, 1], [1, 6, 1]], [[1, 6, 1], [1, 6, 2]]], set())
        Choice(label=Label(incarnation=1, step=6), tiers=(1, 1), kept=())
    """
    tiers: list[dict[Label, int]] = []
    for rank, copies in enumerate(lists):
        best: dict[Label, int] = {}
        for incarnation, step, tier in copies:
            if (rank, incarnation, step, tier) not in failed:
                label = Label(incarnation, step)
                best[label] = min(tier, best.get(label, tier))
        tiers.append(best)
    common = sorted(set.intersection(*(set(best) for best in tiers)), reverse=True)
    if not common:
        return None
    return Choice(common[0], tuple(best[common[0]] for best in tiers), tuple(common[1:]))


class Recovery:
    """One start of the job, of one rank.

    Args:
        topology: of this rank: copies of another one are not taken.
    """

    def __init__(self, calls: Calls, rounds: Rounds, newest_incarnation: int, topology: str) -> None:
        self._calls = calls
        self._rounds = rounds
        self._topology = topology
        #: Before steps are promised: has room made for them.
        self.make_room: Callable[[], None] = lambda: None
        self.incarnation = newest_incarnation + 1

    def run(
        self, prepare: Callable[[memoryview], Callable[[], None]] | None, next_step: int = 0
    ) -> tuple[Choice, str] | None:
        """All the way to go_on.

        Args:
            prepare: compares a content with the state that it is to become, and returns what writes it; None: the job
                does not want to restore anything, and begins from its own state.
            next_step: where nothing is restored, the iteration that it ends next.

        Returns:
            What was restored, and from where; None: the job begins anew.

        Raises:
            CheckpointError: on all ranks alike, where the job must not go on as if nothing had been.
        """
        self._all("fencing the agents", lambda: self._calls.fence(self.incarnation))
        copies: list[HeldCopy] = []
        self._all("listing what is held", lambda: copies.extend(self._calls.list()))
        lists = self._exchange(copies) if prepare is not None else [[]] * self._rounds.world_size
        failed: Failed = set()
        while (choice := choose(lists, failed)) is not None:
            if self._restore(choice, failed, prepare):
                self._go_on(choice.label.step + 1)
                return choice, TIER_NAMES[choice.tiers[self._rounds.rank]]
        if prepare is not None and failed:
            raise CheckpointError(self._no_copy_left(failed))
        self._all("pinning the initial state", lambda: self._calls.pin(INITIAL, ()))
        self._go_on(next_step)
        return None

    def _exchange(self, copies: list[HeldCopy]) -> list[list[list[int]]]:
        usable = [
            [*copy.label, copy.tier]
            for copy in copies
            if copy.is_intact and not copy.is_tried and copy.topology == self._topology and not copy.reason
        ]
        foreign = next((copy.topology for copy in copies if copy.topology != self._topology), None)
        gathered = self._rounds.gather("exchanging lists", [usable, foreign])
        lists: list[list[list[int]]] = [one[0] for one in gathered]
        if choose(lists, set()) is None:
            for rank, (_, other) in enumerate(gathered):
                if other is not None:
                    mine = f"this job is {self._topology!r}" if rank == self._rounds.rank else "this job is another"
                    raise CheckpointError(
                        f"checkpoints of rank {rank} are of another topology, {other!r}; {mine}: start with the old "
                        "topology, or under another run id to begin anew"
                    )
        return lists

    def _restore(
        self, choice: Choice, failed: Failed, prepare: Callable[[memoryview], Callable[[], None]] | None
    ) -> bool:
        """Pins, fetches and compares, and writes once all ranks can."""
        assert prepare is not None
        self._all(f"pinning step {choice.label.step}", lambda: self._calls.pin(choice.label, choice.kept))
        tier = choice.tiers[self._rounds.rank]
        write: Callable[[], None] | None = None
        reason = ""
        try:
            write = prepare(self._calls.fetch(choice.label, tier))
        except CheckpointError as error:
            reason = str(error)
        try:
            votes = self._rounds.gather(f"fetching step {choice.label.step}", reason)
            if any(votes):
                self._reasons = [f"rank {rank}: {vote}" for rank, vote in enumerate(votes) if vote]
                failed.update((rank, *choice.label, choice.tiers[rank]) for rank, vote in enumerate(votes) if vote)
                return False
            assert write is not None
            self._all(f"restoring step {choice.label.step}", write)
        finally:
            write = None  # before its memory goes
            self._calls.release()
        return True

    def _no_copy_left(self, failed: Failed) -> str:
        return f"none of {len(failed)} copies could be restored; the last: {'; '.join(self._reasons)[:1000]}"

    def _go_on(self, next_step: int) -> None:
        self.make_room()
        self._all("going on", lambda: self._calls.go_on(self.incarnation, next_step))

    def _all(self, what: str, action: Callable[[], Any]) -> None:
        """Does it on all ranks, and goes on once all have; what fails on one, fails on all."""
        reason = ""
        raised: Exception | None = None
        try:
            action()
        except Exception as error:  # a job's own load_state_dict raises what it likes: the others must hear of it
            raised, reason = error, str(error) or type(error).__name__
        failures = [f"rank {rank}: {one}" for rank, one in enumerate(self._rounds.gather(what, reason)) if one]
        if raised is not None:
            raise raised
        if failures:
            raise CheckpointError(f"{what} failed on {'; '.join(failures)[:1000]}")
