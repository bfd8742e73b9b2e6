"""`smon what-if`: any question to the simulator."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from smon_rt.cli.analyze import refuse_outputs
from smon_rt.cli.arguments import (
    currency_option,
    layout_option,
    meta_option,
    price_option,
    run_options,
    steps_option,
)
from smon_rt.cli.jobs import EXIT_INCOMPLETE, TraceOptions, analyzed, is_incomplete

if TYPE_CHECKING:
    from smon_rt.analysis.what_if import Answer


@run_options
@click.command("what-if", short_help="Say what the step would take without something, or with other replicas.")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option(
    "--fix",
    "fixes",
    multiple=True,
    metavar="WHAT=WHICH",
    help="worker=DP,STAGE, stage=STAGE, cause=NAME or kind=NAME; may be given several times.",
)
@click.option(
    "--drop-slowest-dp", metavar="N", type=int, default=0, help="The slowest N dp ranks leave: nobody waits for them."
)
@click.option(
    "--scale-dp", metavar="F", type=float, default=1.0, help="F times the dp ranks, drawn from what was measured."
)
@meta_option
@click.option("--json", "json_path", metavar="FILE", help="Write the answer as JSON; - is stdout.")
@steps_option
@layout_option
@click.option("--quiet", is_flag=True, help="Print only the answer's own line.")
@price_option
@currency_option
def command(
    paths: tuple[str, ...],
    fixes: tuple[str, ...],
    drop_slowest_dp: int,
    scale_dp: float,
    meta: str | None,
    json_path: str | None,
    steps: range | None,
    layout: dict[str, int] | None,
    quiet: bool,
    gpu_hour_price: float,
    currency: str,
    run_id: str | None,
    attempt: int | None,
) -> int:
    """Say what the step of a job would take if all of this held at once.

    PATH is what `smon analyze` takes, of one job. Fixes, dropped replicas and more replicas combine into one simulated
    job, so what they give back together is said, not a sum. Exits with 3 when ranks are missing or were cut short.

    \b
    What can be fixed:
      worker=DP,STAGE   computes no slower than the other workers of its stage
      stage=STAGE       computes no slower than the other stages
      cause=NAME        a cause of the report (worker, gc, ...) goes away where it was found
      kind=NAME         every op of a kind takes what it takes without stragglers

    Example: smon what-if traces --fix worker=0,0 --drop-slowest-dp 1
    """
    from smon_rt.analysis import expand

    if json_path == "":
        raise click.BadParameter("name a file to write", param_hint="--json")
    # Refused before the work, like any bad option; what depends on the job is refused after it was read.
    if not fixes and drop_slowest_dp == 0 and scale_dp == 1:
        raise click.UsageError("nothing is asked: give --fix, --drop-slowest-dp or --scale-dp")
    names = [os.fsdecode(name) for path in paths for name in expand(path)]
    refuse_outputs(names, meta, json_path, None)
    options = TraceOptions(meta, steps, layout, run_id, attempt)
    report = analyzed(names, options, quiet, gpu_hour_price=gpu_hour_price, currency=currency)
    answer = report.what_if(fixes, drop_slowest_dp=drop_slowest_dp, scale_dp=scale_dp)
    _print(answer, quiet=quiet, to_stderr=json_path == "-")
    if json_path is not None:
        from smon_rt.report.output_file import write_text

        write_text(json_path, answer.to_json() + "\n")
    return EXIT_INCOMPLETE if is_incomplete(report) else 0


def _print(answer: Answer, *, quiet: bool, to_stderr: bool) -> None:
    from smon_rt.report.terminal import print_text

    stream = sys.stderr if to_stderr else sys.stdout
    if quiet:
        line = next(line for line in answer.text.splitlines() if line.startswith("answer"))
        click.echo(line.partition(" ")[2].strip(), file=stream)
        return
    style = "bold green" if answer.gain_s_per_step >= 0 else "bold red"
    print_text(answer.text, [], stream=stream, headline_style=style)
