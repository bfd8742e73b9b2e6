"""What commands that analyse traces do alike: which paths are one job, and how much of it is done."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smon_rt.analysis.report import Report

Progress = Callable[[int, int], None]
EXIT_THRESHOLD = 1
EXIT_BAD_INPUT = 2
EXIT_INCOMPLETE = 3


def is_incomplete(report: Report) -> bool:
    """True where something is missing that was meant to be there; the trust line says what."""
    return bool(report.fidelity.missing_ranks or report.fidelity.unfinished)


def jobs_of(paths: tuple[str, ...]) -> list[list[str]]:
    """What is analysed together: all recorded traces, which may lie on many nodes; each parquet alone."""
    from smon_rt.analysis import expand, is_recorded

    names = [os.fsdecode(name) for path in paths for name in expand(path)]
    recorded = [name for name in names if is_recorded(name)]
    jobs: list[list[str]] = []
    for name in names:
        if name not in recorded:
            jobs.append([name])
        elif recorded not in jobs:
            jobs.append(recorded)
    return jobs


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """Which part of a trace is meant, and what it does not say itself, as `smon_rt.analysis.analyze` takes it."""

    meta: str | None = None
    steps: range | None = None
    layout: dict[str, int] | None = None
    run_id: str | None = None
    attempt: int | None = None


def analyzed(job: list[str], options: TraceOptions, quiet: bool, *, job_count: int = 1, **more: Any) -> Report:
    """The report of one job of `jobs_of`, with a progress bar. Raises what `smon_rt.analysis.analyze` does."""
    from smon_rt.analysis import analyze, is_recorded

    # Recorded traces need no record, but that is said only where it was meant for them.
    meta = options.meta if job_count == 1 or not is_recorded(job[0]) else None
    with progress_bar(job, quiet) as progress:
        return analyze(
            job if len(job) > 1 else job[0],
            meta=meta,
            steps=options.steps,
            run_id=options.run_id,
            attempt=options.attempt,
            layout=options.layout,
            progress=progress,
            **more,
        )


@contextmanager
def progress_bar(job: list[str], quiet: bool) -> Iterator[Progress | None]:
    """A progress bar on stderr while a person looks at it; it leaves nothing behind."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from smon_rt.analysis.input_file import shown

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"reading {shown(Path(job[0]).name)}", total=None)

        def update(done: int, total: int) -> None:
            bar.update(task, description="replaying", completed=done, total=total)

        yield update
