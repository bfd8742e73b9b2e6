"""The tables of a report, as text cells: the terminal and the page show the same ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from smon_rt.analysis.cause_words import where_words
from smon_rt.analysis.causes import Cause
from smon_rt.analysis.report import Report, worker_key
from smon_rt.analysis.units import UNKNOWN, finite_or_none, is_finite, ratio, seconds, seconds_range
from smon_rt.analysis.verdict_text import CAUSE_WORDS
from smon_rt.analysis.worker_words import Machines

WORST_WORKER_COUNT = 10
_COMPUTE_KINDS = ("forward_compute", "backward_compute")


@dataclass(frozen=True, slots=True)
class Table:
    """A titled table; the first column is text, the others are numbers unless named in `text_columns`."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    text_columns: frozenset[str] = frozenset()

    def is_text(self, column: int) -> bool:
        """True where the column reads from the left."""
        return column == 0 or self.columns[column] in self.text_columns


def all_tables(report: Report) -> list[Table]:
    """Every table that has something to say, in the order in which they are read."""
    tables = [
        step_time_table(report),
        cause_table(report),
        kind_table(report),
        stage_table(report),
        worker_table(report),
    ]
    return [table for table in tables if table.rows]


def step_time_table(report: Report) -> Table:
    """Base, nodelay and ideal step times."""
    rows = []
    for name, words in (("base", "as recorded"), ("nodelay", "no launch delays"), ("ideal", "no stragglers either")):
        values = [value for value in getattr(report.step_time_s_by_step, name).values() if is_finite(value)]
        mean = getattr(report.mean_step_time_s, name)
        spread = (seconds(min(values)), seconds(max(values))) if values else (UNKNOWN, UNKNOWN)
        to_ideal = mean / report.mean_step_time_s.ideal if report.mean_step_time_s.ideal else None
        rows.append((name, words, seconds(mean), *spread, ratio(to_ideal)))
    columns = ("step time", "means", "mean", "shortest", "longest", "to ideal")
    note = (
        f"slowdown = nodelay / ideal = {ratio(report.slowdown.value)}; "
        f"launch slowdown = base / nodelay = {ratio(report.launch_slowdown)}"
    )
    return Table("Step time", columns, tuple(rows), note, frozenset({"means"}))


def cause_table(report: Report) -> Table:
    """What each repair would give back."""
    rows = tuple(
        (
            CAUSE_WORDS[cause.cause],
            _place(report, cause),
            seconds(cause.gain_s_per_step),
            seconds_range(cause.low, cause.high),
            _percent(cause.share),
            _percent(cause.persistence_ratio),
        )
        for cause in report.causes
    )
    columns = ("cause", "where", "gives back", "95 % interval", "of base − ideal", "in steps")
    note = "Shares are of base − ideal; they overlap and need not sum to 100 %. Seconds are per step."
    return Table("Causes", columns, rows, note, frozenset({"where"}))


def kind_table(report: Report) -> Table:
    """Slowdown with only one kind's durations as recorded."""
    kinds = report.slowdown_by_kind | report.launch_slowdown_by_kind
    order = sorted(kinds, key=lambda kind: (-_sortable(report.slowdown_by_kind.get(kind)), kind))
    rows = tuple(
        (kind, ratio(report.slowdown_by_kind.get(kind), 3), ratio(report.launch_slowdown_by_kind.get(kind), 3))
        for kind in order
    )
    return Table("By kind", ("kind", "slowdown", "launch slowdown"), rows)


def stage_table(report: Report) -> Table:
    """Slowdown with only one stage's durations as recorded, and what its workers compute."""
    rows = tuple(
        (
            f"stage {stage}",
            ratio(value, 3),
            ratio(report.launch_slowdown_by_stage.get(stage), 3),
            *(seconds(_stage_median(report, kind, stage)) for kind in _COMPUTE_KINDS),
        )
        for stage, value in report.slowdown_by_stage.items()
    )
    return Table("By stage", ("stage", "slowdown", "launch slowdown", "forward", "backward"), rows)


def worker_table(report: Report, count: int = WORST_WORKER_COUNT) -> Table:
    """The workers with the largest exact slowdown."""
    worst = sorted(report.slowdown_by_worker, key=lambda key: -_sortable(report.slowdown_by_worker[key]))[:count]
    rows = []
    for key in worst:
        dp_rank, stage = key.split(",")
        compute = (seconds(report.worker_median_s.get(kind, {}).get(key)) for kind in _COMPUTE_KINDS)
        slowdowns = (ratio(report.slowdown_by_worker[key], 3), ratio(report.slowdown_by_worker_min[key], 3))
        rows.append((worker_name(report, key), dp_rank, stage, *slowdowns, *compute))
    total = len(report.slowdown_by_worker)
    title = f"Worst {len(rows)} of {total:,} workers" if total > len(rows) else "Workers"
    columns = ("worker", "dp", "stage", "exact", "min(dp, stage)", "forward", "backward")
    note = (
        f"M_W {ratio(report.m_w)}, M_W exact {ratio(report.m_w_exact)}, M_S {ratio(report.m_s)}: the part of the loss "
        "that fixing the slowest 3 % of the workers, or the last stage, gives back.\n"
        "exact: slowdown if only this worker ran as recorded, all others ideally; min(dp, stage): the smaller one of "
        "its dp rank's and its stage's, as the paper estimates it."
    )
    return Table(title, columns, tuple(rows), note)


def worker_name(report: Report, key: str) -> str:
    """`rank 3`, the worker's lowest recorded rank, or that none was recorded."""
    rank = report.worker_rank[key]
    return f"rank {rank}" if rank >= 0 else "not recorded"


def worker_grid(report: Report, values: dict[str, float]) -> list[list[float | None]]:
    """Per worker values as `[stage][dp_rank]` rows, None for what is not a number."""
    dp_size, pp_size = grid_size(report)
    return [
        [finite_or_none(values.get(worker_key(dp_rank, stage))) for dp_rank in range(dp_size)]
        for stage in range(pp_size)
    ]


def grid_size(report: Report) -> tuple[int, int]:
    """Recorded dp ranks and stages; some recorders number the context-parallel ranks within dp_rank."""
    return len(report.slowdown_by_dp_rank), len(report.slowdown_by_stage)


def _stage_median(report: Report, kind: str, stage: str) -> float | None:
    medians: Sequence[float] = [
        value
        for key, value in report.worker_median_s.get(kind, {}).items()
        if key.split(",")[1] == stage and is_finite(value)
    ]
    return median(medians) if medians else None


def _place(report: Report, cause: Cause) -> str:
    return where_words(cause, grid_size(report)[1], Machines(report.worker_rank)) or "job"


def _percent(value: float | None) -> str:
    return f"{ratio(value * 100, 0)} %" if value is not None and is_finite(value) else "–"


def _sortable(value: float | None) -> float:
    return value if value is not None and is_finite(value) else 0.0
