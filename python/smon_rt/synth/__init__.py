"""Synthetic training jobs with known truth: the oracle that the analysis is checked against.

`make_job(spec)` draws and plays a job; `.write(path)` writes it as a trace, or as the files that the recorders of its
ranks would have written, with its truth beside it. The simulator in
`timeline` follows the schedule and shares nothing with the analysis engine.
"""

from smon_rt.synth.job import SyntheticJob, make_job, replay
from smon_rt.synth.plants import (
    LongSequences,
    Pauses,
    Plant,
    SlowGroup,
    SlowLaunch,
    SlowLink,
    SlowMember,
    SynthError,
    parse_plant,
)
from smon_rt.synth.spec import Durations, JobSpec

__all__ = [
    "Durations",
    "JobSpec",
    "LongSequences",
    "Pauses",
    "Plant",
    "SlowGroup",
    "SlowLaunch",
    "SlowLink",
    "SlowMember",
    "SynthError",
    "SyntheticJob",
    "make_job",
    "parse_plant",
    "replay",
]
