"""What the verdict is drawn from, and what the loss costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from smon_rt.analysis.causes import Cause
from smon_rt.analysis.recording import Recording
from smon_rt.analysis.units import is_finite
from smon_rt.analysis.worker_words import Machines

#: Under this slowdown the headline says that nothing is worth fixing (healthy noise alone gives up to 1.04).
WORTH_FIXING_SLOWDOWN = 1.1
#: A cause is named, and a wait for ranks that were not recorded is told, from this part of the step on.
NAMED_GAIN_RATIO = 0.03
#: Below this one the ideal is itself slow: the job would be faster than without stragglers.
_IMPOSSIBLE_SLOWDOWN = 0.98
#: From this replay error on, what the replay says of single causes may be an artefact of clocks or of missing ops.
LARGE_REPLAY_ERROR = 0.10
_SECONDS_PER_HOUR = 3600
_HOURS_PER_DAY = 24


@dataclass(frozen=True, slots=True)
class Situation:
    """All that the verdict is drawn from. Step times are means in seconds; dp and pp count what was recorded.

    A worker has `members` ranks, which move together (`members_are` names their dimensions). `stage_layers` is how many
    layers each stage has, where that is known.
    """

    world: int
    dp: int
    pp: int
    members: int
    members_are: str
    step_count: int
    steps_chosen: bool
    base_s: float
    nodelay_s: float
    ideal_s: float
    slowdown: float
    slowdown_low: float | None
    slowdown_high: float | None
    m_w: float
    m_w_exact: float
    m_s: float
    simulation_error_mean: float
    simulation_error_worst: float
    unexplained_error_mean: float | None
    unexplained_error_worst: float | None
    early_start_count: int
    early_start_worst_s: float
    causes: Sequence[Cause]
    gpu_hour_price: float
    currency: str
    recording: Recording | None = None
    has_device_times: bool | None = None
    machines: Machines = field(default_factory=Machines)
    wait_for_missing_s: float | None = None
    stage_layers: Sequence[int] | None = None

    @property
    def is_worth_fixing(self) -> bool:
        """False where the slowdown is small or unknown."""
        return is_finite(self.slowdown) and self.slowdown >= WORTH_FIXING_SLOWDOWN

    @property
    def is_ideal_off(self) -> bool:
        """True where the slowdown is clearly below 1: the ideal's means contain what is slow in much of the job."""
        return is_finite(self.slowdown) and self.slowdown < _IMPOSSIBLE_SLOWDOWN

    @property
    def is_replay_far_off(self) -> bool:
        """True where the replay is so far from the recording that its causes are in doubt.

        Gaps of the host between ops, where they are known to be that, are no error: they are the launch slowdown.
        """
        error = self.simulation_error_mean if self.unexplained_error_mean is None else self.unexplained_error_mean
        return is_finite(error) and error >= LARGE_REPLAY_ERROR

    def is_doubtful(self, cause: Cause | None) -> bool:
        """True where the replay is so far off that what it says of the cause may be wrong.

        Launch delays are the error themselves where nothing tells the two apart, and then no reason for doubt.
        """
        is_the_error = cause is not None and cause.cause == "host_launch_delay" and self.unexplained_error_mean is None
        return self.is_replay_far_off and not is_the_error

    @property
    def gaps_of_drops_s(self) -> float:
        """What of a step may look like launch delays because spans were dropped: a lost compute leaves a gap."""
        if self.recording is None:
            return 0.0
        lost = sum(self.recording.dropped_spans.values()) + self.recording.missing_span_count
        recorded = sum(self.recording.time_sources.values())
        return self.base_s * lost / (lost + recorded) if lost else 0.0

    @property
    def missing_wait_s(self) -> float:
        """What waits for ranks that were not recorded take of a step, where that would be enough to name a cause."""
        return told_wait_s(self.wait_for_missing_s, self.base_s)

    @property
    def worker_count(self) -> int:
        """(dp rank, stage) cells, recorded or not."""
        return self.dp * self.pp

    @property
    def recorded_worker_count(self) -> int:
        """Workers of which some rank was recorded."""
        return self.worker_count if self.recording is None else len(self.recording.members)

    def cause(self, name: str) -> Cause | None:
        """The cause of that name, if the trace can show it."""
        return next((cause for cause in self.causes if cause.cause == name), None)


def told_wait_s(waited_s: float | None, base_s: float) -> float:
    """A wait for ranks that were not recorded, where it would be enough to name a cause; else 0."""
    return waited_s if waited_s is not None and waited_s >= NAMED_GAIN_RATIO * base_s > 0 else 0.0


def gpu_hours(situation: Situation, actual_s: float) -> float:
    """GPU-hours that the analysed steps took beyond their ideal."""
    excess_s = max(0.0, actual_s - situation.ideal_s)
    return excess_s * situation.step_count * situation.world / _SECONDS_PER_HOUR


def gpu_hours_per_day(situation: Situation, actual_s: float) -> float:
    """GPU-hours that a day at this rate loses."""
    if not actual_s > 0:
        return 0.0
    return _HOURS_PER_DAY * situation.world * max(0.0, 1 - situation.ideal_s / actual_s)
