"""Synthetic training jobs with known truth: the oracle that the analysis is checked against.

`make_job(spec)` draws and plays a job; `.write(path)` writes it as a trace with its truth beside it. The simulator in
`timeline` follows the schedule and shares nothing with the analysis engine.
"""

from smon_rt.synth.job import SyntheticJob, make_job, replay
from smon_rt.synth.spec import Durations, JobSpec, Plant, SynthError, parse_plant

__all__ = ["Durations", "JobSpec", "Plant", "SynthError", "SyntheticJob", "make_job", "parse_plant", "replay"]
