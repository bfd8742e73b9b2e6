"""The verdict's seven lines: slowdown, cause, scope, gain, cost, action, trust."""

from __future__ import annotations

from smon_rt.analysis.cause_words import (
    BEYOND_SLOWDOWN,
    CAUSE_WORDS,
    action_words,
    evidence_words,
    place_words,
    probable_cause_words,
    scope_of,
    scope_words,
    where_words,
)
from smon_rt.analysis.causes import Cause
from smon_rt.analysis.member_words import MEMBER, look_at_all_members, members_scope, told_apart
from smon_rt.analysis.missing_words import missing_ranks_words, waits_words
from smon_rt.analysis.naming import is_named, unsure_cause
from smon_rt.analysis.situation import Situation, gpu_hours, gpu_hours_per_day
from smon_rt.analysis.slow_place_words import look_at_forward, look_at_gpu
from smon_rt.analysis.trust import trust_line
from smon_rt.analysis.units import (
    counted,
    hours,
    is_finite,
    money,
    percent,
    price,
    ratio,
    seconds,
    seconds_change,
)

__all__ = [
    "CAUSE_WORDS",
    "NOTHING_TO_REPAIR",
    "action_of",
    "actual_step_s",
    "probable_cause_of",
    "scope_of",
    "sentence_of",
    "verdict_text",
]

NOTHING_TO_REPAIR = "nothing to repair"
_LABEL_WIDTH = 9
#: A share of the loss that is said as "all of the loss".
_ALL_OF_THE_LOSS = 0.98
#: How far above the step without delays a loss must lie to be no part of the slowdown.
_BEYOND_THE_SLOWDOWN = 1.01
#: How far above the ideal the repaired step must stay for the ideal to be worth a word.
_IDEAL_IN_SIGHT = 1.005


def verdict_text(situation: Situation, cause: Cause | None, action: str, actual_s: float) -> str:
    """All seven lines; `actual_s` is the step time that the loss is counted from."""
    lines = {
        "slowdown": _slowdown_line(situation, cause),
        "cause": _cause_line(situation, cause),
        "scope": _scope_line(situation, cause, actual_s),
        "gain": _gain_line(situation, cause, actual_s),
        "cost": _cost_line(situation, cause, actual_s),
        "action": action,
        "trust": trust_line(situation, cause),
    }
    return "\n".join(f"{label:<{_LABEL_WIDTH}}{line}" for label, line in lines.items())


def actual_step_s(situation: Situation, cause: Cause | None) -> float:
    """The step time that the loss is counted from, to the ideal one.

    Launch delays are no part of the slowdown, and work of the host that takes the same time everywhere is in the ideal,
    too: where they are the cause, what is lost includes them. So it is with slow members of all workers, and with any
    cause of which the ideal has too much.
    """
    if cause is None or (cause.cause not in BEYOND_SLOWDOWN and not situation.is_ideal_off):
        return situation.nodelay_s
    if cause.cause == "host_launch_delay" and not situation.is_ideal_off:
        return situation.base_s
    return max(situation.nodelay_s, situation.ideal_s + cause.gain_s_per_step)


def sentence_of(text: str, *, is_gain_known: bool) -> str:
    """Slowdown, cause and gain of the seven lines, as one."""
    slowdown, cause, _scope, gain, *_ = text.splitlines()
    parts = [slowdown.replace(" " * (_LABEL_WIDTH - len("slowdown")), " ", 1), cause[_LABEL_WIDTH:]]
    return "; ".join([*parts, gain[_LABEL_WIDTH:]] if is_gain_known else parts)


def action_of(situation: Situation, cause: Cause | None) -> str:
    """What to do next."""
    if cause is None:
        if situation.is_replay_far_off:
            return "check that clocks agree and every op is recorded, then analyse again: the replay is too far off"
        if (unsure := unsure_cause(situation)) is not None:
            return f"record more steps, to see whether {CAUSE_WORDS[unsure.cause]} stays"
        if waits_words(situation):
            missing = missing_ranks_words(situation)
            return f"look at {missing}, or record all ranks and analyse again: the cause may be there"
        if situation.is_worth_fixing or situation.is_ideal_off:
            return "no single repair helps: see the table by kind, and record more steps"
        return NOTHING_TO_REPAIR
    action = look_at_all_members(situation, cause) or look_at_forward(situation, cause) or look_at_gpu(situation, cause)
    action = action or action_words(cause, situation.dp, situation.pp, situation.machines, situation.stage_layers)
    # Nobody should be sent to a machine for what may have been chance, or is none at all.
    if situation.is_doubtful(cause):
        return f"check clocks and gaps first: the replay is too far off; then {action}"
    return f"record more steps first: one may be chance; then {action}" if situation.step_count == 1 else action


def probable_cause_of(cause: Cause | None) -> str | None:
    """The most likely reason behind the named cause, as far as a trace without host facts can tell."""
    return None if cause is None else probable_cause_words(cause)


def _slowdown_line(situation: Situation, cause: Cause | None) -> str:
    if not is_finite(situation.slowdown):
        return "unknown: the steps take no time"
    interval = ""
    # One worker's ideal is its own mean: how its steps vary says nothing of stragglers.
    if not _is_alone(situation) and is_finite(situation.slowdown_low) and is_finite(situation.slowdown_high):
        interval = f" ({ratio(situation.slowdown_low)}–{ratio(situation.slowdown_high)})"
    excess_s = max(0.0, situation.nodelay_s - situation.ideal_s)
    lost = percent(max(0.0, 1 - 1 / situation.slowdown) if situation.slowdown > 0 else None)
    gpus = f"{counted(situation.world, 'GPU')}{chr(39) if situation.world != 1 else chr(39) + 's'} time"
    value = f"{ratio(situation.slowdown)}{interval}"
    besides = ""
    if cause is not None and _is_beyond_the_slowdown(situation, cause):
        takes = _TAKES.get(cause.cause, f"{CAUSE_WORDS[cause.cause]} takes")
        takes = f"{takes} {percent(cause.gain_s_per_step / situation.base_s)} of the step"
        if _is_beside_the_slowdown(situation, cause):
            lost_s = seconds(cause.gain_s_per_step)
            return f"{value}, but {takes}, {lost_s}, which the slowdown does not count"
        besides = f", and {takes}"
    if situation.is_ideal_off:
        return f"{value}: below 1, so it tells nothing: what is slow is in the ideal's means{besides}"
    if situation.is_worth_fixing:
        return f"{value}: {lost} of {gpus} is lost, {seconds(excess_s)} a step{besides}"
    if cause is None and (waits := waits_words(situation)):
        return f"{value}, but {waits}"
    if _is_alone(situation):
        return f"{value}: one worker, which has no peers and waits for nobody"
    loss = "nothing is lost" if lost == "nothing" else f"{lost} of {gpus}, {seconds(excess_s)} a step"
    return f"{value}: no straggler worth fixing ({loss})"


def _is_alone(situation: Situation) -> bool:
    """Whether the job has a single worker, which has no peers and waits for nobody."""
    return situation.worker_count == 1


def _is_beyond_the_slowdown(situation: Situation, cause: Cause) -> bool:
    """Whether the cause takes more than the slowdown counts."""
    return actual_step_s(situation, cause) > _BEYOND_THE_SLOWDOWN * situation.nodelay_s


def _is_beside_the_slowdown(situation: Situation, cause: Cause) -> bool:
    """Whether it is all that there is to say: the slowdown itself is none."""
    return _is_beyond_the_slowdown(situation, cause) and not (situation.is_worth_fixing or situation.is_ideal_off)


_TAKES = {
    "host_launch_delay": "launch delays take",
    "checkpoint": "checkpoints take",
    "sequence_length": "sequence lengths take",
    "worker": "a slow worker takes",
    "tensor_parallel_member": "a slow tensor-parallel member takes",
    "stage": "a slow stage takes",
}


def _cause_line(situation: Situation, cause: Cause | None) -> str:
    if cause is None:
        unsure = unsure_cause(situation)
        if unsure is not None and not situation.is_replay_far_off:
            part = percent(unsure.gain_s_per_step / situation.base_s)
            shows = _shows_in(situation, unsure)
            return f"none is sure: {_place(situation, unsure)} is {part} of the step, but{shows} only"
        if waits_words(situation) and not situation.is_replay_far_off:
            waits = f"{percent(situation.missing_wait_s / situation.base_s)} of the step"
            return (
                f"none among the recorded ranks: they wait {waits} for {missing_ranks_words(situation)}, not recorded"
            )
        if _is_alone(situation):
            return "none: there is nobody to compare it with; by kind its step is in the tables of smon analyze"
        largest = next((other for other in situation.causes if other.gain_s_per_step > 0), None)
        part = percent(largest.gain_s_per_step / situation.base_s, 1) if largest and situation.base_s > 0 else "nothing"
        if largest is None or part == "nothing":
            return "none: no repair gives anything back"
        place = _place(situation, largest)
        if largest.cause == "noise":
            return f"none stands out: noise, which no repair gives back, is {part} of the step"
        if situation.is_replay_far_off:
            return f"none can be told: the replay does not meet the recording (the largest would be {place})"
        return f"none stands out: the largest, {place}, is {part} of the step"
    words = f"{_place(situation, cause)}: {evidence_words(cause, situation.base_s)}".rstrip()
    return (words + _shows_in(situation, cause)).rstrip(",:")


def _place(situation: Situation, cause: Cause) -> str:
    return place_words(cause, situation.dp, situation.pp, situation.machines)


def _shows_in(situation: Situation, cause: Cause) -> str:
    """` in 44 of 44 steps`, nothing where it shows in none."""
    if cause.persistence_ratio is None:
        return ""
    return f" in {round(cause.persistence_ratio * situation.step_count):,} of {counted(situation.step_count, 'step')}"


def _scope_line(situation: Situation, cause: Cause | None, actual_s: float) -> str:
    if cause is not None and cause.cause == MEMBER:
        scope = members_scope(cause, situation.worker_count, situation.members, situation.members_are)
    else:
        members = told_apart(situation, cause)
        scope = scope_words(cause, situation.worker_count, situation.dp, situation.pp, members)
    others = [other for name in _SCOPE_WORDS if (other := situation.cause(name)) is not None and not _is(other, cause)]
    # The verb once is enough.
    rest = [
        f"{_scope_place(situation, other)}{' ' if index else ' gives back '}{_share(situation, other, actual_s)}"
        for index, other in enumerate(others)
    ]
    return "; ".join([scope, ", ".join(rest)]) if rest else scope


_SCOPE_WORDS = {"pp_communication": "pp communication", "dp_communication": "dp communication", "gc": "gc"}


def _is(other: Cause, cause: Cause | None) -> bool:
    return cause is not None and cause.cause == other.cause


def _scope_place(situation: Situation, other: Cause) -> str:
    """What it is; and where, if it would be named, were the first cause not there."""
    words = _SCOPE_WORDS[other.cause]
    if not is_named(other, situation.base_s):
        return words
    place = where_words(other, situation.pp, situation.machines)
    return f"{words} ({place})" if place else words


def _share(situation: Situation, cause: Cause, actual_s: float) -> str:
    """Of the same loss as the gain's."""
    if cause.gain_s_per_step <= 0:
        return "nothing"
    loss_s = actual_s - situation.ideal_s
    # More than all of the loss, where the ideal has its share of the cause, is no share.
    if not 0 < cause.gain_s_per_step <= loss_s:
        return f"{seconds(cause.gain_s_per_step)} a step"
    return percent(cause.gain_s_per_step / loss_s)


def _gain_line(situation: Situation, cause: Cause | None, actual_s: float) -> str:
    if cause is None:
        if (unsure := unsure_cause(situation)) is not None:
            return f"{seconds(unsure.gain_s_per_step)} a step on average, from too few steps to be sure"
        if waits_words(situation):
            return f"no single repair of a recorded rank; the waits are {seconds(situation.missing_wait_s)} a step"
        return "no single repair gives back 3 % of the step"
    loss_s = actual_s - situation.ideal_s
    part = cause.gain_s_per_step / loss_s if loss_s > 0 else None
    if part is None or _is_beside_the_slowdown(situation, cause):
        back = seconds(cause.gain_s_per_step) + " a step"
    else:
        back = ("all" if part >= _ALL_OF_THE_LOSS else percent(part)) + " of the loss"
    repaired_s = max(0.0, situation.base_s - cause.gain_s_per_step)
    line = f"fixing it gives back {back}: {seconds_change(situation.base_s, repaired_s)} a step"
    if repaired_s > _IDEAL_IN_SIGHT * situation.ideal_s:
        return f"{line} (ideal {seconds(situation.ideal_s)})"
    if situation.ideal_s > _IDEAL_IN_SIGHT * repaired_s:
        # The ideal has each kind at its mean, which this cause is part of.
        return f"{line} (the ideal, {seconds(situation.ideal_s)}, has its share of it)"
    return line


def _cost_line(situation: Situation, cause: Cause | None, actual_s: float) -> str:
    lost = gpu_hours(situation, actual_s)
    per_day = gpu_hours_per_day(situation, actual_s)
    delays = " with launch delays" if cause is not None and cause.cause == "host_launch_delay" else ""
    steps = "this step" if situation.step_count == 1 else f"these {counted(situation.step_count, 'step')}"
    return (
        f"{hours(lost)} GPU-hours{delays}, {money(lost * situation.gpu_hour_price, situation.currency)} at "
        f"{price(situation.gpu_hour_price, situation.currency)} per GPU-hour in {steps}; "
        f"{hours(per_day)} GPU-hours a day at this rate"
    )
