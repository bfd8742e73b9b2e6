"""Two ranks of NCCL on one GPU, over sockets, so that all that NCCL tells a plug-in is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smon_rt.check_gpu.model import Finding
from smon_rt.check_gpu.nccl_rank import COLLECTIVES, RANKS
from smon_rt.check_gpu.process import child_environment

if TYPE_CHECKING:
    from smon_rt.trace.rank_trace import RankTrace

__all__ = ["ENVIRONMENT", "Recorded", "finding_of", "recorded", "run"]

#: One GPU for both, and nothing but sockets between them: what goes through memory has no events of the proxy. Each
#: rank says that it is another host (`NCCL_HOSTID`), so that NCCL lets them share the GPU.
ENVIRONMENT = {
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_IB_DISABLE": "1",
    "NCCL_NET": "Socket",
    "NCCL_SOCKET_IFNAME": "lo",
}
LEAST_JOINED_RATIO = 0.99
_LOOK_S = 0.05
#: For the other one to say what it saw.
_GRACE_S = 3.0


@dataclass(frozen=True)
class Recorded:
    """What the trace of one rank has: collectives by communicator, kind and place in its order; what NCCL told.

    `ops` are NCCL's operations, `sent_steps` and `received_steps` what its channels moved over the sockets.
    """

    collectives: list[tuple[int, int, int]]
    ops: int
    ops_with_transfers: int
    sent_steps: int
    received_steps: int

    @staticmethod
    def of(trace: RankTrace) -> Recorded:
        """From a trace."""
        spans = trace.spans.take((trace.spans.comm_seq > 0) & (trace.spans.peer < 0))
        rows = zip(spans.comm_id.tolist(), spans.kind.tolist(), spans.comm_seq.tolist(), strict=True)
        return Recorded(
            collectives=sorted(rows),
            ops=len(trace.comm_ops),
            ops_with_transfers=int((trace.comm_ops.transfer_count > 0).sum()),
            sent_steps=sum(row.moved for row in trace.comm_channels if row.is_send),
            received_steps=sum(row.moved for row in trace.comm_channels if not row.is_send),
        )


def run() -> Finding:
    """The deadline is that of the whole check: what is left of its ranks then is ended with it."""
    with tempfile.TemporaryDirectory(prefix="smon-check-") as name:
        folder = Path(name)
        environment = child_environment(os.environ, **ENVIRONMENT)
        command = [sys.executable, "-m", "smon_rt.check_gpu.nccl_rank", str(folder)]
        ranks = [
            subprocess.Popen([*command, str(rank)], env={**environment, "NCCL_HOSTID": f"check-{rank}"}, cwd=folder)
            for rank in range(RANKS)
        ]
        codes = _end_together(ranks)
        paths = [folder / f"rank-{rank}.json" for rank in range(RANKS)]
        answers = [json.loads(path.read_text(encoding="utf-8")) if path.exists() else {} for path in paths]
        return finding_of(codes, answers, recorded(folder / "traces"))


def _end_together(ranks: Sequence[subprocess.Popen[bytes]]) -> list[int]:
    """Their exit codes; a rank that fails would leave the other one waiting for it."""
    while any(rank.poll() is None for rank in ranks):
        if any(rank.poll() for rank in ranks):
            time.sleep(_GRACE_S)
            for rank in ranks:
                rank.kill()
        time.sleep(_LOOK_S)
    return [rank.wait() for rank in ranks]


def recorded(folder: Path) -> list[Recorded]:
    """Of each rank that has a trace."""
    from smon_rt.errors import TraceError
    from smon_rt.trace import read_directory

    try:
        return [Recorded.of(trace) for trace in read_directory(folder)]
    except TraceError:
        return []


def finding_of(codes: Sequence[int], answers: Sequence[Mapping[str, Any]], ranks: Sequence[Recorded]) -> Finding:
    """Both ranks end well with right results, NCCL used the plug-in, and what it told belongs to spans of both, and is
    in their traces with what went over the sockets.
    """
    ops = [int(answer.get("nccl_ops", 0)) for answer in answers]
    joined = [int(answer.get("nccl_joined_ops", 0)) for answer in answers]
    faults = []
    if any(codes):
        faults.append(f"exit codes {', '.join(map(str, codes))}")
    if not all(answer.get("is_right") for answer in answers):
        faults.append("wrong results, or none")
    if not all(answer.get("nccl_communicators") for answer in answers):
        faults.append("NCCL did not use the plug-in")
    if min(ops, default=0) < COLLECTIVES:
        faults.append(f"{min(ops, default=0)} operations told of {COLLECTIVES} and more")
    if any(part < LEAST_JOINED_RATIO * whole for part, whole in zip(joined, ops, strict=True)):
        faults.append("operations that belong to no span")
    bad_handles = sum(int(answer.get(f"nccl_{kind}_handles", 0)) for answer in answers for kind in ("foreign", "stale"))
    if bad_handles:
        faults.append(f"{bad_handles} handles that were not ours or not valid any more")
    if len(ranks) != RANKS or not ranks[0].collectives or ranks[0].collectives != ranks[-1].collectives:
        faults.append("the ranks did not record the same collectives")
    written = min((rank.ops for rank in ranks), default=0)
    if written < COLLECTIVES:
        faults.append(f"{written} operations in a trace of {COLLECTIVES} and more")
    if not all(rank.sent_steps and rank.received_steps for rank in ranks):
        faults.append("channels that moved nothing over the sockets")
    figures = {
        "exit_codes": list(codes),
        "ops": ops,
        "joined_ops": joined,
        "recorded_collectives": [len(rank.collectives) for rank in ranks],
        "written_ops": [rank.ops for rank in ranks],
        "written_ops_with_transfers": [rank.ops_with_transfers for rank in ranks],
        "sent_steps": [rank.sent_steps for rank in ranks],
        "received_steps": [rank.received_steps for rank in ranks],
        "status": [dict(answer) for answer in answers],
    }
    words = f"{sum(ops):,} operations told, {sum(joined):,} of them belong to spans"
    return Finding(not faults, "; ".join([words, *faults]), figures)
