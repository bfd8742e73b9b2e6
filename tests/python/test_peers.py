"""benchmarks/peers.py: what its table says of planted times, of tools that fail, and where it writes it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from smon_rt._interleaved import Round

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import peers
from peer_tools import ONE_OF, ProfilerSometimes, Tool, all_tools


class Planted(Tool):
    """Counts its steps, of which one in ten is of another sort, and may fail."""

    name = "planted"

    def __init__(self, fails_in: str = "") -> None:
        self.fails_in = fails_in
        self.said: list[str] = []

    def begin(self, first_steps: int) -> None:
        self._say("begin")

    def end(self) -> None:
        self._say("end")

    def run(self, job: Any, number: int) -> None:
        self._say("run")

    def sort(self, number: int) -> int:
        return int(number % ONE_OF == ONE_OF - 1)

    def _say(self, what: str) -> None:
        self.said.append(what)
        if what == self.fails_in:
            raise ValueError("planted\nfailure")


class Job:
    """All that a block looks at."""

    length_ms = 100


def blocks(wall_ms: float, cpu_ms: float) -> list[peers.Block]:
    return [peers.Block(Round(((wall_ms / 1000,),)), Round(((cpu_ms / 1000,),)))] * 6


def test_a_mixture_has_whole_tens_and_the_first_steps_are_not_counted() -> None:
    tool: Any = Planted()
    block = peers.block(tool, Job())  # type: ignore[arg-type]
    assert [len(sort) for sort in block.wall.steps_s] == [ONE_OF - 1, 1]
    assert [len(sort) for sort in block.cpu.steps_s] == [ONE_OF - 1, 1]
    assert tool.said == ["begin", *["run"] * (ONE_OF + 1), "end"]


def test_a_tool_that_fails_is_out_with_its_reason_and_ended(capsys: pytest.CaptureFixture[str]) -> None:
    tool, healthy = Planted(fails_in="run"), Planted()
    found = peers.Peers(tools=[tool, healthy], steps={1: {tool.name: blocks(1, 1)}})
    assert found.attempt(tool, lambda: peers.block(tool, Job())) is None  # type: ignore[arg-type]
    assert tool.said[-1] == "end"
    assert found.tools == [healthy]
    assert found.steps == {1: {}}
    assert found.left_out == {"planted": "ValueError: planted failure"}
    assert capsys.readouterr().out == "peers: planted is left out: ValueError: planted failure\n"


def test_what_is_not_installed_is_said_so() -> None:
    tool = Planted()
    found = peers.Peers(tools=[tool])

    def load() -> None:
        raise ModuleNotFoundError("No module named 'planted'")

    found.attempt(tool, load)
    assert found.left_out == {"planted": "is not installed"}
    assert "- planted: not measured: is not installed\n" in peers.section(found)


def test_rows_say_what_was_planted() -> None:
    arms = {"bare": blocks(10, 9), "bare again": blocks(10, 9), "tool": blocks(10.2, 9.9)}
    assert peers.step_rows(arms) == [
        ["bare", "10.000 ms", "10.000 ms", "", "", ""],
        ["bare again", "10.000 ms", "10.000 ms", "+0.00 % (+0.00 to +0.00)", "+0.00 % (+0.00 to +0.00)", ""],
        ["tool", "10.200 ms", "10.200 ms", "+2.00 % (+2.00 to +2.00)", "+10.00 % (+10.00 to +10.00)", "10.0 µs"],
    ]


def test_the_section_takes_its_own_place_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    monkeypatch.setattr(peers, "PAGE", page)
    monkeypatch.setattr(peers, "ROOT", tmp_path)
    page.write_text("# Page\n\n## Other\n\nrows\n")
    text = peers.section(peers.Peers())
    peers.write(text)
    assert page.read_text() == f"# Page\n\n## Other\n\nrows\n\n{text}"
    page.write_text(page.read_text() + "\n## Last\n\nwords\n")
    for _ in range(2):
        peers.write(text)
        assert page.read_text() == f"# Page\n\n## Other\n\nrows\n\n{text}\n## Last\n\nwords\n"


def test_every_tool_says_how_it_is_used_and_one_of_ten_is_traced() -> None:
    tools = all_tools()
    assert len({tool.name for tool in tools}) == len(tools)
    assert all(tool.how for tool in tools)
    sorts = [ProfilerSometimes().sort(number) for number in range(ONE_OF)]
    assert sorts == [0] * 7 + [1, 2, 3]


def test_rounds_end_with_the_time_and_on_a_busy_machine_before_there_are_enough() -> None:
    assert peers._goes_on(0, 1, 0.0, 0.0)  # the first warms all up
    assert not peers._goes_on(1, 1, 0.0, 0.0)
    assert peers._goes_on(9, 5, 59.0, 60.0)
    assert peers._goes_on(4, 5, 61.0, 60.0)
    assert not peers._goes_on(4, 5, 181.0, 60.0)
    assert not peers._goes_on(5, 5, 61.0, 60.0)
