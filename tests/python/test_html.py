"""The page is one small offline file: it fetches nothing, escapes what users named, and answers what is asked next."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import itertools
import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from smon_rt.analysis import analyze
from smon_rt.analysis.advice import Advice
from smon_rt.analysis.causes import Cause, Where
from smon_rt.analysis.report import Report
from smon_rt.report import page_steps
from smon_rt.report.html import html_page, write_html
from smon_rt.report.json_output import json_schema
from smon_rt.report.page_answers import place_words
from tests.python.report_fixtures import make_raw, make_trace
from tests.python.smon_files import TestSpan, span_packet, step_packet, write_rank

HOSTILE = "<script>alert('x')</script> & \"quoted\" \x1b[31m\u202e"
ESCAPED = "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt; &amp; &quot;quoted&quot;"


def report_of(raw: dict[str, Any], **trace: Any) -> Report:
    return Report.from_raw(raw, make_trace(raw, **trace))  # type: ignore[arg-type]


def slow_worker_report(**raw: Any) -> Report:
    """A worker is named: dp 1, stage 2."""
    return report_of(make_raw(removed={"worker": 0.9}, **raw))


def page_of(*reports: Report) -> str:
    return "".join(html_page(reports))


def visible_text(page: str) -> str:
    """What stands in the body, as plain text without scripts."""
    body = page[page.index("<body>") :]
    return unescape(re.sub(r"<[^>]*>", " ", re.sub(r"<script.*?</script>", "", body, flags=re.DOTALL)))


def step_data(page: str) -> list[dict[str, Any]]:
    return [json.loads(text) for text in re.findall(r"<script type='application/json'>(.*?)</script>", page, re.DOTALL)]


def test_the_page_fetches_nothing() -> None:
    page = page_of(report_of(make_raw()))
    assert not re.findall(r"src\s*=|href='[^#]", page)
    assert not re.findall(r"https?:|@import|url\(|fetch\(|XMLHttpRequest|WebSocket", page)
    assert "default-src 'none'" in page


def test_only_the_page_s_own_script_and_style_may_run() -> None:
    page = page_of(report_of(make_raw()))
    for element in ("script", "style"):
        (text,) = re.findall(rf"<{element}>(.*?)</{element}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{element}-src 'sha256-{digest}'" in page
    assert "unsafe" not in page
    assert not re.findall(r"<[^>]*\s(?:style|on[a-z]+)=", page), "such attributes would be refused by the policy"


UUID = "003c74e6-5a84-4da8-ba23-e455ce8c1904"


@pytest.mark.parametrize(
    ("run", "path", "title"),
    [
        ("llama-70b", "/data/tuesday", "llama-70b"),
        (UUID, "/data/tuesday", "tuesday"),
        (UUID, "tuesday/", "tuesday"),
        (UUID, f"/data/tuesday/rank-00000.{UUID}-0.smon", "tuesday"),
        ("run", "node0/tuesday node1/tuesday", "tuesday"),
        (UUID, "/", UUID),
    ],
)
def test_a_run_that_nobody_named_is_called_as_its_directory(run: str, path: str, title: str) -> None:
    """torchrun makes up an id where it is given none: a page is found again by where its trace lies."""
    page = page_of(report_of(make_raw(), name=run, path=path))
    assert f"<title>{title}: stragglers</title>" in page
    assert f"<h1 id='name-0'>{title}</h1>" in page
    assert (f"run {run}" in visible_text(page)) == (title != run)


def test_a_trace_of_the_directory_one_stands_in_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tuesday").mkdir()
    monkeypatch.chdir(tmp_path / "tuesday")
    assert "<title>tuesday: " in page_of(report_of(make_raw(), name=UUID, path="."))


def test_what_users_named_cannot_become_markup() -> None:
    report = slow_worker_report()
    where = dataclasses.replace(report.verdict.where, host=HOSTILE, gpu_uuid=HOSTILE)
    causes = tuple(dataclasses.replace(cause, where=where) for cause in report.causes)
    fidelity = dataclasses.replace(
        report.fidelity, unfinished=(HOSTILE,), left_out=(HOSTILE,), dropped_spans={HOSTILE: 3}, clocks=HOSTILE
    )
    hostile = dataclasses.replace(
        report,
        path=HOSTILE,
        job=dataclasses.replace(report.job, name=HOSTILE),
        verdict=dataclasses.replace(report.verdict, where=where, text=f"slowdown {HOSTILE}\naction {HOSTILE}"),
        causes=causes,
        fidelity=fidelity,
        worker_host={"1,2": HOSTILE, "0,0": "</script><script>alert(1)</script>"},
        advice=(Advice(HOSTILE, HOSTILE, 1.0, 0.5, 1.5),),
    )
    page = page_of(hostile)
    assert not re.findall(r"<script>\s*alert|</script>\s*<script>alert", page)
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert page.count(ESCAPED) >= 12
    assert len(re.findall(r"<script", page)) == 2, "the page's own and its data"


def test_undecodable_names_can_be_written(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    write_html([report_of(make_raw(), name="a\udcffb", path="\udcff.parquet")], str(target))
    target.read_text(encoding="utf-8")


def test_the_top_answers_what_is_asked_next() -> None:
    report = slow_worker_report()
    page = page_of(report)
    text = re.sub(r"\s+", " ", visible_text(page[: page.index("aria-label='Sections")]))
    for line in report.verdict.text.splitlines():
        assert line.split(maxsplit=1)[1] in text
    assert "What do I do? take rank 9's machine out" in text
    assert "Which machine? rank 9 (dp 1, stage 2), host not recorded, GPU not recorded" in text
    assert "Since when? in all 20 analysed steps" in text
    assert "How sure is it? slowdown 2.00, with 95 % confidence 1.99 to 2.01; the gain is 900 ms a step" in text


def test_host_and_gpu_are_said_where_they_are_known() -> None:
    report = slow_worker_report()
    place = dataclasses.replace(report.verdict.where, host="node7", gpu_uuid="GPU-42", local_rank=3)
    named = [dataclasses.replace(cause, where=place) for cause in report.causes if cause.cause == "worker"]
    page = page_of(
        dataclasses.replace(
            report,
            causes=tuple(named),
            verdict=dataclasses.replace(report.verdict, where=place),
            worker_host={"1,2": "node7", "0,0": "node1"},
        )
    )
    assert "rank 9 (dp 1, stage 2), host node7, GPU GPU-42, local rank 3" in visible_text(page)
    assert "<h3>By machine</h3>" in page


def test_a_healthy_job_is_told_so_without_colour() -> None:
    page = page_of(report_of(make_raw(nodelay_s=1.01, delay_s=0.0)))
    text = re.sub(r"\s+", " ", visible_text(page))
    assert "✓ fine" in text
    assert "Since when? no cause stands out" in text
    assert "▲ loses time" in re.sub(r"\s+", " ", visible_text(page_of(slow_worker_report())))


def test_a_named_cause_of_a_small_loss_is_not_called_fine() -> None:
    text = re.sub(r"\s+", " ", visible_text(page_of(report_of(make_raw(nodelay_s=1.05, removed={"worker": 0.05})))))
    assert "● little is lost slowdown 1.05" in text


def test_both_meanings_of_lost_stand_side_by_side() -> None:
    text = re.sub(r"\s+", " ", visible_text(page_of(slow_worker_report(delay_s=0.25))))
    assert "The difference, 1.25 s a step, is all that is lost: 1.00 s to stragglers (nodelay − ideal) and" in text
    assert "250 ms to launch delays (base − nodelay). The headline counts the 1.00 s of the stragglers" in text
    early = re.sub(r"\s+", " ", visible_text(page_of(slow_worker_report(delay_s=-0.05))))
    assert (
        "The difference, 950 ms a step, is all that is lost: 1.00 s to stragglers (nodelay − ideal) and -50.0 ms"
        in early
    )
    assert "to launch delays (base − nodelay; below 0: ops began before" in early
    delayed = re.sub(r"\s+", " ", visible_text(page_of(report_of(make_raw(delay_s=3.0)))))
    assert "The headline counts all of it" in delayed
    hidden = re.sub(
        r"\s+", " ", visible_text(page_of(report_of(make_raw(nodelay_s=1.02, delay_s=0, removed={"gc": 0.3}))))
    )
    assert (
        "A recorded step takes 1.02 s, an ideal one 1.00 s: 20.0 ms more. The ideal has each kind at its mean" in hidden
    )
    assert "is all that is lost" not in hidden
    off = visible_text(page_of(report_of(make_raw(nodelay_s=0.9, delay_s=0.0, removed={"gc": 0.2}))))
    assert "by this measure nothing is lost. A cause that is in the means gives back" in off
    assert "✓ fine" not in off
    assert "-100 ms" not in off


def test_every_worker_of_a_group_is_a_machine_to_look_at() -> None:
    raw = make_raw(removed={"worker": 0.9})
    next(found for found in raw["causes"] if found["cause"] == "worker")["workers"] = [[1, 2], [3, 2]]
    assert "Which machine? ranks 9 and 11 (stage 2)" in " ".join(visible_text(page_of(report_of(raw))).split())


def test_causes_have_interval_place_and_steps() -> None:
    page = page_of(slow_worker_report())
    table = page[page.index("<table class='causes'") : page.index("</table>", page.index("<table class='causes'"))]
    named = table[table.index("class=named") :]
    assert "<span class='badge'>named</span>" in named
    assert "data-label='95 % interval'>900 to 900 ms<" in named
    assert "forward 2.50×, backward 2.50× its peers" in named
    assert "it shows in 20 of them: 0 to 19" in named


def test_small_causes_share_a_line() -> None:
    text = re.sub(r"\s+", " ", visible_text(page_of(slow_worker_report())))
    assert re.search(r"Less than 0.1 % of a step, or nothing at all: [a-z ,]*garbage collection", text)


def test_losses_are_listed() -> None:
    report = slow_worker_report()
    fidelity = dataclasses.replace(
        report.fidelity,
        dropped_spans={"forward_compute": 7, "gc": 12_000},
        missing_ranks=tuple(range(20, 40)),
        left_out=("warm-up",),
        clock_bound_s=0.0002,
        is_live=True,
    )
    text = re.sub(r"\s+", " ", visible_text(page_of(dataclasses.replace(report, fidelity=fidelity))))
    for words in ("gc 12,000 forward_compute 7", "missing ranks 20: 20, 21", "left out warm-up", "clock bound 200 µs"):
        assert words in text
    assert "still recording yes" in text
    assert "replay error 0.7 % on average, 2.0 % in the worst step" in text


def test_advice_is_shown_with_its_gain() -> None:
    advice = Advice("move_layers", "move 2 layers from stage 3 to stage 1", 0.25, 0.2, 0.3)
    text = re.sub(r"\s+", " ", visible_text(page_of(dataclasses.replace(slow_worker_report(), advice=(advice,)))))
    assert "What a change would bring" not in visible_text(page_of(slow_worker_report()))
    assert "move layers 250 ms 200 to 300 ms move 2 layers from stage 3 to stage 1" in text


def test_everything_but_single_steps_is_there_without_scripts() -> None:
    page = page_of(slow_worker_report())
    for title in ("Causes", "Workers", "Step by step", "Communication", "Coverage and losses"):
        assert re.search(rf"<h2[^>]*>{title}</h2>", page)
    for title in ("By kind", "By stage", "By dp rank", "Step time", "Worst 10 of 16 workers", "Against its peers"):
        assert f"<h3>{title}</h3>" in page
    assert len(re.findall(r"<td class='l\d[^>]*role|<td class='l\d", page)) == 16
    assert page.count("class='curve'") == 1


def test_headings_and_names_are_in_order() -> None:
    page = page_of(slow_worker_report(), report_of(make_raw()))
    levels = [int(level) for level in re.findall(r"<h(\d)", page)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    ids = re.findall(r"\bid='([^']+)'", page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"(?:href='#|aria-labelledby=')([^']+)'", page)) <= set(ids)


def test_the_heat_map_has_stages_down_and_dp_ranks_across() -> None:
    page = page_of(report_of(make_raw(dp=3, pp=2, worker=(2, 1), steps=[4, 9])))
    cells = re.findall(r"<td class='(l\d(?: worst)?)' tabindex='(-?\d)' aria-label='([^:']+)", page)
    assert [label for _, _, label in cells][:3] == [f"rank {rank} (dp {rank}, stage 0)" for rank in range(3)]
    assert cells[5] == ("l8 worst", "0", "rank 5 (dp 2, stage 1)")
    assert [tabindex for _, tabindex, _ in cells] == ["-1"] * 5 + ["0"]
    (data,) = step_data(page)
    assert data["steps"] == ["4", "9"]
    assert data["groups"]["worker"]["values"] == [[1000, 1000, 1000, 1000, 1000, 2000]] * 2
    assert data["groups"]["stage"]["names"] == ["stage 0", "stage 1"]
    assert data["groups"]["dp_rank"]["values"][0] == [1000, 1000, 2000]
    assert data["groups"]["kind"]["names"][0] == "forward_compute"
    assert data["times"] == [[2.1, 2.0, 1.0]] * 2


def test_the_slider_starts_at_the_slowest_step() -> None:
    page = page_of(report_of(make_raw(steps=range(6), nodelay_s=[2, 2, 2, 3, 2, 2])))
    assert "max='5' value='3'" in page


def test_undefined_slowdowns_are_gaps() -> None:
    raw = make_raw(dp=2, pp=1, steps=[1])
    raw["slowdown_by_worker"][0][0] = float("nan")
    page = page_of(report_of(raw))
    assert "class='unknown'" in page
    assert "NaN" not in page
    assert ">nan" not in page


def test_a_page_of_many_steps_leaves_some_out_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_steps, "MOST_STEP_CELLS", 23 * 10)
    nodelay = [3.0 if step == 77 else 2.0 for step in range(100)]
    page = page_of(report_of(make_raw(steps=range(100), nodelay_s=nodelay)))
    (data,) = step_data(page)
    assert len(data["steps"]) <= 10
    assert "77" in data["steps"]
    assert f"{100 - len(data['steps'])} steps left out here" in page


def test_ten_thousand_ranks_share_cells_and_the_page_says_so() -> None:
    raw = make_raw(dp=625, pp=16, steps=range(300), worker=(123, 3))
    raw["slowdown_by_worker_by_step"] = [
        [[1.001 + (7 * d + 3 * s + i) % 100 / 997 for i in range(300)] for s in range(16)] for d in range(625)
    ]
    page = page_of(report_of(raw))
    assert len(page.encode()) < 3_000_000
    text = visible_text(page)
    assert "A cell stands for 10 dp ranks × 1 stage: it shows the slowest worker of them." in text
    assert "dp 120–129, stage 3, worst of 10 workers: slowdown 2.000, rank 1998 (dp 123, stage 3)" in page
    assert page.count("<td class='l") == 63 * 16
    (data,) = step_data(page)
    assert len(data["groups"]["worker"]["values"][0]) == 63 * 16
    assert len(data["groups"]["dp_rank"]["names"]) == 63


def test_several_reports_have_a_list_of_contents() -> None:
    page = page_of(report_of(make_raw(), name="one"), report_of(make_raw(), name="two"))
    assert page.count("<section class='report'") == 2
    assert "<a href='#report-1'>two</a>" in page


def test_the_page_of_a_published_trace_stays_small(shared_traces: Path, tmp_path: Path) -> None:
    target = tmp_path / "AR.html"
    write_html([analyze(shared_traces / "trace-AR.parquet")], str(target))
    assert target.stat().st_size < 200_000


def palettes() -> dict[str, dict[str, str]]:
    """The colours of each mode by name."""
    style = (Path(page_steps.__file__).parent / "page.css").read_text(encoding="utf-8")
    light, dark = (
        dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", part)) for part in style.split("@media screen")[:2]
    )
    return {"light": light, "dark": light | dark}


def contrast(first: str, second: str) -> float:
    """WCAG's ratio of luminances."""

    def luminance(color: str) -> float:
        parts = [int(color[start : start + 2], 16) / 255 for start in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_letters_stand_out_in_both_modes(mode: str) -> None:
    colors = palettes()[mode]
    pairs = [(name, ground) for name in ("ink", "muted", "lost", "fine", "link") for ground in ("paper", "card")]
    pairs += [("low-text" if level < 6 else "high-text", f"l{level}") for level in range(9)]
    pairs += [("unknown-text", "unknown")]
    weak = [(name, ground, contrast(colors[name], colors[ground])) for name, ground in pairs]
    assert [pair for pair in weak if pair[2] < 4.5] == []


def test_the_recorder_s_own_cost_is_said_where_the_trace_has_it(tmp_path: Path) -> None:
    steps = [(step, step * 10_000_000, 5_000_000, step // 4 % 2 == 0, False) for step in range(80)]
    steps = [(*row[:2], 5_100_000, *row[3:]) if row[3] else row for row in steps]
    spans = [
        TestSpan(kind, step, start_ns + offset_ns, 1_000_000, microbatch=0)
        for step, start_ns, _, is_sampled, _ in steps
        if is_sampled
        for kind, offset_ns in (("forward_compute", 1_000_000), ("backward_compute", 2_000_000))
    ]
    write_rank(tmp_path, packets=[span_packet(spans), step_packet(steps)])
    report = analyze(tmp_path)
    assert report.fidelity.recorder_overhead is not None
    assert report.fidelity.recorder_overhead.ratio == pytest.approx(0.02)
    assert "sampled steps take +2.00 % (+2.00 to +2.00 %) against the steps around them" in visible_text(
        page_of(report)
    )
    assert "recorder&#x27;s own cost</dt><dd>cannot be told" in page_of(slow_worker_report())
    jsonschema.validate(report.to_dict(), json_schema())


@pytest.mark.parametrize(
    ("cause", "where", "words"),
    [
        (
            "pp_communication",
            Where(rank=9, dp_rank=1, stage=2, peer_stage=3, peer_rank=13),
            "the link between stage 2 (rank 9, host node1) and stage 3 (rank 13, host node2), dp 1",
        ),
        ("pp_communication", Where(stage=2, peer_stage=3), "the links between stages 2 and 3"),
        ("dp_communication", Where(stage=2), "the dp group of stage 2, host node1"),
        ("gc", Where(dp_rank=1), "all stages of dp rank 1, hosts node1, node2"),
        ("stage", Where(stage=3), "all workers of stage 3, host node2"),
        ("data_loading", Where(), "the whole job"),
    ],
)
def test_every_place_is_said(cause: str, where: Where, words: str) -> None:
    report = dataclasses.replace(slow_worker_report(), worker_host={"1,2": "node1", "1,3": "node2"})
    assert place_words(report, Cause(cause, 0.5, 0.5, None, None, 1.0, where)) == words
