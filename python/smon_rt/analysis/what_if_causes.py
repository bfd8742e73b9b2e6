"""What a fix means to the engine: parts of a question (`_analysis.what_if`), and what they assume, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from smon_rt.errors import QuestionError

if TYPE_CHECKING:
    from smon_rt.analysis.causes import Cause
    from smon_rt.analysis.report import Report

#: Causes that can be fixed, as the report names them.
CAUSES = (
    "worker",
    "stage",
    "sequence_length",
    "gc",
    "data_loading",
    "checkpoint",
    "pp_communication",
    "dp_communication",
    "host_launch_delay",
)
_FORWARD_MESSAGES = ("forward_send", "forward_recv")
_BACKWARD_MESSAGES = ("backward_send", "backward_recv")
_GROUP_KINDS = ("params_all_gather", "grads_reduce_scatter", "grads_all_reduce", "separate_grads_all_reduce")
_HOST_KINDS = {
    "gc": ("gc",),
    "data_loading": ("data_loading",),
    "checkpoint": ("checkpoint_snapshot", "checkpoint_wait"),
}
_HOST_WORDS = {
    "gc": "garbage collection",
    "data_loading": "waiting for data",
    "checkpoint": "checkpoints",
}


@dataclass(slots=True)
class Fix:
    """Parts of a question; lists add up."""

    parts: dict[str, Any] = field(default_factory=dict)
    assumed: list[str] = field(default_factory=list)

    def add(self, other: Fix) -> None:
        """Takes what another fix asks for as well; the same thing asked for twice is asked for once."""
        for key, value in other.parts.items():
            if isinstance(value, list):
                own = self.parts.setdefault(key, [])
                own += [each for each in value if each not in own]
            else:
                self.parts[key] = value
        self.assumed += [words for words in other.assumed if words not in self.assumed]

    @classmethod
    def of_workers(cls, workers: Sequence[tuple[int, int]], *, has_peers: bool) -> Fix:
        """Workers (dp rank, stage) that compute no slower than their peers."""
        names = " and ".join(f"(dp {dp_rank}, stage {stage})" for dp_rank, stage in workers)
        peers = "of the other workers of the stage" if has_peers else "of the other stages"
        verb = "computes" if len(workers) == 1 else "compute"
        return cls({"fixed_workers": list(workers)}, [f"{names} {verb} no slower than the median {peers}"])

    @classmethod
    def of_stages(cls, stages: Sequence[int]) -> Fix:
        """Stages that compute no slower than the others."""
        names = " and ".join(f"stage {stage}" for stage in stages)
        return cls({"fixed_stages": list(stages)}, [f"{names}: no slower than the median of the other stages"])

    @classmethod
    def of_ideal_kinds(cls, kinds: Sequence[str], words: str) -> Fix:
        """Kinds that take what they take in the job without stragglers."""
        return cls({"ideal_kinds": list(kinds)}, [words])


def remove_cause(report: Report, name: str) -> Fix:
    """The fix of a cause where the report found it. Raises QuestionError for a cause that this trace cannot show."""
    found = [cause for cause in report.causes if cause.cause == name]
    if not found:
        known = ", ".join(cause.cause for cause in report.causes if cause.cause in CAUSES) or "none"
        raise QuestionError(f"{name}: not among the causes that this trace can show: {known}")
    if name == "worker":
        return Fix.of_workers(
            [worker for cause in found for worker in _workers(cause)], has_peers=report.source.dp_size > 1
        )
    if name == "stage":
        return Fix.of_stages([cause.where.stage for cause in found if cause.where.stage is not None])
    if name == "sequence_length":
        return Fix({"microbatches": "even"}, ["every microbatch takes as long as a usual one"])
    if name in _HOST_KINDS:
        return Fix({"vanishing_kinds": list(_HOST_KINDS[name])}, [f"{_HOST_WORDS[name]} takes no time"])
    if name == "host_launch_delay":
        delays = {"has_launch_delays": False, "had_launch_delays": True}
        return Fix(delays, ["the host launches every op as soon as it can run"])
    combined = Fix()
    for cause in found:
        combined.add(_communication(cause))
    return combined


def _workers(cause: Cause) -> list[tuple[int, int]]:
    if cause.detail.get("workers"):
        return [(dp_rank, stage) for dp_rank, stage in cause.detail["workers"]]
    assert cause.where.dp_rank is not None
    assert cause.where.stage is not None
    return [(cause.where.dp_rank, cause.where.stage)]


def _communication(cause: Cause) -> Fix:
    """A slow place is made as fast as the others; without one all transfers take the median of their kind."""
    place, detail = cause.where, cause.detail
    if cause.cause == "pp_communication":
        peer = getattr(place, "peer_stage", None)
        if place.stage is None or peer is None:
            return Fix.of_ideal_kinds(_FORWARD_MESSAGES + _BACKWARD_MESSAGES, "messages between stages take the median")
        dp_rank = -1 if place.dp_rank is None else place.dp_rank
        scales = [
            (kind, dp_rank, stage, 1 / detail.get(f"{direction}_ratio", 1.0))
            for direction, kinds in (("forward", _FORWARD_MESSAGES), ("backward", _BACKWARD_MESSAGES))
            for kind, stage in _ends(kinds, place.stage, peer)
        ]
        where = "" if place.dp_rank is None else f" of dp rank {place.dp_rank}"
        return Fix({"scales": scales}, [f"the link of stages {place.stage} and {peer}{where} is as fast as the others"])
    if place.stage is None:
        return Fix.of_ideal_kinds(_GROUP_KINDS, "collectives of dp ranks take the median")
    scales = [(kind, -1, place.stage, 1 / detail.get("ratio", 1.0)) for kind in _GROUP_KINDS]
    return Fix({"scales": scales}, [f"the dp ranks of stage {place.stage} communicate as fast as the others"])


def _ends(kinds: Sequence[str], stage: int, peer: int) -> list[tuple[str, int]]:
    """Sender and receiver of the messages between two stages: forward to the next, backward to the one before.

    Chunks of an interleaved schedule go on from the last stage to the first.
    """
    send, receive = kinds
    is_down = (send == "forward_send") == (abs(stage - peer) == 1)
    first, second = (stage, peer) if is_down else (peer, stage)
    return [(send, first), (receive, second)]
