"""The report as text: colours and boxes in a terminal, plain aligned columns in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TextIO

from smon_rt.analysis.input_file import shown
from smon_rt.analysis.report import Report
from smon_rt.analysis.situation import WORTH_FIXING_SLOWDOWN
from smon_rt.analysis.units import is_finite
from smon_rt.report.communication_tables import group_table
from smon_rt.report.tables import Table, all_tables

if TYPE_CHECKING:
    from rich.console import Console


_NARROWEST_COLUMNS = 60
#: Lines that begin so are there to be copied.
_COMMAND = "smon "


def print_report(report: Report, *, stream: TextIO | None = None, with_tables: bool = True) -> None:
    """Writes the verdict, then the tables, to `stream` (stdout by default)."""
    stream = stream or sys.stdout
    tables = [*all_tables(report), group_table(report)] if with_tables else []
    lost = is_finite(report.lost_ratio) and report.lost_ratio >= WORTH_FIXING_SLOWDOWN
    print_text(
        "\n".join(labelled_lines(report)),
        [table for table in tables if table.rows],
        stream=stream,
        headline_style="bold red" if lost else "bold green",
    )


def labelled_lines(report: Report) -> list[str]:
    """The verdict's lines, then what a change would bring."""
    return [*report.verdict.text.splitlines(), *(f"{'advice':<9}{each.text}" for each in report.advice)]


def print_text(text: str, tables: Sequence[Table], *, stream: TextIO, headline_style: str = "") -> None:
    """Writes labelled lines (`label words…`), then tables: styled in a terminal, plain elsewhere."""
    if stream.isatty():
        _print_rich(text, tables, stream, headline_style)
    else:
        _write(stream, "\n\n".join([text, *(plain_table(table) for table in tables)]) + "\n")


def print_headline(report: Report, heading: str | None, *, stream: TextIO) -> None:
    """The verdict's first line alone, after the name of its trace where there are several."""
    prefix = f"{shown(heading)}: " if heading is not None else ""
    _write(stream, prefix + report.verdict.text.partition("\n")[0] + "\n")


def print_heading(report_path: str, *, stream: TextIO) -> None:
    """One line above a report where there are several."""
    _write(stream, f"== {shown(report_path)} ==\n")


def plain_table(table: Table) -> str:
    """Aligned columns, no colours, no boxes, never cut."""
    lines = [table.columns, *table.rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(table.columns))]
    text = [table.title]
    for line in lines:
        cells = (
            cell.ljust(width) if table.is_text(column) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        text.append(("  " + "  ".join(cells)).rstrip())
    if table.note:
        text += ["  " + line for line in table.note.splitlines()]
    return "\n".join(text)


def _write(stream: TextIO, text: str) -> None:
    """Writes what the stream's encoding can say; a dash that it lacks becomes a question mark, not an error."""
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "replace").decode(encoding))
    stream.flush()


def _print_rich(text: str, tables: Sequence[Table], stream: TextIO, headline_style: str) -> None:
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    console = Console(file=stream, highlight=False)
    # Some terminals claim no width at all; on a narrow one its own wrapping reads better than a letter a line.
    console.width = max(console.width, _NARROWEST_COLUMNS)
    lines = [line.partition(" ") for line in text.splitlines()]
    width = max((len(label) for label, _, _ in lines), default=0)
    for index, (label, _, words) in enumerate(lines):
        words = words.strip()
        if words.startswith(_COMMAND):
            # Wrapped by the terminal alone: a line break of ours would be copied with it.
            console.print(Text.assemble((f"{label:<{width}} ", "bold"), words), soft_wrap=True)
            continue
        row = RichTable.grid(padding=(0, 1))
        row.add_column(style="bold", no_wrap=True, min_width=width)
        row.add_column(overflow="fold")
        row.add_row(label, Text(words, style=headline_style if index == 0 else ""))
        console.print(row)
    for table in tables:
        _print_rich_table(console, table)


def _print_rich_table(console: Console, table: Table) -> None:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    title = Text(table.title, style="bold")
    rich_table = RichTable(box=box.SIMPLE_HEAD, title_justify="left", title=title, pad_edge=False, padding=(0, 1, 0, 0))
    for column, name in enumerate(table.columns):
        justify: Literal["left", "right"] = "left" if table.is_text(column) else "right"
        # Names stay whole: on a narrow terminal the columns of numbers wrap.
        rich_table.add_column(Text(name), justify=justify, no_wrap=column == 0, overflow="fold")
    for row in table.rows:
        rich_table.add_row(*(Text(cell) for cell in row))
    console.print()
    console.print(rich_table)
    if table.note:
        console.print(Text(table.note, style="dim"))
