"""How many layers each pipeline stage should have, from what the stages take now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

#: Each is a replay of the job.
_MOST_MOVES_COUNT = 16


@dataclass(frozen=True, slots=True)
class StageFit:
    """What a microbatch takes on a stage: so much a layer there, and what the stage does besides (embedding, loss).

    `layer_s` is a layer's usual time; a stage whose layers take another time keeps its own (`layer_s_by_stage`).
    """

    layer_s: float
    layer_s_by_stage: tuple[float, ...]
    extra_s: tuple[float, ...]

    def times_of(self, layers: Sequence[int]) -> list[float]:
        """Seconds of a microbatch on each stage with that many layers."""
        return [
            extra + own * count for extra, own, count in zip(self.extra_s, self.layer_s_by_stage, layers, strict=True)
        ]


def fit_stages(times_s: Sequence[float], layers: Sequence[int]) -> StageFit:
    """From the time of one pass of a microbatch on each stage.

    Stages in the middle have nothing but layers; what the first and the last take beyond theirs is embedding and loss.
    Of two stages the first is taken to have nothing but layers.
    """
    last = len(layers) - 1
    plain = range(1, last) if last > 1 else range(1)
    layer_s = median(times_s[stage] / layers[stage] for stage in plain)
    own, extra = [], []
    for stage, (time, count) in enumerate(zip(times_s, layers, strict=True)):
        besides = time - layer_s * count if stage in (0, last) else 0.0
        own.append(layer_s if besides > 0 else time / count)
        extra.append(max(0.0, besides))
    return StageFit(layer_s, tuple(own), tuple(extra))


def better_splits(fits: Sequence[StageFit], layers: Sequence[int]) -> list[tuple[int, ...]]:
    """Splits on the way to the one whose slowest stage is fastest, one layer moved at a time; each stage keeps one."""

    def loads(split: Sequence[int]) -> list[float]:
        return [sum(times) for times in zip(*(fit.times_of(split) for fit in fits), strict=True)]

    splits: list[tuple[int, ...]] = []
    split = list(layers)
    while len(splits) < _MOST_MOVES_COUNT:
        now = loads(split)
        slowest = now.index(max(now))
        if split[slowest] <= 1:
            break
        moved = [[*split] for _ in split]
        for stage, each in enumerate(moved):
            each[slowest] -= 1
            each[stage] += 1
        after = [loads(each)[stage] for stage, each in enumerate(moved)]
        target = min((stage for stage in range(len(split)) if stage != slowest), key=after.__getitem__)
        if after[target] >= now[slowest]:
            break
        split = moved[target]
        splits.append(tuple(split))
    return splits


def moved_words(before: Sequence[int], after: Sequence[int]) -> str:
    """`move 2 layers from stage 3 to stages 0 and 1 (8,8,8,8 → 9,9,8,6)`."""
    changes = [new - old for old, new in zip(before, after, strict=True)]
    count = sum(change for change in changes if change > 0)
    sources = _stages([stage for stage, change in enumerate(changes) if change < 0])
    targets = _stages([stage for stage, change in enumerate(changes) if change > 0])
    splits = f"{','.join(map(str, before))} → {','.join(map(str, after))}"
    return f"move {count} layer{'' if count == 1 else 's'} from {sources} to {targets} ({splits})"


def _stages(stages: Sequence[int]) -> str:
    names = [str(stage) for stage in stages]
    if len(names) == 1:
        return f"stage {names[0]}"
    return f"stages {', '.join(names[:-1])} and {names[-1]}"
