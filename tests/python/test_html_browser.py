"""The page, clicked through in a headless Chromium: by keyboard, in the dark, on a phone, at ten thousand ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from smon_rt.analysis.report import Report
from smon_rt.report.html import write_html
from tests.python.browser import Browser, find_chromium
from tests.python.report_fixtures import make_raw, make_trace

pytestmark = pytest.mark.browser

HOSTILE = "<img src=x onerror=console.log('run')> & \"quoted\" " + "long-" * 40
PHONE, DESKTOP = 390, 1200


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("no Chromium on this machine: install the package chromium to draw the page")
    with Browser(chromium, tmp_path_factory.mktemp("profile")) as started:
        yield started


def report_of(name: str = "job", **raw: Any) -> Report:
    built = make_raw(removed={"worker": 0.9}, **raw)
    return Report.from_raw(built, make_trace(built, name=name))  # type: ignore[arg-type]


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """Six steps, the fourth is the slowest one."""
    target = tmp_path / "report.html"
    write_html([report_of(steps=range(6), nodelay_s=[2, 2, 2, 3, 2, 2])], str(target))
    return target


def assert_quiet(browser: Browser, page: Path) -> None:
    """Nothing was said on the console, nothing was asked of the network."""
    assert browser.complaints == []
    assert browser.requests == [page.as_uri()]


def overflow(browser: Browser) -> int:
    """How many pixels the page is wider than its window."""
    return int(browser.value("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("dp", "pp", "steps"), [(4, 4, 20), (64, 16, 3), (1, 1, 1), (2, 40, 2)])
def test_the_page_fits_and_is_quiet(
    browser: Browser, tmp_path: Path, width: int, scheme: str, dp: int, pp: int, steps: int
) -> None:
    target = tmp_path / "report.html"
    write_html([report_of(HOSTILE, dp=dp, pp=pp, steps=range(steps)), report_of(HOSTILE)], str(target))
    browser.open(target, width=width, prefers_color_scheme=scheme)
    assert overflow(browser) <= 0
    assert browser.value("document.querySelectorAll('.explorer:not([hidden])').length") == 2
    assert browser.value("document.querySelectorAll('.step-grid table.heat').length") == 2
    assert_quiet(browser, target)


def test_the_slider_moves_by_keyboard(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert browser.text(".step-label").startswith("step 3: slowdown 3.000; base 3.10 s")
    browser.focus("input.step")
    browser.press("ArrowLeft")
    assert browser.text(".step-label").startswith("step 2: slowdown 2.000")
    assert browser.value("document.querySelector('input.step').getAttribute('aria-valuetext')").startswith("step 2:")
    browser.press("End")
    assert browser.text(".step-label").startswith("step 5:")
    assert browser.value("document.querySelector('.next').disabled") is True
    assert browser.value("document.querySelector('.cursor').getAttribute('d')").startswith("M916.7 ")
    assert_quiet(browser, page)


def test_buttons_and_the_curve_choose_a_step(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.value("document.querySelector('.next').click()")
    assert browser.text(".step-label").startswith("step 4:")
    browser.value(
        "(() => { const curve = document.querySelector('.curve'), box = curve.getBoundingClientRect();"
        "curve.dispatchEvent(new MouseEvent('click', {clientX: box.left + 2, clientY: box.top + 2})); })()"
    )
    assert browser.text(".step-label").startswith("step 0:")


def test_tabs_change_by_keyboard(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.focus(".tabs input")
    seen = []
    for _ in range(3):
        browser.press("ArrowRight")
        seen.append(browser.value("Array.from(document.querySelectorAll('.tiles .name'), item => item.textContent)"))
    assert seen[0] == [f"stage {stage}" for stage in range(4)]
    assert seen[1] == [f"dp {dp_rank}" for dp_rank in range(4)]
    assert "backward_compute" in seen[2]
    assert browser.text(".tiles .worst") == "backward_compute1.500"
    browser.press("ArrowRight")
    assert browser.value("document.querySelectorAll('.step-grid td.worst').length") == 1
    assert_quiet(browser, page)


@pytest.mark.parametrize("where", ["#workers-0", ".step-grid"])
def test_cells_are_reached_by_keyboard(browser: Browser, page: Path, where: str) -> None:
    browser.open(page)
    assert browser.value(f"document.querySelectorAll(\"{where} tbody td[tabindex='0']\").length") == 1
    browser.focus(f"{where} td[tabindex='0']")
    focused = "document.activeElement.getAttribute('aria-label')"
    assert browser.value(focused).startswith("rank 9 (dp 1, stage 2): slowdown 2.167")
    browser.press("ArrowLeft")
    browser.press("ArrowUp")
    assert browser.value(focused).startswith("rank 4 (dp 0, stage 1): slowdown 1.000")
    browser.press("ArrowLeft")
    browser.press("End")
    assert browser.value(focused).startswith("rank 7 (dp 3, stage 1)")
    labels = browser.value("Array.from(document.querySelectorAll('.cell-label'), label => label.textContent)")
    assert any(label.startswith("rank 7 (dp 3, stage 1): slowdown 1.000") for label in labels)
    assert browser.value(f"document.querySelectorAll(\"{where} tbody td[tabindex='0']\").length") == 1


def test_tab_reaches_every_control(browser: Browser, page: Path) -> None:
    browser.open(page)
    reached = set()
    for _ in range(60):
        browser.press("Tab")
        reached.add(browser.value("document.activeElement.className || document.activeElement.tagName"))
    assert {"step", "previous", "next", "scroll", "A", "l8 worst", "INPUT"} <= reached


def test_the_dark_page_is_dark(browser: Browser, page: Path) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    browser.open(page, prefers_color_scheme="dark")
    assert browser.value(ground) == "rgb(13, 17, 23)"
    browser.open(page, prefers_color_scheme="light")
    assert browser.value(ground) == "rgb(255, 255, 255)"


def test_motion_is_asked_for(browser: Browser, page: Path) -> None:
    behavior = "getComputedStyle(document.documentElement).scrollBehavior"
    browser.open(page, prefers_reduced_motion="reduce")
    assert browser.value(behavior) == "auto"


def test_what_a_name_smuggles_in_is_not_run(browser: Browser, page: Path) -> None:
    smuggled = "<script>console.log('run')</script><img src=x onerror=\"console.log('run')\"></body>"
    page.write_text(page.read_text(encoding="utf-8").replace("</body>", smuggled), encoding="utf-8")
    browser.open(page)
    assert not [words for words in browser.complaints if "'run'" in words and "consoleAPI" in words]
    assert all("Content Security Policy" in words for words in browser.complaints)
    assert browser.complaints, "the policy has refused it"


def test_ten_thousand_ranks_stay_usable(browser: Browser, tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    write_html([report_of(dp=625, pp=16, steps=range(300), worker=(123, 3))], str(target))
    browser.open(target, width=PHONE)
    assert overflow(browser) <= 0
    browser.focus("input.step")
    browser.press("ArrowRight")
    assert browser.text(".explorer .cell-label").startswith("slowest: dp 120–129, stage 3, worst of 10 workers")
    assert_quiet(browser, target)
