"""Reading the trace files of a job (`rank-00003.<run>-<attempt>.smon`); loads neither the recorder nor the engine."""

from smon_rt.trace.comm_ops import CommChannel, CommOpColumns
from smon_rt.trace.job_trace import JobTrace, read_directory, read_job
from smon_rt.trace.packets import Damage
from smon_rt.trace.rank_trace import ClockColumns, RankTrace, StepColumns
from smon_rt.trace.reader import read_file, read_files
from smon_rt.trace.spans import SpanColumns

__all__ = [
    "ClockColumns",
    "CommChannel",
    "CommOpColumns",
    "Damage",
    "JobTrace",
    "RankTrace",
    "SpanColumns",
    "StepColumns",
    "read_directory",
    "read_file",
    "read_files",
    "read_job",
]
