"""The verdict's seven lines: slowdown, cause, scope, gain, cost, action, trust."""

from __future__ import annotations

from smon_rt.analysis.causes import Cause, Where
from smon_rt.analysis.input_file import shown
from smon_rt.analysis.situation import Situation, gpu_hours, gpu_hours_per_day
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

_LABEL_WIDTH = 9
#: A share of the loss that is said as "all of the loss".
_ALL_OF_THE_LOSS = 0.98
#: How far above the ideal the repaired step must stay for the ideal to be worth a word.
_IDEAL_IN_SIGHT = 1.005
#: Computes below this ratio to their peers are not what makes a place slow.
_SLOWER_COMPUTE_RATIO = 1.05
CAUSE_WORDS = {
    "worker": "worker",
    "stage": "stage",
    "sequence_length": "sequence lengths",
    "gc": "garbage collection",
    "data_loading": "data loading",
    "pp_communication": "pp communication",
    "dp_communication": "dp communication",
    "host_launch_delay": "host launch delay",
    "noise": "noise",
    "none": "none",
}


def verdict_text(situation: Situation, cause: Cause | None, action: str, actual_s: float) -> str:
    """All seven lines; `actual_s` is the step time that the loss is counted from."""
    lines = {
        "slowdown": _slowdown_line(situation, cause),
        "cause": _cause_line(situation, cause),
        "scope": _scope_line(situation, cause),
        "gain": _gain_line(situation, cause),
        "cost": _cost_line(situation, cause, actual_s),
        "action": action,
        "trust": trust_line(situation, cause),
    }
    return "\n".join(f"{label:<{_LABEL_WIDTH}}{line}" for label, line in lines.items())


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
        if situation.is_worth_fixing:
            return "no single repair helps: see the table by kind, and record more steps"
        return "nothing to repair"
    where = cause.where
    if cause.cause == "worker":
        if host_work := cause.detail.get("host_work"):
            return f"{_HOST_WORK_ACTIONS[host_work]} on rank {where.rank}"
        if not computes_slower(cause):
            return f"look at rank {where.rank}'s links and host: it computes as fast as its peers"
        if cause.detail.get("peers") == "other_stages":
            return f"check rank {where.rank}'s GPU (clocks, ECC, neighbours), or give stage {where.stage} fewer layers"
        if len(cause.detail.get("workers", ())) > 1:
            return f"take the machines of these workers out (rank {where.rank} first), or check their GPUs"
        check = "check its GPU (clocks, ECC, neighbours) before the next restart"
        return f"take rank {where.rank}'s machine out, or {check}"
    if cause.cause == "stage" and not computes_slower(cause):
        return f"look at the links and hosts of stage {where.stage}: it computes as fast as the other stages"
    if cause.cause == "stage":
        why = " (it also computes the loss)" if cause.detail.get("is_last_stage") else ""
        return f"move layers from stage {where.stage}{why} to the other stages"
    return _JOB_ACTIONS[cause.cause]


def computes_slower(cause: Cause) -> bool:
    """False where forward and backward are known and both about as fast as those of the peers."""
    ratios = [cause.detail.get(f"{kind}_compute_ratio") for kind in ("forward", "backward")]
    known = [value for value in ratios if value is not None and is_finite(value)]
    return not known or max(known) >= _SLOWER_COMPUTE_RATIO


_HOST_WORK_WORDS = {
    "data_loading": "waiting for data",
    "gc": "collecting garbage",
    "optimizer": "in the optimizer",
    "checkpoint_snapshot": "copying a checkpoint",
    "checkpoint_wait": "waiting for a checkpoint",
}
_HOST_WORK_ACTIONS = {
    "data_loading": "look at the loader, storage and CPUs",
    "gc": "run garbage collection at the same step as elsewhere",
    "optimizer": "look at the optimizer's step, memory and CPUs",
    "checkpoint_snapshot": "look at the memory and CPUs",
    "checkpoint_wait": "look at the storage of checkpoints",
}
_JOB_ACTIONS = {
    "sequence_length": "balance microbatches by attention cost (sum of squared sequence lengths), not by token count",
    "gc": "run garbage collection at the same step on all ranks",
    "data_loading": "load data ahead: more loader workers, a larger prefetch, or faster storage",
    "pp_communication": "check the links between neighbouring stages, and that sends overlap compute",
    "dp_communication": "check the links of the data-parallel groups, and overlap gradient reduction with the backward",
    "host_launch_delay": "look at the host between ops: data loading, Python overhead, busy CPUs",
}


def probable_cause_of(cause: Cause | None) -> str | None:
    """The most likely reason behind the named cause, as far as a trace without host facts can tell."""
    if cause is None:
        return None
    if host_work := cause.detail.get("host_work"):
        return f"time on the host, {_HOST_WORK_WORDS[host_work]}: it is no slow computing"
    if cause.cause in ("worker", "stage") and not computes_slower(cause):
        return "slow links or a slow host: computes are as fast as elsewhere"
    if cause.cause == "worker":
        if cause.detail.get("peers") == "other_stages":
            return "a slow GPU or host, or a stage with more work: one dp rank cannot tell them apart"
        return "a slow GPU or host"
    if cause.cause == "stage":
        last = ": the last stage also computes the loss" if cause.detail.get("is_last_stage") else ""
        return f"uneven layers{last}"
    return _JOB_PROBABLE_CAUSES[cause.cause]


_JOB_PROBABLE_CAUSES = {
    "sequence_length": "microbatches of equal tokens but unequal sequence lengths",
    "gc": "garbage collection at different steps on different ranks",
    "data_loading": "batches are not ready when a step begins",
    "pp_communication": "slow or shared links between stages",
    "dp_communication": "slow or shared links of the data-parallel groups",
    "host_launch_delay": "the host launches work late",
}


def _slowdown_line(situation: Situation, cause: Cause | None) -> str:
    if not is_finite(situation.slowdown):
        return "unknown: the steps take no time"
    interval = ""
    if is_finite(situation.slowdown_low) and is_finite(situation.slowdown_high):
        interval = f" ({ratio(situation.slowdown_low)}–{ratio(situation.slowdown_high)})"
    excess_s = max(0.0, situation.nodelay_s - situation.ideal_s)
    lost = percent(max(0.0, 1 - 1 / situation.slowdown) if situation.slowdown > 0 else None)
    gpus = f"{counted(situation.world, 'GPU')}{chr(39) if situation.world != 1 else chr(39) + 's'} time"
    value = f"{ratio(situation.slowdown)}{interval}"
    delays = ""
    if cause is not None and cause.cause == "host_launch_delay":
        delays = f"launch delays take {percent(cause.gain_s_per_step / situation.base_s)} of the step"
    if situation.is_worth_fixing:
        return f"{value}: {lost} of {gpus} is lost, {seconds(excess_s)} a step" + (f", and {delays}" if delays else "")
    loss = "nothing is lost" if lost == "nothing" else f"{lost} of {gpus}, {seconds(excess_s)} a step"
    return f"{value}: no straggler worth fixing ({loss})" + (f", but {delays}" if delays else "")


def _cause_line(situation: Situation, cause: Cause | None) -> str:
    if cause is None:
        largest = next((other for other in situation.causes if other.gain_s_per_step > 0), None)
        part = percent(largest.gain_s_per_step / situation.base_s, 1) if largest and situation.base_s > 0 else "nothing"
        if largest is None or part == "nothing":
            return "none: no repair gives anything back"
        if largest.cause == "noise":
            return f"none stands out: noise, which no repair gives back, is {part} of the step"
        if situation.is_replay_far_off:
            return f"none can be told: the replay does not meet the recording (the largest would be {_place(largest)})"
        return f"none stands out: the largest, {_place(largest)}, is {part} of the step"
    words = [_place(cause) + ":"]
    if host_work := cause.detail.get("host_work"):
        longer = seconds(cause.detail["host_work_excess_s"])
        words.append(f"{_HOST_WORK_WORDS[host_work]} {longer} a step longer than its peers,")
    elif cause.cause == "worker":
        words.append(_times_slower(cause, "its peers" if cause.detail.get("peers") == "same_stage" else "other stages"))
    elif cause.cause == "stage":
        words.append(_times_slower(cause, "other stages"))
    elif cause.cause == "sequence_length":
        words.append(f"forward times vary by {percent(cause.detail.get('forward_cv'))} and backward follows,")
    elif situation.base_s > 0:
        words.append(f"{percent(cause.gain_s_per_step / situation.base_s)} of the step,")
    if cause.persistence_ratio is not None:
        persistent_count = round(cause.persistence_ratio * situation.step_count)
        words.append(f"in {persistent_count:,} of {counted(situation.step_count, 'step')}")
    return " ".join(words).rstrip(",")


def _place(cause: Cause) -> str:
    where = cause.where
    if cause.cause == "worker":
        others = len(cause.detail.get("workers", ())) - 1
        more = f" and {others} more" if others > 0 else ""
        rank = "not recorded" if where.rank is None else f"rank {where.rank}"
        return f"worker: {rank} (dp {where.dp_rank}, stage {where.stage}){_machine(where)}{more}"
    return f"stage {where.stage}" if cause.cause == "stage" else CAUSE_WORDS[cause.cause]


def _machine(where: Where) -> str:
    """` on node3, GPU 2 (GPU-7f…)`, as far as it is known."""
    if where.host is None:
        return ""
    gpu = f", GPU {where.local_rank} ({shown(where.gpu_uuid)})" if where.gpu_uuid else ""
    return f" on {shown(where.host)}{gpu}"


def _times_slower(cause: Cause, peers: str) -> str:
    """`forward 2.5x, backward 2.3x its peers,` as far as both are known."""
    ratios = {kind: cause.detail.get(f"{kind}_compute_ratio") for kind in ("forward", "backward")}
    known = [f"{kind} {value:.1f}x" for kind, value in ratios.items() if value is not None and is_finite(value)]
    return f"{', '.join(known)} {peers}," if known else f"slowdown {ratio(cause.detail.get('slowdown'))},"


def _scope_line(situation: Situation, cause: Cause | None) -> str:
    scope = "the whole job"
    if cause is not None and cause.cause == "worker":
        count = len(cause.detail.get("workers", ()))
        scope = "one worker" if count <= 1 else f"the slowest {count:,} of {situation.worker_count:,} workers together"
        if count <= 1 and situation.members > 1:
            scope += f" (its {situation.members} {situation.members_are} members move together)"
    elif cause is not None and cause.cause == "stage":
        scope = f"one stage ({counted(situation.dp, 'worker')})"
    elif cause is not None and cause.cause in ("pp_communication", "dp_communication"):
        scope = "links"
    others = [name for name in _SCOPE_WORDS if cause is None or cause.cause != name]
    shares = [(_SCOPE_WORDS[name], _share(other)) for name in others if (other := situation.cause(name)) is not None]
    # The verb once is enough.
    rest = [f"{words}{' ' if index else ' gives back '}{share}" for index, (words, share) in enumerate(shares)]
    return "; ".join([scope, ", ".join(rest)]) if rest else scope


_SCOPE_WORDS = {"pp_communication": "pp communication", "dp_communication": "dp communication", "gc": "gc"}


def _share(cause: Cause | None) -> str:
    if cause is None or cause.share is None or cause.gain_s_per_step <= 0:
        return "nothing"
    return percent(cause.share)


def _gain_line(situation: Situation, cause: Cause | None) -> str:
    if cause is None:
        return "no single repair gives back 3 % of the step"
    # What the headline calls lost excludes launch delays, so the part given back is counted without them too.
    is_delay = cause.cause == "host_launch_delay"
    loss_s = (situation.base_s if is_delay else situation.nodelay_s) - situation.ideal_s
    part = cause.gain_s_per_step / loss_s if loss_s > 0 else None
    if part is None:
        back = seconds(cause.gain_s_per_step) + " a step"
    else:
        back = ("all" if part >= _ALL_OF_THE_LOSS else percent(part)) + " of the loss"
    # The simulated repair may beat the ideal (a mean that the straggler is part of); promise no more than the ideal.
    repaired_s = max(situation.ideal_s, situation.base_s - cause.gain_s_per_step)
    line = f"fixing it gives back {back}: {seconds_change(situation.base_s, repaired_s)} a step"
    if repaired_s > _IDEAL_IN_SIGHT * situation.ideal_s:
        line += f" (ideal {seconds(situation.ideal_s)})"
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
