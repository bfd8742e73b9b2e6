"""What a rank's header and spans say was not recorded although the job has it."""

from __future__ import annotations

import numpy as np

from smon_rt.trace.kinds import KIND_NUMBERS
from smon_rt.trace.rank_trace import RankTrace

__all__ = ["NOT", "PARTLY", "hooks_of", "is_schedule_unseen", "unseen_data"]

#: How much of a rank's data loading was recorded, where not all was.
NOT, PARTLY = "not", "partly"
_ITERATOR = "megatron.data_iterator"
#: Said with the first pass that comes through a hooked schedule.
_OF_PASSES = (_ITERATOR, "megatron.iteration")
#: Without one of them nothing is seen of what it would record.
_OF_DATA = ("megatron.data", "torch.data")
_EARLY = (
    "no pass came through a hooked schedule, so microbatches of messages and data loading are not recorded: call "
    "smon_rt.start before get_forward_backward_func"
)
#: One stage sends no messages, and its script may well have a loop of its own.
_PERHAPS_EARLY = (
    "no pass of a schedule was seen: if the script uses Megatron's, call smon_rt.start before get_forward_backward_func"
)


def hooks_of(trace: RankTrace) -> list[tuple[str, bool, str]]:
    """Name, whether it is in, and why not, of each hook; and `megatron.passes` where nothing came through them."""
    hooks = [(hook.name, hook.installed, hook.reason) for hook in trace.identity.hooks]
    if _has_no_pass(trace):
        hooks.append(("megatron.passes", False, _EARLY if trace.identity.layout.pp_size > 1 else _PERHAPS_EARLY))
    return hooks


def is_schedule_unseen(trace: RankTrace) -> bool:
    """Whether a pipeline ran past Megatron's hooks, as one whose schedule was fetched before they were in."""
    return trace.identity.layout.pp_size > 1 and _has_no_pass(trace)


def unseen_data(trace: RankTrace) -> str:
    """`NOT` or `PARTLY` where data loading was not all recorded, and is part of what waits for it; else nothing."""
    is_in = {hook.name: hook.installed for hook in trace.identity.hooks}
    has_loading = _has(trace, "data_loading")
    if not is_in.get(_ITERATOR, True):
        return PARTLY if has_loading else NOT
    is_missed = is_schedule_unseen(trace) or not all(is_in.get(name, True) for name in _OF_DATA)
    return NOT if is_missed and not has_loading else ""


def _has_no_pass(trace: RankTrace) -> bool:
    """Whether Megatron's schedules are hooked, computes were recorded, and no pass was."""
    is_in = {hook.name: hook.installed for hook in trace.identity.hooks}
    layout = trace.identity.layout
    if not is_in.get("megatron.schedules") or any(name in is_in for name in _OF_PASSES):
        return False
    return not (layout.schedule or layout.microbatch_count) and _has(trace, "forward_compute")


def _has(trace: RankTrace, kind: str) -> bool:
    return bool(np.any(trace.spans.kind == KIND_NUMBERS[kind]))
