"""A synthetic job, made from its spec: the timeline, the trace in the artifact's columns, and the truth about it."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from smon_rt.synth import recorded, truth, writer
from smon_rt.synth.draws import Draws, draw
from smon_rt.synth.durations import FloatArray
from smon_rt.synth.plants import SynthError
from smon_rt.synth.schedule import Program, build_program
from smon_rt.synth.spec import JobSpec
from smon_rt.synth.timeline import Timeline, play


@dataclass(frozen=True)
class SyntheticJob:
    """A training job that never ran, with everything known about it."""

    spec: JobSpec
    program: Program = field(repr=False)
    draws: Draws = field(repr=False)
    timeline: Timeline = field(repr=False)

    @property
    def durations_ns(self) -> FloatArray:
        """What the job was played with, [op row, step, dp rank]; rows are those of `program.ops`.

        Communication ops have their own transfer as duration.
        """
        return self.draws.durations_ns

    @property
    def launch_delays_ns(self) -> FloatArray | None:
        """Of the same shape; None: every op launches at once."""
        return self.draws.launch_delays_ns

    @property
    def meta(self) -> dict[str, Any]:
        """The artifact's metadata record: trial_name, run_id, world_size and the sizes dp, dsp, pp, tp, vpp."""
        return writer.job_meta(self.spec)

    @cached_property
    def table(self) -> pa.Table:
        """The whole trace in the artifact's columns. For large jobs use `write`, which never holds it all.

        Raises SynthError for what they cannot hold.
        """
        _refuse_parquet(self.spec, "this job")
        return pa.concat_tables(writer.step_tables(self.spec, self.timeline)).unify_dictionaries()

    @cached_property
    def truth(self) -> dict[str, Any]:
        """Step times (base, nodelay, ideal), slowdown and the gain of each plant; see `truth.job_truth`."""
        return truth.job_truth(self.spec, self.program, self.draws, self.timeline)

    def oracle_slowdowns(self) -> dict[str, Any]:
        """S, by kind, by stage, by dp rank and exact by worker, by brute force; for small jobs."""
        return truth.oracle_slowdowns(self.program, self.draws)

    def write(self, path: str | os.PathLike[str]) -> list[Path]:
        """Write the job to `path`, and its truth; returns the paths.

        F.parquet: the trace in the artifact's columns, with F.yaml and F.truth.json beside it. A directory, or a name
        without an ending: what the recorder of each rank would have written, a `.smon` file a rank, with truth.json.
        Raises SynthError where `path` cannot be written, or cannot hold this job.
        """
        target = Path(path)
        if target.suffix == ".parquet":
            _refuse_parquet(self.spec, str(target))
            writer.write_parquet(self.spec, self.timeline, target)
            return [target, *writer.write_sidecars(target, self.meta, self.truth)]
        if target.suffix and not target.is_dir():
            raise SynthError(f"{target}: give the output a name that ends in .parquet, or a directory for .smon files")
        return recorded.write_directory(self.spec, self.draws, self.timeline, self.truth, target)


def _refuse_parquet(spec: JobSpec, name: str) -> None:
    obstacle = spec.parquet_obstacle
    if obstacle is not None:
        raise SynthError(f"{name}: a parquet has no place for {obstacle}: give -o a directory, for .smon files")


def make_job(spec: JobSpec) -> SyntheticJob:
    """Draw the durations of `spec` and play them.

    >>> job = make_job(JobSpec(dp=2, pp=2, microbatches=4, steps=3, noise=0.05, plants=(Plant(0, 1.5, dp_rank=1),)))
    >>> job.truth["slowdown"] > 1
    True
    """
    program = build_program(spec)
    draws = draw(spec, program)
    return SyntheticJob(spec, program, draws, play(program, draws))


def replay(
    job: SyntheticJob, durations_ns: FloatArray | None = None, *, keep_launch_delays: bool = False
) -> FloatArray:
    """Step times [step] in seconds with other durations, [op row, step, dp rank] in ns (None: the job's own).

    Launch delays are left out unless asked for. A step ends with its last optimizer.
    """
    draws = job.draws
    if durations_ns is not None:
        draws = dataclasses.replace(draws, durations_ns=durations_ns)
    if not keep_launch_delays:
        draws = dataclasses.replace(draws, launch_delays_ns=None)
    return truth.simulated_step_times_s(play(job.program, draws))
