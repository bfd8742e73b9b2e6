"""The verdict's last line: how far to trust the others."""

from __future__ import annotations

import math
from collections.abc import Sequence

from smon_rt.analysis.cause_words import HOST_CAUSES
from smon_rt.analysis.causes import Cause
from smon_rt.analysis.missing_words import together, waits_words
from smon_rt.analysis.recording import Recording
from smon_rt.analysis.situation import NAMED_GAIN_RATIO, Situation
from smon_rt.analysis.units import counted, is_finite, percent, seconds
from smon_rt.analysis.worker_words import ranges_words
from smon_rt.trace.unseen import NOT

#: Ops that start before their dependencies end by less than this part of a step cannot change the answer.
_EARLY_START_RATIO = 0.001
#: Gaps that dropped spans may have left are told from this part of a step on.
_GAPS_OF_DROPS_RATIO = 0.01
_MOST_NAMED = 6


def trust_line(situation: Situation, cause: Cause | None) -> str:
    """Coverage, replay error, losses, clocks, and where times are from."""
    recording = situation.recording
    parts = [_steps(situation), _workers(situation), _replay(situation, cause)]
    if situation.early_start_worst_s > _EARLY_START_RATIO * situation.base_s:
        early = f"{counted(situation.early_start_count, 'op')} before their dependencies' end"
        parts.append(f"{early} (worst {seconds(situation.early_start_worst_s)})")
    if recording is None:
        host = ["host time only"] if situation.has_device_times is False else []
        return ", ".join([*parts, "drops not known, times and clocks as recorded", *host])
    losses = _losses(recording, waits_words(situation), cause)
    if situation.gaps_of_drops_s > _GAPS_OF_DROPS_RATIO * situation.base_s:
        losses.append("what was dropped looks like launch delays")
    garbage = recording.garbage.words() if recording.garbage is not None else []
    garbage += _unplanned_garbage(situation)
    return ", ".join([*parts, *losses, *garbage, _clocks(recording), *_origins(recording)])


def _unplanned_garbage(situation: Situation) -> list[str]:
    """That planning would not pay; where it would, that is advice."""
    garbage = situation.recording.garbage if situation.recording is not None else None
    if garbage is None or garbage.is_planned or not situation.base_s > 0:
        return []
    cost_s = sum(cause.gain_s_per_step for cause in situation.causes if cause.cause == "gc")
    if not cost_s < NAMED_GAIN_RATIO * situation.base_s:
        return []
    costs = percent(max(cost_s, 0.0) / situation.base_s, 1)
    return [f"garbage collection costs {costs}{'' if costs == 'nothing' else ' of a step'}: planning it would not pay"]


def _steps(situation: Situation) -> str:
    steps = counted(situation.step_count, "step")
    if situation.recording is None:
        return f"{steps}, as chosen" if situation.steps_chosen else f"{situation.step_count:,} of {steps}"
    words = f"{situation.step_count:,} of {counted(situation.recording.recorded_step_count, 'sampled step')}"
    return words + (", as chosen" if situation.steps_chosen else "")


def _workers(situation: Situation) -> str:
    return f"{situation.recorded_worker_count:,} of {counted(situation.worker_count, 'worker')}"


def _replay(situation: Situation, cause: Cause | None) -> str:
    words = f"replay error {_error(situation.simulation_error_mean)} (worst {_error(situation.simulation_error_worst)})"
    if situation.unexplained_error_mean is not None:
        words += (
            f", with the host's gaps {_error(situation.unexplained_error_mean)} "
            f"(worst {_error(situation.unexplained_error_worst)})"
        )
    if situation.is_doubtful(cause):
        words += ", too large to trust the cause: check clocks and gaps"
    return words


def _losses(recording: Recording, waits: str, cause: Cause | None) -> list[str]:
    """What was recorded and is not there, most telling first; `waits` for it."""
    words = []
    if recording.is_live:
        words.append("still running")
    if recording.missing_ranks:
        # What their hosts did nobody knows: the cause may be theirs, too.
        is_everywhere = cause is not None and cause.cause in HOST_CAUSES and cause.where.dp_rank is None
        missing = ranges_words(recording.missing_ranks) + " missing"
        missing += " (what they add to the cause is not in the gain)" if is_everywhere else ""
        words.append(f"{waits}: the cause may be there" if waits else missing)
    words += _shortened(together(recording.unfinished))
    if recording.dropped_spans:
        by_kind = sorted(recording.dropped_spans.items(), key=lambda item: -item[1])
        named = ", ".join(f"{kind} {count:,}" for kind, count in by_kind[:_MOST_NAMED])
        words.append(f"{sum(recording.dropped_spans.values()):,} spans dropped ({named})")
    elif not recording.missing_span_count:
        words.append("no drops")
    if recording.mismatched_message_count:
        words.append(f"{counted(recording.mismatched_message_count, 'message')} paired by ids against their numbers")
    words += _unseen(recording)
    words += [f"left out: {'; '.join(_shortened(recording.left_out))}"] if recording.left_out else []
    return words


def _unseen(recording: Recording) -> list[str]:
    """What the job did and no hook saw."""
    words = ["no schedule seen (smon_rt.start came after get_forward_backward_func)"]
    words = words if recording.is_schedule_unseen else []
    if ranks := sorted(recording.unseen_data):
        is_everywhere = len(ranks) == sum(map(len, recording.members.values()))
        of = "" if is_everywhere else f" of {ranges_words(ranks)}"
        if NOT in recording.unseen_data.values():
            words.append(f"data loading{of} not recorded (part of the forward)")
        else:
            words.append(f"data loading{of} recorded in part (the rest is part of the forward)")
    return words


def _clocks(recording: Recording) -> str:
    words = recording.clock_words
    if recording.clock_bound_s is None:
        words += " (no bound)"
    elif recording.clock_bound_s > 0:
        estimate = "about " if recording.clock_is_contradicted else ""
        words += f" within {estimate}{seconds(recording.clock_bound_s)}"
    if recording.clock_violated_count:
        words += f" ({counted(recording.clock_violated_count, 'message')} against it)"
    return words


def _origins(recording: Recording) -> list[str]:
    """A run of the host alone must not look like proof about GPUs."""
    if not recording.has_device_times:
        return ["host time only"]
    words = "GPU times"
    if recording.device_time_ratio < 1:
        words += f" of {math.floor(recording.device_time_ratio * 100)} % of the computes"
    bound_s = recording.device_bound_s
    return [words + (" (no bound)" if bound_s is None else f" within {seconds(bound_s)}" if bound_s > 0 else "")]


def _shortened(lines: Sequence[str]) -> list[str]:
    more = len(lines) - _MOST_NAMED
    return [*lines[:_MOST_NAMED], *([f"{more:,} more such"] if more > 0 else [])]


def _error(value: float | None) -> str:
    """A replay error: zero is a number here, not "nothing"."""
    return f"{value * 100:.1f} %" if value is not None and is_finite(value) else "unknown"
