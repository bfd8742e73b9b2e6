"""The report as JSON: one object for one trace, a list of them for several."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from smon_rt.analysis.report import Report
from smon_rt.report.output_file import write_text


def write_json(reports: Sequence[Report], destination: str, *, as_list: bool) -> None:
    """Writes to a file, or to stdout for `-`. Raises SmonError where the file cannot be written.

    `as_list` is true where several traces were named, even if only one could be read: a reader finds the same form.
    """
    document: Any = [report.to_dict() for report in reports] if as_list else reports[0].to_dict()
    # ASCII only: the same bytes whatever the encoding of the stream, and lone surrogates of a file name survive.
    text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    write_text(destination, text)


def json_schema() -> dict[str, Any]:
    """The JSON schema of one report."""
    return _schema("report_schema.json")


def answer_schema() -> dict[str, Any]:
    """The JSON schema of one answer of `smon what-if`."""
    return _schema("what_if_schema.json")


def _schema(name: str) -> dict[str, Any]:
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema
