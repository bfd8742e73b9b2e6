"""`smon analyze`: what is printed where, exit codes, and outputs that appear whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import smon_rt.analysis
from smon_rt.analysis.report import Report, ReportOptions
from smon_rt.cli import run
from smon_rt.errors import SmonError, TraceError
from smon_rt.report.json_output import json_schema
from smon_rt.report.output_file import write_atomically
from tests.python.report_fixtures import make_raw, make_trace

Calls = list[dict[str, Any]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Replaces the engine: a name with `bad` cannot be read, one with `fine` has no straggler."""
    seen: Calls = []

    def analyze(path: str | list[str], **options: Any) -> Report:
        seen.append({"path": path, **options})
        path = path if isinstance(path, str) else " ".join(path)
        if "bad" in path:
            raise TraceError(f"{path}: is bad; give another")
        raw = make_raw(nodelay_s=1.05 if "fine" in path else 2.0)
        report_options = ReportOptions(options["gpu_hour_price"], options["currency"])
        return Report.from_raw(raw, make_trace(raw, path=path), report_options)  # type: ignore[arg-type]

    monkeypatch.setattr(smon_rt.analysis, "analyze", analyze)
    return seen


Said = Callable[[], tuple[str, str]]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    def read() -> tuple[str, str]:
        captured = capsys.readouterr()
        return captured.out, captured.err

    return read


def test_the_verdict_comes_first_and_all_is_fine(calls: Calls, said: Said) -> None:
    assert run(["analyze", "a.parquet", "--meta", "m.yaml", "--steps", "20-40"]) == 0
    out, err = said()
    assert out.startswith("slowdown 2.00 ")
    assert "By kind" in out
    assert err == ""
    assert calls[0]["meta"] == "m.yaml"
    assert calls[0]["steps"] == range(20, 41)


def test_json_on_stdout_is_alone_there(calls: Calls, said: Said) -> None:
    assert run(["analyze", "a.parquet", "--json", "-", "--gpu-hour-price", "3", "--currency", "EUR"]) == 0
    out, err = said()
    document = json.loads(out)
    jsonschema.validate(document, json_schema(), cls=jsonschema.Draft202012Validator)
    assert document["verdict"]["currency"] == "EUR"
    assert document["verdict"]["cost"] == pytest.approx(3 * document["verdict"]["gpu_hours_lost"])
    assert err.startswith("slowdown 2.00 ")


def test_files_are_written_and_named(calls: Calls, said: Said, tmp_path: Path) -> None:
    json_path, html_path = tmp_path / "r.json", tmp_path / "r.html"
    assert run(["analyze", "a.parquet", "--json", str(json_path), "--html", str(html_path)]) == 0
    assert json.loads(json_path.read_text())["path"] == "a.parquet"
    assert html_path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert said()[0].rstrip().endswith(f"report: {html_path}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.html", "r.json"]


def test_several_paths_get_headings_and_a_list(calls: Calls, said: Said, tmp_path: Path) -> None:
    json_path = tmp_path / "r.json"
    assert run(["analyze", "a.parquet", "fine.parquet", "--json", str(json_path)]) == 0
    out, _ = said()
    assert out.index("== a.parquet ==") < out.index("slowdown 2.00") < out.index("== fine.parquet ==")
    assert [report["path"] for report in json.loads(json_path.read_text())] == ["a.parquet", "fine.parquet"]


def test_one_bad_path_does_not_hide_the_others(calls: Calls, said: Said, tmp_path: Path) -> None:
    json_path = tmp_path / "r.json"
    assert run(["analyze", "bad.parquet", "a.parquet", "--json", str(json_path)]) == 2
    out, err = said()
    assert err == "smon: bad.parquet: is bad; give another\n"
    assert "slowdown 2.00" in out
    assert isinstance(json.loads(json_path.read_text()), list)


def test_a_bad_path_is_one_line(calls: Calls, said: Said) -> None:
    assert run(["analyze", "bad.parquet"]) == 2
    assert said() == ("", "smon: bad.parquet: is bad; give another\n")


def test_recorded_traces_are_one_job_and_each_parquet_its_own(calls: Calls, said: Said, tmp_path: Path) -> None:
    (tmp_path / "node0").mkdir()
    nodes = [str(tmp_path / "node0"), "rank-00001.run-0.smon"]
    assert run(["analyze", "a.parquet", nodes[0], "b.parquet", nodes[1]]) == 0
    assert [call["path"] for call in calls] == ["a.parquet", nodes, "b.parquet"]
    assert said()[0].count("== ") == 3


def test_globs_that_the_shell_left_alone_are_resolved(calls: Calls, tmp_path: Path) -> None:
    for name in ("b.parquet", "a.parquet", "c.txt"):
        (tmp_path / name).touch()
    assert run(["analyze", str(tmp_path / "*.parquet"), "--quiet"]) == 0
    assert [Path(call["path"]).name for call in calls] == ["a.parquet", "b.parquet"]


def test_a_name_with_brackets_is_a_name(calls: Calls, tmp_path: Path) -> None:
    odd = tmp_path / "trace[1].parquet"
    odd.touch()
    assert run(["analyze", str(odd), "--quiet"]) == 0
    assert calls[0]["path"] == str(odd)


@pytest.mark.parametrize(("limit", "code"), [("1.1", 1), ("2.5", 0), ("2.0", 0)])
def test_fail_above_compares_the_slowdown(calls: Calls, limit: str, code: int) -> None:
    assert run(["analyze", "a.parquet", "--quiet", "--fail-above", limit]) == code


def test_fail_above_looks_at_every_path(calls: Calls) -> None:
    assert run(["analyze", "fine.parquet", "a.parquet", "--quiet", "--fail-above", "1.1"]) == 1
    assert run(["analyze", "fine.parquet", "--quiet", "--fail-above", "1.1"]) == 0


def test_an_output_that_cannot_be_is_refused_before_any_work(calls: Calls, said: Said, tmp_path: Path) -> None:
    missing, html_path = tmp_path / "no" / "r.json", tmp_path / "r.html"
    assert run(["analyze", "a.parquet", "--json", str(missing), "--html", str(html_path)]) == 2
    out, err = said()
    assert (out, err.count("\n"), calls) == ("", 1, [])
    assert f"{missing}: cannot write: No such file or directory" in err
    assert not html_path.exists()
    assert run(["analyze", "a.parquet", "--html", str(tmp_path)]) == 2
    assert "is a directory" in said()[1]


def test_an_output_that_fails_is_one_line_after_the_verdict(calls: Calls, said: Said, tmp_path: Path) -> None:
    html_path = tmp_path / "r.html"
    assert run(["analyze", "a.parquet", "--json", "/dev/full", "--html", str(html_path)]) == 2
    out, err = said()
    assert out.startswith("slowdown 2.00 ")
    assert err.count("\n") == 1
    assert "/dev/full: cannot write: No space left on device" in err
    assert html_path.exists()


@pytest.mark.parametrize("steps", ["x", "5-", "-5", "9-3", "1-2-3", ""])
def test_no_step_range_is_one_line(calls: Calls, said: Said, steps: str) -> None:
    assert run(["analyze", "a.parquet", f"--steps={steps}"]) == 2
    assert said()[1].count("\n") == 1
    assert calls == []


@pytest.mark.parametrize("option", ["--fail-above=nan", "--gpu-hour-price=-1", "--gpu-hour-price=inf"])
def test_numbers_that_make_no_sense_are_refused(calls: Calls, option: str) -> None:
    assert run(["analyze", "a.parquet", option]) == 2
    assert calls == []


def test_quiet_says_one_line(calls: Calls, said: Said) -> None:
    assert run(["analyze", "a.parquet", "--quiet"]) == 0
    out, err = said()
    assert out.startswith("slowdown 2.00 ")
    assert (out.count("\n"), err) == (1, "")


def test_an_output_is_whole_or_absent(tmp_path: Path) -> None:
    target = tmp_path / "out.txt"
    target.write_text("old")

    def parts() -> Any:
        yield "new"
        raise OSError(28, "No space left on device")

    with pytest.raises(SmonError, match="No space left on device"):
        write_atomically(str(target), parts())
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_an_output_keeps_links_rights_and_devices(tmp_path: Path) -> None:
    target, link = tmp_path / "out.txt", tmp_path / "link"
    link.symlink_to(target)
    write_atomically(str(link), ["text"])
    assert link.is_symlink()
    assert target.read_text() == "text"
    mask = os.umask(0)
    os.umask(mask)
    assert target.stat().st_mode & 0o777 == 0o666 & ~mask
    write_atomically("/dev/null", ["text"])
    assert Path("/dev/null").is_char_device()
    with pytest.raises(SmonError, match="is a directory"):
        write_atomically(str(tmp_path), ["text"])


def test_an_output_never_replaces_what_is_read(calls: Calls, said: Said, tmp_path: Path) -> None:
    trace, record, link = tmp_path / "job.parquet", tmp_path / "job.yaml", tmp_path / "link.json"
    trace.write_text("ops")
    record.write_text("sizes")
    link.symlink_to(trace)
    hard = tmp_path / "hard.json"
    hard.hardlink_to(trace)
    for option in (f"--json={trace}", f"--html={record}", f"--json={link}", f"--html={hard}"):
        assert run(["analyze", str(trace), option]) == 2
        assert "is what is analysed: choose another place" in said()[1]
    other = tmp_path / "other.yaml"
    other.write_text("sizes")
    assert run(["analyze", str(trace), f"--meta={other}", f"--json={other}"]) == 2
    assert calls == []
    assert (trace.read_text(), record.read_text(), other.read_text()) == ("ops", "sizes", "sizes")


def test_two_outputs_need_two_files(calls: Calls, said: Said, tmp_path: Path) -> None:
    same = tmp_path / "out"
    assert run(["analyze", "a.parquet", f"--json={same}", f"--html={tmp_path}/./out"]) == 2
    assert said()[1] == f"smon: {same}: asked for by both --json and --html: name two files\n"
    assert run(["analyze", "a.parquet", "--json=/dev/null", "--html=/dev/null"]) == 0


@pytest.mark.parametrize(
    "option",
    [
        *("--json=", "--html=", "--html=-"),
        *("--gpu-hour-price=1e10", "--gpu-hour-price=nan", "--currency=", "--currency=a\nb", "--currency=\x1b[31m"),
        *("--steps=1_0", "--steps=\u0663", f"--steps={'9' * 5000}"),
    ],
)
def test_options_that_make_no_sense_are_refused(calls: Calls, said: Said, option: str) -> None:
    assert run(["analyze", "a.parquet", option]) == 2
    assert said()[1].count("\n") == 1
    assert calls == []
