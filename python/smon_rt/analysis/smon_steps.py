"""Which steps of a recorded job can be analysed: those that all of its ranks sampled and finished."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

import numpy as np

from smon_rt.analysis.smon_spans import OpColumns
from smon_rt.analysis.units import counted
from smon_rt.errors import TraceError
from smon_rt.trace.rank_trace import RankTrace
from smon_rt.trace.spans import Array

#: A rank that has fewer than this part of the steps that others have was cut short: the others do without it.
_CUT_SHORT_RATIO = 0.5
_MOST_NAMED = 8


@dataclass
class StepChoice:
    """The steps of each rank, and what is left out for them."""

    by_rank: dict[int, Array] = field(default_factory=dict)
    warmup: set[int] = field(default_factory=set)
    cut_short: list[int] = field(default_factory=list)
    steps: Array = field(default_factory=lambda: np.empty(0, np.int64))
    recorded_count: int = 0
    _repeated: dict[int, dict[int, int]] = field(default_factory=dict)

    def add(self, trace: RankTrace, ops: OpColumns, repeated: dict[int, int]) -> None:
        """Takes what a rank recorded; `repeated` says how often a step was run, if more than once."""
        self._repeated[trace.rank] = repeated
        table = trace.steps
        self.warmup.update(table.step[table.is_warmup].tolist())
        finished = table.step[table.is_sampled & ~table.is_warmup]
        if trace.end_reason is None or len(table) == 0:
            # The times of the last steps may be lost, or not written yet. The last step of all may not have ended.
            latest = int(table.step.max(initial=-1))
            begun = np.unique(ops.step)
            begun = begun[begun > latest]
            finished = np.concatenate([finished, begun if trace.end_reason is not None else begun[:-1]])
        self.by_rank[trace.rank] = np.unique(finished)

    def choose(self, run_id: str, wanted: Container[int] | None) -> None:
        """Fills `steps`. Raises TraceError where no step is left."""
        chosen = {
            rank: steps if wanted is None else steps[[step in wanted for step in steps.tolist()]]
            for rank, steps in self.by_rank.items()
        }
        counts = {rank: len(steps) for rank, steps in chosen.items()}
        every = np.unique(np.concatenate(list(chosen.values())))
        self.recorded_count = len(every)
        if len(every) == 0:
            raise TraceError(f"run {run_id}: {self._nothing(wanted)}")
        usual = float(np.median(list(counts.values())))
        self.cut_short = [rank for rank, count in counts.items() if count < _CUT_SHORT_RATIO * usual]
        ranks = [steps for rank, steps in chosen.items() if rank not in set(self.cut_short)]
        common = ranks[0]
        for steps in ranks[1:]:
            common = np.intersect1d(common, steps, assume_unique=True)
        common = np.setdiff1d(common, self._unequally_often(), assume_unique=True)
        if len(common) == 0:
            raise TraceError(f"run {run_id}: no step was sampled by all ranks ({self._ranges(chosen)}); record longer")
        self.steps = common

    def _unequally_often(self) -> list[int]:
        """Steps that not all ranks have run equally often: of a live job some may not have come to them again."""
        cut_short = set(self.cut_short)
        counts = [times for rank, times in self._repeated.items() if rank not in cut_short]
        repeated: set[int] = set().union(*counts)
        return [step for step in repeated if len({times.get(step, 1) for times in counts}) > 1]

    def left_out(self) -> list[str]:
        """What is left out, a line each."""
        lines = []
        if self.warmup:
            lines.append(counted(len(self.warmup), "warm-up step"))
        partial = self.recorded_count - len(self.steps)
        if partial:
            lines.append(f"{counted(partial, 'step')} that not all ranks sampled and finished")
        lines += [
            f"rank {rank}, which {self._why_few(rank)} ({counted(len(self.by_rank[rank]), 'step')})"
            for rank in self.cut_short[:_MOST_NAMED]
        ]
        if len(self.cut_short) > _MOST_NAMED:
            lines.append(f"{len(self.cut_short) - _MOST_NAMED:,} more ranks with few of the steps")
        return lines

    def _why_few(self, rank: int) -> str:
        """Who has the last step of the others has lost its first ones."""
        own = self.by_rank[rank]
        has_last = len(own) > 0 and len(self.steps) > 0 and own[-1] >= self.steps[-1]
        return "joined late" if has_last else "was cut short"

    def _nothing(self, wanted: Container[int] | None) -> str:
        every = np.unique(np.concatenate(list(self.by_rank.values())))
        if wanted is not None and len(every):
            return (
                f"has none of the steps asked for (it has {len(every):,} steps, {every[0]} to {every[-1]}); "
                "choose others with --steps"
            )
        if self.warmup:
            return (
                f"only warm-up steps were recorded ({len(self.warmup):,} of them); "
                "record longer, or with SMON_RT_WARMUP_STEPS=0"
            )
        return "no step was sampled and finished; mark steps with `with smon_rt.step(k):` and record longer"

    @staticmethod
    def _ranges(chosen: dict[int, Array]) -> str:
        words = [
            f"rank {rank}: {len(steps):,}, {steps[0]} to {steps[-1]}" if len(steps) else f"rank {rank}: none"
            for rank, steps in list(chosen.items())[:_MOST_NAMED]
        ]
        return "; ".join(words) + ("; …" if len(chosen) > _MOST_NAMED else "")
