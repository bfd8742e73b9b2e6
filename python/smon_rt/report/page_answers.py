"""The top of the page: the verdict, and what a reader asks next: what to do, which machine, since when, how sure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from smon_rt.analysis.cause_words import links_words
from smon_rt.analysis.causes import Cause, Where
from smon_rt.analysis.member_words import (
    member_ranks,
    members_where,
    worker_hosts_words,
    worker_ranks,
    worker_ranks_words,
)
from smon_rt.analysis.report import Report
from smon_rt.analysis.situation import WORTH_FIXING_SLOWDOWN, told_wait_s
from smon_rt.analysis.units import counted, is_finite, percent, ratio, seconds, seconds_range
from smon_rt.analysis.verdict_text import NOTHING_TO_REPAIR
from smon_rt.analysis.worker_words import Machines, group_words, ranges_words
from smon_rt.report.page_text import definitions, safe
from smon_rt.report.since import History, history_of
from smon_rt.report.tables import grid_size, worker_name

#: A strip of more steps than this shows the largest gain of neighbouring ones.
_MOST_STRIP_STEPS = 600
_MOST_NAMED_STEPS = 6
_MOST_HOSTS = 4
WHOLE_JOB = "the whole job"


def named_cause(report: Report) -> Cause | None:
    """The cause that the verdict names, with its numbers."""
    named = [cause for cause in report.causes if cause.cause == report.verdict.cause]
    return next((cause for cause in named if cause.where == report.verdict.where), named[0] if named else None)


def answers(report: Report) -> str:
    """The headline and the four answers; every line of the verdict stands in one of them."""
    lost = is_finite(report.lost_ratio) and report.lost_ratio >= WORTH_FIXING_SLOWDOWN
    lines = dict(_label_and_words(line) for line in report.verdict.text.splitlines())
    cause = named_cause(report)
    headline = lines.pop("slowdown", "")
    is_fine = cause is None and report.verdict.action == NOTHING_TO_REPAIR
    badge = "▲ loses time" if lost else "✓ fine" if is_fine else "● little is lost"
    top = [(label, lines.pop(label)) for label in ("cause", "gain", "cost") if label in lines]
    cards = [
        _card("What do I do?", safe(lines.pop("action", "")), _advice_line(report)),
        _card(
            "Which machine?",
            safe(_machine_words(report, cause)),
            f"<p class='muted'>{safe(lines.pop('scope', ''))}</p>",
        ),
        _card("Since when?", *_since(report, cause)),
        _card(
            "How sure is it?", safe(_sure_words(report, cause)), f"<p class='muted'>{safe(lines.pop('trust', ''))}</p>"
        ),
    ]
    rest = definitions([*top, *lines.items()], "verdict-lines")
    return (
        f"<div class='verdict{' lost' if lost else ''}'>\n"
        f"<p class='headline'><span class='badge'>{badge}</span> slowdown {safe(headline)}</p>\n"
        f"{rest}</div>\n<div class='answers'>\n{''.join(cards)}</div>\n"
    )


def place_words(report: Report, cause: Cause | None) -> str:
    """The place of a cause with its machine, as far as the trace knows them."""
    if cause is None:
        if told_wait_s(report.fidelity.wait_for_missing_s_per_step, report.mean_step_time_s.base):
            return f"perhaps that of {ranges_words(report.fidelity.missing_ranks)}: not recorded, and waited for"
        return "none: no cause stands out"
    where = cause.where
    if where.peer_stage is not None:
        words = _link_words(report, where)
    elif where.dp_rank is not None and where.stage is not None:
        words = _ranks_words(cause) if worker_ranks(cause) else _worker_words(report, where)
    elif where.stage is not None:
        whose = "the dp group" if cause.cause == "dp_communication" else "all workers"
        words = [f"{whose} of stage {where.stage}", *_hosts_of(report, stage=where.stage)]
    elif where.dp_rank is not None:
        words = [f"all stages of dp rank {where.dp_rank}", *_hosts_of(report, dp_rank=where.dp_rank)]
    else:
        words = [WHOLE_JOB]
    workers = [(dp_rank, stage) for dp_rank, stage in cause.detail.get("workers", ())]
    if len(workers) > 1 and where.dp_rank is not None and where.stage is not None:
        words = [group_words(workers, Machines(report.worker_rank, report.worker_host), grid_size(report)[1])]
    if len(member_ranks(cause)) > 1:
        words = [members_where(cause)]
    if len(cause.links) > 1:
        words = [f"links between {links_words(cause, Machines(report.worker_rank))}"]
    return ", ".join(words)


def strip(history: History) -> str:
    """The gain of each step as a row of bars, those in which it shows filled; told in words for who cannot see it."""
    shares = _binned(history)
    largest = max(gain for gain, _ in shares)
    shown: list[str] = []
    quiet: list[str] = []
    for index, (gain, shows) in enumerate(shares):
        height = max(0.6, 10 * max(0.0, gain) / largest)
        (shown if shows else quiet).append(f"M{index} 10V{10 - height:.1f}h.9V10z")
    total = len(history.steps)
    label = f"{counted(total, 'step')}, {history.steps[0]} to {history.steps[-1]}; it shows in {_named_steps(history)}"
    return (
        f"<svg class='strip' role='img' aria-label='{safe(label)}' viewBox='0 0 {len(shares)} 10' "
        f"preserveAspectRatio='none'><title>{safe(label)}</title>"
        f"<path class='quiet' d='{''.join(quiet)}'/><path class='shows' d='{''.join(shown)}'/></svg>"
    )


def _since(report: Report, cause: Cause | None) -> tuple[str, str]:
    history = history_of(cause) if cause is not None else None
    if history is None:
        return "no cause stands out in these steps", ""
    first, last = (safe(history.steps[end]) for end in (0, -1))
    ends = f"<p class='ends muted'><span>step {first}</span><span>step {last}</span></p>"
    return safe(history.words), (strip(history) + ends if len(history.steps) > 1 else "")


def _machine_words(report: Report, cause: Cause | None) -> str:
    words = place_words(report, cause)
    return "no single one: it concerns the whole job" if words == WHOLE_JOB else words


def _sure_words(report: Report, cause: Cause | None) -> str:
    slowdown = report.slowdown
    words = []
    if slowdown.low is not None and slowdown.high is not None:
        words.append(
            f"slowdown {ratio(slowdown.value)}, with 95 % confidence {ratio(slowdown.low)} to {ratio(slowdown.high)}"
        )
    else:
        words.append("one step only: no interval can be given")
    if cause is not None:
        interval = seconds_range(cause.low, cause.high)
        words.append(
            f"the gain is {seconds(cause.gain_s_per_step)} a step" + (f", {interval}" if interval != "–" else "")
        )
        if cause.persistence_ratio is not None:
            words.append(f"it shows in {percent(cause.persistence_ratio)} of the steps")
    return "; ".join(words)


def _advice_line(report: Report) -> str:
    items = "".join(f"<li>{safe(item.text)}</li>" for item in report.advice)
    return f"<ul class='advice'>{items}</ul>" if items else ""


def _card(question: str, answer: str, more: str) -> str:
    return f"<div class='answer'><h2>{question}</h2>\n<p>{answer}</p>\n{more}</div>\n"


def _label_and_words(line: str) -> tuple[str, str]:
    label, _, words = line.partition(" ")
    return label, words.strip()


def _link_words(report: Report, where: Where) -> list[str]:
    if where.dp_rank is None:
        return [f"the links between stages {where.stage} and {where.peer_stage}"]
    ends = ((where.stage, where.rank), (where.peer_stage, where.peer_rank))
    words = []
    for stage, rank in ends:
        host = report.worker_host.get(f"{where.dp_rank},{stage}")
        known = [*([f"rank {rank}"] if rank is not None else []), *([f"host {host}"] if host else [])]
        words.append(f"stage {stage}" + (f" ({', '.join(known)})" if known else ""))
    return [f"the link between {words[0]} and {words[1]}", f"dp {where.dp_rank}"]


def _worker_words(report: Report, where: Where) -> list[str]:
    name = f"rank {where.rank}" if where.rank is not None else worker_name(report, f"{where.dp_rank},{where.stage}")
    words = [
        f"{name} (dp {where.dp_rank}, stage {where.stage}{_member(where)})",
        f"host {where.host}" if where.host else "host not recorded",
        f"GPU {where.gpu_uuid}" if where.gpu_uuid else "GPU not recorded",
    ]
    return [*words, f"local rank {where.local_rank}"] if where.local_rank is not None else words


def _ranks_words(cause: Cause) -> list[str]:
    """All ranks of a worker, where none of them stands for the others."""
    hosts = worker_hosts_words(cause).removeprefix(" on ")
    place = f"{worker_ranks_words(cause)} (dp {cause.where.dp_rank}, stage {cause.where.stage})"
    return [place, f"host{'' if len(cause.detail['hosts']) == 1 else 's'} {hosts}" if hosts else "hosts not recorded"]


def _member(where: Where) -> str:
    """`, tp 1`: which member of its worker, where that is told."""
    coordinates = (("tp", where.tp_rank), ("cp", where.cp_rank))
    return "".join(f", {name} {value}" for name, value in coordinates if value is not None)


def _hosts_of(report: Report, *, dp_rank: int | None = None, stage: int | None = None) -> list[str]:
    """The hosts of a stage or of a dp rank, in words; none where they are not known."""
    hosts = set()
    for key, host in report.worker_host.items():
        own_dp_rank, own_stage = map(int, key.split(","))
        if own_dp_rank == dp_rank or own_stage == stage:
            hosts.add(host)
    if not hosts:
        return []
    more = f" and {len(hosts) - _MOST_HOSTS:,} more" if len(hosts) > _MOST_HOSTS else ""
    return [f"host{'' if len(hosts) == 1 else 's'} {', '.join(sorted(hosts)[:_MOST_HOSTS])}{more}"]


def _binned(history: History) -> list[tuple[float, bool]]:
    pairs = list(zip(history.gains, history.shows, strict=True))
    width = max(1, -(-len(pairs) // _MOST_STRIP_STEPS))
    return [max(pairs[first : first + width]) for first in range(0, len(pairs), width)]


def _named_steps(history: History) -> str:
    """`12 of them: 823 to 830, 841`."""
    runs = _runs(history.steps, history.shows)
    named = ", ".join(runs[:_MOST_NAMED_STEPS]) + (", …" if len(runs) > _MOST_NAMED_STEPS else "")
    return f"{sum(history.shows):,} of them: {named}"


def _runs(steps: Sequence[str], shows: Sequence[bool]) -> list[str]:
    runs = []
    for is_shown, group in groupby(zip(steps, shows, strict=True), key=lambda pair: pair[1]):
        names = [step for step, _ in group]
        if is_shown:
            runs.append(names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}")
    return runs
