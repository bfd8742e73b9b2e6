"""Each rule of the checkpoint protocol is needed: without it the checker finds what it prevents.

That with all of them nothing happens, within the same bounds and others, is in test_protocol_holds.py.
"""

from __future__ import annotations

import dataclasses

import pytest

from tests.model.counterexamples import SCENARIOS, Scenario, counterexample
from tests.model.protocol import Label, Rules

_BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
_EACH = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)


def test_every_rule_has_a_scenario_of_its_own() -> None:
    alone = {scenario.rules_off[0] for scenario in SCENARIOS if len(scenario.rules_off) == 1}
    assert alone == {rule.name for rule in dataclasses.fields(Rules)}


@_EACH
def test_without_the_rule_what_it_prevents_happens_at_the_very_end_of_the_trace(scenario: Scenario) -> None:
    found, model = counterexample(scenario), scenario.model()
    if scenario.property_name == "progress":
        assert found.broken == model.progress().name
        return
    broken = getattr(model, scenario.property_name)()
    assert found.broken == broken.name
    state = model.initial()
    for action in found.actions:
        assert broken.holds(state)
        state = model.step(state, action)
    assert not broken.holds(state)


def test_gating_replicas_alone_loses_the_agreed_step_with_one_node() -> None:
    scenario = _BY_NAME["without_retention_own"]
    model, actions = scenario.model(), counterexample(scenario).actions
    end = model.replay(actions, model.initial())
    assert actions[-1].name == "lose"
    assert end.agreed == Label(0, 1)
    survivor = 1 - actions[-1].rank
    assert all(copy.label != end.agreed for copy in end.own[survivor])


def test_unilateral_skips_leave_slots_that_nothing_frees() -> None:
    scenario = _BY_NAME["without_job_wide_skip"]
    model, actions = scenario.model(), counterexample(scenario).actions
    assert any(action.name in ("skip", "cancel") for action in actions)
    end = model.replay(actions, model.initial())
    assert max(len(own) for own in end.own) == scenario.bounds.own_slots


def test_without_incarnations_ranks_restore_one_step_of_two_lives() -> None:
    scenario = _BY_NAME["without_incarnation"]
    model = scenario.model()
    loaded = model.replay(counterexample(scenario).actions, model.initial()).loaded
    assert len({label.step for label in loaded}) == 1
    assert len({label.incarnation for label in loaded}) == 2


@pytest.mark.parametrize("name", ["without_fence", "without_pin", "without_fence_and_pin"])
def test_without_fence_or_pin_the_chosen_step_is_freed_between_list_and_fetch(name: str) -> None:
    scenario = _BY_NAME[name]
    model, actions = scenario.model(), counterexample(scenario).actions
    names = [action.name for action in actions]
    freed, listed = names.index("free"), names.index("list_copies")
    assert listed < freed
    assert "fetch" not in names
    assert "lose" not in names  # a crash is enough: all memory is still there
    choice = actions[names.index("choose")].label
    before = model.replay(actions[:freed], model.initial())
    after = model.step(before, actions[freed])
    node = actions[freed].rank
    assert model.protocol.has_copy(before, node, choice)
    assert not all(model.protocol.has_copy(after, rank, choice) for rank in model.protocol.ranks)
