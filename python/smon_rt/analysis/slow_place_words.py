"""What to do about a slow worker or member that is not to take its machine out."""

from __future__ import annotations

from smon_rt.analysis.cause_words import (
    action_words,
    is_slow_in_forward_only,
    is_slow_in_optimizer_only,
    workers_of,
)
from smon_rt.analysis.causes import Cause
from smon_rt.analysis.input_file import shown
from smon_rt.analysis.member_words import MEMBER, member_ranks, ranks_named, worker_ranks
from smon_rt.analysis.naming import is_named
from smon_rt.analysis.situation import Situation
from smon_rt.analysis.worker_words import ranges_words, ranks_words
from smon_rt.trace.unseen import NOT

_PLACES = ("worker", MEMBER)


def look_at_forward(situation: Situation, cause: Cause) -> str | None:
    """Where only forwards are slow: what is in them beside computing. None where that is not so.

    Of a stage it is said where data loading was not recorded; its layers are the other answer.
    """
    if cause.cause not in (*_PLACES, "stage") or not is_slow_in_forward_only(cause):
        return None
    recording = situation.recording
    unseen = {} if recording is None else recording.unseen_data
    ways = {unseen[rank] for rank in slow_ranks(situation, cause) if rank in unseen}
    is_stage = cause.cause == "stage"
    ranks = f"stage {cause.where.stage}" if is_stage else _ranks_words(situation, cause)
    slow_gpu = "a slow GPU would be slow in the backward, too"
    if ways:
        was = "not recorded and is" if NOT in ways else "recorded only in part, and the rest is"
        first = f"look at the data loading of {ranks} first: it was {was} part of the forward, which alone is slow"
        return f"{first}; then {_layers_words(situation, cause)}" if is_stage else f"{first}; {slow_gpu}"
    if is_stage:
        return None
    forwards, do = ("forward", "does") if ranks.startswith("rank ") else ("forwards", "do")
    return f"look at what the {forwards} of {ranks} {do} beside computing (data, host) first: {slow_gpu}"


def look_at_gpu(situation: Situation, cause: Cause) -> str | None:
    """Where all of the job is on one host, of which some ranks are slow: that is not the machine. Else None."""
    if cause.cause not in _PLACES or is_slow_in_optimizer_only(cause) or cause.detail.get("peers") == "other_stages":
        return None
    recording = situation.recording
    if recording is None or recording.missing_ranks:
        return None
    members = [member for of_worker in recording.members.values() for member in of_worker]
    hosts = {member.host for member in members}
    named = [other for other in situation.causes if other.cause in _PLACES and is_named(other, situation.base_s)]
    slow = {rank for each in (cause, *named) for rank in slow_ranks(situation, each)}
    healthy = sorted({member.rank for member in members} - slow)
    if len(hosts) != 1 or "" in hosts or not healthy:
        return None
    ranks, host = _ranks_words(situation, cause), shown(hosts.pop())
    if ranks.startswith("rank "):
        what = f"{ranks}'s GPU (clocks, ECC, neighbours) or process"
    else:
        what = f"the GPUs (clocks, ECC, neighbours) or processes of {ranks}"
    are = "is" if len(healthy) == 1 else "are"
    return f"check {what} on {host}, not the machine: {ranges_words(healthy)} there {are} not slow"


def slow_ranks(situation: Situation, cause: Cause) -> list[int]:
    """All recorded ranks of slow workers or of a slow stage, or the slow members."""
    if cause.cause == MEMBER:
        return member_ranks(cause)
    recording = situation.recording
    members = {} if recording is None else recording.members
    workers = workers_of(cause, situation.pp)
    if cause.cause == "stage":
        workers = [worker for worker in members if worker[1] == cause.where.stage]
    return [member.rank for worker in workers for member in members.get(worker, ())]


def _layers_words(situation: Situation, cause: Cause) -> str:
    return action_words(cause, situation.dp, situation.pp, situation.machines, situation.stage_layers)


def _ranks_words(situation: Situation, cause: Cause) -> str:
    if ranks := member_ranks(cause) or worker_ranks(cause):
        return ranks_named(ranks)
    return ranks_words(workers_of(cause, situation.pp), situation.machines)
