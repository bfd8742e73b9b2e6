"""What changed between two traces, in labelled lines; the first says all in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from smon_rt.analysis.input_file import shown
from smon_rt.analysis.units import counted, percent, ratio, seconds, seconds_change
from smon_rt.analysis.verdict_text import CAUSE_WORDS

if TYPE_CHECKING:
    from smon_rt.analysis.diff import CauseChange, Change, Diff

_LABEL_WIDTH = 9
_MOST_NAMED = 4
#: A change of a step that is not worth a headline, however sure it is; and one that is better said as a multiple.
_SMALL_RATIO, _MULTIPLE_RATIO = 0.01, 2.0
_MOST_CAUSES = 6
_STATUS_WORDS = {"new": "new", "gone": "gone", "more": "costs more", "less": "costs less", "same": "as before"}


def text_of(diff: Diff) -> str:
    """All lines; those about which nothing is known, or nothing changed, are said in few words."""
    label = "same" if diff.is_identical else _label(diff.step_time_s)
    lines = [(label, _sentence(diff)), ("slowdown", _slowdown(diff.slowdown))]
    causes = diff.causes[:_MOST_CAUSES]
    lines += [("cause" if index == 0 else "", _cause_line(cause)) for index, cause in enumerate(causes)]
    if not causes:
        lines.append(("cause", "none that costs 1 % of a step, in neither trace"))
    runs = [words for side, runs in zip("AB", diff.runs, strict=True) if (words := _runs(side, runs))]
    lines += [("runs" if index == 0 else "", words) for index, words in enumerate(runs)]
    lines.append(("layout", _layout(diff)))
    if diff.knows_settings:
        lines += [("hosts", _machines(diff)), ("settings", _settings(diff)), ("recorder", _recorder(diff))]
    else:
        lines.append(("settings", "not known: hosts, GPUs and versions are in recorded traces only"))
    return "\n".join(f"{label:<{_LABEL_WIDTH}}{words}" for label, words in lines)


def _label(step: Change) -> str:
    if step.is_noise is None:
        return "unclear"
    if step.is_noise or _is_small(step):
        return "same"
    return "slower" if step.difference > 0 else "faster"


def _is_small(step: Change) -> bool:
    return abs(step.difference) < _SMALL_RATIO * step.before


def _sentence(diff: Diff) -> str:
    step = diff.step_time_s
    words = f"{seconds_change(step.before, step.after)} a step"
    if step.before > 0 and (times := _times(step.after / step.before)):
        words += f", {times}"
    if diff.is_identical:
        words += ": identical, every step takes what it took"
    elif step.is_noise is None:
        words += ": a single step cannot tell change from noise"
    else:
        words += f" ({_signed_range(step)}): {_noise_words(step)}"
    telling = _telling(diff)
    if telling is not None:
        gains = seconds_change(telling.gain.before, telling.gain.after)
        words += f"; {_STATUS_WORDS[telling.status]}: {_named(telling)}, {gains}"
    return words + ("; the layouts differ, so the steps are of different work" if diff.layout else "")


def _telling(diff: Diff) -> CauseChange | None:
    """The cause that changed most; where the step did, the one that changed most in its direction."""
    changed = [cause for cause in diff.causes if cause.status != "same"]
    if _label(diff.step_time_s) in ("slower", "faster"):
        changed = [cause for cause in changed if cause.gain.difference * diff.step_time_s.difference > 0]
    return next(iter(changed), None)


def _times(factor: float) -> str:
    """`12.3 % longer`; nothing where it is less than can be said."""
    if factor >= _MULTIPLE_RATIO:
        return f"{factor:,.3g} times as long"
    if round(abs(factor - 1), 3) == 0:
        return ""
    return f"{percent(abs(factor - 1), 1)} {'longer' if factor > 1 else 'shorter'}"


def _noise_words(step: Change) -> str:
    if step.is_noise:
        return "no more than noise"
    return "more than noise, but under 1 % of a step" if _is_small(step) else "more than noise"


def _signed_range(change: Change) -> str:
    ends = [change.low or 0.0, change.high or 0.0]
    return " to ".join(("+" if end > 0 else "") + seconds(end).replace("-", "−") for end in ends)


def _slowdown(change: Change) -> str:
    words = f"{ratio(change.before)} → {ratio(change.after)}"
    if change.is_noise is None:
        return words
    return words + (", no more than noise" if change.is_noise else ", more than noise")


def _named(cause: CauseChange) -> str:
    name = CAUSE_WORDS.get(cause.cause, cause.cause.replace("_", " "))
    if not cause.place:
        return name
    # What has brackets of its own, as several ranks of one stage, needs no more of them.
    is_group = cause.place.startswith(("rank", "all of", "links", "("))
    if not is_group:
        return f"{name} ({cause.place})"
    return f"{name}{'s' if cause.cause == 'worker' else ''}: {cause.place}"


def _cause_line(cause: CauseChange) -> str:
    gains = seconds_change(cause.gain.before, cause.gain.after)
    return f"{_named(cause)}: {_STATUS_WORDS[cause.status]}, {gains} a step to give back"


def _runs(side: str, runs: Sequence[str]) -> str:
    """Which run was compared, where several lie there: the newest is taken, and that must not be silent."""
    if len(runs) < 2:
        return ""
    others = f"the newest of {len(runs)} there (others: {_few(runs[1:])})"
    return f"{side} is {shown(runs[0])}, {others}; for another give its files"


def _layout(diff: Diff) -> str:
    if not diff.layout:
        return "the same"
    changes = ", ".join(f"{name} {before} → {after}" for name, (before, after) in diff.layout.items())
    return f"{changes}: causes are compared by name, not by place"


def _machines(diff: Diff) -> str:
    words = [*_moved("host", *diff.hosts), *_moved("GPU", *diff.gpus)]
    return "; ".join(words) or "the same"


def _moved(what: str, left: Sequence[str], came: Sequence[str]) -> list[str]:
    return [
        f"{counted(len(names), what)} {verb} ({_few(names)})"
        for names, verb in ((left, "left"), (came, "came"))
        if names
    ]


def _settings(diff: Diff) -> str:
    if not diff.settings:
        return "versions and environment the same"
    return "; ".join(
        f"{shown(name)} {shown(before) if before is not None else 'not set'} →"
        f" {shown(after) if after is not None else 'not set'}"
        for name, (before, after) in diff.settings.items()
    )


def _recorder(diff: Diff) -> str:
    before, after = diff.recorder_ratio
    if before is None and after is None:
        return "own cost too small or too few windows to compare"
    return f"sampled steps against those around them: {_cost(before)} → {_cost(after)}"


def _cost(value: float | None) -> str:
    return "unknown" if value is None else f"{value * 100:+.2f} %"


def _few(names: Sequence[str]) -> str:
    return ", ".join(map(shown, names[:_MOST_NAMED])) + (", …" if len(names) > _MOST_NAMED else "")
