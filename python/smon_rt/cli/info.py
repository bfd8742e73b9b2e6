"""`smon info`: what is in a trace, and what is missing from it."""

from __future__ import annotations

import json
import os
import sys

import click

from smon_rt.cli.arguments import run_options, step_range
from smon_rt.errors import SmonError

EXIT_INCOMPLETE = 3


@run_options
@click.command("info")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option("--json", "json_path", metavar="FILE", help="Write all of it as JSON; - is stdout.")
@click.option(
    "--steps", metavar="A-B", callback=step_range, help="Count only spans of these steps, both ends included."
)
@click.option("--quiet", is_flag=True, help="Print only what is missing.")
def command(
    paths: tuple[str, ...],
    json_path: str | None,
    steps: range | None,
    quiet: bool,
    run_id: str | None,
    attempt: int | None,
) -> int:
    """Say what is in a trace: ranks, steps, spans, losses, hooks, clocks, the recorder's own cost.

    PATH is a directory of .smon files, a file, or a glob of either; give one for each node. Of several runs the newest
    is taken. The last spans of a process that was killed on this node are taken from its memory. Exits with 3 when
    something is missing, and says what.
    """
    from smon_rt.analysis import expand
    from smon_rt.analysis.input_file import shown
    from smon_rt.cli.analyze import is_input
    from smon_rt.report.output_file import write_text
    from smon_rt.report.terminal import print_text
    from smon_rt.report.trace_info import info_tables, info_text, shown_line
    from smon_rt.trace.job_trace import JobReader
    from smon_rt.trace.summary import summarize

    names = [os.fsdecode(name) for path in paths for name in expand(path)]
    if json_path not in (None, "-") and is_input(json_path, names):
        raise SmonError(f"{shown(json_path)}: is what is read: choose another place for the output")
    reader = JobReader(paths, run_id=run_id, attempt=attempt, steps=steps)
    job = summarize(reader)
    stream = sys.stderr if json_path == "-" else sys.stdout
    if json_path is not None:
        # ASCII only: the same bytes whatever the encoding of the stream.
        write_text(json_path, json.dumps(job.to_dict(), indent=2, allow_nan=False) + "\n")
    if quiet:
        for reason in job.incomplete:
            click.echo(f"missing: {shown_line(reason)}", file=stream)
    elif json_path != "-":
        style = "bold yellow" if job.incomplete else "bold green"
        print_text(info_text(job), info_tables(job), stream=stream, headline_style=style)
    return EXIT_INCOMPLETE if job.incomplete else 0
