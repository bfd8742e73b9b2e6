"""`smon PATH…`: looks at what lies there, prints the verdict and the next command."""

from __future__ import annotations

import json
import os
import shlex
import sys
from typing import TYPE_CHECKING, TextIO

import click

from smon_rt.cli.arguments import fail_above_option, layout_option, meta_option, run_options, steps_option
from smon_rt.cli.jobs import (
    EXIT_BAD_INPUT,
    EXIT_INCOMPLETE,
    EXIT_THRESHOLD,
    TraceOptions,
    analyzed,
    jobs_of,
)
from smon_rt.errors import SmonError

if TYPE_CHECKING:
    from smon_rt.analysis.report import Report
    from smon_rt.cli.looking import Look

_LABEL_WIDTH = 9
_MOST_RUNS = 20


@run_options
@click.command("PATH...", short_help="Look at what lies there: the verdict, and the next command.")
@click.argument("paths", metavar="", nargs=-1)
@meta_option
@click.option("--json", "json_path", metavar="FILE", help="Write what was found as JSON; - is stdout.")
@steps_option
@layout_option
@click.option("--quiet", is_flag=True, help="Print only the first line.")
@fail_above_option
def command(
    paths: tuple[str, ...],
    meta: str | None,
    json_path: str | None,
    steps: range | None,
    layout: dict[str, int] | None,
    quiet: bool,
    fail_above: float | None,
    run_id: str | None,
    attempt: int | None,
) -> int:
    """Look at what lies at some paths: the verdict, how the run is, and the next command.

    PATH is a directory of recorded .smon files, of a live or a finished run, a file, or a glob of either; give one for
    each node. Or a parquet of ops; or a directory of runs, which are listed. Exits with 1 if a slowdown is above S,
    with 2 where nothing can be read, with 3 when ranks are missing or were cut short.
    """
    from smon_rt.analysis import is_recorded
    from smon_rt.cli.analyze import refuse_outputs
    from smon_rt.cli.looking import look, runs_below

    if not paths:
        raise click.UsageError("name a directory of traces or a file of them: smon PATH…")
    stream = sys.stderr if json_path == "-" else sys.stdout
    jobs = jobs_of(paths)
    refuse_outputs([name for job in jobs for name in job], meta, json_path, None)
    runs = runs_below(jobs[0][0]) if len(jobs) == 1 and len(jobs[0]) == 1 and os.path.isdir(jobs[0][0]) else []  # noqa: PTH112
    refuse_outputs([run for run, _ in runs], None, json_path, None)
    if len(runs) > 1:
        _list_runs(jobs[0][0], runs, json_path, stream)
        return 0
    if runs:
        jobs = [[runs[0][0]]]
    options = TraceOptions(meta, steps, layout, run_id, attempt)
    looks: list[Look] = []
    failed = False
    for job in jobs:

        def report(job: list[str] = job) -> Report:
            return analyzed(job, options, quiet, job_count=len(jobs))

        try:
            seen = look(job, report, run_id, attempt, _asked(steps, layout, meta if not is_recorded(job[0]) else None))
            if seen.is_bad_input and seen.reason is not None:
                raise SmonError(seen.reason)
        except SmonError as error:
            if len(jobs) == 1:
                raise
            failed = True
            click.echo(f"smon: {' '.join(str(error).split())}", err=True)
            continue
        _print(seen, " ".join(job) if len(jobs) > 1 else None, stream, quiet)
        looks.append(seen)
    if json_path is not None and looks:
        found = [seen.to_dict() for seen in looks]
        _write_json(found if len(jobs) > 1 else found[0], json_path)
    return _exit_code(looks, failed, fail_above)


def _asked(steps: range | None, layout: dict[str, int] | None, meta: str | None) -> list[str]:
    """The options that chose what is analysed, for the commands that are named."""
    sizes = ",".join(f"{dimension}={size}" for dimension, size in (layout or {}).items())
    return [
        *(["--steps", f"{steps.start}-{steps.stop - 1}"] if steps is not None else []),
        *(["--layout", sizes] if sizes else []),
        *(["--meta", meta] if meta is not None else []),
    ]


def _exit_code(looks: list[Look], failed: bool, fail_above: float | None) -> int:
    if failed:
        return EXIT_BAD_INPUT
    reports = [seen.report for seen in looks if seen.report is not None]
    if fail_above is not None and any(report.lost_ratio > fail_above for report in reports):
        return EXIT_THRESHOLD
    return EXIT_INCOMPLETE if any(seen.is_incomplete for seen in looks) else 0


def _print(seen: Look, heading: str | None, stream: TextIO, quiet: bool) -> None:
    from smon_rt.analysis.input_file import shown
    from smon_rt.analysis.situation import WORTH_FIXING_SLOWDOWN
    from smon_rt.report.terminal import print_heading, print_text

    text = seen.text()
    if quiet:
        prefix = f"{shown(heading)}: " if heading is not None else ""
        click.echo(prefix + text.partition("\n")[0], file=stream)
        return
    if heading is not None:
        print_heading(heading, stream=stream)
    is_well = seen.state != "stuck" and seen.report is not None and seen.report.lost_ratio < WORTH_FIXING_SLOWDOWN
    print_text(text, [], stream=stream, headline_style="bold green" if is_well else "bold red")


def _list_runs(path: str, runs: list[tuple[str, int]], json_path: str | None, stream: TextIO) -> None:
    """Says which runs a directory holds: which of them is meant is the user's to say."""
    from smon_rt.analysis.input_file import shown
    from smon_rt.analysis.units import counted
    from smon_rt.report.terminal import print_text

    lines = [f"{'found':<{_LABEL_WIDTH}}{len(runs):,} runs in {shown(path)}, the newest first; each is looked at alone"]
    for index, (run, count) in enumerate(runs[:_MOST_RUNS]):
        label = "next" if index == 0 else ""
        lines.append(f"{label:<{_LABEL_WIDTH}}smon {shown(shlex.quote(run))}  ({counted(count, 'file')})")
    if len(runs) > _MOST_RUNS:
        lines.append(f"{'':<{_LABEL_WIDTH}}and {len(runs) - _MOST_RUNS:,} older ones")
    print_text("\n".join(lines), [], stream=stream, headline_style="bold")
    if json_path is not None:
        _write_json({"paths": [path], "state": "runs", "runs": [run for run, _ in runs]}, json_path)


def _write_json(document: object, json_path: str) -> None:
    from smon_rt.report.output_file import write_text

    write_text(json_path, json.dumps(document, indent=2, allow_nan=False) + "\n")
