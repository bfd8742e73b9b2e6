"""Hashes again what agents hold in memory and what lies on disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from smon_rt._proto import agent_pb2
from smon_rt.analysis.input_file import shown
from smon_rt.checkpoint_tools.agent_client import AgentClient
from smon_rt.checkpoint_tools.content_hash import xxh3_64
from smon_rt.checkpoint_tools.disk_folder import DiskStep, Shard, verified_chunks
from smon_rt.checkpoint_tools.overview import Label, Overview, label_dict
from smon_rt.errors import SmonError


@dataclass(frozen=True)
class Checked:
    """One rank's state of one step, somewhere."""

    run_id: str
    owner: str
    label: Label
    place: str  # "memory", or the file
    content_bytes: int
    reason: str  # why it is not intact; "": it is

    def to_dict(self) -> dict[str, Any]:
        return {
            "run": self.run_id,
            "owner": self.owner,
            **(label_dict(self.label) or {}),
            "place": self.place,
            "content_bytes": self.content_bytes,
            "is_intact": not self.reason,
            "reason": self.reason,
        }


def verify(found: Overview, within_s: float) -> tuple[list[Checked], list[str]]:
    """Each copy, and what could not be looked at: one line each.

    Raises:
        SmonError: there are copies on disk, and what hashes them is not installed.
    """
    checked: list[Checked] = []
    problems = list(found.problems)
    for agent in found.agents:
        if agent.status is None:
            continue
        try:
            with AgentClient(agent.folder, within_s) as client:
                copies = client.verified_copies()
        except SmonError as error:
            problems.append(str(error))
            continue
        checked += [
            Checked(
                agent.run_id,
                copy.owner,
                (copy.label.incarnation, copy.label.step),
                "memory",
                copy.content_bytes,
                "" if copy.is_intact else shown(copy.reason or "it has changed since it was captured"),
            )
            for copy in copies
            if copy.tier == agent_pb2.TIER_MEMORY  # of what is on disk an agent says what the manifest does
        ]
    for disk in found.disks:
        for step in disk.steps:
            checked += [_check(step, shard) for shard in step.shards]
    return checked, problems


def _check(step: DiskStep, shard: Shard) -> Checked:
    reason = ""
    xxh3 = xxh3_64()
    try:
        for _ in verified_chunks(shard, xxh3):
            pass
    except SmonError as error:
        reason = str(error)
    return Checked(step.run_id, shard.owner, step.label, str(shard.path), shard.content_bytes, reason)
