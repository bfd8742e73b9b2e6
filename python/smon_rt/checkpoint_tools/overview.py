"""What agents of this user on this node hold, and what disk directories have: facts, no words."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smon_rt._proto import agent_pb2
from smon_rt.analysis.input_file import shown
from smon_rt.checkpoint_tools.agent_client import AgentClient
from smon_rt.checkpoint_tools.agent_folder import LockState, agent_folders, agents_folder, lock_state, open_private
from smon_rt.checkpoint_tools.disk_folder import DiskRun, read_disk
from smon_rt.errors import SmonError

Label = tuple[int, int]  # incarnation, step
SKIP_CAUSES = {
    agent_pb2.SKIP_NO_PROMISE: "no_promise",
    agent_pb2.SKIP_CANCELLED: "cancelled",
    agent_pb2.SKIP_LAYOUT: "layout",
    agent_pb2.SKIP_FAILED: "failed",
    agent_pb2.SKIP_DEAD: "dead",
}


@dataclass(frozen=True)
class AgentView:
    """The folder of an agent, and what the agent says of itself where it lives."""

    folder: Path
    lock: LockState
    status: agent_pb2.Status | None  # None: it is gone, or does not answer
    problem: str | None

    @property
    def run_id(self) -> str:
        if self.status is not None:
            return self.status.run_id
        return self.lock.run_id if self.lock.run_id is not None else self.folder.name

    @property
    def state(self) -> str:
        """live: its job is there. orphan: the job was not seen for a while. gone: and with it what it held."""
        if self.problem is not None:
            return "silent"
        if not self.lock.is_held:
            return "gone"
        return "live" if self.lock.idle_s is None else "orphan"


@dataclass(frozen=True)
class Overview:
    """All that was found."""

    agents: list[AgentView]
    disks: list[DiskRun]

    @property
    def problems(self) -> list[str]:
        of_agents = [agent.problem for agent in self.agents if agent.problem is not None]
        return [*of_agents, *(problem for disk in self.disks for problem in disk.problems)]


def find(directories: Sequence[str], run_id: str | None, within_s: float, *, with_agents: bool = True) -> Overview:
    """Looks at agents of this user, and at directories.

    Raises:
        SmonError: a directory has no checkpoints, or nothing is of this run.
    """
    disks = [disk for directory in directories for disk in read_disk(directory)]
    folders = agent_folders() if with_agents else []
    agents = [view for folder in folders if (view := _view(folder, within_s)) is not None]
    if run_id is None:
        return Overview(agents, disks)
    found = Overview(
        [agent for agent in agents if agent.run_id == run_id], [disk for disk in disks if disk.run_id == run_id]
    )
    if not found.agents and not found.disks:
        runs = sorted({*(agent.run_id for agent in agents), *(disk.run_id for disk in disks)})
        known = f"there are {', '.join(shown(run) for run in runs[:10])}" if runs else "there is none at all"
        raise SmonError(f"no checkpoint of run {shown(run_id)}: {known}")
    return found


def no_agent_words() -> str:
    return f"no agent of this user in {shown(agents_folder())}"


def _view(folder: Path, within_s: float) -> AgentView | None:
    try:
        fd = open_private(folder)
    except FileNotFoundError:
        return None
    except SmonError as error:
        return AgentView(folder, LockState(is_held=False), None, str(error))
    try:
        lock = lock_state(fd)
    finally:
        os.close(fd)
    if not lock.is_held:
        return AgentView(folder, lock, None, None)
    try:
        with AgentClient(folder, within_s) as client:
            return AgentView(folder, lock, client.status(), None)
    except SmonError as error:
        return AgentView(folder, lock, None, str(error))


def label_of(message: Any, name: str) -> Label | None:
    """A field that is a label; None where it is absent."""
    if not message.HasField(name):
        return None
    label = getattr(message, name)
    return label.incarnation, label.step


def rate_gb_per_s(byte_count: int, duration_ns: int) -> float | None:
    return byte_count / duration_ns if duration_ns else None  # bytes a nanosecond are GB/s


def lag_steps(status: agent_pb2.Status, rank: agent_pb2.RankStatus) -> int | None:
    """Steps from this rank's newest capture to the newest one of any rank; None where they cannot be compared."""
    captured = [label for each in status.ranks if (label := label_of(each, "captured")) is not None]
    own = label_of(rank, "captured")
    if own is None:
        return None
    newest = max(captured)
    return newest[1] - own[1] if newest[0] == own[0] else None


def to_dict(found: Overview) -> dict[str, Any]:
    """As JSON has it."""
    return {
        "agents": [_agent_dict(agent) for agent in found.agents],
        "disks": [_disk_dict(disk) for disk in found.disks],
        "problems": found.problems,
    }


def label_dict(label: Label | None) -> dict[str, int] | None:
    return None if label is None else {"incarnation": label[0], "step": label[1]}


def _agent_dict(agent: AgentView) -> dict[str, Any]:
    said: dict[str, Any] = {
        "folder": str(agent.folder),
        "run": agent.run_id,
        "state": agent.state,
        "pid": agent.lock.pid,
        "idle_s": agent.lock.idle_s,
        "problem": agent.problem,
    }
    status = agent.status
    if status is None:
        return said
    skip = status.last_skip if status.HasField("last_skip") else None
    return said | {
        "pid": status.pid,
        "incarnation": status.incarnation,
        "is_fenced": status.is_fenced,
        "agreed": label_dict(label_of(status, "agreed")),
        "durable": label_dict(label_of(status, "durable")),
        "disk_error": status.disk_error,
        "memory_bytes": status.memory_bytes,
        "memory_budget_bytes": status.memory_budget_bytes,
        "skipped_steps": status.skipped_steps,
        "last_skip": None
        if skip is None
        else {
            **(label_dict((skip.label.incarnation, skip.label.step)) or {}),
            "owner": skip.owner,
            "cause": SKIP_CAUSES.get(skip.cause, "unknown"),
        },
        "hash_gb_per_s": rate_gb_per_s(status.hashed_bytes, status.hash_ns),
        "write_gb_per_s": rate_gb_per_s(status.written_bytes, status.write_ns),
        "ranks": [_rank_dict(status, rank) for rank in status.ranks],
    }


def _rank_dict(status: agent_pb2.Status, rank: agent_pb2.RankStatus) -> dict[str, Any]:
    return {
        "owner": rank.owner,
        "rank": rank.rank,
        "pid": rank.pid,
        "is_connected": rank.is_connected,
        "promised": label_dict(label_of(rank, "promised")),
        "captured": label_dict(label_of(rank, "captured")),
        "lag_steps": lag_steps(status, rank),
        "content_bytes": rank.content_bytes,
        "captures": rank.captures,
        "skips": rank.skips,
        "copy_s": rank.copy_ns / 1e9,
        "blocked_s": rank.blocked_ns / 1e9,
        "copy_gb_per_s": rate_gb_per_s(rank.content_bytes, rank.copy_ns),
        "layout_epoch": rank.layout_epoch,
    }


def _disk_dict(disk: DiskRun) -> dict[str, Any]:
    return {
        "folder": str(disk.folder),
        "run": disk.run_id,
        "steps": [
            {
                "incarnation": step.incarnation,
                "step": step.step,
                "content_bytes": step.content_bytes,
                "shards": [
                    {
                        "owner": shard.owner,
                        "file": shard.path.name,
                        "topology": shard.topology,
                        "content_bytes": shard.content_bytes,
                        "content_hash": f"{shard.content_hash:016x}",
                    }
                    for shard in step.shards
                ],
            }
            for step in disk.steps
        ],
        "incomplete": list(disk.incomplete),
        "problems": list(disk.problems),
    }
