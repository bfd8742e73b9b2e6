"""Which workers: ranks, places and machines of several at once, in few words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from smon_rt.analysis.input_file import shown

#: So many are named; the rest is counted.
MOST_NAMED = 6
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


def ranks_words(workers: Sequence[Worker], machines: Machines) -> str:
    """`ranks 4, 7 and 9`, the slowest six where there are more; places where ranks are not known."""
    named = sorted(workers[:MOST_NAMED], key=lambda worker: (machines.rank(worker) or 0, worker))
    more = len(workers) - len(named)
    ranks = [machines.rank(worker) for worker in named]
    if any(rank is None for rank in ranks):
        return listed([f"(dp {dp_rank}, stage {stage})" for dp_rank, stage in named], more)
    return f"rank{'' if len(workers) == 1 else 's'} {listed([str(rank) for rank in ranks], more)}"


def group_words(workers: Sequence[Worker], machines: Machines) -> str:
    """`ranks 4 and 7 (stage 1) on node1`: the dp rank or the stage that they share, and their hosts."""
    return ranks_words(workers, machines) + _shared(workers, machines) + hosts_words(workers, machines)


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
