"""Two ranks of NCCL on one GPU, over sockets, so that all that NCCL tells a plug-in is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from smon_rt.check_gpu.model import Finding
from smon_rt.check_gpu.nccl_rank import COLLECTIVES, RANKS
from smon_rt.check_gpu.process import child_environment

__all__ = ["ENVIRONMENT", "finding_of", "run", "sequences"]

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
        return finding_of(codes, answers, sequences(folder / "traces"))


def _end_together(ranks: Sequence[subprocess.Popen[bytes]]) -> list[int]:
    """Their exit codes; a rank that fails would leave the other one waiting for it."""
    while any(rank.poll() is None for rank in ranks):
        if any(rank.poll() for rank in ranks):
            time.sleep(_GRACE_S)
            for rank in ranks:
                rank.kill()
        time.sleep(_LOOK_S)
    return [rank.wait() for rank in ranks]


def sequences(folder: Path) -> list[list[tuple[int, int, int]]]:
    """Of each rank its collectives, as communicator, kind and place in its order; none where it has no trace."""
    from smon_rt.errors import TraceError
    from smon_rt.trace import read_directory

    try:
        traces = read_directory(folder)
    except TraceError:
        return []
    found = []
    for trace in traces:
        spans = trace.spans.take((trace.spans.comm_seq > 0) & (trace.spans.peer < 0))
        rows = zip(spans.comm_id.tolist(), spans.kind.tolist(), spans.comm_seq.tolist(), strict=True)
        found.append(sorted(rows))
    return found


def finding_of(
    codes: Sequence[int], answers: Sequence[Mapping[str, Any]], recorded: Sequence[list[tuple[int, int, int]]]
) -> Finding:
    """Both ranks end well with right results, NCCL used the plug-in, and what it told belongs to spans of both."""
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
    if len(recorded) != RANKS or not recorded[0] or recorded[0] != recorded[-1]:
        faults.append("the ranks did not record the same collectives")
    figures = {
        "exit_codes": list(codes),
        "ops": ops,
        "joined_ops": joined,
        "recorded_collectives": [len(rows) for rows in recorded],
        "status": [dict(answer) for answer in answers],
    }
    words = f"{sum(ops):,} operations told, {sum(joined):,} of them belong to spans"
    return Finding(not faults, "; ".join([words, *faults]), figures)
