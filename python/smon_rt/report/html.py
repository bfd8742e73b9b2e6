"""One HTML page with all of a report: self-contained, offline, readable on a phone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from html import escape
from importlib import resources
from typing import Any

from smon_rt.analysis.report import Report, worker_key
from smon_rt.analysis.situation import WORTH_FIXING_SLOWDOWN
from smon_rt.analysis.units import counted, finite_or_none, is_finite
from smon_rt.report.colors import SLOWDOWN_RANGE, color_scale
from smon_rt.report.output_file import write_atomically
from smon_rt.report.tables import Table, all_tables, grid_size, worker_grid, worker_name

#: Cells of all per-step heat maps together; above this some steps are left out, so that a page stays a few MB.
MOST_STEP_CELLS = 400_000
#: Browsers refuse whatever the page would fetch, should a later Plotly try.
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def write_html(reports: Sequence[Report], destination: str) -> None:
    """Writes the page to a file, whole or not at all. Raises SmonError where that is not possible."""
    write_atomically(destination, html_page(reports))


def html_page(reports: Sequence[Report]) -> Iterator[str]:
    """The parts of the page: a section for each report, Plotly's script inlined once."""
    title = escape(", ".join(_printable(report.job.name) for report in reports[:3]))
    yield "<!DOCTYPE html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
    yield f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
    yield "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
    yield f"<title>{title}: stragglers</title>\n<style>\n{_asset('page.css')}</style>\n</head>\n<body>\n"
    for report in reports:
        yield from _section(report)
    yield "<noscript><p>The plots need JavaScript; the verdict and the tables do not.</p></noscript>\n"
    yield f"<script>{_plotly_script()}</script>\n<script>\n{_asset('page.js')}</script>\n</body>\n</html>\n"


def _section(report: Report) -> Iterator[str]:
    job = report.job
    layout = f"dp {job.dp} · pp {job.pp} · tp {job.tp} · cp {job.cp} · vpp {job.vpp}"
    size = f"{counted(job.world, 'rank')}, {counted(report.step_count, 'step')}"
    yield "<section class='report'>\n"
    yield f"<h1>{escape(_printable(job.name))}</h1>\n<p class='muted'>{layout} ({size}) · "
    yield f"{escape(_printable(report.path))}</p>\n"
    yield _verdict(report)
    shown, left_out = _shown_steps(report)
    yield "<div class='plots'>\n<div><h2>Slowdown by worker</h2>\n"
    yield "<p class='muted'>Slowdown of the job if only this worker were slow.</p>\n"
    yield "<div class='plot workers'></div></div>\n<div><h2>Slowdown by worker, step by step</h2>\n"
    yield f"<p class='muted'>{_step_note(shown, left_out)}</p>\n<div class='plot by-step'></div>\n"
    yield _slider(report, shown) + "</div>\n"
    yield "<div class='wide'><h2>Step time</h2>\n<div class='plot times'></div></div>\n</div>\n"
    for table in all_tables(report):
        yield _table(table)
    yield f"<script type='application/json'>{_json(_plot_data(report, shown))}</script>\n</section>\n"


def _verdict(report: Report) -> str:
    lost = is_finite(report.slowdown.value) and report.slowdown.value >= WORTH_FIXING_SLOWDOWN
    lines = [line.partition(" ") for line in report.verdict.text.splitlines()]
    items = "".join(f"<dt>{escape(label)}</dt><dd>{escape(words.strip())}</dd>\n" for label, _, words in lines)
    return f"<div class='verdict{' lost' if lost else ''}'><dl>\n{items}</dl></div>\n"


def _step_note(shown: Sequence[str], left_out: int) -> str:
    note = "It starts at the slowest step." if len(shown) > 1 else "One step was recorded."
    return note + (f" {counted(left_out, 'step')} left out to keep the page small." if left_out else "")


def _slider(report: Report, shown: Sequence[str]) -> str:
    slowest = max(range(len(shown)), key=lambda index: finite_or_none(report.slowdown_by_step[shown[index]]) or 0.0)
    return (
        "<p class='step-label'></p>\n<div class='slider'><button class='previous' aria-label='previous step'>‹</button>"
        f"<input class='step' type='range' min='0' max='{len(shown) - 1}' value='{slowest}' aria-label='step'>"
        "<button class='next' aria-label='next step'>›</button></div>\n"
    )


def _table(table: Table) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        texts = [
            f"<{tag}{' class=text' if table.is_text(column) else ''}>{escape(cell)}</{tag}>"
            for column, cell in enumerate(cells)
        ]
        return f"<tr>{''.join(texts)}</tr>\n"

    body = "".join(row(cells, "td") for cells in table.rows)
    note = f"<p class='muted'>{escape(table.note)}</p>\n" if table.note else ""
    head = row(table.columns, "th")
    return f"<h2>{escape(table.title)}</h2>\n<div class='table'><table>\n{head}{body}</table></div>\n{note}"


def _shown_steps(report: Report) -> tuple[list[str], int]:
    """The steps whose heat maps go into the page, evenly spread and with the slowest one; and how many do not."""
    steps = list(report.slowdown_by_step)
    most = max(1, MOST_STEP_CELLS // max(1, len(report.slowdown_by_worker)))
    if len(steps) <= most:
        return steps, 0
    slowest = max(range(len(steps)), key=lambda index: finite_or_none(report.slowdown_by_step[steps[index]]) or 0.0)
    chosen = {slowest} | {index * len(steps) // most for index in range(most - 1)}
    return [steps[index] for index in sorted(chosen)], len(steps) - len(chosen)


def _plot_data(report: Report, shown: Sequence[str]) -> dict[str, Any]:
    """What page.js draws; slowdowns to three decimals, which is more than a heat map shows."""
    dp_size, pp_size = grid_size(report)
    by_step = report.slowdown_by_worker_by_step
    keys = [[worker_key(dp_rank, stage) for dp_rank in range(dp_size)] for stage in range(pp_size)]
    times = report.step_time_s_by_step
    return {
        "dp": dp_size,
        "pp": pp_size,
        "range": SLOWDOWN_RANGE,
        "colors": color_scale(),
        "workers": [[worker_name(report, key) for key in row] for row in keys],
        "grid": [[_rounded(value) for value in row] for row in worker_grid(report, report.slowdown_by_worker)],
        "shown_steps": shown,
        "slowdowns": [_rounded(report.slowdown_by_step[step]) for step in shown],
        "grids": [[[_rounded(by_step[key][step]) for key in row] for row in keys] for step in shown],
        "steps": list(report.slowdown_by_step),
        "times": {
            name: [finite_or_none(value) for value in getattr(times, name).values()]
            for name in ("base", "nodelay", "ideal")
        },
    }


def _rounded(value: float | None) -> float | None:
    return round(value, 3) if value is not None and is_finite(value) else None


def _json(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _printable(text: str) -> str:
    """The text as any page can hold it: no control characters, no undecodable bytes of a file name."""
    return "".join(character if character.isprintable() else "�" for character in text)


def _asset(name: str) -> str:
    return resources.files("smon_rt.report").joinpath(name).read_text(encoding="utf-8")


def _plotly_script() -> str:
    """Plotly's JavaScript from its Python package."""
    script = (resources.files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
    return script.replace("</script", "<\\/script")
