"""What trainers and agents do while nothing fails: promise, capture, replicate, free, and skip.

Each function yields what one kind of action can do in a state. The training thread waits for nothing here: what is not
there when an iteration ends is skipped.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from tests.model.protocol import (
    NONE,
    Action,
    Copy,
    Label,
    Protocol,
    Stage,
    State,
    Status,
    Transition,
    with_item,
)


def promise(protocol: Protocol, state: State) -> Iterator[Transition]:
    """An agent with a free slot keeps it for the next step; no promise is made of a step that it knows to be dead."""
    for rank in protocol.ranks:
        step = state.at[rank] + 1
        label = Label(state.incarnation, step)
        if state.status[rank] != Status.RUN or step > protocol.bounds.last_step:
            continue
        if step in state.skipped or _holds(state, rank, label):
            continue
        own = state.own[rank]
        if len(own) >= protocol.bounds.own_slots:
            if protocol.rules.retention_own:
                continue
            own = _without_oldest(own)
        if len(own) < protocol.bounds.own_slots:
            own = tuple(sorted((*own, Copy(label, Stage.PROMISED))))
            yield Action("promise", rank, label), state._replace(own=with_item(state.own, rank, own))


def end_iteration(protocol: Protocol, state: State) -> Iterator[Transition]:
    """A rank ends its next iteration, which all others have begun: it captures what was promised, or skips.

    Not before the copy of its last capture is done or cancelled, because the optimizer would change what is copied.
    """
    for rank in protocol.ranks:
        step = state.at[rank] + 1
        if state.status[rank] != Status.RUN or step > protocol.bounds.last_step:
            continue
        writes = any(copy.stage == Stage.WRITING for copy in state.own[rank])
        if writes or not _all_have_begun(protocol, state, rank, step):
            continue
        label = Label(state.incarnation, step)
        after = state._replace(at=with_item(state.at, rank, step))
        if Copy(label, Stage.PROMISED) in state.own[rank]:
            yield Action("capture", rank, label), with_stage(after, rank, label, Stage.PROMISED, Stage.WRITING)
        else:
            yield Action("skip", rank, label), _skipped(protocol, after, step)


def cancel(protocol: Protocol, state: State) -> Iterator[Transition]:
    """A capture that is not done when the optimizer wants to go on is given up: that is a skip as well."""
    for rank in protocol.ranks:
        for copy in state.own[rank]:
            if copy.stage == Stage.WRITING and state.status[rank] == Status.RUN:
                own = tuple([other for other in state.own[rank] if other != copy])
                after = state._replace(own=with_item(state.own, rank, own))
                yield Action("cancel", rank, copy.label), _skipped(protocol, after, copy.label.step)


def copy_done(protocol: Protocol, state: State) -> Iterator[Transition]:
    """The trainer has copied everything; one that the launcher has not stopped yet does so during a recovery too."""
    for rank in protocol.ranks:
        for copy in state.own[rank]:
            if copy.stage == Stage.WRITING:
                after = with_stage(state, rank, copy.label, Stage.WRITING, Stage.COPIED)
                yield Action("copy_done", rank, copy.label), after


def hash_done(protocol: Protocol, state: State) -> Iterator[Transition]:
    """The agent has hashed an own copy: it is captured. The agent needs no trainer for that."""
    for rank in protocol.ranks:
        for copy in state.own[rank]:
            if copy.stage == Stage.COPIED:
                after = with_stage(state, rank, copy.label, Stage.COPIED, Stage.CAPTURED)
                yield Action("hash_done", rank, copy.label), protocol.settled(after)


def replicate(protocol: Protocol, state: State) -> Iterator[Transition]:
    """An agent sends a captured copy to its holder, which verifies and keeps it in a free slot.

    New copies and old ones alike: after a loss the same action brings back the replicas that are missing.
    """
    for rank in protocol.ranks:
        holder = protocol.holder(rank)
        if Status.LOST in (state.status[rank], state.status[holder]) or state.adopted[rank] < state.adopted[holder]:
            continue
        for copy in state.own[rank]:
            given_up = state.pins[rank] == state.choice and not protocol.is_kept(state, copy.label)
            if copy.stage == Stage.CAPTURED and not given_up and not protocol.has_replica(state, rank, copy.label):
                after = with_replica(protocol, state, rank, copy.label)
                if after is not None:
                    yield Action("replicate", rank, copy.label), after


def free(protocol: Protocol, state: State) -> Iterator[Transition]:
    """A node hears of the watermark and forgets what is older: never what is pinned, nothing from fence to pin."""
    for node in protocol.ranks:
        watermark = protocol.watermark(state, node)
        pinned = state.pins[node]
        told = state.choice != NONE and (pinned == state.choice or not protocol.rules.pin)
        frozen = protocol.is_fenced(state, node) and not told
        if watermark == NONE or state.status[node] == Status.LOST or frozen:
            continue
        ward = protocol.ward(node)
        own = [copy for copy in state.own[node] if protocol.key(copy.label) >= watermark or copy.label == pinned]
        kept = [label for label in state.replicas[ward] if protocol.key(label) >= watermark or label == pinned]
        if len(own) < len(state.own[node]) or len(kept) < len(state.replicas[ward]):
            yield Action("free", node, watermark), with_held(protocol, state, node, own, kept)


def drop_skipped(protocol: Protocol, state: State) -> Iterator[Transition]:
    """A node hears of skips: what it has of dead steps is forgotten at once."""
    for step in state.skipped:
        dead = Label(state.incarnation, step)
        for node in protocol.ranks:
            ward = protocol.ward(node)
            own = [copy for copy in state.own[node] if copy.label != dead]
            kept = [label for label in state.replicas[ward] if label != dead]
            if len(own) < len(state.own[node]) or len(kept) < len(state.replicas[ward]):
                after = with_held(protocol, state, node, own, kept)
                yield Action("drop_skipped", node, dead), _without_past_skips(after)


def with_stage(state: State, rank: int, label: Label, before: Stage, after: Stage) -> State:
    copies = [Copy(label, after) if copy == (label, before) else copy for copy in state.own[rank]]
    return state._replace(own=with_item(state.own, rank, tuple(sorted(copies))))


def with_held(protocol: Protocol, state: State, node: int, own: list[Copy], replicas: list[Label]) -> State:
    """With these own copies and replicas on a node, and no others."""
    return state._replace(
        own=with_item(state.own, node, tuple(own)),
        replicas=with_item(state.replicas, protocol.ward(node), tuple(replicas)),
    )


def with_replica(protocol: Protocol, state: State, rank: int, label: Label) -> State | None:
    """With one more replica; None where the holder has no slot for it."""
    replicas = state.replicas[rank]
    if len(replicas) >= protocol.bounds.replica_slots:
        if protocol.rules.retention_replica:
            return None
        replicas = replicas[1:]
    replicas = tuple(sorted((*replicas, label)))
    return protocol.settled(state._replace(replicas=with_item(state.replicas, rank, replicas)))


def _holds(state: State, rank: int, label: Label) -> bool:
    return any(copy.label == label for copy in state.own[rank])


def _without_oldest(own: tuple[Copy, ...]) -> tuple[Copy, ...]:
    """Two buffers in turn, whatever is in the older one; but never one that is being written."""
    oldest = next((copy for copy in own if copy.stage == Stage.CAPTURED), None)
    return tuple([copy for copy in own if copy != oldest])


def _all_have_begun(protocol: Protocol, state: State, rank: int, step: int) -> bool:
    """Whether no other rank is missing in the collectives of this iteration."""
    return all(
        state.at[other] >= step or (state.at[other] == step - 1 and state.status[other] == Status.RUN)
        for other in protocol.ranks
        if other != rank and state.status[other] != Status.WAIT
    ) and not any(state.status[other] == Status.WAIT for other in protocol.ranks)


def _skipped(protocol: Protocol, state: State, step: int) -> State:
    if not protocol.rules.job_wide_skip:
        return state
    return _without_past_skips(state._replace(skipped=tuple(sorted({*state.skipped, step}))))


def _without_past_skips(state: State) -> State:
    """A skip need not be remembered once all ranks are past it and nobody has anything of it."""
    held = {copy.label for copies in state.own for copy in copies}.union(*state.replicas)
    still = [Label(state.incarnation, step) in held or step > min(state.at) for step in state.skipped]
    skipped = tuple(itertools.compress(state.skipped, still))
    return state._replace(skipped=skipped) if skipped != state.skipped else state
