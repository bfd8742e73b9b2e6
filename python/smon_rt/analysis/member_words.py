"""What is said of a slow tp or cp member of a worker, for whom the others of the worker wait."""

from __future__ import annotations

from collections.abc import Sequence

from smon_rt.analysis.causes import Cause, Where
from smon_rt.analysis.input_file import shown
from smon_rt.analysis.situation import Situation
from smon_rt.analysis.units import counted, is_finite, percent
from smon_rt.analysis.worker_words import MOST_NAMED, listed, ranges_of

MEMBER = "tensor_parallel_member"


def worker_ranks(cause: Cause) -> list[int]:
    """All ranks of a slow worker of which the lowest does not stand for the others; none elsewhere."""
    return [int(rank) for rank in cause.detail.get("ranks", ())]


def worker_ranks_words(cause: Cause) -> str:
    """`ranks 2 and 3`, `rank 2 and 1 that was not recorded`."""
    missing = cause.detail.get("unrecorded_ranks", 0)
    others = f" and {missing:,} that {'was' if missing == 1 else 'were'} not recorded" if missing else ""
    return ranks_named(worker_ranks(cause)) + others


def worker_hosts_words(cause: Cause) -> str:
    """` on node2 and node3`; nothing where no host is known, or that of some of the ranks is not."""
    hosts = [shown(host) for host in cause.detail.get("hosts", ())]
    if not hosts or "unrecorded_ranks" in cause.detail:
        return ""
    return f" on {listed(hosts[:MOST_NAMED], len(hosts) - MOST_NAMED)}"


def member_ranks(cause: Cause) -> list[int]:
    """The slow ranks, slowest first; none of another cause."""
    return [int(rank) for rank, *_ in cause.detail.get("members", ())]


def members_place(cause: Cause, name: str, machine: str) -> str:
    """`tensor-parallel member: rank 5, tp 1 of worker (dp 0, stage 1) on node3`; `machine` is that of one.

    Of several: `tensor-parallel members: ranks 5 and 9, of workers (dp 0, stage 1) and (dp 1, stage 1)`.
    """
    where = cause.where
    if len(member_ranks(cause)) <= 1:
        worker = f"worker (dp {where.dp_rank}, stage {where.stage})"
        return f"{name}: rank {where.rank}, {_coordinates(where)}of {worker}{machine}"
    workers = list(dict.fromkeys((dp_rank, stage) for _, dp_rank, stage in sorted(cause.detail["members"])))
    named = [f"(dp {dp_rank}, stage {stage})" for dp_rank, stage in workers[:MOST_NAMED]]
    of = listed(named, len(workers) - len(named))
    return f"{name}s: {_ranks(cause)}, of worker{'' if len(workers) == 1 else 's'} {of}"


def members_where(cause: Cause) -> str:
    """The place alone, short: `dp 0, stage 1, tp 1`, `ranks 5 and 9`."""
    if len(member_ranks(cause)) > 1:
        return _ranks(cause)
    where = cause.where
    return f"dp {where.dp_rank}, stage {where.stage}, {_coordinates(where)}".rstrip(", ")


def members_evidence(cause: Cause) -> str:
    """`forward 2.0x, backward 1.9x the others of its worker, 97 % of the waits in their collectives for it,`."""
    ratios = [(name, cause.detail.get(f"{name}_compute_ratio")) for name in ("forward", "backward")]
    slower = [f"{name} {value:.1f}x" for name, value in ratios if value is not None and is_finite(value)]
    whose = "its worker" if len(member_ranks(cause)) == 1 else "their workers"
    words = [f"{', '.join(slower)} the others of {whose},"] if slower else []
    if (waits := cause.detail.get("wait_ratio")) is not None:
        for_whom = "it" if len(member_ranks(cause)) == 1 else "them"
        words.append(f"{percent(waits)} of the waits in their collectives for {for_whom},")
    return " ".join(words)


def members_action(cause: Cause) -> str:
    """What to do next."""
    if len(member_ranks(cause)) == 1:
        return (
            f"take rank {cause.where.rank}'s machine out, or check its GPU (clocks, ECC, neighbours) before the next "
            "restart: the other members of its worker wait for it"
        )
    return f"take the machines of {_ranks(cause)} out, or check their GPUs: the others of their workers wait for them"


def members_scope(cause: Cause, worker_count: int, member_count: int, members_are: str) -> str:
    """`one of the 4 tp members of one worker`."""
    count, workers = len(member_ranks(cause)), len(cause.detail.get("workers", ()))
    if workers > 1:
        return f"{count:,} {members_are} members, of {workers:,} of {counted(worker_count, 'worker')}"
    return f"{'one' if count == 1 else f'{count:,}'} of the {member_count:,} {members_are} members of one worker"


def told_apart(situation: Situation, cause: Cause | None) -> str:
    """What is known of the members of a worker that is slow as a whole, or why nothing is: `its 4 tp members …`.

    A parquet has one rank a worker, which stands for all.
    """
    if situation.members <= 1 or cause is None or cause.where.dp_rank is None or cause.where.stage is None:
        return ""
    place = (cause.where.dp_rank, cause.where.stage)
    whose = f"its {situation.members} {situation.members_are} members"
    recording = situation.recording
    if recording is None or place in recording.compared:
        is_uneven = recording is not None and place in recording.slow_members
        return f"one of {whose} is slower still" if is_uneven else f"{whose} move together"
    missing = situation.members - len(recording.members.get(place, ()))
    if missing > 0:
        return f"{whose} cannot be told apart: {missing:,} {'was' if missing == 1 else 'were'} not recorded"
    return f"{whose} cannot be told apart: no collective that they share was recorded in their computes"


def look_at_all_members(situation: Situation, cause: Cause) -> str | None:
    """What to do about a slow worker of which not all members have a file; None where all have, or it has no others.

    Those that were recorded may only have waited for one that was not.
    """
    place = (cause.where.dp_rank, cause.where.stage)
    if cause.cause != "worker" or situation.recording is None or len(cause.detail.get("workers", ())) > 1:
        return None
    found = [members for worker, members in situation.recording.members.items() if worker == place]
    recorded = [str(member.rank) for members in found for member in members]
    missing = situation.members - len(recorded)
    if missing <= 0 or not recorded:
        return None
    named = f"rank{'' if len(recorded) == 1 else 's'} {listed(recorded[:MOST_NAMED], len(recorded) - MOST_NAMED)}"
    others = f"{missing:,} that {'was' if missing == 1 else 'were'} not recorded"
    return f"look at all ranks of worker (dp {place[0]}, stage {place[1]}): {named} may only have waited for {others}"


def _ranks(cause: Cause) -> str:
    return ranks_named(member_ranks(cause))


def ranks_named(ranks: Sequence[int]) -> str:
    """`rank 5`, `ranks 5 and 9`; of many ranges."""
    if len(ranks) > MOST_NAMED:
        ranges: Sequence[str] = ranges_of(sorted(ranks))
        return f"ranks {listed(ranges[:MOST_NAMED], len(ranges) - MOST_NAMED)}"
    return f"rank{'' if len(ranks) == 1 else 's'} {listed([str(rank) for rank in sorted(ranks)])}"


def _coordinates(where: Where) -> str:
    """`tp 1 `, `tp 1, cp 0 `: those in which the members of the worker differ."""
    parts = [f"{name} {value}" for name, value in (("tp", where.tp_rank), ("cp", where.cp_rank)) if value is not None]
    return f"{', '.join(parts)} " if parts else ""
