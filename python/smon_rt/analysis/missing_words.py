"""What is said of ranks that were not recorded, and of those that wait for them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from smon_rt.analysis.situation import Situation
from smon_rt.analysis.units import percent
from smon_rt.analysis.worker_words import ranges_words

_OF_A_RANK = re.compile(r"rank (\d+): (.*)", re.DOTALL)


def missing_ranks_words(situation: Situation) -> str:
    """`rank 5`, `ranks 8–15`; nothing where all were recorded."""
    ranks = () if situation.recording is None else situation.recording.missing_ranks
    return ranges_words(ranks)


def together(lines: Sequence[str]) -> list[str]:
    """What is said of several ranks in the same words, once: `ranks 0–3, each: its process was killed`."""
    ranks_of: dict[str, list[int]] = {}
    for line in lines:
        of_a_rank = _OF_A_RANK.fullmatch(line)
        rank, text = (int(of_a_rank[1]), of_a_rank[2]) if of_a_rank else (None, line)
        ranks_of.setdefault(text, []).extend([] if rank is None else [rank])
    said = []
    for text, ranks in ranks_of.items():
        each = ", each" if len(ranks) > 1 else ""
        said.append(f"{ranges_words(sorted(ranks))}{each}: {text}" if ranks else text)
    return said


def waits_words(situation: Situation) -> str:
    """`recorded ranks wait 23 % of the step for rank 5, which is not recorded`; nothing where they do not."""
    waited_s = situation.missing_wait_s
    ranks = missing_ranks_words(situation)
    if not waited_s or not ranks:
        return ""
    verb = "is" if ranks.startswith("rank ") else "are"
    part = percent(waited_s / situation.base_s)
    return f"recorded ranks wait {part} of the step for {ranks}, which {verb} not recorded"
