"""Puts the members of a worker on one clock within each compute, by nothing but what they did there together.

Members leave a collective together, so that who comes last waits least: how long each waited is by its own clock. On
several hosts that says more than clocks, which messages of others may bind no closer than a compute is long.
"""

from __future__ import annotations

import numpy as np

from smon_rt.trace.partners import dense
from smon_rt.trace.spans import Array

#: Communicators that lie across each other (tp and cp) agree after a few rounds; one alone does at once.
_MOST_ROUNDS = 50
_CLOSE_ENOUGH_NS = 0.5


def leads_of_members(
    op: Array, rank: Array, meeting: Array, end_ns: Array, is_collective: Array
) -> tuple[Array, Array, float]:
    """By how many ns each row's clock is ahead; the rows of which that is known; how far the ends then are apart.

    Rows are those of meetings, to which all came. Known are collectives, and ends of computes whose members are all
    bound by collectives in them.
    """
    clock = dense(op, rank)
    rows = np.flatnonzero(is_collective)
    if len(rows) == 0:
        return np.zeros(len(op), np.int64), np.zeros(len(op), np.bool_), 0.0
    own, met = clock[rows], dense(meeting[rows])
    ends_ns = (end_ns[rows] - _least(end_ns[rows], dense(op[rows]))).astype(np.float64)
    together = np.bincount(met)
    lead_ns = np.zeros(int(clock.max()) + 1)
    bound_to = np.arange(len(lead_ns))
    for _ in range(_MOST_ROUNDS):
        over_ns = np.bincount(met, weights=ends_ns - lead_ns[own]) / together
        moved_ns = _medians(ends_ns - over_ns[met], own, len(lead_ns)) - lead_ns
        lead_ns += moved_ns
        before = bound_to.copy()
        np.minimum.at(bound_to, own, _least(bound_to[own], met))
        if np.abs(moved_ns).max() <= _CLOSE_ENOUGH_NS and np.array_equal(before, bound_to):
            break
    left_ns = ends_ns - lead_ns[own]
    apart_ns = np.zeros(len(together))
    np.maximum.at(apart_ns, met, _least(-left_ns, met) * -1 - _least(left_ns, met))
    same = _least(bound_to[clock], dense(meeting)) == -_least(-bound_to[clock], dense(meeting))
    # From the clock that is least ahead on, so that what is whole nanoseconds stays so.
    lead_ns = lead_ns[clock] - _least(lead_ns[clock], dense(op))
    return np.rint(lead_ns).astype(np.int64), is_collective | same, float(np.median(apart_ns))


def _least(values: Array, group: Array) -> Array:
    """The least value of each row's group."""
    least = np.full(int(group.max()) + 1, values.max(), values.dtype)
    np.minimum.at(least, group, values)
    return np.asarray(least[group])


def _medians(values: Array, group: Array, count: int) -> Array:
    """The median of each of `count` groups, the lower one of two; 0 of a group without values."""
    order = np.lexsort((values, group))
    sizes = np.bincount(group, minlength=count)
    first = np.cumsum(sizes) - sizes
    medians = np.zeros(count)
    medians[sizes > 0] = values[order][(first + (sizes - 1) // 2)[sizes > 0]]
    return medians
