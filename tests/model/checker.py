"""A small explicit-state model checker: every state that actions can lead to, breadth first, each looked at once.

It knows nothing of checkpoints. A model says where it begins, which actions a state allows and what they lead to, and
which states are the same for all that follows. Breadth first: a counterexample is a shortest one. What is asked:

- properties that hold of every state;
- progress: from every state some way, by actions that may be hoped for, leads to a goal ("always, it is still
  possible", AG EF in the words of temporal logic). A state without such a way is stuck for good;
- what was seen on the way, for a model in which nothing happens breaks nothing.
"""

from __future__ import annotations

import gc
import random
from array import array
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

S = TypeVar("S")
A = TypeVar("A")


class Model(Protocol[S, A]):
    """What is checked. States and actions are values: never changed once made."""

    def initial(self) -> S:
        """Where every trace begins."""

    def successors(self, state: S) -> Iterable[tuple[A, S]]:
        """Each action that `state` allows, with what it leads to."""

    def canonical(self, state: S) -> Hashable:
        """Equal for states whose futures differ in nothing but names: only the first one of them is looked at."""

    def name_of(self, action: A) -> str:
        """Under which an action is counted."""


@dataclass(frozen=True)
class Property(Generic[S]):
    """What must hold of every state; asked once for each."""

    name: str
    holds: Callable[[S], bool]


@dataclass(frozen=True)
class Progress(Generic[S, A]):
    """From every state, actions with `may_be_hoped_for` can lead to a state that `is_goal`."""

    name: str
    is_goal: Callable[[S], bool]
    may_be_hoped_for: Callable[[A], bool]


@dataclass(frozen=True)
class Counterexample(Generic[A]):
    """A shortest way from the beginning to where `broken` does not hold."""

    broken: str
    actions: tuple[A, ...]


@dataclass
class Explored(Generic[A]):
    """What a search saw. Without a counterexample it saw every state there is."""

    state_count: int = 0
    transition_count: int = 0
    depth: int = 0
    action_counts: Counter[str] = field(default_factory=Counter)
    #: (action, action that was looked at in a state to which the first one leads) → in how many states.
    pair_counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: What `watch` named → how often.
    seen: Counter[str] = field(default_factory=Counter)
    counterexample: Counterexample[A] | None = None


class TooManyStatesError(Exception):
    """More states than the search was allowed to look at: it has shown nothing."""


class _Graph(Generic[S, A]):
    """The states found so far, by number, each with the first way that led to it; and what leads in and out of each."""

    def __init__(self, model: Model[S, A], max_states: int) -> None:
        self._model = model
        self._max_states = max_states
        self._numbers: dict[Hashable, int] = {}
        self._parents = array("l")
        self._first_actions: list[A | None] = []
        self._bits: dict[str, int] = {}
        self._arriving = array("Q")
        self._leaving = array("Q")

    def add(self, state: S, parent: int, action: A | None) -> tuple[int, bool]:
        """The state's number, and whether it is new."""
        fresh = len(self._first_actions)
        number = self._numbers.setdefault(self._model.canonical(state), fresh)
        if number == fresh:
            if fresh >= self._max_states:
                raise TooManyStatesError(f"more than {self._max_states:,} states: narrower bounds, or a higher limit")
            self._parents.append(parent)
            self._first_actions.append(action)
            self._arriving.append(0)
            self._leaving.append(0)
        if action is not None:
            bit = self._bits.setdefault(self._model.name_of(action), 1 << len(self._bits))
            self._leaving[parent] |= bit
            self._arriving[number] |= bit
        return number, number == fresh

    def way_to(self, number: int) -> tuple[A, ...]:
        actions: list[A] = []
        while (action := self._first_actions[number]) is not None:
            actions.append(action)
            number = self._parents[number]
        return tuple(reversed(actions))

    def pair_counts(self) -> Counter[tuple[str, str]]:
        pairs: Counter[tuple[str, str]] = Counter()
        for (arriving, leaving), count in Counter(zip(self._arriving, self._leaving, strict=True)).items():
            names_in = [name for name, bit in self._bits.items() if arriving & bit]
            names_out = [name for name, bit in self._bits.items() if leaving & bit]
            for pair in ((first, then) for first in names_in for then in names_out):
                pairs[pair] += count
        return pairs

    def __len__(self) -> int:
        return len(self._first_actions)


class _Edges(Generic[S, A]):
    """Transitions that may be hoped for, and the states that are goals."""

    def __init__(self, progress: Progress[S, A]) -> None:
        self._progress = progress
        self._from = array("l")
        self._to = array("l")
        self._goals = array("l")

    def add_state(self, number: int, state: S) -> None:
        if self._progress.is_goal(state):
            self._goals.append(number)

    def add(self, number: int, action: A, after_number: int) -> None:
        if self._progress.may_be_hoped_for(action):
            self._from.append(number)
            self._to.append(after_number)

    def first_stuck(self, state_count: int) -> int | None:
        """The first found, so nearest, state from which no way leads to the goal."""
        hopeful: npt.NDArray[np.bool_] = np.zeros(state_count, dtype=bool)
        hopeful[np.asarray(self._goals, dtype=np.int64)] = True
        edge_from, edge_to = np.asarray(self._from, dtype=np.int64), np.asarray(self._to, dtype=np.int64)
        while True:
            found = edge_from[hopeful[edge_to] & ~hopeful[edge_from]]
            if not len(found):
                break
            hopeful[found] = True
        return None if hopeful.all() else int(np.argmin(hopeful))


@contextmanager
def _without_collections() -> Iterator[None]:
    """Millions of tuples without one cycle: Python's collector would look at them all again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def explore(
    model: Model[S, A],
    properties: Sequence[Property[S]] = (),
    progress: Progress[S, A] | None = None,
    *,
    watch: Callable[[S, A, S], Iterable[str]] | None = None,
    max_states: int = 1_000_000,
) -> Explored[A]:
    """Looks at every state until a property is broken; then, when all are kept, for states that are stuck.

    `watch` names what is worth counting about a transition. Memory: about 1 KiB a state.
    """
    explored: Explored[A] = Explored()
    graph: _Graph[S, A] = _Graph(model, max_states)
    with _without_collections():
        broken = _search(model, graph, explored, properties, edges := _Edges(progress) if progress else None, watch)
        if broken is None and progress is not None and edges is not None:
            stuck = edges.first_stuck(len(graph))
            broken = None if stuck is None else (progress.name, stuck)
    if broken is not None:
        explored.counterexample = Counterexample(broken[0], graph.way_to(broken[1]))
    explored.state_count, explored.pair_counts = len(graph), graph.pair_counts()
    return explored


def _search(
    model: Model[S, A],
    graph: _Graph[S, A],
    explored: Explored[A],
    properties: Sequence[Property[S]],
    edges: _Edges[S, A] | None,
    watch: Callable[[S, A, S], Iterable[str]] | None,
) -> tuple[str, int] | None:
    """Fills graph, edges and counters, level by level; the first broken property and its state end it."""

    def broken_by(state: S) -> str | None:
        return next((item.name for item in properties if not item.holds(state)), None)

    first = model.initial()
    graph.add(first, -1, None)
    if (name := broken_by(first)) is not None:
        return name, 0
    level = [(0, first)]
    while level:
        upcoming: list[tuple[int, S]] = []
        for number, state in level:
            if edges is not None:
                edges.add_state(number, state)
            for action, after in model.successors(state):
                after_number, is_new = graph.add(after, number, action)
                explored.transition_count += 1
                explored.action_counts[model.name_of(action)] += 1
                if watch is not None:
                    explored.seen.update(watch(state, action, after))
                if edges is not None:
                    edges.add(number, action, after_number)
                if is_new:
                    if (name := broken_by(after)) is not None:
                        return name, after_number
                    upcoming.append((after_number, after))
        explored.depth += bool(upcoming)
        level = upcoming
    return None


def random_walk(model: Model[S, A], seed: int, length: int, weight: Callable[[A], float]) -> tuple[A, ...]:
    """`length` actions one after the other, or fewer where none is left; the same ones for the same seed."""
    choose, state, actions = random.Random(seed), model.initial(), list[A]()
    while len(actions) < length and (possible := list(model.successors(state))):
        weights = [weight(action) for action, _ in possible]
        action, state = choose.choices(possible, weights)[0]
        actions.append(action)
    return tuple(actions)
