"""The whole model: all actions under given rules and bounds, what must hold, and what a good run has to have seen."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator

from tests.model import normal_actions, recovery_actions
from tests.model.checker import Progress, Property
from tests.model.protocol import (
    NONE,
    START,
    Action,
    Bounds,
    Label,
    Protocol,
    Rules,
    Stage,
    State,
    Status,
    Transition,
    canonical,
    initial_state,
    truly_recoverable,
)

ACTIONS: tuple[Callable[[Protocol, State], Iterator[Transition]], ...] = (
    normal_actions.promise,
    normal_actions.end_iteration,
    normal_actions.cancel,
    normal_actions.copy_done,
    normal_actions.hash_done,
    normal_actions.replicate,
    normal_actions.free,
    normal_actions.drop_skipped,
    recovery_actions.crash,
    recovery_actions.lose,
    recovery_actions.begin_recovery,
    recovery_actions.fence,
    recovery_actions.list_copies,
    recovery_actions.choose,
    recovery_actions.pin,
    recovery_actions.fetch,
    recovery_actions.go_on,
    recovery_actions.arrive,
)

#: Names of actions: those of the functions above, where a function does not have several.
ACTION_NAMES = frozenset(
    {function.__name__ for function in ACTIONS} - {"end_iteration"} | {"capture", "skip", "refuse"}
)
FAILURES = frozenset({"crash", "lose"})

#: What a search with all rules on has to come across, and what it must not.
WATCHED = frozenset(
    {
        "skipped: no free slot",
        "skipped: no promise in time",
        "the watermark passed over a dead step",
        "nothing there: from the beginning",
        "recovered the newest promised step, of the last iteration",
        "recovered what was agreed",
        "recovered what all had captured, not yet replicated",
        "passed over a newer step that not all have",
        "restored from a replica",
        "dropped an own copy that nobody can go back to",
        "replicated again after a restart",
    }
)
LESS_THAN_AGREED = "recovered less than was agreed"


class CheckpointModel:
    """The protocol under these rules and bounds, for the checker; it begins after the actions of `prologue`."""

    def __init__(self, rules: Rules, bounds: Bounds, prologue: tuple[Action, ...] = ()) -> None:
        self.protocol = Protocol(rules, bounds)
        self.prologue = prologue

    def initial(self) -> State:
        return self.replay(self.prologue, initial_state(self.protocol.bounds))

    def successors(self, state: State) -> Iterator[Transition]:
        for action in ACTIONS:
            yield from action(self.protocol, state)

    def canonical(self, state: State) -> Hashable:
        return canonical(state)

    def name_of(self, action: Action) -> str:
        return action.name

    def replay(self, actions: tuple[Action, ...], state: State) -> State:
        """The state after these actions; ValueError where one of them is not possible."""
        for action in actions:
            state = self.step(state, action)
        return state

    def step(self, state: State, action: Action) -> State:
        for possible, after in self.successors(state):
            if possible == action:
                return after
        raise ValueError(f"{action} is not possible here: {state}")

    def nothing_lost(self) -> Property[State]:
        """The newest state that was ever replicated by all, or a newer one, can be recovered."""

        def holds(state: State) -> bool:
            if state.agreed == NONE:
                return True
            return any(label >= state.agreed for label in truly_recoverable(self.protocol, state))

        return Property("nothing agreed is lost", holds)

    def nothing_mixed(self) -> Property[State]:
        """All ranks restore one and the same state."""

        def holds(state: State) -> bool:
            return len({label for label in state.loaded if label != NONE}) <= 1

        return Property("all ranks restore the same state", holds)

    def choice_stays(self) -> Property[State]:
        """What a recovery has chosen is there until every rank has restored it."""

        def holds(state: State) -> bool:
            return state.choice == NONE or all(
                state.loaded[rank] != NONE or self.protocol.has_copy(state, rank, state.choice)
                for rank in self.protocol.ranks
            )

        return Property("the chosen step stays until all have fetched it", holds)

    def properties(self) -> tuple[Property[State], ...]:
        return self.nothing_lost(), self.nothing_mixed(), self.choice_stays()

    def progress(self) -> Progress[State, Action]:
        """However things stand: without another failure, all agents can come to where they have free slots again."""
        bounds = self.protocol.bounds

        def is_goal(state: State) -> bool:
            return (
                all(status == Status.RUN for status in state.status)
                and all(len(own) < bounds.own_slots for own in state.own)
                and all(len(replicas) < bounds.replica_slots for replicas in state.replicas)
            )

        return Progress(
            "checkpoints can go on",
            is_goal,
            may_be_hoped_for=lambda action: action.name not in FAILURES,
        )

    def watch(self, before: State, action: Action, after: State) -> Iterator[str]:
        """What a search must have seen, or the model shows less than it seems to: names of WATCHED."""
        if action.name == "choose":
            yield from _seen_in_choice(before, action.label)
        elif action.name == "skip":
            full = len(before.own[action.rank]) >= self.protocol.bounds.own_slots
            yield "skipped: no free slot" if full else "skipped: no promise in time"
        elif action.name == "go_on" and after.own[action.rank] != before.own[action.rank]:
            yield "dropped an own copy that nobody can go back to"
        elif action.name == "fetch" and before.own[action.rank] != after.own[action.rank]:
            yield "restored from a replica"
        elif action.name == "replicate" and action.label.incarnation < before.incarnation:
            yield "replicated again after a restart"
        if after.agreed != before.agreed and after.skipped:
            yield "the watermark passed over a dead step"


def _seen_in_choice(state: State, choice: Label) -> Iterator[str]:
    if choice == START:
        yield "nothing there: from the beginning"
    elif choice.step == max(state.at):
        yield "recovered the newest promised step, of the last iteration"
    if choice < state.agreed:
        yield LESS_THAN_AGREED
    elif choice == state.agreed:
        yield "recovered what was agreed"
    elif choice != START:
        yield "recovered what all had captured, not yet replicated"
    if any(copy.label > choice and copy.stage == Stage.CAPTURED for own in state.own for copy in own):
        yield "passed over a newer step that not all have"
