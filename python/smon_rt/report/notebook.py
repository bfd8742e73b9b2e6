"""The report as a fragment for notebooks: no scripts, so it stays readable in a saved or untrusted notebook.

Letters outside of cells take the notebook's own colour, cells bring both of theirs: it reads in a dark notebook too.
"""

from __future__ import annotations

from smon_rt.analysis.report import Report
from smon_rt.report.colors import cell_colors
from smon_rt.report.page_heatmap import Grid, cell_names, worst_of
from smon_rt.report.page_text import safe

_MOST_NUMBERED_COLUMNS = 20


def notebook_fragment(report: Report) -> str:
    """The verdict and the heat map of exact slowdowns: dp left to right, stage down, coarser in a large job."""
    # Line by line: the line breaks are ours, whatever else a name may hold.
    text = "\n".join(safe(line) for line in report.verdict.text.splitlines())
    return f'<div><pre style="white-space:pre-wrap">{text}</pre>{_heatmap(report, Grid.of(report))}</div>'


def _heatmap(report: Report, grid: Grid) -> str:
    columns, values = len(grid.dp.ranges), report.slowdown_by_worker
    has_numbers = columns <= _MOST_NUMBERED_COLUMNS
    style = "padding:2px 6px;text-align:right" if has_numbers else "padding:0;min-width:9px;height:11px"
    head = "".join(
        f'<th style="{style}">{f"dp {grid.dp.label(column)}" if has_numbers else ""}</th>' for column in range(columns)
    )
    rows = [f"<tr><th></th>{head}</tr>"]
    names, cells = cell_names(report, grid), grid.keys()
    for row in range(len(grid.stages.ranges)):
        texts = []
        for index in range(row * columns, (row + 1) * columns):
            worst = worst_of(cells[index], values)
            value = None if worst is None else values[worst]
            background, foreground = cell_colors(value)
            words = "–" if value is None else f"{value:.2f}"
            texts.append(
                f'<td style="{style};background:{background};color:{foreground}" '
                f'title="{safe(names[index])}: {words}">{words if has_numbers else ""}</td>'
            )
        rows.append(f'<tr><th style="padding:2px 6px">stage {safe(grid.stages.label(row))}</th>{"".join(texts)}</tr>')
    coarse = f"; each cell the worst of {grid.dp.width * grid.stages.width} workers" if grid.is_coarse else ""
    caption = f"slowdown if only this worker were slow{coarse}"
    return (
        f'<table style="border-collapse:collapse;color:inherit"><caption style="text-align:left;white-space:nowrap">'
        f"{caption}</caption>{''.join(rows)}</table>"
    )
