"""One of the ranks that share a GPU: `python -m smon_rt.check_gpu.nccl_rank FOLDER RANK`.

It computes with the other one for some steps, records that, and says in `FOLDER/rank-RANK.json` what came out.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import smon_rt  # has NCCL load its plug-in, before torch begins
from smon_rt._backend import native

__all__ = ["COLLECTIVES", "RANKS", "STEPS", "work"]

RANKS, STEPS = 2, 12
_REDUCES = 3
#: All-reduces and an all-gather a step.
COLLECTIVES = STEPS * (_REDUCES + 1)
_NUMBERS = 1 << 20


def main() -> None:
    folder, rank = Path(sys.argv[1]), int(sys.argv[2])
    import torch

    torch.cuda.set_device(0)
    smon_rt.start(folder / "traces", sample_ratio=1.0, warmup_steps=0, rank=rank, world_size=RANKS, strict=True)
    torch.distributed.init_process_group(
        "nccl", init_method=f"file://{folder / 'rendezvous'}", rank=rank, world_size=RANKS
    )
    is_right = work(torch, rank)
    torch.distributed.barrier()
    status = {name: value for name, value in native.status().items() if name.startswith("nccl_")}
    smon_rt.stop()
    torch.distributed.destroy_process_group()
    (folder / f"rank-{rank}.json").write_text(json.dumps({"is_right": is_right, **status}), encoding="utf-8")


def work(torch: Any, rank: int, device: str = "cuda", number_count: int = _NUMBERS) -> bool:
    """Collectives and messages of some steps; whether all came out right."""
    is_right = True
    numbers = torch.full((number_count,), float(rank + 1), device=device)
    for _ in range(STEPS):
        with smon_rt.step():
            for _ in range(_REDUCES):
                reduced = numbers.clone()
                torch.distributed.all_reduce(reduced)
                is_right &= bool((reduced == sum(range(1, RANKS + 1))).all())
            gathered = [torch.empty_like(numbers) for _ in range(RANKS)]
            torch.distributed.all_gather(gathered, numbers)
            is_right &= all(bool((part == other + 1).all()) for other, part in enumerate(gathered))
            if rank == 0:
                torch.distributed.send(numbers, dst=1)
            else:
                received = torch.empty_like(numbers)
                torch.distributed.recv(received, src=0)
                is_right &= bool((received == 1).all())
    return is_right


if __name__ == "__main__":
    main()
