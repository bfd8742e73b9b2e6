"""Columns of differences: what numpy does not do by itself."""

from __future__ import annotations

import numpy as np

from smon_rt.trace.spans import Array

__all__ = ["firsts", "running_sums", "runs"]


def firsts(counts: Array) -> Array:
    """Where each run of values begins when the runs are laid end to end."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)[:-1]])


def runs(*keys: Array) -> tuple[Array, Array]:
    """First row and length of each run of rows whose keys are all alike."""
    is_first = np.ones(len(keys[0]), np.bool_)
    if len(is_first) > 1:
        is_first[1:] = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    starts = np.flatnonzero(is_first)
    return starts, np.diff(starts, append=len(is_first))


def running_sums(deltas: Array, starts: Array, counts: Array) -> Array:
    """Sums from the start of each run; they wrap around at 64 bits, as the schema says."""
    sums = np.cumsum(deltas)
    begins, lengths = starts[counts > 0], counts[counts > 0]
    if begins.size == 0:
        return sums
    before = np.where(begins > 0, sums[begins - 1], 0)
    return np.asarray(sums - np.repeat(before, lengths))
