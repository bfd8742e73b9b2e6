"""Text of others as markup: escaped, printable, never executed. All parts of the page are written through this."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from smon_rt.report.tables import Table


def printable(text: str) -> str:
    """The text as any page can hold it: no control characters, no undecodable bytes, none that turn its direction."""
    return "".join(character if character.isprintable() else "�" for character in text)


def safe(text: str) -> str:
    """The text as markup, for elements and for quoted attributes."""
    return escape(printable(text))


def script_json(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def definitions(pairs: Iterable[tuple[str, str]], css_class: str = "facts") -> str:
    """A list of terms and what is said of each; both are plain text."""
    items = "".join(f"<dt>{safe(term)}</dt><dd>{safe(words)}</dd>\n" for term, words in pairs)
    return f"<dl class='{css_class}'>\n{items}</dl>\n"


def table_html(table: Table, bars: Sequence[float | None] = ()) -> str:
    """The table under its title. `bars`: for each row the part of a bar to draw behind its first number, 0 to 1."""
    head = "".join(
        f"<th scope='col'{' class=text' if table.is_text(column) else ''}>{safe(name)}</th>"
        for column, name in enumerate(table.columns)
    )
    rows = "".join(_row(table, cells, bars[index] if bars else None) for index, cells in enumerate(table.rows))
    note = "".join(f"<p class='muted'>{safe(line)}</p>\n" for line in table.note.splitlines())
    return (
        f"<h3>{safe(table.title)}</h3>\n{scroll_region(table.title)}<table>\n"
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody></table></div>\n{note}"
    )


def scroll_region(name: str) -> str:
    """The opening of a box that scrolls sideways, by keyboard too."""
    return f"<div class='scroll' role='region' tabindex='0' aria-label='{safe(name)}'>"


def bar(part: float, interval: tuple[float, float] | None = None) -> str:
    """A bar of 0 to 1, its interval as a line over it; the number stands beside it, so readers aloud skip it."""
    width = _part(part) * 100
    whisker = ""
    if interval is not None:
        low, high = (_part(end) * 100 for end in interval)
        whisker = f"<path class='whisker' d='M{low:.1f} 5H{high:.1f}M{low:.1f} 2V8M{high:.1f} 2V8'/>"
    return (
        "<svg class='bar' viewBox='0 0 100 10' preserveAspectRatio='none' aria-hidden='true'>"
        f"<rect x='0' y='1' width='{width:.1f}' height='8'/>{whisker}</svg>"
    )


def _row(table: Table, cells: Sequence[str], part: float | None) -> str:
    texts = [f"<th scope='row' class='text'>{safe(cells[0])}</th>"]
    for column, cell in enumerate(cells[1:], start=1):
        drawn = bar(part) if part is not None and column == 1 else ""
        texts.append(f"<td{' class=text' if table.is_text(column) else ''}>{drawn}{safe(cell)}</td>")
    return f"<tr>{''.join(texts)}</tr>\n"


def _part(value: float) -> float:
    return min(1.0, max(0.0, value))
