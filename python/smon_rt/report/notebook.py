"""The report as a fragment for notebooks: no scripts, so it stays readable in a saved or untrusted notebook."""

from __future__ import annotations

from html import escape

from smon_rt.analysis.report import Report
from smon_rt.report.colors import cell_colors
from smon_rt.report.tables import grid_size, worker_grid

_MAX_CELLS = 1024


def notebook_fragment(report: Report) -> str:
    """The verdict and, up to a thousand workers, the heat map of exact slowdowns (dp left to right, stage down)."""
    text = f'<pre style="white-space:pre-wrap">{escape(report.verdict.text)}</pre>'
    grid = worker_grid(report, report.slowdown_by_worker)
    dp_size, pp_size = grid_size(report)
    if dp_size * pp_size > _MAX_CELLS:
        return f"<div>{text}</div>"
    style = "padding:2px 6px;text-align:right;font-variant-numeric:tabular-nums"
    head = "".join(f'<th style="{style}">dp {dp_rank}</th>' for dp_rank in range(dp_size))
    rows = [f"<tr><th></th>{head}</tr>"]
    for stage, values in enumerate(grid):
        cells = []
        for value in values:
            background, foreground = cell_colors(value)
            words = "–" if value is None else f"{value:.2f}"
            cells.append(f'<td style="{style};background:{background};color:{foreground}">{words}</td>')
        rows.append(f'<tr><th style="{style}">stage {stage}</th>{"".join(cells)}</tr>')
    caption = "<caption>slowdown if only this worker were slow</caption>"
    return f'<div>{text}<table style="border-collapse:collapse">{caption}{"".join(rows)}</table></div>'
