"""Exports a parquet of ops: what there is of it are the ops of workers, one rank each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from smon_rt.errors import SmonError

if TYPE_CHECKING:
    from smon_rt.analysis.importer import Trace
    from smon_rt.export.ideal import OpTable
    from smon_rt.export.timeline import RankTimeline

_Workers = dict[tuple[int, int], "OpTable"]


def export_parquet(
    names: list[str], meta: str | None, output_format: str, output: str, steps: range | None, *, with_ideal: bool
) -> str:
    """Writes the ops of one parquet, and with `with_ideal` those without stragglers; returns words about it.

    Raises SmonError where it cannot be read or written.
    """
    from smon_rt.analysis.importer import read_trace
    from smon_rt.analysis.input_file import shown
    from smon_rt.export.ideal import ideal_ops, ranks_of_workers, recorded_ops

    if len(names) > 1:
        raise SmonError(f"{shown(names[0])}: is no recorded trace; export each parquet alone")
    if output_format == "parquet":
        raise SmonError(f"{shown(names[0])}: is a parquet of ops; export it to perfetto, chrome or csv")
    trace = read_trace(names[0], meta, steps)
    timelines = {"recorded": recorded_ops(trace).by_worker()}
    if with_ideal:
        timelines["ideal"] = ideal_ops(trace).by_worker()
    ranks = ranks_of_workers(trace)
    if output_format == "csv":
        _write_csv(timelines, ranks, output)
    else:
        _write_timelines(trace, timelines, ranks, output_format, output)
    return f"{trace.ops.num_rows:,} ops of {len(ranks):,} workers, times as recorded"


def _write_csv(timelines: dict[str, _Workers], ranks: dict[tuple[int, int], int], output: str) -> None:
    from smon_rt.export.output import open_output
    from smon_rt.export.table import write_ops_csv

    with open_output(output) as stream:
        write_ops_csv(timelines, ranks, stream)


def _write_timelines(
    trace: Trace, timelines: dict[str, _Workers], ranks: dict[tuple[int, int], int], output_format: str, output: str
) -> None:
    from smon_rt.export.chrome import write_chrome
    from smon_rt.export.output import open_output
    from smon_rt.export.perfetto import write_perfetto

    # Perfetto's times are not negative, chrome's readers hold few digits: both get times from the first op on.
    origin_ns = min(int(ops.start_ns.min()) for workers in timelines.values() for ops in workers.values())
    drawn = _timelines(timelines, ranks, origin_ns)
    with open_output(output) as stream:
        if output_format == "perfetto":
            write_perfetto(drawn, stream)
        else:
            about = {"run_id": trace.job.name, "attempt": 0, "clock": "as recorded", "origin_ns": origin_ns}
            write_chrome(drawn, stream, about=about)


def _timelines(
    timelines: dict[str, _Workers], ranks: dict[tuple[int, int], int], origin_ns: int
) -> Iterator[RankTimeline]:
    from smon_rt.export.ideal import op_timeline

    beyond = max(ranks.values()) + 1
    for place, rank in sorted(ranks.items(), key=lambda item: item[1]):
        for number, (name, workers) in enumerate(timelines.items()):
            if place not in workers:
                continue
            title = f"rank {rank} (dp {place[0]}, stage {place[1]})" + (f" {name}" if number else "")
            ops = workers[place].shifted(-origin_ns)
            yield op_timeline(ops, rank, title, process=rank + number * beyond, order=2 * rank + number)
