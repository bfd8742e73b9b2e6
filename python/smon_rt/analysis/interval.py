"""Bootstrap intervals over steps, deterministic and in plain Python (a few thousand sums, not worth a dependency)."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

#: Steps are correlated (lag-1 0.57 in a published trace), so neighbours are drawn together.
BLOCK_STEPS = 5
#: From this many separate sampled windows on, a window is the unit that is drawn.
ENOUGH_WINDOWS = 8
_DRAW_BUDGET = 500_000
_MAX_REPLICATES = 1000
_MIN_REPLICATES = 200
_SEED = 20250707


def step_blocks(steps: Sequence[int]) -> list[list[int]]:
    """Groups the indices of `steps` into the blocks that a resample draws whole.

    Runs of consecutive step numbers are windows; with at least `ENOUGH_WINDOWS` of them a window is a block. Else
    blocks have at least `BLOCK_STEPS` steps. Under two such blocks each step is its own block: a narrower interval
    than correlated steps deserve, but one block alone would give an interval of no width at all.
    """
    windows: list[list[int]] = []
    for index, step in enumerate(steps):
        if windows and step == steps[index - 1] + 1:
            windows[-1].append(index)
        else:
            windows.append([index])
    if len(windows) >= ENOUGH_WINDOWS:
        return windows
    count = len(steps) // BLOCK_STEPS
    if count < 2:
        return [[index] for index in range(len(steps))]
    edges = [position * BLOCK_STEPS for position in range(count)] + [len(steps)]
    return [list(range(first, last)) for first, last in itertools.pairwise(edges)]


class StepResampler:
    """Draws blocks of steps with replacement; every series gets the same draws, so their intervals compare."""

    def __init__(self, steps: Sequence[int]) -> None:
        self._blocks = step_blocks(steps)
        count = len(self._blocks)
        replicates = max(_MIN_REPLICATES, min(_MAX_REPLICATES, _DRAW_BUDGET // max(count, 1)))
        generator = random.Random(_SEED)
        self._draws = [generator.choices(range(count), k=count) for _ in range(replicates)] if count > 1 else []

    def mean_interval(self, values: Sequence[float]) -> tuple[float | None, float | None]:
        """The 95 % interval of the mean of `values` (one a step); `(None, None)` with a single block."""
        if not self._draws:
            return None, None
        sums = [sum(values[index] for index in block) for block in self._blocks]
        sizes = [len(block) for block in self._blocks]
        means = sorted(sum(sums[block] for block in draw) / sum(sizes[block] for block in draw) for draw in self._draws)
        return means[int(0.025 * len(means))], means[min(len(means) - 1, int(0.975 * len(means)))]
