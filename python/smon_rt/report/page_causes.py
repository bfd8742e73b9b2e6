"""The causes with their gains, places and steps; where a step's time goes; advice with numbers."""

from __future__ import annotations

from collections.abc import Sequence

from smon_rt.analysis.cause_words import BEYOND_SLOWDOWN, CAUSE_WORDS
from smon_rt.analysis.causes import Cause
from smon_rt.analysis.member_words import MEMBER
from smon_rt.analysis.report import Report
from smon_rt.analysis.units import is_finite, percent, ratio, seconds, seconds_range
from smon_rt.report.page_answers import named_cause, place_words, strip
from smon_rt.report.page_text import bar, safe, table_html
from smon_rt.report.since import history_of
from smon_rt.report.tables import Table

#: A cause that gives back less than this part of the recorded step stays in the table without a line of its history.
_LEAST_TOLD_PART = 0.01
#: Causes that give back (or cost) less than this part of it share one line.
_LEAST_SHOWN_PART = 0.001


def loss_words(report: Report) -> str:
    """What "lost" means in the headline and in the shares, with both amounts, so that they cannot contradict."""
    times = report.mean_step_time_s
    whole, delays = times.base - times.ideal, times.base - times.nodelay
    stragglers = max(0.0, times.nodelay - times.ideal)
    if not whole > 0:
        return (
            f"A recorded step takes {seconds(times.base)}, an ideal one, made of means, {seconds(times.ideal)}: by "
            "this measure nothing is lost. A cause that is in the means gives back what stands below all the same."
        )
    if report.verdict.cause in BEYOND_SLOWDOWN and report.verdict.gain_s_per_step > (1 + _LEAST_TOLD_PART) * whole:
        slow = "a slow " if report.verdict.cause == MEMBER else ""
        return (
            f"A recorded step takes {seconds(times.base)}, an ideal one {seconds(times.ideal)}: {seconds(whole)} more. "
            "The ideal has each kind at its mean, so most of what "
            f"{slow}{CAUSE_WORDS[report.verdict.cause]} takes is in it, "
            "too; what fixing that gives back stands below. Shares are of the difference."
        )
    excess = report.verdict.excess_s_per_step
    counts_all = is_finite(excess) and abs(excess - whole) < abs(excess - stragglers)
    headline = "all of it" if counts_all else f"the {seconds(stragglers)} of the stragglers"
    meaning = (
        "base − nodelay" if delays >= 0 else "base − nodelay; below 0: ops began before what they wait for had ended"
    )
    return (
        f"A recorded step takes {seconds(times.base)}, an ideal one {seconds(times.ideal)}. The difference, "
        f"{seconds(whole)} a step, is all that is lost: {seconds(stragglers)} to stragglers (nodelay − ideal) and "
        f"{seconds(delays)} to launch delays ({meaning}). The headline counts {headline}; "
        "shares below are of all that is lost."
    )


def loss_bar(report: Report) -> str:
    """A mean step as one bar: ideal, stragglers, launch delays."""
    times = report.mean_step_time_s
    if not (times.base > 0 and is_finite(times.base)):
        return ""
    parts = (
        ("ideal", times.ideal),
        ("stragglers", max(0.0, times.nodelay - times.ideal)),
        ("delays", max(0.0, times.base - times.nodelay)),
    )
    total = sum(part for _, part in parts) or 1.0
    rects, start = [], 0.0
    for name, part in parts:
        rects.append(f"<rect class='{name}' x='{start:.2f}' width='{100 * part / total:.2f}' y='0' height='10'/>")
        start += 100 * part / total
    words = {"ideal": "ideal step", "stragglers": "stragglers", "delays": "launch delays"}
    legend = "".join(
        f"<li><span class='swatch {name}' aria-hidden='true'></span>{words[name]} {seconds(part)}, "
        f"{100 * part / total:.0f} %</li>"
        for name, part in parts
    )
    return (
        "<svg class='loss-bar' viewBox='0 0 100 10' preserveAspectRatio='none' aria-hidden='true'>"
        f"{''.join(rects)}</svg>\n<ul class='parts' aria-label='Parts of a mean step'>{legend}</ul>\n"
    )


def cause_section(report: Report) -> str:
    """The causes as a table; on a narrow screen each row becomes a block."""
    named = named_cause(report)
    ends = [end for cause in report.causes for end in (cause.gain_s_per_step, cause.high) if is_finite(end)]
    largest = max([0.0, *(end for end in ends if end is not None)])
    least_s = _LEAST_SHOWN_PART * report.mean_step_time_s.base
    small = [cause for cause in report.causes if cause is not named and abs(cause.gain_s_per_step) < least_s]
    rows = "".join(_row(report, cause, cause is named, largest) for cause in report.causes if cause not in small)
    columns = (
        "cause",
        "where",
        "fixing it gives back",
        "95 % interval",
        "of all that is lost",
        "shows in",
        "since when",
    )
    head = "".join(f"<th scope='col' role='columnheader'>{name}</th>" for name in columns)
    return (
        f"<p>{safe(loss_words(report))}</p>\n{loss_bar(report)}"
        "<table class='causes' role='table' aria-label='Causes, largest gain first'>\n"
        f"<thead role='rowgroup'><tr role='row'>{head}</tr></thead>\n<tbody role='rowgroup'>\n{rows}</tbody></table>\n"
        "<p class='muted'>Seconds are per step and simulated: the job once more, without this cause alone. Shares "
        "overlap and need not sum to 100 %; one above 100 % says that the repaired job would beat the ideal, "
        "whose means contain the slow place. “Shows”: the step gains at least half of the mean gain.</p>\n"
        + _small_line(small)
    )


def advice_section(report: Report) -> str:
    """What could be changed, with what it would bring; empty without advice."""
    rows = tuple(
        (
            str(item.action).replace("_", " "),
            seconds(item.gain_s_per_step),
            seconds_range(item.low, item.high),
            item.text,  # the longest last: on a phone the gain stays in sight
        )
        for item in report.advice
    )
    if not rows:
        return ""
    columns = ("change", "would give back", "range", "how")
    return table_html(Table("Changes and their gain", columns, rows, "Seconds are per step.", frozenset({"how"})))


def _row(report: Report, cause: Cause, is_named: bool, largest: float) -> str:
    gain = cause.gain_s_per_step
    has_interval = is_finite(cause.low) and is_finite(cause.high) and largest > 0
    interval = (float(cause.low or 0) / largest, float(cause.high or 0) / largest) if has_interval else None
    drawn = bar(gain / largest if largest > 0 and is_finite(gain) else 0.0, interval)
    name = safe(_name(cause))
    mark = " <span class='badge'>named</span>" if is_named else ""
    place = safe(place_words(report, cause))
    evidence = _evidence(cause)
    cells = (
        ("where", place + (f"<br><span class='muted'>{safe(evidence)}</span>" if evidence else "")),
        ("fixing it gives back", f"{drawn}{safe(seconds(gain))}"),
        ("95 % interval", safe(seconds_range(cause.low, cause.high))),
        ("of all that is lost", percent(cause.share) if cause.share is not None else "–"),
        ("shows in", percent(cause.persistence_ratio) + " of steps" if cause.persistence_ratio is not None else "–"),
        ("since when", _since(report, cause)),
    )
    texts = "".join(
        f"<td role='cell'{' class=empty' if markup == '–' else ''} data-label='{label}'>{markup}</td>"
        for label, markup in cells
    )
    head = f"<th scope='row' role='rowheader'>{name}{mark}</th>"
    return f"<tr role='row'{' class=named' if is_named else ''}>{head}{texts}</tr>\n"


def _small_line(small: Sequence[Cause]) -> str:
    if not small:
        return ""
    names = ", ".join(dict.fromkeys(_name(cause) for cause in small))
    return f"<p>Less than {percent(_LEAST_SHOWN_PART, 1)} of a step, or nothing at all: {safe(names)}.</p>\n"


def _name(cause: Cause) -> str:
    return CAUSE_WORDS.get(cause.cause, cause.cause.replace("_", " "))


def _since(report: Report, cause: Cause) -> str:
    base = report.mean_step_time_s.base
    history = history_of(cause) if cause.gain_s_per_step >= _LEAST_TOLD_PART * base else None
    if history is None:
        return "–"
    return (strip(history) if len(history.steps) > 1 else "") + f"<span class='muted'>{safe(history.words)}</span>"


#: Details that are parts of a whole, and no factors: of waits for a slow member, of meetings where it came last.
_SHARES = ("wait_ratio", "last_ratio")


def _evidence(cause: Cause) -> str:
    """`forward 2.50×, backward 2.25×, optimizer 2.26× its peers`."""
    words = [
        f"{key.removesuffix('_ratio').removesuffix('_compute').replace('_', ' ')} {ratio(value)}×"
        for key, value in cause.detail.items()
        if key.endswith("_ratio") and key not in _SHARES and isinstance(value, float) and is_finite(value)
    ]
    return f"{', '.join(words)} its peers" if words else ""
