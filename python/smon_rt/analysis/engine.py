"""Hands a trace to the engine, for the analysis and for questions after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from smon_rt.errors import TraceError
from smon_rt.kinds import KIND_NAMES

if TYPE_CHECKING:
    from smon_rt.analysis.importer import Trace
    from smon_rt.analysis.raw import RawAnswer, RawResult
    from smon_rt.analysis.report import ReportOptions

Progress = Callable[[int, int], None]
_NS_PER_S = 1e9


@dataclass(frozen=True, slots=True)
class Source:
    """What a report was made from, kept by reference so that more can be asked of it.

    Cost: the table of ops stays in memory as long as the report, 53 bytes an op of a parquet, 78 of recorded traces.
    `dp_size` counts the dp ranks of the ops.
    """

    trace: Trace
    options: ReportOptions
    dp_size: int


def about(trace: Trace) -> tuple[dict[str, int], Literal["reference", "ids"]]:
    """The sizes that the engine is told, and the rules by which it matches ops."""
    if trace.recording is None:
        return trace.recorded_sizes(), "reference"
    bound_ns = round((trace.recording.clock_bound_s or 0.0) * _NS_PER_S)
    return trace.job.sizes() | {"clock_bound_ns": bound_ns}, "ids"


def analyze_by_engine(trace: Trace, progress: Progress | None = None) -> RawResult:
    """Everything that the engine finds. Raises TraceError for ops that cannot be analysed."""
    from smon_rt import _analysis
    from smon_rt.analysis.input_file import shown

    sizes, rules = about(trace)
    try:
        return _analysis.analyze(trace.ops, sizes, progress, rules=rules)
    except _analysis.AnalysisError as error:
        raise TraceError(f"{shown(trace.path)}: {error}") from error


def ask_engine(
    trace: Trace, questions: Sequence[Mapping[str, Any]], progress: Progress | None = None
) -> list[RawAnswer]:
    """Answers to several questions about the same ops, which are measured once (`_analysis.what_if`).

    By the rules of the published analyzer launch delays are partly waits for what is not recorded: unless a question
    says otherwise, they count neither before nor after. Raises TraceError for what the engine refuses.
    """
    from smon_rt import _analysis
    from smon_rt.analysis.input_file import shown

    sizes, rules = about(trace)
    defaults = {"launch_delays": "none", "had_launch_delays": False} if rules == "reference" else {}
    try:
        return _analysis.what_if(trace.ops, sizes, [{**defaults, **each} for each in questions], progress, rules=rules)
    except _analysis.AnalysisError as error:
        raise TraceError(f"{shown(trace.path)}: {error}") from error


def ideal_columns(trace: Trace) -> dict[str, bytes]:
    """When each op would run without stragglers (`_analysis.ideal_timeline`). Raises TraceError."""
    from smon_rt import _analysis
    from smon_rt.analysis.input_file import shown

    sizes, rules = about(trace)
    try:
        return _analysis.ideal_timeline(trace.ops, sizes, rules)
    except _analysis.AnalysisError as error:
        raise TraceError(f"{shown(trace.path)}: {error}") from error


def kinds_in(trace: Trace) -> set[str]:
    """Names of the kinds that the trace has ops of."""
    import pyarrow.compute as pc

    return {KIND_NAMES[kind] for kind in pc.unique(trace.ops["kind"]).to_pylist()}
