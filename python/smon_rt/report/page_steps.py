"""Step times as a curve, and the heat maps of one step that a slider chooses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from smon_rt.analysis.report import Report
from smon_rt.analysis.units import counted, finite_or_none, is_finite, seconds
from smon_rt.report.page_heatmap import MOST_COLUMNS, Bins, Grid, cell_names
from smon_rt.report.page_text import safe

#: Values of all per-step heat maps together; above this some steps are left out, so that a page stays a few MB.
MOST_STEP_CELLS = 400_000
#: A curve of more steps than this shows means of neighbouring ones.
_MOST_POINTS = 1000
_SERIES = (("base", "as recorded"), ("nodelay", "without launch delays"), ("ideal", "ideal"))


def shown_steps(report: Report, grid: Grid) -> tuple[list[str], int]:
    """The steps whose heat maps go into the page, evenly spread and with the slowest one; and how many do not."""
    steps = list(report.slowdown_by_step)
    cells = len(grid.dp.ranges) * len(grid.stages.ranges) + len(grid.dp.ranges) + len(report.slowdown_by_kind)
    most = max(1, MOST_STEP_CELLS // max(1, cells))
    if len(steps) <= most:
        return steps, 0
    slowest = steps.index(_slowest(report, steps))
    chosen = {slowest} | {index * len(steps) // most for index in range(most - 1)}
    return [steps[index] for index in sorted(chosen)], len(steps) - len(chosen)


def step_section(report: Report, grid: Grid, number: int) -> str:
    """Curve, slider and the place where page.js puts the heat map of the chosen step."""
    shown, left_out = shown_steps(report, grid)
    slowest = shown.index(_slowest(report, shown))
    note = "The slider starts at the slowest step." if len(shown) > 1 else "One step was recorded."
    if left_out:
        note += f" {counted(left_out, 'step')} left out here to keep the page small; the curve has all."
    groups = (("worker", "worker"), ("stage", "stage"), ("dp_rank", "dp rank"), ("kind", "kind"))
    radios = "".join(
        f"<label><input type='radio' name='group-{number}' value='{value}'{' checked' if value == 'worker' else ''}>"
        f"<span>{words}</span></label>"
        for value, words in groups
    )
    return (
        f"{_curve(report)}<p class='muted'>{note} Slowdown: only this worker, stage, dp rank or kind as recorded, all "
        "others ideal.</p>\n"
        "<noscript><p>The heat map of a single step needs JavaScript; all else on this page does not.</p></noscript>\n"
        f"<div class='explorer' hidden>\n<fieldset class='tabs'><legend>Show slowdown by</legend>{radios}</fieldset>\n"
        "<div class='slider'><button type='button' class='previous' aria-label='previous step'>‹</button>"
        f"<input class='step' type='range' min='0' max='{len(shown) - 1}' value='{slowest}' aria-label='step'>"
        "<button type='button' class='next' aria-label='next step'>›</button></div>\n"
        "<p class='step-label' role='status' aria-live='polite'></p>\n<div class='step-grid'></div>\n"
        "<p class='cell-label' role='status' aria-live='polite'></p>\n</div>\n"
    )


def step_data(report: Report, grid: Grid) -> dict[str, Any]:
    """What page.js draws. Slowdowns are thousandths, which is more than a heat map shows."""
    shown, _ = shown_steps(report, grid)
    times = report.step_time_s_by_step
    all_steps = list(report.slowdown_by_step)
    points = _positions(len(all_steps))
    position = {step: index for index, step in enumerate(all_steps)}
    return {
        "steps": shown,
        "points": [points[position[step]] for step in shown],
        "times": [[finite_or_none(getattr(times, name).get(step)) for name, _ in _SERIES] for step in shown],
        "slowdowns": [_thousandths(report.slowdown_by_step[step]) for step in shown],
        "columns": len(grid.dp.ranges),
        "groups": {
            "worker": _group(report.slowdown_by_worker_by_step, grid.keys(), cell_names(report, grid), shown),
            "stage": _binned_group(report.slowdown_by_stage_by_step, "stage", shown),
            "dp_rank": _binned_group(report.slowdown_by_dp_rank_by_step, "dp", shown),
            "kind": _group(
                report.slowdown_by_kind_by_step,
                [[kind] for kind in report.slowdown_by_kind_by_step],
                list(report.slowdown_by_kind_by_step),
                shown,
            ),
        },
    }


def _binned_group(values: Mapping[str, Mapping[str, float]], name: str, shown: Sequence[str]) -> dict[str, Any]:
    bins = Bins.of(len(values), MOST_COLUMNS)
    keys = list(values)
    members = [[keys[index] for index in bin_range] for bin_range in bins.ranges]
    worst = ", worst" if bins.width > 1 else ""
    names = [f"{name} {bins.label(index)}{worst}" for index in range(len(members))]
    return _group(values, members, names, shown)


def _group(
    values: Mapping[str, Mapping[str, float]],
    members: Sequence[Sequence[str]],
    names: Sequence[str],
    shown: Sequence[str],
) -> dict[str, Any]:
    columns = [_worst_by_step([values.get(key, {}) for key in keys], shown) for keys in members]
    by_step = [[column[index] for column in columns] for index in range(len(shown))]
    return {"names": names, "values": by_step}


def _worst_by_step(rows: Sequence[Mapping[str, float]], shown: Sequence[str]) -> list[int | None]:
    """The largest value of each shown step in thousandths; None where no row has a number."""
    table = np.array([[row.get(step, math.nan) for step in shown] for row in rows], np.float64)
    table[~np.isfinite(table)] = math.nan
    # fmax passes over what is not a number.
    worst = np.fmax.reduce(table, axis=0)
    return [None if math.isnan(value) else round(value * 1000) for value in worst.tolist()]


def _thousandths(value: float | None) -> int | None:
    return round(value * 1000) if value is not None and is_finite(value) else None


def _slowest(report: Report, steps: Sequence[str]) -> str:
    return max(steps, key=lambda step: finite_or_none(report.slowdown_by_step[step]) or 0.0)


def _positions(count: int) -> list[float]:
    """Where on the curve, 0 to 1000, each step is."""
    width = max(1, -(-count // _MOST_POINTS))
    points = -(-count // width)
    return [round((index // width + 0.5) * 1000 / points, 1) for index in range(count)]


def _curve(report: Report) -> str:
    """Base, nodelay and ideal as lines of different dashes; the slider's step is a vertical line."""
    times = report.step_time_s_by_step
    steps = list(report.slowdown_by_step)
    width = max(1, -(-len(steps) // _MOST_POINTS))
    series = {name: _means(list(getattr(times, name).values()), width) for name, _ in _SERIES}
    known = [value for values in series.values() for value in values if value is not None]
    top = max(known, default=0.0) * 1.05 or 1.0
    lines = "".join(f"<path class='{name}' d='{_path(values, top)}'/>" for name, values in series.items())
    means = report.mean_step_time_s
    legend = "".join(
        f"<li><svg class='sample' viewBox='0 0 30 6' aria-hidden='true'><path class='{name}' d='M0 3H30'/></svg>"
        f"{name}: {words}, mean {seconds(getattr(means, name))}</li>"
        for name, words in _SERIES
    )
    label = f"Step time of {counted(len(steps), 'step')}: " + ", ".join(
        f"{words} {seconds(getattr(means, name))}" for name, words in _SERIES
    )
    ends = [steps[0], steps[len(steps) // 2], steps[-1]] if len(steps) > 2 else steps
    x_labels = "".join(f"<span>{'step ' if index == 0 else ''}{safe(step)}</span>" for index, step in enumerate(ends))
    binned = f"<p class='muted'>Each point is the mean of {width:,} steps.</p>\n" if width > 1 else ""
    return (
        f"<ul class='series'>{legend}</ul>\n<div class='chart'>\n<div class='y-axis' aria-hidden='true'>"
        f"<span>{seconds(top)}</span><span>{seconds(top / 2)}</span><span>0</span></div>\n"
        f"<svg class='curve' role='img' aria-label='{safe(label)}' viewBox='0 0 1000 100' preserveAspectRatio='none'>"
        "<path class='axis' d='M0 0H1000M0 50H1000M0 100H1000'/>"
        f"{lines}<path class='cursor' d=''/></svg>\n"
        f"<div class='x-axis' aria-hidden='true'>{x_labels}</div>\n</div>\n{binned}"
    )


def _means(values: Sequence[float], width: int) -> list[float | None]:
    means: list[float | None] = []
    for first in range(0, len(values), width):
        known = [value for value in values[first : first + width] if is_finite(value)]
        means.append(fmean(known) if known else None)
    return means


def _path(values: Sequence[float | None], top: float) -> str:
    """A line through the values, broken where one is missing; a lone one is a short dash."""
    parts, is_open, count = [], False, len(values)
    for index, value in enumerate(values):
        if value is not None:
            x, y = (index + 0.5) * 1000 / count, 100 - 100 * value / top
            is_lone = not is_open and (index + 1 == count or values[index + 1] is None)
            parts.append(f"M{x - 10:.1f} {y:.2f}h20" if is_lone else f"{'L' if is_open else 'M'}{x:.1f} {y:.2f}")
        is_open = value is not None
    return "".join(parts)
