"""A synthetic job, made from its spec: the timeline, the trace in the artifact's columns, and the truth about it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from smon_rt.synth import truth, writer
from smon_rt.synth.durations import FloatArray, draw_durations, draw_launch_delays
from smon_rt.synth.schedule import Program, build_program
from smon_rt.synth.spec import JobSpec, SynthError
from smon_rt.synth.timeline import Timeline, play


@dataclass(frozen=True)
class SyntheticJob:
    """A training job that never ran, with everything known about it.

    `durations_ns` and `launch_delays_ns` (None: none) are what the job was played with, [op row, step, dp rank];
    rows are those of `program.ops`. Communication ops have their own transfer as duration.
    """

    spec: JobSpec
    program: Program = field(repr=False)
    durations_ns: FloatArray = field(repr=False)
    launch_delays_ns: FloatArray | None = field(repr=False)
    timeline: Timeline = field(repr=False)

    @property
    def meta(self) -> dict[str, Any]:
        """The artifact's metadata record: trial_name, run_id, world_size and the sizes dp, dsp, pp, tp, vpp."""
        return writer.job_meta(self.spec)

    @cached_property
    def table(self) -> pa.Table:
        """The whole trace in the artifact's columns. For large jobs use `write`, which never holds it all."""
        return pa.concat_tables(writer.step_tables(self.spec, self.timeline)).unify_dictionaries()

    @cached_property
    def truth(self) -> dict[str, Any]:
        """Step times (base, nodelay, ideal), slowdown and the gain of each plant; see `truth.job_truth`."""
        return truth.job_truth(self.spec, self.program, self.durations_ns, self.launch_delays_ns, self.timeline)

    def oracle_slowdowns(self) -> dict[str, Any]:
        """S, by kind, by stage, by dp rank and exact by worker, by brute force; for small jobs."""
        return truth.oracle_slowdowns(self.program, self.durations_ns)

    def write(self, path: str | os.PathLike[str]) -> list[Path]:
        """Write `path` (.parquet), and its .yaml and .truth.json beside it; returns the three paths."""
        target = Path(path)
        if target.suffix != ".parquet":
            raise SynthError(f"{target}: give the output a name that ends in .parquet")
        writer.write_parquet(self.spec, self.timeline, target)
        return [target, *writer.write_sidecars(target, self.meta, self.truth)]


def make_job(spec: JobSpec) -> SyntheticJob:
    """Draw the durations of `spec` and play them.

    >>> job = make_job(JobSpec(dp=2, pp=2, microbatches=4, steps=3, noise=0.05, plants=(Plant(0, 1.5, dp_rank=1),)))
    >>> job.truth["slowdown"] > 1
    True
    """
    program = build_program(spec)
    durations = draw_durations(spec, program)
    delays = draw_launch_delays(spec, program)
    return SyntheticJob(spec, program, durations, delays, play(program, durations, delays))


def replay(
    job: SyntheticJob, durations_ns: FloatArray | None = None, *, keep_launch_delays: bool = False
) -> FloatArray:
    """Step times [step] in seconds with other durations, [op row, step, dp rank] in ns (None: the job's own).

    Launch delays are left out unless asked for. A step ends with its last optimizer.
    """
    durations = job.durations_ns if durations_ns is None else durations_ns
    delays = job.launch_delays_ns if keep_launch_delays else None
    return truth.simulated_step_times_s(play(job.program, durations, delays))
