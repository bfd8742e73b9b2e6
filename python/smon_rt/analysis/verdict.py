"""The verdict: which cause to name, and what to do about it.

From the paper's metrics: M_W and M_S (how much of the loss do the slowest 3 % of the workers, or the last stage,
explain), the forward-backward correlation, and simulated removals. They blur causes, since the ideal contains the
straggler itself and evening out microbatches removes noise too: the robust decomposition of compute times, which keeps
causes apart, is not part of this version. The shares of causes overlap and need not sum to 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from smon_rt.analysis.causes import Cause, Where
from smon_rt.analysis.situation import Situation, gpu_hours
from smon_rt.analysis.units import is_finite
from smon_rt.analysis.verdict_text import (
    action_of,
    computes_slower,
    probable_cause_of,
    sentence_of,
    verdict_text,
)

#: A cause is named when it gives back this much of the step, and when its interval stays above the second.
NAMED_GAIN_RATIO = 0.03
NAMED_LOW_RATIO = 0.01
#: M_W and M_S from which the slowest workers or the last stage are the cause.
DOMINANT_RATIO = 0.5
#: A cause that shows in fewer steps than this comes and goes.
TRANSIENT_PERSISTENCE = 0.5
_NEVER_NAMED = frozenset({"noise", "none"})


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer in fields; `text` is the same for people, one line a question."""

    cause: str
    where: Where
    scope: str
    time_kind: str | None
    excess_s_per_step: float
    gain_s_per_step: float
    persistence_ratio: float | None
    transient: bool
    probable_cause: str | None
    action: str
    gpu_hours_lost: float
    cost: float
    currency: str
    text: str

    @property
    def sentence(self) -> str:
        """What is lost, why, where, and what fixing it gives back, in one line.

        Example:
            >>> report.verdict.sentence  # doctest: +SKIP
            "slowdown 1.97 (1.96–1.98): 49 % of 64 GPUs' time is lost, 22.9 s a step; worker: rank 0 (dp 0, stage 0): …"
        """
        return sentence_of(self.text, is_gain_known=self.cause != "none")


def draw_verdict(situation: Situation) -> Verdict:
    """Names a cause, prices the loss and says it in seven lines.

    Example:
        >>> draw_verdict(situation).text.splitlines()[0]  # doctest: +SKIP
        "slowdown 1.97 (1.96–1.98): 49 % of 64 GPUs' time is lost, 22.9 s a step"
    """
    cause = choose_cause(situation)
    # Launch delays are no part of the slowdown: where they are the cause, what is lost includes them.
    with_delays = cause is not None and cause.cause == "host_launch_delay"
    actual_s = situation.base_s if with_delays else situation.nodelay_s
    hours = gpu_hours(situation, actual_s)
    persistence = cause.persistence_ratio if cause else None
    action = action_of(situation, cause)
    return Verdict(
        cause=cause.cause if cause else "none",
        where=cause.where if cause else Where(),
        scope=_SCOPES[cause.cause] if cause else "job",
        time_kind=_TIME_KINDS[cause.cause] if cause else None,
        excess_s_per_step=max(0.0, actual_s - situation.ideal_s),
        gain_s_per_step=cause.gain_s_per_step if cause else 0.0,
        persistence_ratio=persistence,
        transient=persistence is not None and persistence < TRANSIENT_PERSISTENCE,
        probable_cause=probable_cause_of(cause),
        action=action,
        gpu_hours_lost=hours,
        cost=hours * situation.gpu_hour_price,
        currency=situation.currency,
        text=verdict_text(situation, cause, action, actual_s),
    )


_SCOPES = {
    "worker": "worker",
    "stage": "stage",
    "sequence_length": "job",
    "gc": "job",
    "data_loading": "job",
    "pp_communication": "link",
    "dp_communication": "link",
    "host_launch_delay": "job",
}
_TIME_KINDS = {
    "worker": "compute",
    "stage": "compute",
    "sequence_length": "compute",
    "gc": "host",
    "data_loading": "host",
    "pp_communication": "communication",
    "dp_communication": "communication",
    "host_launch_delay": "host",
}


def choose_cause(situation: Situation) -> Cause | None:
    """The cause to name, or None where nothing gives back enough of the step to be told from noise.

    A dominant worker or stage that is slower itself comes first, then sequence lengths with evidence, then whatever
    gives back most. They are chosen by shares of a loss that launch delays are no part of: larger delays come before
    all of them.
    """
    if situation.ideal_s >= situation.base_s:  # outliers draw the means up: there is nothing to gain, by this measure
        return None
    named = [cause for cause in situation.causes if is_named(cause, situation.base_s)]
    found = _choose_named(situation, named)
    delay = next((cause for cause in named if cause.cause == "host_launch_delay"), None)
    return delay if found and delay and delay.gain_s_per_step > found.gain_s_per_step else found


def _choose_named(situation: Situation, named: list[Cause]) -> Cause | None:
    # Where all that a place does takes as long as elsewhere, time is lost for another reason: it comes by its gain.
    slower = [cause for cause in named if computes_slower(cause) or "host_work" in cause.detail]
    worker = next((cause for cause in slower if cause.cause == "worker" and _worker_dominates(situation)), None)
    stage = next((cause for cause in slower if cause.cause == "stage" and _stage_dominates(situation, cause)), None)
    if worker and stage:
        return _worker_or_stage(situation, worker, stage)
    if worker or stage:
        return worker or stage
    by_sequences = next((cause for cause in named if cause.cause == "sequence_length"), None)
    return by_sequences or max(named, key=lambda cause: cause.gain_s_per_step, default=None)


def _worker_or_stage(situation: Situation, worker: Cause, stage: Cause) -> Cause:
    """Both dominate: the larger gain wins."""
    if situation.dp == 1 and worker.where.stage == stage.where.stage:
        # The same ops in both: the last stage is often heavier by design, another one rather has a slow machine.
        return stage if stage.detail.get("is_last_stage") else worker
    return worker if worker.gain_s_per_step >= stage.gain_s_per_step else stage


def is_named(cause: Cause, base_s: float) -> bool:
    """True where the gain is a fair part of the step and, with more than one step, surely above noise."""
    if cause.cause in _NEVER_NAMED or not is_finite(cause.gain_s_per_step) or not base_s > 0:
        return False
    if cause.gain_s_per_step < NAMED_GAIN_RATIO * base_s:
        return False
    return cause.low is None or cause.low > NAMED_LOW_RATIO * base_s


def _worker_dominates(situation: Situation) -> bool:
    return situation.m_w >= DOMINANT_RATIO or situation.m_w_exact >= DOMINANT_RATIO


def _stage_dominates(situation: Situation, stage: Cause) -> bool:
    loss_s = situation.nodelay_s - situation.ideal_s
    return situation.m_s >= DOMINANT_RATIO or stage.gain_s_per_step >= DOMINANT_RATIO * loss_s
