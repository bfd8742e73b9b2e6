"""The workers as a grid of cells: stages down, dp ranks across; of a large job each cell stands for several workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from smon_rt.analysis.report import Report, worker_key
from smon_rt.analysis.units import counted, is_finite, ratio, seconds
from smon_rt.report.colors import REDS, level_of, level_start
from smon_rt.report.page_text import safe, scroll_region
from smon_rt.report.tables import grid_size, worker_name

#: More columns and rows than these are too small to point at: neighbours share a cell then.
MOST_COLUMNS = 64
MOST_ROWS = 32
#: Up to this many columns a cell has room for its number.
_MOST_NUMBERED_COLUMNS = 20


@dataclass(frozen=True, slots=True)
class Bins:
    """Neighbours that share a cell, as ranges of their numbers."""

    ranges: tuple[range, ...]

    @classmethod
    def of(cls, count: int, most: int) -> Bins:
        """`count` numbers in at most `most` bins of one width."""
        width = max(1, -(-count // most))
        return cls(tuple(range(first, min(count, first + width)) for first in range(0, count, width)))

    @property
    def width(self) -> int:
        """How many numbers a bin holds; the last one may hold fewer."""
        return len(self.ranges[0]) if self.ranges else 1

    def label(self, index: int) -> str:
        """`3`, or `120–129`."""
        bin_range = self.ranges[index]
        return str(bin_range[0]) if len(bin_range) == 1 else f"{bin_range[0]}–{bin_range[-1]}"


@dataclass(frozen=True, slots=True)
class Grid:
    """The cells of one report's workers."""

    dp: Bins
    stages: Bins

    @classmethod
    def of(cls, report: Report) -> Grid:
        """The grid of a report, coarse enough to be drawn."""
        dp_size, pp_size = grid_size(report)
        return cls(Bins.of(dp_size, MOST_COLUMNS), Bins.of(pp_size, MOST_ROWS))

    @property
    def is_coarse(self) -> bool:
        """True where a cell stands for several workers."""
        return self.dp.width > 1 or self.stages.width > 1

    def keys(self) -> list[list[str]]:
        """The workers of each cell, row by row."""
        return [
            [worker_key(dp_rank, stage) for stage in stages for dp_rank in dp_ranks]
            for stages in self.stages.ranges
            for dp_ranks in self.dp.ranges
        ]


def worst_of(keys: Sequence[str], values: Mapping[str, float]) -> str | None:
    """The key with the largest value that is a number."""
    known = [key for key in keys if is_finite(values.get(key))]
    return max(known, key=lambda key: values[key]) if known else None


def worker_words(report: Report, key: str) -> str:
    """`rank 3 (dp 1, stage 2) on node7`."""
    dp_rank, stage = key.split(",")
    host = report.worker_host.get(key)
    return f"{worker_name(report, key)} (dp {dp_rank}, stage {stage})" + (f" on {host}" if host else "")


def cell_names(report: Report, grid: Grid) -> list[str]:
    """What each cell stands for, row by row."""
    names = []
    for index, keys in enumerate(grid.keys()):
        row, column = divmod(index, len(grid.dp.ranges))
        if len(keys) == 1:
            names.append(worker_words(report, keys[0]))
        else:
            place = f"dp {grid.dp.label(column)}, stage {grid.stages.label(row)}"
            names.append(f"{place}, worst of {counted(len(keys), 'worker')}")
    return names


def heatmap(report: Report, grid: Grid) -> str:
    """The grid of exact slowdowns over all steps, with its legend and a line that says what a cell holds."""
    coarse = ""
    if grid.is_coarse:
        coarse = (
            f" A cell stands for {grid.dp.width:,} dp ranks × {counted(grid.stages.width, 'stage')}: "
            "it shows the slowest worker of them."
        )
    return (
        "<p class='muted'>Slowdown of the job if only this worker were slow; stages down, dp ranks across. "
        f"Arrow keys move between cells.{coarse}</p>\n"
        f"{scroll_region('Slowdown by worker')}{_table(report, grid)}</div>\n"
        "<p class='cell-label' role='status' aria-live='polite'></p>\n" + _legend()
    )


def _table(report: Report, grid: Grid) -> str:
    columns = len(grid.dp.ranges)
    values, names, cells = report.slowdown_by_worker, cell_names(report, grid), grid.keys()
    worst_keys = [worst_of(keys, values) for keys in cells]
    worst = worst_of([key for key in worst_keys if key is not None], values)
    has_numbers = columns <= _MOST_NUMBERED_COLUMNS
    size = "numbered" if has_numbers else "small"
    head = "".join(f"<th scope='col'>{safe(grid.dp.label(column))}</th>" for column in range(columns))
    rows = []
    for row in range(len(grid.stages.ranges)):
        texts = []
        for index in range(row * columns, (row + 1) * columns):
            key = worst_keys[index]
            is_worst = key is not None and key == worst
            label = f"{names[index]}: {_cell_words(report, key, len(cells[index]) > 1)}"
            # One cell can be reached by tab, the worst one; arrow keys move from there (page.js).
            stop = is_worst or (worst is None and index == 0)
            texts.append(
                f"<td class='{_level_class(values.get(key or ''))}{' worst' if is_worst else ''}' "
                f"tabindex='{0 if stop else -1}' aria-label='{safe(label)}' title='{safe(label)}'>"
                f"{ratio(values.get(key or '')) if has_numbers else ''}</td>"
            )
        rows.append(f"<tr><th scope='row'>{safe(grid.stages.label(row))}</th>{''.join(texts)}</tr>\n")
    return (
        f"<table class='heat {size}' role='grid' aria-label='Slowdown by worker: rows are stages, columns dp ranks'>\n"
        f"<thead><tr><td class='corner'>stage ↓ dp →</td>{head}</tr></thead>\n<tbody>\n{''.join(rows)}</tbody></table>"
    )


def _cell_words(report: Report, key: str | None, is_one_of_several: bool) -> str:
    if key is None:
        return "slowdown unknown"
    words = f"slowdown {ratio(report.slowdown_by_worker[key], 3)}"
    if is_one_of_several:
        words += f", {worker_words(report, key)}"
    for kind, name in (("forward_compute", "forward"), ("backward_compute", "backward")):
        value = report.worker_median_s.get(kind, {}).get(key)
        if is_finite(value):
            words += f", {name} {seconds(value)}"
    return words


def _level_class(value: float | None) -> str:
    level = level_of(value)
    return "unknown" if level is None else f"l{level}"


def _legend() -> str:
    items = "".join(
        f"<li class='l{level}'>{'≥ ' if level == len(REDS) - 1 else ''}{level_start(level):.2f}</li>"
        for level in range(len(REDS))
    )
    return (
        f"<ul class='legend' aria-label='Colours: the smallest slowdown of each'>{items}</ul>\n"
        "<p class='muted'>The slowest worker has a frame.</p>\n"
    )
