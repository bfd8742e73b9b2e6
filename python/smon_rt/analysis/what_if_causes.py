"""What a fix means to the engine: parts of a question (`_analysis.what_if`), and what they assume, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from smon_rt.analysis.member_words import member_ranks
from smon_rt.errors import QuestionError
from smon_rt.kinds import DP_COLLECTIVE_KINDS, MESSAGE_KINDS

if TYPE_CHECKING:
    from smon_rt.analysis.causes import Cause
    from smon_rt.analysis.report import Report

#: Causes that can be fixed, as the report names them.
CAUSES = (
    "worker",
    "stage",
    "sequence_length",
    "tensor_parallel_member",
    "gc",
    "data_loading",
    "checkpoint",
    "pp_communication",
    "dp_communication",
    "host_launch_delay",
)
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
            elif self.parts.get(key) != "explained":
                # Without any launch delays that nothing explains those of one worker are gone too.
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
        workers = [worker for cause in found for worker in _workers(cause, report.job.pp)]
        return Fix.of_workers(workers, has_peers=report.source.dp_size > 1)
    if name == "tensor_parallel_member":
        workers = [worker for cause in found for worker in _workers(cause, report.job.pp)]
        ranks = " and ".join(str(rank) for cause in found for rank in member_ranks(cause))
        words = f"rank {ranks} comes to the collectives of its worker when the other members do"
        return Fix({"fixed_members": workers}, [words])
    if name == "stage":
        return Fix.of_stages([cause.where.stage for cause in found if cause.where.stage is not None])
    if name == "sequence_length":
        return Fix({"microbatches": "even"}, ["every microbatch takes as long as a usual one"])
    combined = Fix()
    for cause in found:
        combined.add(_of_places(cause))
    return combined


def _workers(cause: Cause, pp: int) -> list[tuple[int, int]]:
    if cause.detail.get("workers"):
        return [(dp_rank, stage) for dp_rank, stage in cause.detail["workers"]]
    assert cause.where.dp_rank is not None
    stages = range(pp) if cause.where.stage is None else [cause.where.stage]
    return [(cause.where.dp_rank, stage) for stage in stages]


def _of_places(cause: Cause) -> Fix:
    """The cause goes away where it is; without a place, everywhere."""
    if cause.cause in _HOST_WORDS:
        places = _places(cause)
        words = f"{_HOST_WORDS[cause.cause]}{_at(places)} takes no time"
        return Fix({"removed_work": [(cause.cause, dp_rank, stage) for dp_rank, stage in places]}, [words])
    if cause.cause == "host_launch_delay":
        return _prompt(cause)
    if cause.cause == "pp_communication":
        return _link(cause)
    if cause.where.stage is None:
        return Fix.of_ideal_kinds(DP_COLLECTIVE_KINDS, "collectives of dp ranks take the median of their kind")
    words = f"the dp ranks of stage {cause.where.stage} communicate as fast as those of other stages"
    return Fix({"fixed_groups": [cause.where.stage]}, [words])


def _place(cause: Cause) -> tuple[int, int]:
    """-1 stands for all dp ranks, or all stages."""
    where = cause.where
    return (-1 if where.dp_rank is None else where.dp_rank, -1 if where.stage is None else where.stage)


def _places(cause: Cause) -> list[tuple[int, int]]:
    """All of a group's workers, else the one place."""
    return [(dp_rank, stage) for dp_rank, stage in cause.detail.get("workers", ())] or [_place(cause)]


def _at(places: Sequence[tuple[int, int]]) -> str:
    if len(places) > 1:
        return " on " + " and ".join(f"(dp {dp_rank}, stage {stage})" for dp_rank, stage in places)
    [(dp_rank, stage)] = places
    names = [f"dp {dp_rank}"] * (dp_rank >= 0) + [f"stage {stage}"] * (stage >= 0)
    return f" on {', '.join(names)}" if names else ""


def _prompt(cause: Cause) -> Fix:
    places = _places(cause)
    if all(min(place) >= 0 for place in places):
        parts: dict[str, Any] = {"prompt_workers": places}
        words = f"the host launches as promptly{_at(places)} as on other workers"
        return Fix({**parts, "launch_delays": "recorded", "had_launch_delays": True}, [words])
    delays = {"launch_delays": "explained", "had_launch_delays": True}
    return Fix(delays, ["the host launches every op as soon as it can run"])


def _link(cause: Cause) -> Fix:
    stage, peer = cause.where.stage, cause.where.peer_stage
    if stage is None or peer is None:
        return Fix.of_ideal_kinds(MESSAGE_KINDS, "messages between stages take the median of their kind")
    links = cause.links or [(_place(cause)[0], stage, peer)]
    words = [
        f"the link of stages {low} and {high}{f' of dp rank {dp_rank}' if dp_rank >= 0 else ''} is as fast as others"
        for dp_rank, low, high in links
    ]
    return Fix({"fixed_links": links}, words)
