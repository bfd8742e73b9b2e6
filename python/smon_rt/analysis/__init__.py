"""The what-if analysis of a job: read a trace, replay it without stragglers, say what they cost.

Importing this loads neither the engine nor pyarrow; `analyze` does.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Container, Mapping, Sequence
from typing import TYPE_CHECKING

from smon_rt.analysis.report import Report, ReportOptions

if TYPE_CHECKING:
    from smon_rt.analysis.importer import Trace

__all__ = ["Report", "ReportOptions", "analyze", "expand", "is_recorded"]

StrPath = str | os.PathLike[str]


def analyze(
    path: StrPath | Sequence[StrPath],
    *,
    meta: StrPath | None = None,
    steps: Container[int] | None = None,
    run_id: str | None = None,
    attempt: int | None = None,
    layout: Mapping[str, int] | None = None,
    progress: Callable[[int, int], None] | None = None,
    gpu_hour_price: float = 2.0,
    currency: str = "USD",
    layers: Sequence[int] | None = None,
) -> Report:
    """Analyses one job and returns its report.

    Args:
        path: what was recorded: a directory of `.smon` files, a file, a glob of either, or several of them (one for
            each node); of a live or a finished run. Or a parquet of ops, local or an fsspec URL.
        meta: the YAML about the job of a parquet; looked for beside it when not given.
        steps: a set or range of step numbers to keep; all when not given.
        run_id, attempt: of what was recorded another run than the newest.
        layout: sizes by dimension (dp, pp, tp, cp), the outermost first, for ranks that recorded no layout.
        progress: called with (done, total) now and then while the engine works.
        gpu_hour_price: what a GPU-hour costs, in `currency`.
        currency: its name, three letters as a rule; only printed.
        layers: how many layers each pipeline stage has: where a stage is slow, how many to move is said then.

    Raises:
        TraceError: the trace cannot be read or contradicts itself; one line that says what to do.
        QuestionError: `layers` are not one whole number above 0 for each stage.
        TypeError: `steps` is no container of numbers.
        ValueError: the price or the currency cannot be printed.

    Example:
        >>> report = analyze("traces")  # doctest: +SKIP
        >>> report.slowdown.value, report.verdict.cause  # doctest: +SKIP
        (1.973, 'worker')
    """
    from smon_rt.analysis.advice import check_layers, with_advice
    from smon_rt.analysis.engine import analyze_by_engine

    # Before the work: a price that makes no sense is said at once.
    options = ReportOptions(gpu_hour_price, currency, steps is not None, None if layers is None else tuple(layers))
    trace = _read(path, meta, steps, run_id, attempt, layout)
    if layers is not None:
        check_layers(layers, trace.job.pp_size)
    raw = analyze_by_engine(trace, progress)
    return with_advice(Report.from_raw(raw, trace, options))


def is_recorded(path: StrPath) -> bool:
    """True for what `smon_rt.start` left: a directory, a `.smon` file, or a pattern of these."""
    from smon_rt.trace.job_trace import SUFFIX

    name = os.fsdecode(path)
    name = name.rstrip("/") or name[:1]
    # os.path answers False where pathlib raises (a name that is too long): opening the file says why.
    return name.endswith(SUFFIX) or os.path.isdir(name.removeprefix("file://"))  # noqa: PTH112


def _read(
    path: StrPath | Sequence[StrPath],
    meta: StrPath | None,
    steps: Container[int] | None,
    run_id: str | None,
    attempt: int | None,
    layout: Mapping[str, int] | None,
) -> Trace:
    from smon_rt.analysis.input_file import shown
    from smon_rt.errors import TraceError

    given = [path] if isinstance(path, str | os.PathLike) else list(path)
    paths = [name for one in given for name in expand(one)]
    if not paths:
        raise TraceError("no path given; give a directory of recorded traces, or a parquet of ops")
    recorded = [is_recorded(name) for name in paths]
    if all(recorded):
        if meta is not None:
            raise TraceError(
                f"{shown(os.fsdecode(meta))}: a job's record is for a parquet; recorded traces have theirs"
            )
        from smon_rt.analysis.smon_importer import read_smon

        return read_smon(paths, steps, run_id=run_id, attempt=attempt, layout=layout)
    if len(paths) > 1:
        other = shown(os.fsdecode(paths[recorded.index(False)]))
        raise TraceError(f"{other}: is no recorded trace; analyse each parquet alone")
    from smon_rt.analysis.importer import read_trace

    return read_trace(paths[0], meta, steps)


def expand(path: StrPath) -> list[StrPath]:
    """The files that a pattern means; what is none, or matches nothing, stays as it is.

    Where it matches recorded traces, what else lies beside them (snapshots, requests) is not meant.
    """
    name = os.fsdecode(path)
    # A name that is no pattern, or matches nothing, fails later with its own name in the message.
    is_pattern = any(character in name for character in "*?[") and "://" not in name and not os.path.lexists(name)
    if not is_pattern:
        return [path]
    found: list[StrPath] = [*sorted(glob.glob(name))]  # noqa: PTH207
    return [one for one in found if is_recorded(one)] or found or [path]
