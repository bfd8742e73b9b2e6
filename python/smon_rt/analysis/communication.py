"""What ranks sent each other, by group: how much, how fast, and how long they waited for the last one to come."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from smon_rt.analysis.causes import Cause
from smon_rt.kinds import DP_COLLECTIVE_KINDS, MERGED_MESSAGE_KINDS

_KINDS = {"pp_communication": tuple(MERGED_MESSAGE_KINDS), "dp_communication": DP_COLLECTIVE_KINDS}

#: A group is slow from so many times the others' time on.
_SLOW_RATIO = 1.2


@dataclass(frozen=True, slots=True)
class Traffic:
    """Communication of one kind. Bytes are what one member puts in, times in seconds.

    `timed_op_count` are the ops whose transfer somebody waited for from its begin on: only these are in transfers and
    bandwidths. `transfer_s`: from the last member's start to the first end that a member saw. `skew_s`: from the first
    start to the last one; of a message how long its receiver waited for it to be sent. Both are medians of one op;
    `…_per_step` what a step's ops of one group take together, and what a member waits. Bandwidths are bytes per second
    (docs/gpu.md).
    """

    kind: str
    dimension: str
    op_count: int
    timed_op_count: int
    payload_bytes: int
    bytes_per_step: float
    transfer_s: float | None
    skew_s: float | None
    transfer_s_per_step: float
    skew_s_per_step: float
    algorithm_bytes_per_s: float | None
    bus_bytes_per_s: float | None


@dataclass(frozen=True, slots=True)
class CommunicationKind(Traffic):
    """All groups of one kind; `…_per_step` are means over them."""

    group_count: int
    rank_count: int


@dataclass(frozen=True, slots=True)
class NcclFacts:
    """What NCCL itself says of a group's ops, of all members: what most of them have, and medians.

    `op_count` are the members' ops of which it says anything. `transfer_s`: from the first to the last transfer over
    the network. `slowest_channel` is the one whose kernel stopped last most often, in `slowest_channel_ratio` of those
    that have times of kernels on several channels.
    """

    op_count: int
    algorithm: str | None
    protocol: str | None
    channel_count: int | None
    transfer_s: float | None
    slowest_channel: int | None
    slowest_channel_ratio: float | None


@dataclass(frozen=True, slots=True)
class CommunicationGroup(Traffic):
    """One communicator's collectives of one kind, or the messages from one rank to another.

    `ranks`: of messages the sender and the receiver; `stage` and `peer_stage` are theirs. `dp_rank` and `stage` are
    those that all members share. `ratio`: how many times as long as other groups of the kind and size transfers take.
    `clock_bound_s`: how far the clocks of members may be apart, None where nothing bounds that; by as much a transfer
    may be off. `last_rank` is the member that comes last most often, to `last_ratio` of the ops.
    `nccl`: None where NCCL's plug-in told nothing of them.
    """

    name: str
    ranks: tuple[int, ...]
    dp_rank: int | None
    stage: int | None
    peer_stage: int | None
    ratio: float | None
    clock_bound_s: float | None
    last_rank: int | None
    last_ratio: float | None
    nccl: NcclFacts | None

    @property
    def is_slow(self) -> bool:
        """True where the others of its kind are clearly faster, by more than clocks may be apart."""
        if self.ratio is None or self.transfer_s is None or self.clock_bound_s is None:
            return False
        return self.ratio * (1 - self.clock_bound_s / self.transfer_s) >= _SLOW_RATIO


@dataclass(frozen=True, slots=True)
class Communication:
    """All communication that ranks numbered alike. `groups`: the slowest first; not all of very many."""

    by_kind: tuple[CommunicationKind, ...]
    groups: tuple[CommunicationGroup, ...]
    group_count: int

    @property
    def slowest(self) -> CommunicationGroup | None:
        """The link or group that is slow, if any."""
        return self.groups[0] if self.groups and self.groups[0].is_slow else None


def with_bandwidth(cause: Cause, communication: Communication | None) -> Cause:
    """A cause that is slow communication at a place, with what goes through its links and through the others."""
    if communication is None or cause.where.stage is None or cause.cause not in _KINDS:
        return cause
    groups = [group for group in communication.groups if group.kind in _KINDS[cause.cause]]
    own = _speed([group for group in groups if _is_at(group, cause)])
    others = _speed([group for group in groups if not _is_at(group, cause)])
    if own is None or others is None:
        return cause
    return dataclasses.replace(cause, detail={**cause.detail, "bus_bytes_per_s": own, "others_bus_bytes_per_s": others})


def _is_at(group: CommunicationGroup, cause: Cause) -> bool:
    where = cause.where
    if cause.cause == "dp_communication":
        return group.stage == where.stage
    if {group.stage, group.peer_stage} != {where.stage, where.peer_stage}:
        return False
    return group.dp_rank == where.dp_rank or where.dp_rank is None


def _speed(groups: Sequence[CommunicationGroup]) -> float | None:
    known = [group.bus_bytes_per_s for group in groups if group.bus_bytes_per_s is not None]
    return median(known) if known else None
