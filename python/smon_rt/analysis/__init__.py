"""The what-if analysis of a job: read a trace, replay it without stragglers, say what they cost.

Importing this loads neither the engine nor pyarrow; `analyze` does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container

from smon_rt.analysis.report import Report, ReportOptions

__all__ = ["Report", "ReportOptions", "analyze"]


def analyze(
    path: str | os.PathLike[str],
    *,
    meta: str | os.PathLike[str] | None = None,
    steps: Container[int] | None = None,
    progress: Callable[[int, int], None] | None = None,
    gpu_hour_price: float = 2.0,
    currency: str = "USD",
) -> Report:
    """Analyses one trace and returns its report.

    Args:
        path: the trace (parquet of ops, local or an fsspec URL).
        meta: the YAML about the job; looked for beside the trace when not given.
        steps: a set or range of step numbers to keep; all when not given.
        progress: called with (done, total) now and then while the engine works.
        gpu_hour_price: what a GPU-hour costs, in `currency`.
        currency: its name, three letters as a rule; only printed.

    Raises:
        TraceError: the trace cannot be read or contradicts itself; one line that says what to do.
        TypeError: `steps` is no container of numbers.
        ValueError: the price or the currency cannot be printed.

    Example:
        >>> report = analyze("trace.parquet")  # doctest: +SKIP
        >>> report.slowdown.value, report.verdict.cause  # doctest: +SKIP
        (1.973, 'worker')
    """
    from smon_rt import _analysis
    from smon_rt.analysis.importer import read_trace
    from smon_rt.analysis.input_file import shown
    from smon_rt.errors import TraceError

    # Before the work: a price that makes no sense is said at once.
    options = ReportOptions(gpu_hour_price, currency, steps is not None)
    trace = read_trace(path, meta, steps)
    try:
        raw = _analysis.analyze(trace.ops, trace.recorded_sizes(), progress)
    except _analysis.AnalysisError as error:
        raise TraceError(f"{shown(trace.path)}: {error}") from error
    return Report.from_raw(raw, trace, options)
