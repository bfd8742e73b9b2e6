"""What goes wrong, and how a job comes back: fence, list, choose, pin, fetch, go on."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.normal_actions import with_held, with_replica
from tests.model.protocol import (
    NONE,
    START,
    Action,
    Copy,
    Label,
    Late,
    Protocol,
    Stage,
    State,
    Status,
    Transition,
    with_item,
)


def crash(protocol: Protocol, state: State) -> Iterator[Transition]:
    """A trainer dies; its agent lives on with all that is complete."""
    if not state.crashes_left:
        return
    for rank in protocol.ranks:
        if state.status[rank] < Status.DEAD:
            own = tuple([copy for copy in state.own[rank] if copy.stage >= Stage.COPIED])
            after = _interrupted(state, rank, Status.DEAD)
            yield (
                Action("crash", rank),
                after._replace(own=with_item(state.own, rank, own), crashes_left=state.crashes_left - 1),
            )


def lose(protocol: Protocol, state: State) -> Iterator[Transition]:
    """A node is gone: its own copies and the replicas it held. What it had sent in full may still arrive."""
    if not state.losses_left or (state.losses_left < protocol.bounds.losses and not bears_a_loss(protocol, state)):
        return
    for node in protocol.ranks:
        if state.status[node] == Status.LOST:
            continue
        after = _interrupted(with_held(protocol, state, node, [], []), node, Status.LOST)
        after = after._replace(
            losses_left=state.losses_left - 1,
            pins=with_item(state.pins, node, NONE),
            late=tuple([item for item in state.late if _target(protocol, item) != node]),
        )
        yield Action("lose", node), after
        for item in _on_their_way(protocol, state, node):
            if item.place == "replica":
                yield Action("lose", node, item.label, item.place), _delayed(after, item)


def bears_a_loss(protocol: Protocol, state: State) -> bool:
    """What `recoverable` tells the user: all is well, and the newest agreed state is where it has to be."""
    runs = all(status == Status.RUN for status in state.status)
    return runs and protocol.watermark(state, node=0) >= max(state.agreed, START)


def begin_recovery(protocol: Protocol, state: State) -> Iterator[Transition]:
    """The launcher starts all trainers anew, under the next incarnation; a lost node is replaced by an empty one."""
    if not protocol.is_broken(state):
        return
    incarnation = state.incarnation + 1
    adopted = [
        incarnation if status == Status.LOST else before
        for status, before in zip(state.status, state.adopted, strict=True)
    ]
    after = state._replace(
        status=tuple(Status.WAIT for _ in protocol.ranks),
        adopted=tuple(adopted),
        incarnation=incarnation,
        skipped=(),
    )
    yield Action("begin_recovery", -1, Label(incarnation, NONE.step)), after


def fence(protocol: Protocol, state: State) -> Iterator[Transition]:
    """An agent adopts the new incarnation and gives up captures; what is on its way may arrive later all the same."""
    if not protocol.rules.fence:
        return
    for node in protocol.ranks:
        if state.status[node] != Status.WAIT or state.adopted[node] == state.incarnation:
            continue
        own = [copy for copy in state.own[node] if copy.stage >= Stage.COPIED]
        after = with_held(protocol, state, node, own, list(state.replicas[protocol.ward(node)]))
        after = after._replace(adopted=with_item(state.adopted, node, state.incarnation))
        yield Action("fence", node), after
        for item in _on_their_way(protocol, state, node):
            yield Action("fence", node, item.label, item.place), _delayed(after, item)


def list_copies(protocol: Protocol, state: State) -> Iterator[Transition]:
    """When all are fenced, an agent tells the coordinator what it has. What it hashes later is not on the list."""
    if state.choice != NONE or any(status != Status.WAIT for status in state.status):
        return
    fenced = [adopted == state.incarnation or not protocol.rules.fence for adopted in state.adopted]
    for node in protocol.ranks:
        if not state.lists[node] and (all(fenced) if protocol.rules.fence_all else fenced[node]):
            lists = with_item(state.lists, node, (protocol.listing(state, node),))
            yield Action("list_copies", node), state._replace(lists=lists)


def choose(protocol: Protocol, state: State) -> Iterator[Transition]:
    """The coordinator has all lists: the newest step of which every owner has a verified copy."""
    if state.choice == NONE and all(state.lists):
        complete = protocol.complete([lists[0] for lists in state.lists])
        choice = complete[0] if complete else START
        after = state._replace(
            choice=choice,
            complete=tuple(complete),
            lists=tuple(() for _ in protocol.ranks),
            at=tuple(choice.step for _ in protocol.ranks),
        )
        yield Action("choose", -1, choice), protocol.settled(after)


def pin(protocol: Protocol, state: State) -> Iterator[Transition]:
    """An agent takes the lease on the chosen step, in place of an older recovery's."""
    if not protocol.rules.pin or state.choice == NONE:
        return
    for node in protocol.ranks:
        if state.status[node] == Status.WAIT and state.pins[node] != state.choice:
            yield Action("pin", node, state.choice), state._replace(pins=with_item(state.pins, node, state.choice))


def fetch(protocol: Protocol, state: State) -> Iterator[Transition]:
    """A rank restores the chosen step, from its node or its holder; an own copy is made where there was none."""
    if state.choice == NONE or (protocol.rules.pin and any(pinned != state.choice for pinned in state.pins)):
        return
    for rank in protocol.ranks:
        if state.status[rank] != Status.WAIT or state.loaded[rank] != NONE:
            continue
        label = _found(protocol, state, rank)
        if label is None:
            continue
        after = state._replace(loaded=with_item(state.loaded, rank, label))
        own = state.own[rank]
        if label != START and not protocol.has_own(state, rank, label) and len(own) < protocol.bounds.own_slots:
            own = tuple(sorted((*own, Copy(label, Stage.CAPTURED))))
            after = protocol.settled(after._replace(own=with_item(state.own, rank, own)))
        yield Action("fetch", rank, label), after


def go_on(protocol: Protocol, state: State) -> Iterator[Transition]:
    """When all have reported, a rank's node forgets what nobody can go back to, and its trainer goes on."""
    if NONE in state.loaded or protocol.is_broken(state):
        return
    for rank in protocol.ranks:
        if state.status[rank] != Status.WAIT:
            continue
        own = [copy for copy in state.own[rank] if copy.stage >= Stage.COPIED and protocol.is_kept(state, copy.label)]
        replicas = [label for label in state.replicas[protocol.ward(rank)] if protocol.is_kept(state, label)]
        after = with_held(protocol, state, rank, own, replicas)._replace(
            status=with_item(state.status, rank, Status.RUN),
            adopted=with_item(state.adopted, rank, state.incarnation),
        )
        if all(status == Status.RUN for status in after.status):
            nothing = tuple(NONE for _ in protocol.ranks)
            after = after._replace(choice=NONE, complete=(), pins=nothing, loaded=nothing)
        yield Action("go_on", rank, state.choice), after


def arrive(protocol: Protocol, state: State) -> Iterator[Transition]:
    """What was on its way arrives: refused if its sender is of an older incarnation than the agent serves."""
    for item in state.late:
        node = _target(protocol, item)
        if state.status[node] == Status.LOST:
            continue
        gone = state._replace(late=tuple([other for other in state.late if other != item]))
        is_old = protocol.rules.incarnation and item.sender_incarnation < state.adopted[node]
        is_dead = item.label.incarnation == state.incarnation and item.label.step in state.skipped
        if is_old or is_dead:
            yield Action("refuse", item.rank, item.label, item.place), gone
        else:
            after = _accepted(protocol, gone, item)
            if after is not None:
                yield Action("arrive", item.rank, item.label, item.place), after


def _interrupted(state: State, rank: int, status: Status) -> State:
    """A trainer is gone: a recovery that was under way has to begin again."""
    return state._replace(
        status=with_item(state.status, rank, status),
        choice=NONE,
        complete=(),
        loaded=tuple(NONE for _ in state.loaded),
        lists=tuple(() for _ in state.lists),
    )


def _target(protocol: Protocol, item: Late) -> int:
    return item.rank if item.place == "own" else protocol.holder(item.rank)


def _on_their_way(protocol: Protocol, state: State, rank: int) -> Iterator[Late]:
    """What this rank may have sent, or be writing, at this moment: each of it may be late, or come to nothing."""
    if not state.delays_left:
        return
    for copy in state.own[rank]:
        if copy.stage == Stage.WRITING:
            yield Late(rank, copy.label, "own", copy.label.incarnation)
        elif copy.stage == Stage.CAPTURED and not protocol.has_replica(state, rank, copy.label):
            yield Late(rank, copy.label, "replica", state.adopted[rank])


def _delayed(state: State, item: Late) -> State:
    return state._replace(late=tuple(sorted((*state.late, item))), delays_left=state.delays_left - 1)


def _accepted(protocol: Protocol, state: State, item: Late) -> State | None:
    """With what arrived; unchanged where it is there already, None where there is no slot yet."""
    if item.place == "replica":
        if protocol.has_replica(state, item.rank, item.label):
            return state
        return with_replica(protocol, state, item.rank, item.label)
    own = state.own[item.rank]
    if any(protocol.key(copy.label) == protocol.key(item.label) for copy in own):
        return state
    if len(own) >= protocol.bounds.own_slots:
        return None
    own = tuple(sorted((*own, Copy(item.label, Stage.CAPTURED))))
    return protocol.settled(state._replace(own=with_item(state.own, item.rank, own)))


def _found(protocol: Protocol, state: State, rank: int) -> Label | None:
    """What the rank restores when it asks for the chosen step: an own copy first, as a replica has to travel."""
    if state.choice == START:
        return START
    key = protocol.key(state.choice)
    for copy in state.own[rank]:
        if copy.stage == Stage.CAPTURED and protocol.key(copy.label) == key:
            return copy.label
    return next((label for label in state.replicas[rank] if protocol.key(label) == key), None)
