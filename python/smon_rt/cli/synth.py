"""`smon synth`: synthetic jobs with known truth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from smon_rt.synth import SyntheticJob


@click.command("synth", short_help="Write a synthetic job with known truth.")
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path, dir_okay=False), help="Trace to write, F.parquet."
)
@click.option("--dp", default=4, show_default=True, help="Data parallel size.")
@click.option("--pp", default=4, show_default=True, help="Pipeline parallel size: stages.")
@click.option("--tp", default=1, show_default=True, help="Tensor parallel size; multiplies the ranks of a worker.")
@click.option("--vpp", default=1, show_default=True, help="Chunks a stage; above 1 the schedule is interleaved.")
@click.option("--microbatches", default=8, show_default=True, help="Microbatches a step.")
@click.option("--steps", default=10, show_default=True, help="Steps.")
@click.option("--schedule", type=click.Choice(["1f1b", "interleaved"]), help="Pipeline schedule; follows vpp.")
@click.option("--noise", default=0.02, show_default=True, help="Coefficient of variation of compute durations.")
@click.option("--comm-noise", default=0.0, show_default=True, help="Coefficient of variation of transfers.")
@click.option(
    "--plant",
    "plant_texts",
    multiple=True,
    metavar="worker=DP,STAGE:FACTOR|stage=STAGE:FACTOR",
    help="Slow a worker or a stage by FACTOR; may be given several times.",
)
@click.option("--overlap", is_flag=True, help="Reduce gradients while the backwards still run.")
@click.option("--skip-first-recv", is_flag=True, help="Interleaved: do not record stage 0's first forward receive.")
@click.option("--forward-ms", default=10.0, show_default=True, help="Forward of a microbatch through a stage.")
@click.option("--backward-ms", default=20.0, show_default=True, help="Backward of a microbatch through a stage.")
@click.option("--p2p-ms", default=0.4, show_default=True, help="Transfer of one message between stages.")
@click.option("--dp-comm-ms", default=8.0, show_default=True, help="Gathering or reducing a stage's parameters.")
@click.option("--launch-delay-ms", default=0.0, show_default=True, help="Mean delay before each op starts.")
@click.option("--seed", default=0, show_default=True, help="The same seed gives the same file.")
def command(
    output: Path,
    plant_texts: tuple[str, ...],
    forward_ms: float,
    backward_ms: float,
    p2p_ms: float,
    dp_comm_ms: float,
    **options: Any,
) -> None:
    """Write a synthetic training job with known truth: F.parquet, F.yaml (its layout) and F.truth.json.

    Example: smon synth -o job.parquet --dp 4 --pp 4 --plant worker=1,0:1.5
    """
    from smon_rt.analysis.input_file import shown
    from smon_rt.synth import Durations, JobSpec, make_job, parse_plant

    durations = Durations(forward_ms=forward_ms, backward_ms=backward_ms, p2p_ms=p2p_ms, dp_comm_ms=dp_comm_ms)
    plants = tuple(parse_plant(text) for text in plant_texts)
    job = make_job(JobSpec(plants=plants, durations=durations, name=output.stem, **options))
    paths = job.write(output)
    click.echo(f"wrote    {', '.join(shown(path) for path in paths)}")
    click.echo(_summary(job))


def _summary(job: SyntheticJob) -> str:
    """The layout and the truth in a few lines."""
    from smon_rt.analysis.units import counted

    spec, truth = job.spec, job.truth
    mean = truth["mean_step_time_s"]
    microbatches = f"{spec.microbatches} microbatch{'' if spec.microbatches == 1 else 'es'}"
    lines = [
        f"job      dp {spec.dp}, pp {spec.pp}, tp {spec.tp}, vpp {spec.vpp}, {microbatches},"
        f" {counted(spec.steps, 'step')}, {spec.resolved_schedule}: {truth['op_count']:,} ops",
        f"truth    slowdown {truth['slowdown']:.4f}: {mean['base']:.4f} s a step,"
        f" {mean['ideal']:.4f} s without stragglers",
    ]
    for plant, fact in zip(spec.plants, truth["plants"], strict=True):
        lines.append(f"planted  {plant}: fixing it gives back {fact['gain_s_per_step']:.4f} s a step")
    return "\n".join(lines)
