"""Which workers: ranks, places and machines of several at once, in few words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from smon_rt.analysis.input_file import shown

#: So many are named one by one; more are named by ranges, of which there may be so many; else the rest is counted.
MOST_NAMED = 6
_MOST_RANGES = 12
_MOST_RANGES_NAMED = 6
#: (dp rank, stage).
Worker = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Machines:
    """The lowest rank of each worker and its host, as far as they are known; keys are `"dp_rank,stage"`."""

    ranks: Mapping[str, int] = field(default_factory=dict)
    hosts: Mapping[str, str] = field(default_factory=dict)

    def rank(self, worker: Worker) -> int | None:
        """The worker's lowest rank, None where it was not recorded."""
        rank = self.ranks.get(f"{worker[0]},{worker[1]}", -1)
        return rank if rank >= 0 else None

    def host(self, worker: Worker) -> str | None:
        """The host of that rank."""
        return self.hosts.get(f"{worker[0]},{worker[1]}")


def whole_dp_ranks(workers: Sequence[Worker], pp: int) -> list[int]:
    """The dp ranks of which the workers are all, in order; none where some stage of one of them is missing."""
    dp_ranks = sorted({dp_rank for dp_rank, _ in workers})
    return dp_ranks if pp > 1 and len(set(workers)) == pp * len(dp_ranks) else []


def ranks_words(workers: Sequence[Worker], machines: Machines) -> str:
    """`ranks 4, 7 and 9`, `ranks 2–5, 10 and 12–15` where there are many; places where ranks are not known.

    Of ranks that lie too far apart for ranges the slowest six are named.
    """
    if len(workers) > MOST_NAMED and (ranges := _ranges(workers, machines)):
        return f"ranks {listed(ranges)}"
    named = sorted(workers[:MOST_NAMED], key=lambda worker: (machines.rank(worker) or 0, worker))
    more = len(workers) - len(named)
    ranks = [machines.rank(worker) for worker in named]
    if any(rank is None for rank in ranks):
        return listed([f"(dp {dp_rank}, stage {stage})" for dp_rank, stage in named], more)
    return f"rank{'' if len(workers) == 1 else 's'} {listed([str(rank) for rank in ranks], more)}"


def _ranges(workers: Sequence[Worker], machines: Machines) -> list[str]:
    """`2–5`, `10`; nothing where a rank is not known, or there would be too many."""
    ranks = [-1 if (rank := machines.rank(worker)) is None else rank for worker in workers]
    ranges = ranges_of(sorted(ranks)) if min(ranks) >= 0 else []
    return ranges if len(ranges) <= _MOST_RANGES else []


def ranges_of(ranks: Iterable[int]) -> list[str]:
    """`2–5`, `10`: runs of ranks, which are in order."""
    ranges: list[tuple[int, int]] = []
    for rank in ranks:
        if ranges and rank == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], rank)
        else:
            ranges.append((rank, rank))
    return [str(first) if first == last else f"{first}–{last}" for first, last in ranges]


def ranges_words(ranks: Sequence[int]) -> str:
    """`rank 5`, `ranks 0, 2 and 8–15`, `ranks 0, 2, 4, 6, 8, 10, …`; nothing for none. Ranks are in order."""
    words = ranges_of(ranks)
    if not words:
        return ""
    if len(words) > _MOST_RANGES_NAMED:
        listed = ", ".join([*words[:_MOST_RANGES_NAMED], "…"])
    else:
        listed = " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
    return f"rank{'' if len(ranks) == 1 else 's'} {listed}"


def group_words(workers: Sequence[Worker], machines: Machines, pp: int) -> str:
    """`ranks 4 and 7 (stage 1) on node1`: the dp rank or the stage that they share, and their hosts.

    Whole dp ranks are called that: `all of dp ranks 2 and 6 (ranks 2, 6, 10 and 14) on node0`.
    """
    if replicas := whole_dp_ranks(workers, pp):
        whole = f"all of {dp_ranks_words(replicas)} ({ranks_words(workers, machines)})"
        return whole + hosts_words(workers, machines)
    return ranks_words(workers, machines) + _shared(workers, machines) + hosts_words(workers, machines)


def dp_ranks_words(dp_ranks: Sequence[int]) -> str:
    """`dp rank 3`, `dp ranks 2 and 6`; six are named."""
    names = [str(dp_rank) for dp_rank in dp_ranks[:MOST_NAMED]]
    return f"dp rank{'' if len(dp_ranks) == 1 else 's'} {listed(names, len(dp_ranks) - len(names))}"


def hosts_words(workers: Sequence[Worker], machines: Machines) -> str:
    """` on node1 and node2`; nothing where no host is known."""
    hosts = sorted({shown(host) for worker in workers if (host := machines.host(worker))})
    return f" on {listed(hosts[:MOST_NAMED], len(hosts) - MOST_NAMED)}" if hosts else ""


def listed(names: Sequence[str], more: int = 0) -> str:
    """`4`, `4 and 7`, `4, 7 and 9`, `4, 7 and 2 more`."""
    last = f"{more:,} more" if more > 0 else names[-1]
    others = names if more > 0 else names[:-1]
    return f"{', '.join(others)} and {last}" if others else last


def _shared(workers: Sequence[Worker], machines: Machines) -> str:
    dp_ranks, stages = ({worker[axis] for worker in workers} for axis in (0, 1))
    if any(machines.rank(worker) is None for worker in workers[:MOST_NAMED]):
        return ""
    shared = [f"dp {dp_rank}" for dp_rank in dp_ranks if len(dp_ranks) == 1]
    shared += [f"stage {stage}" for stage in stages if len(stages) == 1]
    return f" ({', '.join(shared)})" if shared else ""
