"""`smon diff`: what changed between two traces."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from smon_rt.cli.arguments import finite, step_range
from smon_rt.cli.jobs import EXIT_INCOMPLETE, EXIT_THRESHOLD, is_incomplete, progress_bar
from smon_rt.errors import SmonError

if TYPE_CHECKING:
    from smon_rt.analysis.diff import Diff, Facts
    from smon_rt.analysis.report import Report


@click.command("diff", short_help="Say what changed between two traces.")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option("--json", "json_path", metavar="FILE", help="Write the comparison as JSON; - is stdout.")
@click.option("--steps", metavar="A-B", callback=step_range, help="Only these steps of both, both ends included.")
@click.option("--quiet", is_flag=True, help="Print only the first line.")
@click.option(
    "--fail-above",
    metavar="R",
    type=float,
    callback=finite,
    help="Exit with 1 if a step of B takes more than R times one of A, and that is no noise.",
)
def command(a: str, b: str, json_path: str | None, steps: range | None, quiet: bool, fail_above: float | None) -> int:
    """Say what changed from trace A to trace B: the step, its causes, hosts, versions, the layout.

    A and B are what `smon analyze` takes: a directory of .smon files, a parquet, or a quoted glob where a job's files
    lie on several nodes. Of several runs in one place the newest is taken, and which is said. Exits with 3 when ranks
    are missing or were cut short in one of them.
    """
    from smon_rt.analysis import expand
    from smon_rt.analysis.diff import compare
    from smon_rt.cli.analyze import refuse_outputs
    from smon_rt.report.output_file import write_text

    refuse_outputs([str(name) for path in (a, b) for name in expand(path)], None, json_path, None)
    sides = [_side(path, steps, quiet) for path in (a, b)]
    (before, facts_before), (after, facts_after) = sides
    diff = compare(before, after, facts_before, facts_after)
    if json_path is not None:
        write_text(json_path, diff.to_json() + "\n")
    _print(diff, quiet, to_stderr=json_path == "-")
    ratio = diff.step_ratio
    if fail_above is not None and ratio is not None and ratio > fail_above and diff.step_time_s.is_noise is not True:
        return EXIT_THRESHOLD
    return EXIT_INCOMPLETE if is_incomplete(before) or is_incomplete(after) else 0


def _side(path: str, steps: range | None, quiet: bool) -> tuple[Report, Facts]:
    from smon_rt.analysis import analyze, expand, is_recorded
    from smon_rt.analysis.diff import Facts

    names = [str(name) for name in expand(path)]
    with progress_bar(names, quiet) as progress:
        report = analyze(path, steps=steps, progress=progress)
    return report, _facts(names) if all(map(is_recorded, names)) else Facts()


def _facts(names: list[str]) -> Facts:
    """What the headers of a recorded trace say, and what recording cost."""
    from smon_rt.analysis.diff import Facts
    from smon_rt.trace.job_trace import JobReader
    from smon_rt.trace.summary import summarize

    try:
        job = summarize(JobReader(names))
    except SmonError:
        # It has just been analysed; what cannot be read again is not known.
        return Facts()
    runs = [(job.run_id, job.attempt), *((other["run_id"], other["attempt"]) for other in job.other_runs)]
    overheads = [rank.overhead.ratio for rank in job.ranks if rank.overhead is not None]
    texts = {name: " or ".join(values) for name, values in [*job.versions.items(), *job.environment.items()]}
    return Facts(
        hosts=tuple(job.hosts),
        gpus=tuple(sorted({rank.gpu_uuid for rank in job.ranks if rank.gpu_uuid})),
        settings=texts | {"sample_ratio": f"{job.ranks[0].sample_ratio:g}"},
        recorder_ratio=max(overheads, default=None),
        runs=tuple(f"run {run} attempt {attempt}" for run, attempt in runs),
    )


def _print(diff: Diff, quiet: bool, *, to_stderr: bool) -> None:
    from smon_rt.report.terminal import print_text

    stream = sys.stderr if to_stderr else sys.stdout
    if quiet:
        click.echo(diff.text.partition("\n")[0], file=stream)
        return
    is_worse = diff.step_time_s.is_noise is False and diff.step_time_s.difference > 0
    print_text(diff.text, [], stream=stream, headline_style="bold red" if is_worse else "bold green")
