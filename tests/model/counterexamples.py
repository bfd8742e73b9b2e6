"""What each rule of the protocol is for: with the rule off, the model checker finds the way to what it prevents.

The tests, docs/checkpoint.md and the traces for tests of the code are made from this one table.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from tests.model.checker import Counterexample, Explored, explore
from tests.model.model import CheckpointModel
from tests.model.protocol import Action, Bounds, Label, Rules


@dataclass(frozen=True)
class Scenario:
    """Rules that are off, how much may happen, and which property is asked for (a method of CheckpointModel)."""

    rules_off: tuple[str, ...]
    property_name: str
    bounds: Bounds
    title: str
    #: The rule, and what the counterexample ends in; for the page.
    rule: str
    meaning: str
    #: Where the search begins, and what that is in words: where an unguided one would have too far to go.
    prologue: tuple[Action, ...] = ()
    prologue_text: str = ""

    @property
    def name(self) -> str:
        return "without_" + "_and_".join(self.rules_off)

    def model(self) -> CheckpointModel:
        """From the very beginning."""
        return CheckpointModel(replace(Rules(), **dict.fromkeys(self.rules_off, False)), self.bounds)


_CALM = Bounds(crashes=0, losses=0, delays=0, last_step=2)
_ONE_LOSS = Bounds(crashes=0, losses=1, delays=0, last_step=3)
_ONE_CRASH = Bounds(crashes=1, losses=0, delays=0, last_step=2)


def _step_2_lacks_one_hash() -> tuple[Action, ...]:
    """On four ranks."""
    first, second, copying = Label(0, 1), Label(0, 2), ("promise", "capture", "copy_done")
    return (
        *(Action(name, rank, first) for name in (*copying, "hash_done", "replicate") for rank in range(4)),
        *(Action(name, rank, second) for name in copying for rank in range(4)),
        *(Action(name, rank, second) for name in ("hash_done", "replicate") for rank in range(1, 4)),
    )


SCENARIOS = (
    Scenario(
        ("job_wide_skip",),
        "progress",
        _CALM,
        title="A skip is job-wide",
        rule="A step that one rank skips, or whose capture it cancels, is dead for all: every agent that hears of it "
        "frees the step's slots at once, and the watermark passes over it.",
        meaning="Rank 0 keeps two steps that rank 1 will never have. It waits for them to be replicated by all and "
        "promises nothing any more, so no later step can be captured by all: checkpoints have stopped for good.",
    ),
    Scenario(
        ("retention_own",),
        "nothing_lost",
        _ONE_LOSS,
        title="Retention: own copies",
        rule="Nobody overwrites an own copy of the newest step that all owners have replicated, until a newer one is.",
        meaning="Step 1 was agreed. Rank 0 took its slot for step 3, because a replica is on node 1; that node is "
        "lost. Nothing newer is complete. Gating replicas alone is not enough.",
    ),
    Scenario(
        ("retention_replica",),
        "nothing_lost",
        _ONE_LOSS,
        title="Retention: replicas",
        rule="Nor a replica of it.",
        meaning="Step 1 was agreed. Its replica on node 1 gave way to later steps that rank 1 does not have, and node "
        "0 is lost with the own copy.",
    ),
    Scenario(
        ("incarnation",),
        "nothing_mixed",
        Bounds(crashes=2, losses=0, delays=1, last_step=1),
        title="Incarnations",
        rule="Copies are told apart by (incarnation, step), not by step alone, and an agent refuses what an older "
        "incarnation sends or writes. Each restart begins a new incarnation.",
        meaning="Step 1 was computed twice. Rank 0 restores the first one, which a trainer wrote that nobody had told "
        "to stop, and rank 1 the second: a state that never was.",
    ),
    Scenario(
        ("fence",),
        "choice_stays",
        _ONE_CRASH,
        title="Fence",
        rule="Before an agent lists its copies it adopts the new incarnation and cancels captures that are not "
        "complete; from then on it agrees on nothing and frees nothing until it is pinned. Hashing and sending what is "
        "complete may go on.",
        meaning="Agents went on between list and pin: a newer step became complete, so the one that the recovery had "
        "chosen was freed.",
    ),
    Scenario(
        ("fence_all",),
        "nothing_lost",
        Bounds(ranks=4, crashes=1, losses=0, delays=0, last_step=2),
        title="All are fenced before one lists",
        rule="No agent lists its copies before all are fenced.",
        meaning="Agents 0 and 1 listed before step 2 was complete; agents 2 and 3, not fenced yet, heard that it is, "
        "and forgot step 1. By the lists not every rank has either of them, so the job begins again from the initial "
        "state and drops both. It takes four ranks: one whose node and holder are both fenced, and one whose node and "
        "holder are both not.",
        prologue=_step_2_lacks_one_hash(),
        prologue_text="step 1 is agreed; step 2 is replicated but for rank 0's copy, which agent 0 has yet to hash",
    ),
    Scenario(
        ("pin",),
        "choice_stays",
        _ONE_CRASH,
        title="Pin",
        rule="From the choice until all go on, agents keep the chosen step. The pin carries the list of what will be "
        "kept, and they send and count nothing else.",
        meaning="The same after the fence: a copy that was complete is hashed after the list, its step becomes "
        "complete, and the chosen one is freed before it was fetched.",
    ),
    Scenario(
        ("fence", "pin"),
        "choice_stays",
        _ONE_CRASH,
        title="Fence and pin",
        rule="Both.",
        meaning="With neither rule the same race is there.",
    ),
    Scenario(
        ("drop_newer",),
        "progress",
        _ONE_CRASH,
        title="Drop what is newer",
        rule="Before a rank goes on, its node forgets all that is newer than the chosen step.",
        meaning="Rank 1 never captured step 2 before it died. Whatever is recovered, rank 0 keeps its step 2 of the "
        "old incarnation beside step 1, and has no slot for another.",
    ),
    Scenario(
        ("drop_incomplete",),
        "progress",
        Bounds(crashes=1, losses=0, delays=0, last_step=3),
        title="Drop what not all have",
        rule="And what is older, if not every owner has it. Skips are heard of in their own incarnation only, so what "
        "is left of a dead step after a restart has to go with it.",
        meaning="Steps 1 and 2 were skipped by rank 1, and their replicas fill both slots on node 1. After the restart "
        "nobody hears any more that they are dead: step 3 can never be replicated.",
    ),
)


@functools.cache
def find(scenario: Scenario) -> Explored[Action]:
    """The search with the scenario's rules off, after its prologue; once a process."""
    model = CheckpointModel(scenario.model().protocol.rules, scenario.bounds, scenario.prologue)
    if scenario.property_name == "progress":
        return explore(model, progress=model.progress())
    return explore(model, [getattr(model, scenario.property_name)()])


def counterexample(scenario: Scenario) -> Counterexample[Action]:
    """From the very beginning to where the property is broken."""
    found = find(scenario).counterexample
    if found is None:
        raise AssertionError(f"{scenario.name}: nothing goes wrong without {', '.join(scenario.rules_off)}")
    return Counterexample(found.broken, scenario.prologue + found.actions)


def refused_at(scenario: Scenario, actions: tuple[Action, ...]) -> int | None:
    """The first of these actions that is not possible with all rules on; None where every one is."""
    model = CheckpointModel(Rules(), scenario.bounds)
    state = model.initial()
    for index, action in enumerate(actions):
        after = next((after for possible, after in model.successors(state) if possible == action), None)
        if after is None:
            return index
        state = after
    return None
