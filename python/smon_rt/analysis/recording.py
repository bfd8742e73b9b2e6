"""What is known about a recorded trace besides its ops: who recorded, what is missing, how well clocks agree."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smon_rt.analysis.communication import Communication
    from smon_rt.analysis.garbage import Garbage
    from smon_rt.trace.overhead import Overhead


@dataclass(frozen=True)
class Member:
    """One rank of a worker, and where it ran; an empty text is unknown."""

    rank: int
    local_rank: int
    tp_rank: int
    cp_rank: int
    host: str
    gpu_uuid: str


@dataclass(frozen=True)
class SlowMember:
    """A tp or cp member that keeps the others of its worker waiting.

    It takes that many times as long as they do for its own work in a forward and a backward, None where there is none.
    Of the collectives that it shares with them it comes last to `last_ratio`, by `late_s` seconds, the median:
    `wait_ratio` of the time that members wait for each other there.
    """

    rank: int
    forward_ratio: float | None
    backward_ratio: float | None
    wait_ratio: float
    last_ratio: float
    late_s: float


@dataclass(frozen=True)
class Recording:
    """The facts behind a report's trust line.

    `members`: the recorded ranks of each worker, (dp rank, stage), lowest first. `clock_bound_s`: how far the clocks of
    any two ranks may disagree, None where nothing bounds it; `clock_words` says what they are by. `step_count` of
    `recorded_step_count` steps that some rank sampled, warm-up left out, are analysed. `time_sources`: ops by where
    their times are from. `dropped_spans` by kind. `unfinished`: what is not closed, killed or cut, a line each;
    `left_out`: what is in the trace and was not analysed, a line each. `is_live`: a rank still records, as far as can
    be seen from here. `origin_ns`: where the ops' times count from, on the axis that the ranks' clocks were put on.
    `recorder_overhead`: how much longer sampled steps are than those around them, of the rank where that is surest.
    `garbage`: Python's collections in all steps, where they said what they did.
    `slow_members`: of workers that have any, slowest first; `compared`: workers whose members' collectives were looked
    at for that. `unseen_data`: of ranks whose data loading was not or only partly recorded, which of the two (`NOT`,
    `PARTLY` of trace/unseen.py). `is_schedule_unseen`: a pipeline ran past Megatron's hooks.
    """

    members: dict[tuple[int, int], list[Member]] = field(default_factory=dict)
    missing_ranks: tuple[int, ...] = ()
    world_size: int = 1
    clock_bound_s: float | None = 0.0
    clock_words: str = ""
    clock_violated_count: int = 0
    clock_is_contradicted: bool = False
    step_count: int = 0
    recorded_step_count: int = 0
    time_sources: dict[str, int] = field(default_factory=dict)
    dropped_spans: dict[str, int] = field(default_factory=dict)
    missing_span_count: int = 0
    mismatched_message_count: int = 0
    unfinished: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    is_live: bool = False
    origin_ns: int = 0
    recorder_overhead: Overhead | None = None
    garbage: Garbage | None = None
    slow_members: dict[tuple[int, int], tuple[SlowMember, ...]] = field(default_factory=dict)
    compared: frozenset[tuple[int, int]] = frozenset()
    unseen_data: dict[int, str] = field(default_factory=dict)
    is_schedule_unseen: bool = False
    device_bound_s: float | None = None
    device_time_ratio: float = 0.0
    communication: Communication | None = None

    @property
    def has_device_times(self) -> bool:
        """False where all times are the host's: such a run proves nothing about GPUs."""
        return any(name not in ("host", "wait_return") for name in self.time_sources)
