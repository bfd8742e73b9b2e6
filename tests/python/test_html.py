"""The page is one offline file: it fetches nothing, escapes what users named, draws its plots, stays small."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from smon_rt.analysis.report import Report
from smon_rt.report import html as page_module
from smon_rt.report.html import html_page, write_html
from tests.python.report_fixtures import make_raw, make_trace

HOSTILE = "<script>alert('x')</script> & \"quoted\" \x1b[31m"
PHONE_WIDTH, DESKTOP_WIDTH = 390, 1200


def report_of(raw: dict[str, Any], **trace: Any) -> Report:
    return Report.from_raw(raw, make_trace(raw, **trace))  # type: ignore[arg-type]


def page_without_plotly(*reports: Report) -> str:
    """The page but for the inlined library, whose text is not ours."""
    return "".join(part for part in html_page(reports) if "plotly.js v" not in part)


def plot_data(page: str) -> list[dict[str, Any]]:
    return [json.loads(text) for text in re.findall(r"<script type='application/json'>(.*?)</script>", page, re.DOTALL)]


@pytest.fixture(scope="session")
def chromium() -> str:
    found = next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )
    if found is None:
        pytest.skip("no Chromium on this machine: install the package chromium to draw the page")
    return found


def test_the_page_fetches_nothing() -> None:
    page = page_without_plotly(report_of(make_raw()))
    assert not re.findall(r"(?:src|href)\s*=", page)
    assert not re.findall(r"https?:|@import|url\(|fetch\(|XMLHttpRequest|WebSocket", page)
    assert "default-src 'none'" in page


def test_the_library_is_inlined_once_for_several_reports() -> None:
    page = "".join(html_page([report_of(make_raw()), report_of(make_raw())]))
    assert page.count("plotly.js v") == 1
    assert page.count("<section") == 2


def test_what_users_named_cannot_become_markup() -> None:
    page = page_without_plotly(report_of(make_raw(), name=HOSTILE, path=HOSTILE))
    assert "<script>alert" not in page
    assert "\x1b" not in page
    assert page.count("&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt; &amp; &quot;quoted&quot;") == 3


def test_undecodable_names_can_be_written(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    write_html([report_of(make_raw(), name="a\udcffb", path="\udcff.parquet")], str(target))
    target.read_text(encoding="utf-8")


def test_verdict_and_tables_are_readable_without_scripts() -> None:
    report = report_of(make_raw(removed={"worker": 0.9}, m_w=0.9))
    text = unescape(re.sub(r"<script.*?</script>", "", page_without_plotly(report), flags=re.DOTALL))
    for line in report.verdict.text.splitlines():
        assert line.split(maxsplit=1)[1] in text
    for title in ("Step time", "Causes", "By kind", "By stage", "Worst 10 of 16 workers"):
        assert f"<h2>{title}</h2>" in text


def test_the_heat_map_has_stages_down_and_dp_ranks_across() -> None:
    (data,) = plot_data(page_without_plotly(report_of(make_raw(dp=3, pp=2, worker=(2, 1), steps=[4, 9]))))
    assert (data["dp"], data["pp"], data["range"]) == (3, 2, [1.0, 1.5])
    assert data["grid"] == [[1.0, 1.0, 1.0], [1.0, 1.0, 2.0]]
    assert data["workers"] == [[f"rank {rank}" for rank in row] for row in ((0, 1, 2), (3, 4, 5))]
    assert data["grids"] == [data["grid"], data["grid"]]
    assert data["shown_steps"] == ["4", "9"]
    assert data["times"]["base"] == [2.1, 2.1]


def test_the_slider_starts_at_the_slowest_step() -> None:
    page = page_without_plotly(report_of(make_raw(steps=range(6), nodelay_s=[2, 2, 2, 3, 2, 2])))
    assert "max='5' value='3'" in page


def test_a_page_of_many_steps_leaves_some_out_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "MOST_STEP_CELLS", 16 * 10)
    nodelay = [3.0 if step == 77 else 2.0 for step in range(100)]
    page = page_without_plotly(report_of(make_raw(steps=range(100), nodelay_s=nodelay)))
    (data,) = plot_data(page)
    assert len(data["shown_steps"]) <= 10
    assert "77" in data["shown_steps"]
    assert len(data["steps"]) == 100
    assert f"{100 - len(data['shown_steps'])} steps left out" in page


def test_undefined_slowdowns_are_gaps() -> None:
    raw = make_raw(dp=2, pp=1, steps=[1])
    raw["slowdown_by_worker"][0][0] = float("nan")
    (data,) = plot_data(page_without_plotly(report_of(raw)))
    assert data["grid"][0][0] is None


def test_a_big_job_stays_a_few_megabytes() -> None:
    raw = make_raw(dp=64, pp=16, steps=range(20))
    raw["slowdown_by_worker_by_step"] = [
        [[1.001 + (7 * d + 3 * s + i) % 100 / 997 for i in range(20)] for s in range(16)] for d in range(64)
    ]
    assert len(page_without_plotly(report_of(raw)).encode()) < 1_000_000


def test_the_page_of_a_published_trace_stays_under_six_megabytes(shared_traces: Path, tmp_path: Path) -> None:
    from smon_rt.analysis import analyze

    target = tmp_path / "AR.html"
    write_html([analyze(shared_traces / "trace-AR.parquet")], str(target))
    assert target.stat().st_size < 6_000_000


@pytest.mark.browser
@pytest.mark.parametrize("width", [DESKTOP_WIDTH, PHONE_WIDTH])
@pytest.mark.parametrize(("dp", "pp", "steps"), [(4, 4, 20), (64, 16, 3), (1, 1, 1)])
def test_a_browser_draws_every_plot(chromium: str, tmp_path: Path, width: int, dp: int, pp: int, steps: int) -> None:
    reports = [report_of(make_raw(dp=dp, pp=pp, steps=range(steps)), name=HOSTILE), report_of(make_raw())]
    target = tmp_path / "report.html"
    write_html(reports, str(target))
    # A press on the slider's button proves that the page is alive, not only drawn.
    press = "<script>document.querySelector('.previous').click();</script></body>"
    target.write_text(target.read_text(encoding="utf-8").replace("</body>", press), encoding="utf-8")
    command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},1600", "--dump-dom"]
    done = subprocess.run([*command, target.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
    assert len(re.findall(r'class="plot [a-z-]+ js-plotly-plot"', done.stdout)) == 6
    assert len(re.findall(r'class="hm"|class="heatmaplayer', done.stdout)) >= 4
    assert "step 0: slowdown 2.000" in done.stdout
