"""With all rules on nothing agreed is lost, mixed or stuck, whenever a node is lost; and the model is not empty."""

from __future__ import annotations

import functools
import os
from collections import Counter

import pytest

from tests.model.checker import Explored, explore
from tests.model.counterexamples import SCENARIOS, Scenario
from tests.model.model import ACTION_NAMES, LESS_THAN_AGREED, WATCHED, CheckpointModel
from tests.model.protocol import START, Action, Bounds, Label, Rules, Status
from tests.model.recovery_actions import bears_a_loss
from tests.model.words import trace_text

BOUNDS = (
    Bounds(ranks=2, crashes=1, losses=1, delays=1, last_step=1),
    Bounds(ranks=2, crashes=1, losses=1, delays=0, last_step=2),
    # The second node is lost once the job says that it can bear it.
    Bounds(ranks=2, crashes=0, losses=2, delays=0, last_step=2),
    Bounds(ranks=3, crashes=1, losses=1, delays=0, last_step=1),
    Bounds(ranks=3, crashes=0, losses=0, delays=0, last_step=2),
    # The very bounds within which a missing rule does harm.
    *dict.fromkeys(scenario.bounds for scenario in SCENARIOS if not scenario.prologue),
)

#: For `make soak`: some minutes, 400 MiB; docs/soak.md has the figures.
DEEPER_BOUNDS = (
    Bounds(ranks=2, crashes=1, losses=1, delays=1, last_step=2),
    Bounds(ranks=2, crashes=1, losses=1, delays=0, last_step=3),
    Bounds(ranks=2, crashes=0, losses=1, delays=1, last_step=3),
    Bounds(ranks=2, crashes=0, losses=2, delays=1, last_step=2),
    Bounds(ranks=2, crashes=2, losses=1, delays=0, last_step=2),
    Bounds(ranks=2, own_slots=3, replica_slots=3, crashes=0, losses=1, delays=0, last_step=3),
    Bounds(ranks=3, crashes=1, losses=1, delays=1, last_step=1),
    Bounds(ranks=3, crashes=0, losses=1, delays=0, last_step=2),
    Bounds(ranks=3, crashes=0, losses=2, delays=0, last_step=2),
)

_soak = [
    pytest.mark.slow,
    pytest.mark.skipif(os.environ.get("HYPOTHESIS_PROFILE") != "soak", reason="minutes of search: make soak"),
]


@functools.cache
def _explored(bounds: Bounds) -> Explored[Action]:
    model = CheckpointModel(Rules(), bounds)
    return explore(model, model.properties(), model.progress(), watch=model.watch, max_states=3_000_000)


@pytest.mark.parametrize("bounds", [*BOUNDS, *(pytest.param(deeper, marks=_soak) for deeper in DEEPER_BOUNDS)], ids=str)
def test_nothing_is_lost_mixed_or_stuck(bounds: Bounds) -> None:
    explored = _explored(bounds)
    found = explored.counterexample
    assert found is None, f"{found.broken}\n{trace_text(found.actions, bounds)}"
    assert explored.seen[LESS_THAN_AGREED] == 0


@pytest.mark.parametrize(
    "scenario", [scenario for scenario in SCENARIOS if scenario.prologue], ids=lambda scenario: scenario.name
)
def test_nothing_is_lost_mixed_or_stuck_after_a_prologue_either(scenario: Scenario) -> None:
    model = CheckpointModel(Rules(), scenario.bounds, scenario.prologue)
    explored = explore(model, model.properties(), model.progress())
    assert explored.counterexample is None
    assert explored.action_counts["go_on"] > 0


@pytest.mark.parametrize("replica_slots", [2, 3])
def test_a_third_own_slot_needs_a_third_slot_for_replicas(replica_slots: int) -> None:
    bounds = Bounds(own_slots=3, replica_slots=replica_slots, crashes=0, losses=0, delays=0, last_step=3)
    model = CheckpointModel(Rules(), bounds)
    found = explore(model, model.properties(), model.progress()).counterexample
    if replica_slots == 3:
        assert found is None
        return
    # Beside the agreed step one holder has a replica of the next step only, the other one of the step after that.
    assert found is not None
    replicas = model.replay(found.actions, model.initial()).replicas
    assert all(len(labels) == replica_slots for labels in replicas)
    assert replicas[0] != replicas[1]


def test_every_action_happens_and_every_case_that_matters() -> None:
    actions: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    for bounds in BOUNDS:
        actions += _explored(bounds).action_counts
        seen += _explored(bounds).seen
    assert set(actions) == ACTION_NAMES
    assert WATCHED - set(seen) == set()


@pytest.mark.parametrize("failure", ["crash", "lose"])
def test_a_failure_was_looked_at_right_after_every_action(failure: str) -> None:
    pairs: Counter[tuple[str, str]] = Counter()
    for bounds in BOUNDS:
        pairs += _explored(bounds).pair_counts
    # No second loss before all is well again; two crashes one after the other are within the bounds.
    assert {name for name in ACTION_NAMES if not pairs[name, failure]} == ({"lose"} if failure == "lose" else set())


def test_with_three_ranks_a_node_is_lost_right_after_every_action_but_those_of_later_steps() -> None:
    pairs = _explored(Bounds(ranks=3, crashes=1, losses=1, delays=0, last_step=1)).pair_counts
    never = {name for name in ACTION_NAMES if not pairs[name, "lose"]}
    # `free` needs a second step, `arrive` and `refuse` something that is late.
    assert never == {"lose", "free", "arrive", "refuse"}


def test_a_lost_rank_comes_back_from_its_replica_with_the_newest_step() -> None:
    model = CheckpointModel(Rules(), Bounds(ranks=3, crashes=0, losses=1, delays=0, last_step=2))
    step = Label(0, 1)
    together = [
        Action(name, rank, step)
        for name in ("promise", "capture", "copy_done", "hash_done", "replicate")
        for rank in range(3)
    ]
    state = model.replay(tuple(together), model.initial())
    assert state.agreed == step
    fences = [Action("fence", node) for node in (0, 2)]  # the new node 1 begins with the new incarnation
    lists = [Action("list_copies", node) for node in range(3)]
    state = model.replay(
        (Action("lose", 1), Action("begin_recovery", -1, Label(1, -1)), *fences, *lists, Action("choose", -1, step)),
        state,
    )
    rest = tuple(Action(name, rank, step) for name in ("pin", "fetch", "go_on") for rank in range(3))
    state = model.replay(rest, state)
    assert state.status == (Status.RUN,) * 3
    assert state.at == (1, 1, 1)
    assert [len(replicas) for replicas in state.replicas] == [0, 1, 1]  # node 1 held rank 0's
    assert not bears_a_loss(model.protocol, state)
    state = model.replay((Action("replicate", 0, step),), state)
    assert bears_a_loss(model.protocol, state)


def test_with_nothing_replicated_a_job_begins_again() -> None:
    model = CheckpointModel(Rules(), Bounds(ranks=2, crashes=0, losses=1, delays=0, last_step=2))
    begin = (Action("lose", 1), Action("begin_recovery", -1, Label(1, -1)), Action("fence", 0))
    lists = (Action("list_copies", 0), Action("list_copies", 1), Action("choose", -1, START))
    state = model.replay((*begin, *lists), model.initial())
    assert state.choice == START
