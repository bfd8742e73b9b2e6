"""The verdict: which cause to name, and what to do about it.

Named is what gives back most, by a simulated repair of that cause alone (causes.py). M_W and M_S, the paper's measures
of how much of the loss the slowest workers and the last stage explain, are reported beside it and decide nothing: their
ideal contains the straggler itself, and blurs causes. The shares of causes overlap and need not sum to 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from smon_rt.analysis.causes import Where
from smon_rt.analysis.naming import choose_cause
from smon_rt.analysis.situation import Situation, gpu_hours
from smon_rt.analysis.verdict_text import (
    action_of,
    actual_step_s,
    probable_cause_of,
    scope_of,
    sentence_of,
    verdict_text,
)

#: A cause that shows in fewer steps than this comes and goes.
TRANSIENT_PERSISTENCE = 0.5


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
    actual_s = actual_step_s(situation, cause)
    hours = gpu_hours(situation, actual_s)
    persistence = cause.persistence_ratio if cause else None
    action = action_of(situation, cause)
    return Verdict(
        cause=cause.cause if cause else "none",
        where=cause.where if cause else Where(),
        scope=scope_of(cause, situation.dp, situation.pp),
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


_TIME_KINDS = {
    "worker": "compute",
    "stage": "compute",
    "sequence_length": "compute",
    "tensor_parallel_member": "compute",
    "gc": "host",
    "data_loading": "host",
    "checkpoint": "host",
    "pp_communication": "communication",
    "dp_communication": "communication",
    "host_launch_delay": "host",
}
