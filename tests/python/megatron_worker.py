"""One rank of a Megatron job: trains the cases of a file one after the other, each with groups of its own.

    forked_ranks.py '[{"script": "megatron_worker.py", "arguments": ["cases.json"], "ranks": 4}]'

A case: name, settings of examples/megatron_pretrain.py, `recording` (options of smon_rt.start, or none), `before` and
`after`: code to run before and after training, with the names of `names_of`. What a rank found is in
FOLDER/CASE/result-RANK.json.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import megatron_pretrain as pretrain  # type: ignore[import-not-found]  # on PYTHONPATH
import torch
import torch.distributed as dist


def main() -> None:
    cases_file = Path(sys.argv[1])
    for number, case in enumerate(json.loads(cases_file.read_text())):
        store = f"file://{cases_file.with_name(f'store-{number}')}"
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
        run(case, cases_file.parent / case["name"])
        dist.destroy_process_group()


def run(case: dict[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = names_of(case, folder)
    exec(case["before"], names)
    if case["recording"] is None:
        result = pretrain.train(names["settings"], names["plant"])
    else:
        import smon_rt

        assert smon_rt.start(folder / "traces", **case["recording"])
        result = pretrain.train(names["settings"], names["plant"])
        smon_rt.stop()
    exec(case["after"], names)
    found = {"losses": result.losses, "grad_norms": result.grad_norms, "answer": names["answer"]}
    (folder / f"result-{dist.get_rank()}.json").write_text(json.dumps(found))


def names_of(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What `before` and `after` find: `answer` is what the test gets back."""
    return {
        "settings": pretrain.Settings(**case["settings"]),
        "plant": lambda chunks: None,
        "answer": {},
        "folder": folder,
        "pretrain": pretrain,
        "torch": torch,
        "dist": dist,
        "rank": dist.get_rank(),
    }


if __name__ == "__main__":
    main()
