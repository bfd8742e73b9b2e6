"""Python's garbage collections, as one process recorded them: the metrics beside its gc spans.

A collection that matters (a plan's, its guard's, a full one) leaves four metrics in every step, sampled or not; others
where their step is sampled. They follow each other; the last is called as the span is, "planned generation 1 pause s".
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from smon_rt.trace.kinds import METRIC
from smon_rt.trace.rank_trace import RankTrace

__all__ = ["Collection", "collections"]

_NAMES = ("gc memory before bytes", "gc memory after bytes", "gc freed objects")
_LAST = re.compile(r"(?:(planned|guard) )?generation (\d) pause s")


@dataclass(frozen=True)
class Collection:
    """One collection of one process."""

    step: int
    end_ns: int
    """CLOCK_MONOTONIC."""
    generation: int
    origin: str
    """"planned" or "guard" (smon_rt.gc); "" for Python's own, and for somebody's gc.collect()."""
    pause_s: float
    freed_objects: int
    memory_before_bytes: int
    """RssAnon; 0: not known."""
    memory_after_bytes: int


def collections(trace: RankTrace) -> list[Collection]:
    """In the order in which they were. What a lost metric leaves incomplete is left out."""
    spans = trace.spans
    rows = np.flatnonzero(spans.kind == METRIC)
    rows = rows[np.lexsort((spans.ring_index[rows], spans.start_ns[rows]))]
    found: list[Collection] = []
    values: dict[str, float] = {}
    for row in rows:
        name = trace.names.get(int(spans.name_id[row]), "")
        if name in _NAMES:
            values[name] = float(spans.metric_value[row])
        elif match := _LAST.fullmatch(name):
            if len(values) == len(_NAMES):
                before, after, freed = (values[each] for each in _NAMES)
                found.append(
                    Collection(
                        step=int(spans.step[row]),
                        end_ns=int(spans.start_ns[row]),
                        generation=int(match[2]),
                        origin=match[1] or "",
                        pause_s=float(spans.metric_value[row]),
                        freed_objects=int(freed),
                        memory_before_bytes=int(before),
                        memory_after_bytes=int(after),
                    )
                )
            values = {}
    return found
