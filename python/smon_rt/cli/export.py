"""`smon export`: a trace in the forms of other tools."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from smon_rt.cli.arguments import layout_sizes, meta_option, run_options, step_range
from smon_rt.errors import SmonError

if TYPE_CHECKING:
    from smon_rt.export.ideal import OpTable
    from smon_rt.export.timeline import RankTimeline
    from smon_rt.trace.clocks import ClockAlignment
    from smon_rt.trace.job_trace import JobReader
    from smon_rt.trace.rank_trace import RankTrace

EXIT_INCOMPLETE = 3
_PARQUET_SUFFIX = ".parquet"


@run_options
@click.command("export")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option(
    "--format",
    "output_format",
    required=True,
    type=click.Choice(["perfetto", "chrome", "parquet", "csv"]),
    help="Perfetto's trace, the Trace Event Format (JSON), the artifact's parquet, or a table.",
)
@click.option("-o", "--output", metavar="FILE", required=True, help="File to write; - is stdout, .gz compresses.")
@click.option("--steps", metavar="A-B", callback=step_range, help="Only spans of these steps, both ends included.")
@click.option(
    "--ideal",
    "with_ideal",
    is_flag=True,
    help="Add the timeline without stragglers beside the recorded one, each step put where the recorded one begins.",
)
@meta_option
@click.option(
    "--layout",
    metavar="pp=2,dp=4",
    callback=layout_sizes,
    help="For --ideal: sizes, the outermost dimension first, for recorded ranks that do not say theirs.",
)
@click.option("--quiet", is_flag=True, help="Say only what is missing.")
def command(
    paths: tuple[str, ...],
    output_format: str,
    output: str,
    steps: range | None,
    with_ideal: bool,
    meta: str | None,
    layout: dict[str, int] | None,
    quiet: bool,
    run_id: str | None,
    attempt: int | None,
) -> int:
    """Write a trace in the form of another tool.

    PATH is a directory of .smon files, a file, or a glob of either; give one for each node. Or one parquet of ops.
    perfetto and chrome open in ui.perfetto.dev; parquet is what `smon analyze` reads, with a YAML beside it; csv has
    every column of every span. Exits with 3 when ranks or spans are missing, and says which.
    """
    from smon_rt.analysis import expand, is_recorded
    from smon_rt.export.clocks import align
    from smon_rt.report.trace_info import shown_line
    from smon_rt.trace.job_trace import JobReader, find_files
    from smon_rt.trace.summary import dropped_by_kind, incomplete_reasons, missing_reasons

    names = [os.fsdecode(name) for path in paths for name in expand(path)]
    if not all(map(is_recorded, names)):
        from smon_rt.cli.export_ops import export_parquet

        _check_output(output, output_format, names, meta)
        words = export_parquet(names, meta, output_format, output, steps, with_ideal=with_ideal)
        _say(output, words, quiet)
        return 0
    if meta is not None:
        raise SmonError("--meta: a job's record is for a parquet; recorded traces have theirs")
    _check_output(output, output_format, find_files(paths))
    reader = JobReader(paths, run_id=run_id, attempt=attempt, steps=steps)
    alignment = align(reader)
    ideal = _ideal(names, steps, run_id, attempt, layout) if with_ideal else None
    reasons: list[str] = []
    dropped: Counter[str] = Counter()

    def ranks(tick: Callable[[], None]) -> Iterator[RankTrace]:
        span_count = 0
        for trace in reader:
            span_count += len(trace.spans)
            reasons.extend(incomplete_reasons(trace))
            dropped.update(dropped_by_kind(trace))
            yield alignment.aligned(trace)
            tick()
        if steps is not None and span_count == 0:
            raise SmonError(_none_of_these(JobReader(paths, run_id=run_id, attempt=attempt)))

    with _progress(reader.rank_count, quiet) as tick:
        words = _WRITERS[output_format](ranks(tick), alignment, output, reader, ideal)
    reasons = missing_reasons(reader.job) + reasons
    _say(output, words, quiet)
    if dropped:
        by_kind = ", ".join(f"{kind} {count:,}" for kind, count in sorted(dropped.items()))
        click.echo(f"smon: dropped while recording: {by_kind}", err=True)
    for reason in reasons:
        click.echo(shown_line(f"smon: missing: {reason}"), err=True)
    return EXIT_INCOMPLETE if reasons else 0


def _none_of_these(reader: JobReader) -> str:
    """Which steps there are, said instead of an empty file."""
    first, last, count = 0, -1, 0
    for trace in reader:
        recorded = trace.spans.step[trace.spans.step >= 0]
        if len(recorded):
            first = min(first, int(recorded.min())) if count else int(recorded.min())
            last = max(last, int(recorded.max()))
            count += len(recorded)
    there = f"it has steps from {first} to {last}; choose others with --steps" if count else "it has none at all"
    return f"run {reader.job.run_id}: has no span of the steps asked for ({there})"


def _say(output: str, words: str, quiet: bool) -> None:
    from smon_rt.report.trace_info import shown_line

    if not quiet:
        stream = sys.stderr if output == "-" else sys.stdout
        click.echo(shown_line(f"wrote {output}: {words}"), file=stream)


@dataclass(frozen=True)
class Ideal:
    """The timeline without stragglers: the ops of each worker, and the rank beside which they are drawn."""

    workers: dict[tuple[int, int], OpTable]
    ranks: dict[tuple[int, int], int]

    def by_rank(self) -> dict[int, OpTable]:
        """The ops of each worker by its lowest recorded rank."""
        return {self.ranks[place]: ops for place, ops in self.workers.items() if place in self.ranks}


def _ideal(
    names: list[str], steps: range | None, run_id: str | None, attempt: int | None, layout: dict[str, int] | None
) -> Ideal:
    from smon_rt.analysis.smon_importer import read_smon
    from smon_rt.export.ideal import ideal_ops, ranks_of_workers

    trace = read_smon(names, steps, run_id=run_id, attempt=attempt, layout=layout)
    return Ideal(ideal_ops(trace).by_worker(), ranks_of_workers(trace))


def _timelines(
    traces: Iterator[RankTrace], offset_ns: int, world_size: int, ideal: Ideal | None
) -> Iterator[RankTimeline]:
    """Each rank as recorded, and right behind the first rank of a worker what it would do without stragglers."""
    from smon_rt.export.ideal import op_timeline
    from smon_rt.export.timeline import rank_timeline, rank_title

    if ideal is None:
        for trace in traces:
            yield rank_timeline(trace, offset_ns)
        return
    ops_of = ideal.by_rank()
    for trace in traces:
        rank = trace.rank
        yield dataclasses.replace(rank_timeline(trace, offset_ns), order=2 * rank)
        if rank in ops_of:
            title = f"{rank_title(trace)} ideal"
            ops = ops_of[rank].shifted(offset_ns)
            yield op_timeline(ops, rank, title, process=world_size + rank, order=2 * rank + 1)


def _write_perfetto(
    traces: Iterator[RankTrace], alignment: ClockAlignment, output: str, reader: JobReader, ideal: Ideal | None
) -> str:
    from smon_rt.export.output import open_output
    from smon_rt.export.perfetto import write_perfetto

    with open_output(output) as stream:
        write_perfetto(_timelines(traces, 0, reader.job.world_size, ideal), stream)
    return _described(reader, alignment)


def _write_chrome(
    traces: Iterator[RankTrace], alignment: ClockAlignment, output: str, reader: JobReader, ideal: Ideal | None
) -> str:
    from smon_rt.export.chrome import write_chrome
    from smon_rt.export.clocks import shortly_before
    from smon_rt.export.output import open_output

    origin_ns = shortly_before(alignment)
    about = {"run_id": reader.job.run_id, "attempt": reader.job.attempt}
    about |= {"clock": alignment.clock, "origin_ns": origin_ns}
    with open_output(output) as stream:
        write_chrome(_timelines(traces, -origin_ns, reader.job.world_size, ideal), stream, about=about)
    return _described(reader, alignment)


def _write_parquet(
    traces: Iterator[RankTrace], alignment: ClockAlignment, output: str, reader: JobReader, ideal: Ideal | None
) -> str:
    from smon_rt.export.artifact import ArtifactExport
    from smon_rt.export.output import open_output
    from smon_rt.report.output_file import write_atomically

    export = ArtifactExport()
    for trace in traces:
        export.add(trace, 0)
    export.finish(reader.job)
    meta = str(Path(output).with_suffix(".yaml"))
    with open_output(output) as stream:
        row_count = export.write(stream, None if ideal is None else ideal.workers)
    write_atomically(meta, [export.meta(reader.job)])
    left_out = f"; left out: {'; '.join(export.left_out)}" if export.left_out else ""
    absent = f"; {words}" if (words := export.absent_words()) else ""
    return f"{row_count:,} ops of {len(export.workers):,} workers, sizes in {meta}{left_out}{absent}"


def _write_csv(
    traces: Iterator[RankTrace], alignment: ClockAlignment, output: str, reader: JobReader, ideal: Ideal | None
) -> str:
    from smon_rt.export.output import open_output
    from smon_rt.export.table import write_csv

    with open_output(output) as stream:
        write_csv(((trace, 0) for trace in traces), stream, None if ideal is None else ideal.by_rank())
    return _described(reader, alignment)


_WRITERS: dict[str, Callable[[Iterator[RankTrace], ClockAlignment, str, JobReader, Ideal | None], str]] = {
    "perfetto": _write_perfetto,
    "chrome": _write_chrome,
    "parquet": _write_parquet,
    "csv": _write_csv,
}


def _described(reader: JobReader, alignment: ClockAlignment) -> str:
    return f"{len(reader.job.present):,} of {reader.job.world_size:,} ranks, times by {alignment.words()}"


def _check_output(output: str, output_format: str, inputs: list[str], meta: str | None = None) -> None:
    """Refuses, before any work, an output that cannot be meant."""
    from smon_rt.analysis.input_file import shown
    from smon_rt.cli.analyze import is_input

    if not output or "\0" in output:
        raise click.BadParameter("name a file to write", param_hint="--output")
    if output_format == "parquet" and not output.endswith(_PARQUET_SUFFIX):
        raise SmonError(
            f"{shown(output)}: a parquet needs a name that ends in {_PARQUET_SUFFIX}; its YAML goes beside it"
        )
    record = [str(Path(output).with_suffix(".yaml"))] if output_format == "parquet" else []
    for written in [output, *record]:
        if written != "-" and is_input(written, inputs, meta):
            raise SmonError(f"{shown(written)}: is what is exported; choose another place for the output")


@contextmanager
def _progress(rank_count: int, quiet: bool) -> Iterator[Callable[[], None]]:
    """A bar over the ranks on stderr while a person looks at it; it leaves nothing behind."""
    if quiet or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("exporting ranks"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=rank_count)
        yield lambda: bar.advance(task)
