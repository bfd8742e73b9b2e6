"""The traces that tests of the code replay, and the page that is made from the same counterexamples."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.model import export_traces, write_docs
from tests.model.counterexamples import SCENARIOS
from tests.model.export_traces import GOLDEN, action_of, changes
from tests.model.model import CheckpointModel
from tests.model.protocol import Bounds, Rules

_ROOT = Path(__file__).resolve().parent.parent.parent


def _golden(name: str) -> list[dict[str, Any]]:
    document = json.loads((GOLDEN / name).read_text())
    assert document["format"] == export_traces.FORMAT
    traces: list[dict[str, Any]] = document["traces"]
    return traces


def test_golden_counterexamples_are_what_the_model_gives() -> None:
    text = export_traces.to_text(export_traces.counterexample_traces())
    assert text == (GOLDEN / "counterexamples.json").read_text(), "changed: make model"


def test_golden_walks_are_what_the_model_gives() -> None:
    text = export_traces.to_text(export_traces.golden_walks())
    assert text == (GOLDEN / "walks.json").read_text(), "changed: make model"


def test_the_page_has_the_counterexamples_of_the_model() -> None:
    page = write_docs.PAGE.read_text()
    assert page == write_docs.page_with(write_docs.generated(), page), "changed: make model"


@pytest.mark.parametrize("name", ["counterexamples.json", "walks.json"])
def test_events_alone_replay_a_trace_and_say_all_that_changes(name: str) -> None:
    for trace in _golden(name):
        rules = Rules(**dict.fromkeys(trace["rules_off"], False))
        model = CheckpointModel(rules, Bounds(**trace["bounds"]))
        state = model.initial()
        for event in trace["events"]:
            after = model.step(state, action_of(event))
            assert event["after"] == changes(state, after)
            state = after


def test_walks_keep_every_property_and_between_them_do_everything() -> None:
    names = set()
    for trace in _golden("walks.json"):
        model = CheckpointModel(Rules(), Bounds(**trace["bounds"]))
        state = model.initial()
        for event in trace["events"]:
            names.add(event["action"])
            state = model.step(state, action_of(event))
            assert [item.name for item in model.properties() if not item.holds(state)] == []
        assert trace["broken"] is None
    # What arrives late and is still taken is rare: counterexamples.json has it.
    assert names >= {"promise", "capture", "skip", "cancel", "replicate", "free", "drop_skipped", "refuse"}
    assert names >= {"crash", "lose", "begin_recovery", "fence", "list_copies", "choose", "pin", "fetch", "go_on"}


def test_a_counterexample_says_which_event_the_rules_refuse() -> None:
    for trace, scenario in zip(_golden("counterexamples.json"), SCENARIOS, strict=True):
        model = CheckpointModel(Rules(), scenario.bounds)
        state = model.initial()
        for event in trace["events"][: trace["refused_at"]]:
            state = model.step(state, action_of(event))
        if trace["refused_at"] is None:
            assert scenario.property_name == "progress"
        else:
            with pytest.raises(ValueError, match="is not possible here"):
                model.step(state, action_of(trace["events"][trace["refused_at"]]))


def test_the_command_writes_as_many_walks_as_asked(tmp_path: Path) -> None:
    out = tmp_path / "walks.json"
    command = [sys.executable, "-m", "tests.model.export_traces", "--walks", "3", "--length", "20", "--ranks", "3"]
    subprocess.run([*command, "--seed", "7", "--out", str(out)], check=True, cwd=_ROOT, timeout=120)
    traces = json.loads(out.read_text())["traces"]
    assert [trace["name"] for trace in traces] == [f"walk_3_ranks_seed_{seed}" for seed in (7, 8, 9)]
    assert all(len(trace["events"]) == 20 for trace in traces)


def test_the_command_asks_where_to_write() -> None:
    command = [sys.executable, "-m", "tests.model.export_traces", "--walks", "3"]
    result = subprocess.run(command, check=False, cwd=_ROOT, timeout=120, capture_output=True, text=True)
    assert result.returncode == 2
    assert "--out FILE" in result.stderr
