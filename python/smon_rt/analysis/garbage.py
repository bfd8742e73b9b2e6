"""Python's garbage collections over a whole recording: what planning them would take, and how a plan went."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from smon_rt.analysis.units import counted
from smon_rt.analysis.worker_words import ranges_words
from smon_rt.trace.garbage import Collection, collections
from smon_rt.trace.rank_trace import RankTrace

__all__ = ["Garbage", "GarbageCount", "interval_for_memory"]

#: What garbage may take on each rank until it is collected, and the longest interval that gives back anything.
_GARBAGE_BYTES = 1 << 30
_MOST_STEPS = 500
_MOST_NAMED = 3


@dataclass(frozen=True)
class Garbage:
    """Of all steps, sampled or not.

    `bytes_per_step`: what collections gave back to the system, of the rank where that is most; None: nobody said.
    `guard` and `unplanned`: collections by rank that the memory guard made, and that others made once a plan was on.
    `is_planned`: a plan was on; `disagreeing`: steps in which some ranks collected by plan and others that were there
    did not; `without_plan`: ranks that never did, though they were there.
    """

    bytes_per_step: float | None = None
    is_planned: bool = False
    guard: dict[int, int] = field(default_factory=dict)
    unplanned: dict[int, int] = field(default_factory=dict)
    disagreeing: int = 0
    without_plan: tuple[int, ...] = ()

    def words(self) -> list[str]:
        """What a reader of the report must know, a clause each; nothing of a plan that went as it should."""
        words = []
        if self.guard:
            words.append(f"the memory guard collected garbage alone on {_ranks(self.guard)}")
        if self.unplanned:
            words.append(f"garbage was collected beside the plan on {_ranks(self.unplanned)}")
        if self.without_plan:
            words.append(f"{ranges_words(self.without_plan)} did not collect garbage by the plan of the others")
        if self.disagreeing:
            words.append(f"planned collections of {counted(self.disagreeing, 'step')} were not on all ranks")
        return words


class GarbageCount:
    """Counts rank by rank."""

    def __init__(self) -> None:
        self._bytes_per_step: list[float] = []
        self._guard: dict[int, int] = {}
        self._unplanned: dict[int, int] = {}
        self._planned: list[tuple[frozenset[int], int, int]] = []  # their steps, and the rank's first and last step
        self._others: dict[int, int] = {}  # rank → its last step

    def add(self, trace: RankTrace) -> None:
        """What one rank recorded."""
        found = collections(trace)
        if (per_step := _bytes_per_step(found)) is not None:
            self._bytes_per_step.append(per_step)
        if guarded := sum(each.origin == "guard" for each in found):
            self._guard[trace.rank] = guarded
        planned = [each.step for each in found if each.origin == "planned"]
        if len(trace.steps) == 0:
            return
        if not planned:
            self._others[trace.rank] = int(trace.steps.step.max())
            return
        if others := sum(each.origin == "" and each.step > planned[0] for each in found):
            self._unplanned[trace.rank] = others
        self._planned.append((frozenset(planned), planned[0], int(trace.steps.step.max())))

    def total(self) -> Garbage | None:
        """Of all of them; None where no rank says anything."""
        if not (self._bytes_per_step or self._guard or self._planned):
            return None
        return Garbage(
            bytes_per_step=max(self._bytes_per_step, default=None),
            is_planned=bool(self._planned),
            guard=self._guard,
            unplanned=self._unplanned,
            disagreeing=self._disagreeing(),
            without_plan=self._without_plan(),
        )

    def _disagreeing(self) -> int:
        """Only steps that all ranks have passed since all of them planned."""
        if not self._planned:
            return 0
        first = max(first for _, first, _ in self._planned)
        last = min(last for _, _, last in self._planned)
        seen = Counter(step for steps, _, _ in self._planned for step in steps if first <= step <= last)
        return sum(count < len(self._planned) for count in seen.values())

    def _without_plan(self) -> tuple[int, ...]:
        """Ranks that were there after all others had begun."""
        first = max((first for _, first, _ in self._planned), default=0)
        return tuple(sorted(rank for rank, last in self._others.items() if self._planned and last > first))


def interval_for_memory(bytes_per_step: float, now_steps: int) -> int:
    """As many steps as leave 1 GiB of garbage on a rank, at most 500; not fewer than now, which has room for them.

    Example:
        >>> interval_for_memory(10e6, 4), interval_for_memory(0.0, 4), interval_for_memory(1e9, 4)
        (107, 500, 4)
    """
    longest = _GARBAGE_BYTES / bytes_per_step if bytes_per_step > 0 else _MOST_STEPS
    return max(now_steps, int(min(longest, _MOST_STEPS)))


def _bytes_per_step(found: list[Collection]) -> float | None:
    """Between the first collection and the last one; what the first gave back is of steps before."""
    known = [each for each in found if each.memory_before_bytes > 0]
    if len(known) < 2 or known[-1].step <= known[0].step:
        return None
    gave_back = sum(max(each.memory_before_bytes - each.memory_after_bytes, 0) for each in known[1:])
    return gave_back / (known[-1].step - known[0].step)


def _ranks(counts: dict[int, int]) -> str:
    """rank 3 (2 times) and rank 5 (once)."""
    most = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    words = [f"rank {rank} ({'once' if count == 1 else f'{count:,} times'})" for rank, count in most[:_MOST_NAMED]]
    if len(most) > _MOST_NAMED:
        words.append(f"{len(most) - _MOST_NAMED:,} more")
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
