"""The model checker itself, on models small enough to see what it must answer."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass

import pytest

from tests.model.checker import Progress, Property, TooManyStatesError, explore, random_walk


@dataclass(frozen=True)
class Counter:
    """Counts to `top` by one or by two; from `trap` there is no way but to stay."""

    top: int
    trap: int = -1
    modulus: int = 1_000_000

    def initial(self) -> int:
        return 0

    def successors(self, state: int) -> Iterator[tuple[str, int]]:
        if state == self.trap:
            yield "stay", state
        elif state < self.top:
            yield "one", state + 1
            yield "two", min(state + 2, self.top)

    def canonical(self, state: int) -> Hashable:
        return state % self.modulus

    def name_of(self, action: str) -> str:
        return action


def _below(limit: int) -> Property[int]:
    return Property(f"below {limit}", lambda state: state < limit)


def _reaches(goal: int, *, without: str = "") -> Progress[int, str]:
    return Progress(f"reaches {goal}", lambda state: state == goal, lambda action: action != without)


def test_a_broken_property_comes_with_a_shortest_way_to_it() -> None:
    found = explore(Counter(top=10), [_below(5)]).counterexample
    assert found is not None
    assert found.broken == "below 5"
    assert len(found.actions) == 3
    assert sum({"one": 1, "two": 2}[action] for action in found.actions) in (5, 6)


def test_the_first_state_is_looked_at_too() -> None:
    found = explore(Counter(top=10), [_below(0)]).counterexample
    assert found is not None
    assert found.actions == ()


def test_without_a_counterexample_every_state_was_seen() -> None:
    explored = explore(Counter(top=10), [_below(11)], _reaches(10))
    assert explored.counterexample is None
    assert explored.state_count == 11
    assert explored.transition_count == 20
    assert explored.depth == 10 - 5  # by twos
    assert explored.action_counts == {"one": 10, "two": 10}


def test_a_state_without_a_way_to_the_goal_is_found_nearest_first() -> None:
    found = explore(Counter(top=10, trap=4), progress=_reaches(10)).counterexample
    assert found is not None
    assert found.broken == "reaches 10"
    assert found.actions == ("two", "two")


def test_a_way_that_cannot_be_hoped_for_does_not_count() -> None:
    assert explore(Counter(top=10, trap=4), progress=_reaches(5, without="stay")).counterexample is not None
    assert explore(Counter(top=10), progress=_reaches(10, without="two")).counterexample is None
    found = explore(Counter(top=4), progress=_reaches(3, without="two")).counterexample
    assert found is not None
    assert found.actions == ("two", "two")


def test_pairs_say_which_action_was_looked_at_after_which() -> None:
    pairs = explore(Counter(top=10, trap=2)).pair_counts
    assert pairs["two", "stay"] == 1
    assert pairs["stay", "stay"] == 1
    assert pairs["stay", "one"] == 0


def test_states_that_are_the_same_are_looked_at_once() -> None:
    assert explore(Counter(top=1000, modulus=7)).state_count == 7


def test_what_is_watched_is_counted() -> None:
    seen = explore(Counter(top=10), watch=lambda before, action, after: ["even"] if after % 2 == 0 else []).seen
    assert seen["even"] == 11  # 10 twice more: by one from 9, by two from 8 and from 9


def test_a_search_that_was_cut_off_says_so() -> None:
    with pytest.raises(TooManyStatesError, match="more than 5 states"):
        explore(Counter(top=10), max_states=5)


def test_a_walk_depends_on_its_seed_alone_and_ends_where_nothing_is_left() -> None:
    def weight(action: str) -> float:
        return 1.0

    walks = [random_walk(Counter(top=100), seed, 1000, weight) for seed in (1, 1, 2)]
    assert walks[0] == walks[1] != walks[2]
    assert 50 <= len(walks[0]) <= 100
    assert random_walk(Counter(top=100), 1, 10, weight) == walks[0][:10]
