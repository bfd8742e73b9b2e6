"""One HTML page with all of a report: self-contained, offline, readable on a phone, in the dark and by keyboard.

Everything is plain HTML and small drawings, so it is read without scripts too; page.js adds the heat map of a single
step and the arrow keys. The browser is told to run and to fetch nothing else (`_policy`).
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import resources
from pathlib import Path

from smon_rt.analysis.report import Report
from smon_rt.analysis.units import counted
from smon_rt.report.output_file import write_atomically
from smon_rt.report.page_answers import answers
from smon_rt.report.page_causes import advice_section, cause_section
from smon_rt.report.page_details import (
    breakdown_section,
    communication_section,
    coverage_section,
    machine_section,
    peers_section,
    terms_section,
)
from smon_rt.report.page_heatmap import Grid, heatmap
from smon_rt.report.page_steps import step_data, step_section
from smon_rt.report.page_text import printable, safe, script_json

#: Names of runs that were given none: torchrun makes up a UUID, and without it they are called "run".
_MADE_UP = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|run")


def write_html(reports: Sequence[Report], destination: str) -> None:
    """Writes the page to a file, whole or not at all. Raises SmonError where that is not possible."""
    write_atomically(destination, html_page(reports))


def html_page(reports: Sequence[Report]) -> Iterator[str]:
    """The parts of the page: a section for each report."""
    script, style = _asset("page.js"), _asset("page.css")
    title = safe(", ".join(printable(_title(report)) for report in reports[:3]))
    yield "<!DOCTYPE html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
    yield f'<meta http-equiv="Content-Security-Policy" content="{_policy(script, style)}">\n'
    yield "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
    yield "<meta name='color-scheme' content='light dark'>\n"
    yield f"<title>{title}: stragglers</title>\n<style>{style}</style>\n</head>\n<body>\n"
    if len(reports) > 1:
        yield _contents(reports)
    yield "<main>\n"
    for number, report in enumerate(reports):
        yield from _report(report, number)
    yield f"</main>\n<script>{script}</script>\n</body>\n</html>\n"


def _report(report: Report, number: int) -> Iterator[str]:
    job = report.job
    layout = f"dp {job.dp} · pp {job.pp} · tp {job.tp} · cp {job.cp} · vpp {job.vpp}"
    size = f"{counted(job.world, 'rank')}, {counted(report.step_count, 'step')}"
    grid = Grid.of(report)
    sections: Sequence[tuple[str, str, str]] = (
        ("causes", "Causes", cause_section(report)),
        ("advice", "What a change would bring", advice_section(report)),
        ("workers", "Workers", heatmap(report, grid) + peers_section(report) + machine_section(report)),
        ("steps", "Step by step", step_section(report, grid, number)),
        ("breakdown", "By kind, stage and dp rank", breakdown_section(report)),
        ("communication", "Communication", communication_section(report)),
        ("coverage", "Coverage and losses", coverage_section(report)),
        ("terms", "What the words mean", terms_section()),
    )
    yield f"<section class='report' id='report-{number}' aria-labelledby='name-{number}'>\n"
    title = _title(report)
    run = f" · run {job.name}" if title != job.name else ""
    yield f"<header><h1 id='name-{number}'>{safe(title)}</h1>\n<p class='muted'>{layout} ({size}) · "
    yield f"{safe(report.path + run)}</p></header>\n{answers(report)}"
    sections = [section for section in sections if section[2]]
    links = "".join(f"<a href='#{name}-{number}'>{title}</a>" for name, title, _ in sections)
    yield f"<nav aria-label='Sections of this report'>{links}</nav>\n"
    for name, title, body in sections:
        yield f"<section id='{name}-{number}' aria-labelledby='{name}-title-{number}'>\n"
        yield f"<h2 id='{name}-title-{number}'>{title}</h2>\n{body}</section>\n"
    yield f"<script type='application/json'>{script_json(step_data(report, grid))}</script>\n</section>\n"


def _title(report: Report) -> str:
    """The run's name; where nobody gave it one, that of the directory it lies in."""
    if _MADE_UP.fullmatch(report.job.name) is None:
        return report.job.name
    path = Path(report.path)
    folder = path.parent if path.name.endswith(".smon") else path
    with suppress(OSError, ValueError):
        return folder.resolve().name or report.job.name
    return folder.name or report.job.name


def _contents(reports: Sequence[Report]) -> str:
    items = "".join(
        f"<li><a href='#report-{number}'>{safe(_title(report))}</a>: "
        f"{safe(report.verdict.text.partition(chr(10))[0])}</li>\n"
        for number, report in enumerate(reports)
    )
    return (
        f"<nav class='contents' aria-label='Reports'><p>{counted(len(reports), 'report')}</p><ul>\n{items}</ul></nav>\n"
    )


def _policy(script: str, style: str) -> str:
    """Only our own script and style, by their hashes: what a name of the trace might smuggle in is not run."""
    return (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _asset(name: str) -> str:
    return resources.files("smon_rt.report").joinpath(name).read_text(encoding="utf-8")
