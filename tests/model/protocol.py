"""The checkpoint protocol as a model: what its state is, which rules it has, what a state says about the job.

The actions that change it are in normal_actions.py and recovery_actions.py, what must hold is in model.py.

One rank runs on each node, with an agent that outlives it. The state of rank r is called r's, wherever a copy lies:
its own copies in the memory of node r, replicas in that of node (r + 1) mod n. An action is one atomic thing that
happens at one place; what takes long, or travels, is an action that may come arbitrarily late. So an agent that "hears"
of a skip or of a watermark hears what was true at some moment, and in between anything may have happened elsewhere.

The model leaves out:

- sizes and time: a deadline is an action that may come at any moment;
- partial writes: that nobody reads a copy which is not complete and hashed is for tests of the code to show;
- bad hashes, and steps that fail after they were loaded;
- more than one lost node, unless the bounds ask for another one after the job said that it could bear it;
- the death of an agent without its node; how a coordinator is chosen, and its death beside a trainer's;
- the disk tier, placement by parallel groups, a changed topology.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Label(NamedTuple):
    """Which state a copy is of. Later ones are greater: a restart makes all that follows it newer."""

    incarnation: int
    step: int

    def __str__(self) -> str:
        return "the initial state" if self == START else f"step {self.step} of incarnation {self.incarnation}"


#: No label, older than any.
NONE = Label(-1, -1)
#: What every rank can make by itself, without a copy.
START = Label(0, 0)


class Stage(IntEnum):
    """Of an own copy."""

    PROMISED = 0  # the agent keeps a slot for it
    WRITING = 1  # the trainer copies into the slot
    COPIED = 2  # complete, not yet hashed by the agent
    CAPTURED = 3  # complete and hashed


class Copy(NamedTuple):
    """A used slot among a rank's own ones."""

    label: Label
    stage: Stage


class Late(NamedTuple):
    """What was sent or written by an incarnation that may be over before it arrives."""

    rank: int
    label: Label
    place: str  # "own": by a trainer that did not hear that it is replaced; "replica": a frame on its way
    sender_incarnation: int


class Listing(NamedTuple):
    """What an agent says that it has: verified copies, by what they are told apart by."""

    own: tuple[Label, ...]
    replicas: tuple[Label, ...]


class Status(IntEnum):
    """Of a rank's trainer."""

    RUN = 0
    WAIT = 1  # started anew, nothing restored yet
    DEAD = 2
    LOST = 3  # with its node, agent and all that was in its memory


@dataclass(frozen=True)
class Rules:
    """The rules of the protocol; a test turns one off to show what it is for."""

    #: A step that one rank skips is dead for all: slots are freed at once, the watermark passes over it.
    job_wide_skip: bool = True
    #: Nobody overwrites an own copy of the newest step that all owners have replicated, until a newer one is.
    retention_own: bool = True
    #: The same of replicas.
    retention_replica: bool = True
    #: Copies are told apart by (incarnation, step), and agents refuse what older incarnations send or write.
    incarnation: bool = True
    #: An agent cancels captures before it lists copies; until it is pinned it agrees on nothing and frees nothing.
    fence: bool = True
    #: No agent lists before all are fenced.
    fence_all: bool = True
    #: From the choice until all go on, agents keep the chosen step, and send and count only what will be kept.
    pin: bool = True
    #: Before a rank goes on from a step, its node forgets all newer ones.
    drop_newer: bool = True
    #: The same of older ones that not every owner has, as dead ones: nobody hears any more that they were skipped.
    drop_incomplete: bool = True


@dataclass(frozen=True)
class Bounds:
    """How much may happen."""

    ranks: int = 2
    own_slots: int = 2
    replica_slots: int = 2
    crashes: int = 1  # of a trainer
    losses: int = 1  # of a node, the trainer with it
    delays: int = 1  # things that arrive after the fence of their sender
    last_step: int = 3  # no iteration after it


class State(NamedTuple):
    """Tuples with one entry a rank, unless said otherwise."""

    status: tuple[Status, ...]
    at: tuple[int, ...]  # the last finished iteration
    own: tuple[tuple[Copy, ...], ...]  # sorted
    replicas: tuple[tuple[Label, ...], ...]  # verified ones of this rank's state, at its holder; sorted
    adopted: tuple[int, ...]  # the incarnation that the node's agent serves
    pins: tuple[Label, ...]  # what the node's agent must keep
    loaded: tuple[Label, ...]  # what the rank restored in this recovery
    lists: tuple[tuple[Listing, ...], ...]  # what the node's agent has told this recovery: nothing, or one
    incarnation: int  # of the job
    choice: Label  # of this recovery
    complete: tuple[Label, ...]  # what it could have chosen instead, up to the choice; as the coordinator tells agents
    skipped: tuple[int, ...]  # steps of this incarnation that are dead; sorted
    late: tuple[Late, ...]
    agreed: Label  # the newest step that ever was replicated by all: what the library has promised to keep
    crashes_left: int
    losses_left: int
    delays_left: int


class Action(NamedTuple):
    """One thing that happens: its name, the rank or node it happens to (-1: the job), the copy it is about."""

    name: str
    rank: int
    label: Label = NONE
    place: str = ""


Transition = tuple[Action, State]


def with_item(items: tuple[T, ...], index: int, item: T) -> tuple[T, ...]:
    return (*items[:index], item, *items[index + 1 :])


def initial_state(bounds: Bounds) -> State:
    ranks = range(bounds.ranks)
    return State(
        status=tuple(Status.RUN for _ in ranks),
        at=tuple(0 for _ in ranks),
        own=tuple(() for _ in ranks),
        replicas=tuple(() for _ in ranks),
        adopted=tuple(0 for _ in ranks),
        pins=tuple(NONE for _ in ranks),
        loaded=tuple(NONE for _ in ranks),
        lists=tuple(() for _ in ranks),
        incarnation=0,
        choice=NONE,
        complete=(),
        skipped=(),
        late=(),
        agreed=NONE,
        crashes_left=bounds.crashes,
        losses_left=bounds.losses,
        delays_left=bounds.delays,
    )


class Protocol:
    """The rules and bounds with what can be asked of a state under them."""

    def __init__(self, rules: Rules, bounds: Bounds) -> None:
        self.rules = rules
        self.bounds = bounds
        self.ranks = range(bounds.ranks)

    def holder(self, rank: int) -> int:
        """The node that keeps the rank's replicas."""
        return (rank + 1) % self.bounds.ranks

    def ward(self, node: int) -> int:
        """The rank whose replicas the node keeps."""
        return (node - 1) % self.bounds.ranks

    def key(self, label: Label) -> Label:
        """What copies are told apart by."""
        return label if self.rules.incarnation else Label(0, label.step)

    def has_own(self, state: State, rank: int, label: Label) -> bool:
        """Whether the rank's node has a verified own copy that passes for this label."""
        key = self.key(label)
        return any(copy.stage == Stage.CAPTURED and self.key(copy.label) == key for copy in state.own[rank])

    def has_replica(self, state: State, rank: int, label: Label) -> bool:
        """Whether the rank's holder has a replica that passes for this label."""
        key = self.key(label)
        return any(self.key(replica) == key for replica in state.replicas[rank])

    def has_copy(self, state: State, rank: int, label: Label) -> bool:
        """Whether the rank could be restored to this label."""
        return label == START or self.has_own(state, rank, label) or self.has_replica(state, rank, label)

    def watermark(self, state: State, node: int) -> Label:
        """The newest step that all owners have replicated, by what is held now, as the node hears of it.

        A pinned node knows what the recovery under way will keep, and takes no other step for one.
        """
        knows_choice = state.pins[node] == state.choice
        for label in sorted({self.key(copy.label) for copy in state.own[0]}, reverse=True):
            if knows_choice and not self.is_kept(state, label):
                continue
            if all(self.has_own(state, rank, label) and self.has_replica(state, rank, label) for rank in self.ranks):
                return label
        return NONE

    def listing(self, state: State, node: int) -> Listing:
        """What the node has, as its agent tells the coordinator."""
        own = {self.key(copy.label) for copy in state.own[node] if copy.stage == Stage.CAPTURED}
        replicas = {self.key(label) for label in state.replicas[self.ward(node)]}
        return Listing(tuple(sorted(own)), tuple(sorted(replicas)))

    def complete(self, lists: Sequence[Listing]) -> list[Label]:
        """The steps of which every owner has a verified copy somewhere, newest first; a recovery chooses the first."""
        of_rank = [{*lists[rank].own, *lists[self.holder(rank)].replicas} for rank in self.ranks]
        return sorted(set.intersection(*of_rank), reverse=True)

    def is_kept(self, state: State, label: Label) -> bool:
        """Whether the recovery under way, if one has chosen, lets nodes keep what they have of this step."""
        if state.choice == NONE:
            return True
        key = self.key(label)
        if key > self.key(state.choice):
            return not self.rules.drop_newer
        return not self.rules.drop_incomplete or key in state.complete

    def is_fenced(self, state: State, node: int) -> bool:
        """From the fence until the node's trainer goes on."""
        is_new = state.status[node] == Status.WAIT and state.adopted[node] == state.incarnation
        return self.rules.fence and is_new

    def is_broken(self, state: State) -> bool:
        """Whether a trainer is gone, so that the job has to be restarted."""
        return any(status >= Status.DEAD for status in state.status)

    def settled(self, state: State) -> State:
        """After copies have appeared: with what is agreed now.

        Agents that are fenced agree on nothing, as their lists may be out already. When one is chosen, only what the
        recovery keeps counts.
        """
        if state.choice == NONE and any(self.is_fenced(state, node) for node in self.ranks):
            return state
        watermark = true_watermark(self, state)
        return state._replace(agreed=watermark) if watermark > state.agreed else state


def true_watermark(protocol: Protocol, state: State) -> Label:
    """The newest state, not only label, that all owners have replicated: what an observer outside would say."""
    labels = [copy.label for copy in state.own[0] if copy.stage == Stage.CAPTURED and copy.label > state.agreed]
    for label in sorted(labels, reverse=True):
        if protocol.is_kept(state, label) and all(
            label in state.replicas[rank] and Copy(label, Stage.CAPTURED) in state.own[rank] for rank in protocol.ranks
        ):
            return label
    return NONE


def truly_recoverable(protocol: Protocol, state: State) -> Iterator[Label]:
    """The states of which every owner has a verified copy somewhere, whatever the rules take them for."""
    candidates = {copy.label for copy in state.own[0] if copy.stage == Stage.CAPTURED} | {*state.replicas[0]}
    for label in candidates:
        if all(
            label in state.replicas[rank] or Copy(label, Stage.CAPTURED) in state.own[rank] for rank in protocol.ranks
        ):
            yield label


def canonical(state: State) -> Hashable:
    """The same for states that differ only in where the ring of ranks begins."""
    ranks: list[Hashable] = [
        (
            *[values[rank] for values in state[:8]],
            tuple([(item.label, item.place, item.sender_incarnation) for item in state.late if item.rank == rank]),
        )
        for rank in range(len(state.at))
    ]
    rotations = [(*ranks[first:], *ranks[:first]) for first in range(len(ranks))]
    return min(rotations), state[8:12], state[13:]
