"""Runs jobs of several ranks on this machine by forking, so that torch is imported once and not by each rank.

    python tests/python/forked_ranks.py '[{"script": "train.py", "arguments": ["--steps", "3"], "ranks": 4}]' [MODULE …]

Modules are imported once too. One job after the other; each rank is the script as `__main__` with the variables that
torchrun sets. With "run": DIR it is run by `smon_rt.run --dir DIR`. Exits with 1 as soon as a rank fails.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
from pathlib import Path
from typing import Any


def main() -> int:
    os.environ |= {"OMP_NUM_THREADS": "1"}
    import torch.distributed
    import torch.distributed.fsdp
    import torch.distributed.pipelining
    import torch.nn.parallel  # noqa: F401

    for name in sys.argv[2:]:
        importlib.import_module(name)
    if len(sys.argv) > 2:
        gc.collect()
        gc.freeze()  # else each rank's exit walks through all that was imported, and copies it
    for job in json.loads(sys.argv[1]):
        print(f"job: {job['script']} {' '.join(job['arguments'])}", flush=True)
        if not run_job(job):
            return 1
    return 0


def run_job(job: dict[str, Any]) -> bool:
    """Whether all ranks ended well; the first that fails ends the others."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = {}
    for rank in range(job["ranks"]):
        child = os.fork()
        if child == 0:
            run_rank(job, rank, port)
        ranks[child] = rank
    is_well = True
    while ranks:
        child, status = os.wait()
        rank = ranks.pop(child)
        if status != 0 and is_well:
            is_well = False
            print(f"rank {rank} ended with status {os.waitstatus_to_exitcode(status)}", file=sys.stderr, flush=True)
            for other in ranks:
                os.kill(other, signal.SIGKILL)
    return is_well


def run_rank(job: dict[str, Any], rank: int, port: int) -> None:
    size = str(job["ranks"])
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    sys.argv = [job["script"], *job["arguments"]]
    if "run" in job:
        from smon_rt import run

        sys.argv = ["smon_rt.run", "--dir", job["run"], *sys.argv]
        run.main()
    else:
        sys.path[0] = str(Path(job["script"]).parent)  # as Python would
        runpy.run_path(job["script"], run_name="__main__")
    sys.exit(0)  # as the script would: exit handlers run


if __name__ == "__main__":
    sys.exit(main())
