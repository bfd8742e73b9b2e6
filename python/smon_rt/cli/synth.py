"""`smon synth`: synthetic jobs with known truth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from smon_rt.synth import SyntheticJob


@click.command("synth", short_help="Write a synthetic job with known truth.")
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    help="F.parquet, or a directory for .smon files, one a rank.",
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
@click.option("--tail-ratio", default=0.0, help="Share of computes that are slowed by a factor with a heavy tail.")
@click.option(
    "--plant",
    "plant_texts",
    multiple=True,
    metavar="CAUSE=[PLACE:]SIZE",
    help="What is slow, in one of the forms below; may be given several times.",
)
@click.option("--overlap", is_flag=True, help="Reduce gradients while the backwards still run.")
@click.option("--skip-first-recv", is_flag=True, help="Interleaved: do not record stage 0's first forward receive.")
@click.option("--forward-ms", default=10.0, show_default=True, help="Forward of a microbatch through a stage.")
@click.option("--backward-ms", default=20.0, show_default=True, help="Backward of a microbatch through a stage.")
@click.option("--p2p-ms", default=0.4, show_default=True, help="Transfer of one message between stages.")
@click.option("--dp-comm-ms", default=8.0, show_default=True, help="Gathering or reducing a stage's parameters.")
@click.option("--launch-delay-ms", default=0.0, show_default=True, help="Mean delay before each op starts.")
@click.option("--data-loading-ms", default=0.0, help="Wait of each worker for its data before each step; DIR only.")
@click.option("--fewer-microbatches", default=0, help="Up to N less, drawn for each dp rank and step; DIR only.")
@click.option("--hosts", default=1, show_default=True, help="Hosts that the ranks are dealt to in blocks; DIR only.")
@click.option("--clock-offset-ms", default=0.0, help="Most that a host's clock is off, either way; DIR only.")
@click.option("--clock-drift-ppm", default=0.0, help="Most that a host's clock drifts, either way; DIR only.")
@click.option(
    "--tp-collectives", default=0, show_default=True, help="Collectives of tp members in each compute; DIR only."
)
@click.option("--gpu-times", is_flag=True, help="Record on GPUs: launches of the host, times of the device; DIR only.")
@click.option("--gpu-bound-us", default=20.0, show_default=True, help="Most that GPU times are off, either way.")
@click.option("--drop-ratio", default=0.0, help="Share of spans that are dropped, and counted; DIR only.")
@click.option("--missing-rank", "missing_ranks", multiple=True, type=int, help="A rank without a file; DIR only.")
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

    With -o DIR: a .smon file for each rank, as recorded, and DIR/truth.json. Collections, waits for data, clocks,
    losses and uneven microbatches have no place in a parquet.

    \b
    What can be planted (DP, STAGE is one worker, else all):
      worker=DP,STAGE:FACTOR            stage=STAGE:FACTOR
      sequence_length=SPREAD            standard deviation of the log of lengths
      gc=[DP,STAGE:]MS@PROBABILITY      random steps; MS/STEPS: every so many steps
      data_loading=[DP,STAGE:]MS@PROBABILITY, or MS/STEPS
      pp_communication=[DP,]STAGE:FACTOR   messages between STAGE and the next
      dp_communication=STAGE:FACTOR        collectives of that stage's dp ranks
      host_launch_delay=[DP,STAGE:]MS      mean, before each compute
      tp_member=DP,STAGE,TP:FACTOR         one rank of a worker; --tp-collectives

    Example: smon synth -o job.parquet --dp 4 --pp 4 --plant worker=1,0:1.5
    """
    from smon_rt.analysis.input_file import shown
    from smon_rt.analysis.units import counted
    from smon_rt.synth import Durations, JobSpec, make_job, parse_plant

    if output.suffix not in ("", ".parquet") and not output.is_dir():
        raise click.BadParameter(f"{shown(output)}: name a file that ends in .parquet, or a directory")
    durations = Durations(forward_ms=forward_ms, backward_ms=backward_ms, p2p_ms=p2p_ms, dp_comm_ms=dp_comm_ms)
    plants = tuple(parse_plant(text) for text in plant_texts)
    job = make_job(JobSpec(plants=plants, durations=durations, name=output.stem, **options))
    paths = job.write(output)
    if output.is_dir():
        click.echo(f"wrote    {shown(output)}: {counted(len(paths) - 1, 'file')}, one a rank, and truth.json")
    else:
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
    for pair in truth["pairs"]:
        names = " and ".join(str(spec.plants[index]) for index in pair["plants"])
        lines.append(f"together {names}: {pair['gain_s_per_step']:.4f} s a step")
    return "\n".join(lines)
