"""`smon analyze`: what a job loses to stragglers, to which cause, and where."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

import click

from smon_rt.cli.arguments import (
    currency_option,
    fail_above_option,
    layer_counts,
    layout_option,
    meta_option,
    price_option,
    run_options,
    steps_option,
)
from smon_rt.cli.jobs import (
    EXIT_BAD_INPUT,
    EXIT_INCOMPLETE,
    EXIT_THRESHOLD,
    TraceOptions,
    analyzed,
    is_incomplete,
    jobs_of,
)
from smon_rt.errors import SmonError, TraceError

if TYPE_CHECKING:
    from smon_rt.analysis.report import Report


def _output_name(_context: click.Context, parameter: click.Parameter, name: str | None) -> str | None:
    if name == "" or (name == "-" and parameter.name == "html_path"):
        raise click.BadParameter("name a file to write")
    return name


@run_options
@click.command("analyze")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@meta_option
@click.option(
    "--json", "json_path", metavar="FILE", callback=_output_name, help="Write the report as JSON; - is stdout."
)
@click.option(
    "--html", "html_path", metavar="FILE", callback=_output_name, help="Write one offline HTML page with plots."
)
@steps_option
@layout_option
@click.option(
    "--layers",
    metavar="8,8,8,6",
    callback=layer_counts,
    help="Layers of each stage: where one is slow, how many to move is said.",
)
@click.option("--quiet", is_flag=True, help="Print only the first line of the verdict, and no progress.")
@price_option
@currency_option
@fail_above_option
def command(
    paths: tuple[str, ...],
    meta: str | None,
    json_path: str | None,
    html_path: str | None,
    steps: range | None,
    layout: dict[str, int] | None,
    layers: list[int] | None,
    quiet: bool,
    gpu_hour_price: float,
    currency: str,
    fail_above: float | None,
    run_id: str | None,
    attempt: int | None,
) -> int:
    """Say what a job loses to stragglers, to which cause, and where.

    PATH is a directory of recorded .smon files, a file, or a glob of either, of a live or a finished run; give one for
    each node. Or a parquet of ops with its YAML beside it; of these several are analysed one after the other. Exits
    with 3 when ranks are missing or were cut short, and says which.
    """
    # A program that reads the JSON from stdout must find nothing else there.
    stream = sys.stderr if json_path == "-" else sys.stdout
    jobs = jobs_of(paths)
    names = [name for job in jobs for name in job]
    refuse_outputs(names, meta, json_path, html_path)
    options = TraceOptions(meta, steps, layout, run_id, attempt)
    reports: list[Report] = []
    failed = False
    for job in jobs:
        try:
            report = analyzed(
                job,
                options,
                quiet,
                job_count=len(jobs),
                gpu_hour_price=gpu_hour_price,
                currency=currency,
                layers=layers,
            )
        except SmonError as error:
            if len(jobs) == 1:
                raise
            # One unreadable trace must not hide what the others say.
            failed = True
            click.echo(f"smon: {' '.join(str(error).split())}", err=True)
            continue
        _print(report, report.path if len(jobs) > 1 else None, stream, quiet)
        reports.append(report)
    _write_outputs(reports, json_path, html_path, as_list=len(jobs) > 1)
    if html_path is not None and reports and not quiet:
        click.echo(f"\nreport: {html_path}", file=stream)
    if failed:
        return EXIT_BAD_INPUT
    crossed = fail_above is not None and any(report.lost_ratio > fail_above for report in reports)
    if crossed:
        return EXIT_THRESHOLD
    return EXIT_INCOMPLETE if any(is_incomplete(report) for report in reports) else 0


def refuse_outputs(names: list[str], meta: str | None, json_path: str | None, html_path: str | None) -> None:
    """Refuses outputs that would replace what is read, or each other, or cannot be written, before any work is done."""
    from smon_rt.report.output_file import refuse_unwritable

    outputs = [path for path in (json_path, html_path) if path not in (None, "-")]
    regular = [path for path in outputs if os.path.isfile(path) or not os.path.exists(path)]  # noqa: PTH110, PTH113
    if len(regular) == 2 and os.path.realpath(regular[0]) == os.path.realpath(regular[1]):
        raise SmonError(f"{_shown(regular[0])}: asked for by both --json and --html: name two files")
    for output in regular:
        if is_input(output, names, meta):
            raise SmonError(f"{_shown(output)}: is what is analysed: choose another place for the output")
    for output in outputs:
        refuse_unwritable(output)


def is_input(output: str, names: list[str], meta: str | None = None) -> bool:
    """Whether writing there would replace a trace or its record, or a link of either kind to one."""
    return os.path.exists(output) and any(_is_same_file(output, name) for name in inputs_of(names, meta))  # noqa: PTH110


def inputs_of(names: list[str], meta: str | None) -> Iterator[str]:
    """The traces and their records, as far as they can be found."""
    from smon_rt.analysis import is_recorded
    from smon_rt.analysis.job_meta import find_meta
    from smon_rt.trace.job_trace import find_files

    for name in names:
        with suppress(TraceError):
            if is_recorded(name):
                yield from find_files([name])
                continue
        yield name
        with suppress(TraceError):
            yield find_meta(name) if meta is None else meta


def _is_same_file(first: str, second: str) -> bool:
    with suppress(OSError, ValueError):
        return os.path.samefile(first, second.removeprefix("file://"))  # noqa: PTH121
    return False


def _shown(name: str) -> str:
    from smon_rt.analysis.input_file import shown

    return shown(name)


def _print(report: Report, heading: str | None, stream: TextIO, quiet: bool) -> None:
    from smon_rt.report.terminal import print_heading, print_headline, print_report

    if quiet:
        print_headline(report, heading, stream=stream)
        return
    if heading is not None:
        print_heading(heading, stream=stream)
    print_report(report, stream=stream)


def _write_outputs(reports: list[Report], json_path: str | None, html_path: str | None, *, as_list: bool) -> None:
    """Writes what was asked for; a file that cannot be written does not keep the other from being written."""
    if not reports:
        return
    errors: list[SmonError] = []
    if json_path is not None:
        from smon_rt.report.json_output import write_json

        try:
            write_json(reports, json_path, as_list=as_list)
        except SmonError as error:
            errors.append(error)
    if html_path is not None:
        from smon_rt.report.html import write_html

        try:
            write_html(reports, html_path)
        except SmonError as error:
            errors.append(error)
    if errors:
        raise SmonError("; ".join(str(error) for error in errors))
