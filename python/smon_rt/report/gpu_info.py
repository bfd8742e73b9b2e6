"""The GPUs of a job in words, for `smon info`."""

from __future__ import annotations

from collections.abc import Sequence

from smon_rt.analysis.input_file import shown
from smon_rt.analysis.units import counted
from smon_rt.trace.summary import RankSummary

_MOST_NAMED = 4


def gpu_words(ranks: Sequence[RankSummary]) -> list[str]:
    """Which GPU each rank has; of many ranks the first ones. Nothing where none says."""
    known = [rank for rank in ranks if rank.gpu_uuids]
    if not known:
        return []
    count = len({uuid for rank in known for uuid in rank.gpu_uuids})
    named = [f"rank {rank.rank} {_of_rank(rank.gpu_uuids)}" for rank in known[:_MOST_NAMED]]
    words = f"{counted(count, 'GPU')} of {counted(len(known), 'rank')}: {', '.join(named)}"
    return [words if len(known) <= _MOST_NAMED else f"{words}, … (--json has them all)"]


def _of_rank(uuids: Sequence[str]) -> str:
    others = len(uuids) - _MOST_NAMED
    return " and ".join([*map(shown, uuids[:_MOST_NAMED]), *([f"{others:,} more"] if others > 0 else [])])
