"""Plain in a pipe, rich in a terminal, and never an escape sequence that a job's name brought along."""

from __future__ import annotations

import io
import math
import re
from typing import Any

import pytest

from smon_rt.analysis import units
from smon_rt.analysis.report import Report
from smon_rt.report.tables import all_tables
from smon_rt.report.terminal import plain_table, print_heading, print_headline, print_report, print_text
from tests.python.report_fixtures import make_raw, make_trace


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def report_of(raw: dict[str, Any], **trace: Any) -> Report:
    return Report.from_raw(raw, make_trace(raw, **trace))  # type: ignore[arg-type]


def test_a_pipe_gets_the_verdict_first_and_no_colours() -> None:
    report = report_of(make_raw(removed={"worker": 0.9}, m_w=0.9))
    stream = io.StringIO()
    print_report(report, stream=stream)
    text = stream.getvalue()
    assert text.startswith(report.verdict.text + "\n\n")
    assert "\x1b" not in text
    for table in all_tables(report):
        assert table.title in text


def test_plain_columns_line_up() -> None:
    for table in all_tables(report_of(make_raw())):
        lines = plain_table(table).splitlines()[1 : 2 + len(table.rows)]
        last = [line.rstrip() for line in lines]
        assert len({len(line) for line in last}) == 1, table.title


def test_a_terminal_gets_colours_and_all_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    report = report_of(make_raw())
    stream = Terminal()
    print_report(report, stream=stream)
    assert "\x1b[" in stream.getvalue()
    text = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue())
    for line in report.verdict.text.splitlines():
        assert line.split(maxsplit=1)[1] in text


def test_a_command_is_not_broken_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    command = f"smon export {'a/' * 40}trace --format perfetto --ideal -o trace.pftrace  (the timelines)"
    stream = Terminal()
    print_text(f"slowdown {'word ' * 30}\nnext     {command}\n         and more", [], stream=stream)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue()).splitlines()
    assert f"next     {command}" in lines
    assert [line.rstrip() for line in lines][-1] == "         and more"
    assert max(len(line.rstrip()) for line in lines if "word" in line) <= 70


def test_a_stream_that_lacks_a_character_is_no_error() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    print_report(report_of(make_raw()), stream=stream)
    assert raw.getvalue().startswith(b"slowdown 2.00 (1.99?2.01)")


def test_quiet_is_one_line() -> None:
    stream = io.StringIO()
    print_headline(report_of(make_raw()), "a.parquet", stream=stream)
    assert stream.getvalue().startswith("a.parquet: slowdown 2.00 ")
    assert stream.getvalue().count("\n") == 1


def test_a_heading_cannot_drive_the_terminal() -> None:
    stream = io.StringIO()
    print_heading("a\x1b[2Jb\n", stream=stream)
    assert "\x1b" not in stream.getvalue()
    assert stream.getvalue().count("\n") == 1


def test_the_worst_workers_come_first() -> None:
    table = next(table for table in all_tables(report_of(make_raw(worker=(2, 1)))) if "workers" in table.title)
    assert len(table.rows) == 10
    assert table.rows[0][:4] == ("rank 6", "2", "1", "2.000")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (46.649, "46.6 s"),
        (2.2144, "2.21 s"),
        (0.18442, "184 ms"),
        (9.999, "10.0 s"),
        (0.99999, "1.00 s"),
        (0.0, "0 s"),
        (12345.6, "12,346 s"),
        (1.5e-5, "15.0 µs"),
        (-0.0277, "-27.7 ms"),
        (math.nan, "unknown"),
        (None, "unknown"),
    ],
)
def test_durations_have_three_digits(value: float | None, text: str) -> None:
    assert units.seconds(value) == text


def test_an_interval_has_one_unit() -> None:
    assert units.seconds_range(22.81, 23.19) == "22.8 to 23.2 s"
    assert units.seconds_range(-0.107, 0.0913) == "-107 to 91.3 ms"
    assert units.seconds_range(0.0, 0.0) == "0 to 0 s"
    assert units.seconds_range(None, None) == "–"


def test_a_small_loss_is_not_called_none() -> None:
    assert units.money(0.001, "USD") == "under $0.01"
    assert units.money(0.0, "EUR") == "0.00 EUR"
    assert units.money(1234.5, "USD") == "$1,234.50"


def test_no_minus_stands_before_a_zero() -> None:
    assert units.ratio(-0.001) == "0.00"
    assert units.percent(-0.001) == "nothing"
