"""Which cause is named: of those that can be told from noise, the one that gives back most."""

from __future__ import annotations

from smon_rt.analysis.causes import Cause
from smon_rt.analysis.situation import NAMED_GAIN_RATIO, Situation
from smon_rt.analysis.units import is_finite

#: A cause is named when it gives back enough of the step, and when its interval stays above this.
NAMED_LOW_RATIO = 0.01
_NEVER_NAMED = frozenset({"noise", "none"})


def choose_cause(situation: Situation) -> Cause | None:
    """The cause to name; None: there is none.

    How far the ideal is away decides nothing: it has means, which a slow op is in, and a gain is measured without it.
    """
    sure = [cause for cause in situation.causes if not _may_be_drops(cause, situation)]
    named = [cause for cause in sure if is_named(cause, situation.base_s)]
    return max(named, key=lambda cause: cause.gain_s_per_step, default=None)


def is_named(cause: Cause, base_s: float) -> bool:
    """True where the gain is a fair part of the step and, with more than one step, surely above noise."""
    return _is_large(cause, base_s) and (cause.low is None or cause.low > NAMED_LOW_RATIO * base_s)


def unsure_cause(situation: Situation) -> Cause | None:
    """Of a job without a named cause, the one that would be named if it were seen in more steps."""
    sure = [cause for cause in situation.causes if not _may_be_drops(cause, situation)]
    large = [cause for cause in sure if _is_large(cause, situation.base_s)]
    return max(large, key=lambda cause: cause.gain_s_per_step, default=None)


def _may_be_drops(cause: Cause, situation: Situation) -> bool:
    """True for launch delays that would not be named without the gaps that dropped spans leave."""
    if cause.cause != "host_launch_delay":
        return False
    gaps_s = situation.gaps_of_drops_s
    return gaps_s > 0 and cause.gain_s_per_step - gaps_s < NAMED_GAIN_RATIO * situation.base_s


def _is_large(cause: Cause, base_s: float) -> bool:
    if cause.cause in _NEVER_NAMED or not is_finite(cause.gain_s_per_step) or not base_s > 0:
        return False
    return cause.gain_s_per_step >= NAMED_GAIN_RATIO * base_s
