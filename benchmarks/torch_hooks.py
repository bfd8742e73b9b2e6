"""What torch's hooks cost: a collective with and without them, and a model's call, side by side in one run.

A group of one rank: gloo then does next to nothing, so that the hooks are most of what differs. Every round times each
case once, so that the machine's moods hit all alike; a cost is the median of the differences from the bare call.
"""

from __future__ import annotations

import importlib
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from engine import Record

import smon_rt

_BURST = 200
_ROUNDS = 60
_COLLECTIVES = {
    "torch, a collective's hooks, switched off": "off",
    "torch, a collective's hooks, unsampled": "unsampled",
    "torch, a collective's hooks, sampled": "sampled",
}
_CALL = "torch, a model's call, sampled"


def measure(smoke: bool, record: Record) -> None:
    """Reports the costs in nanoseconds per call; nothing is measured without torch."""
    try:
        torch = importlib.import_module("torch")
        distributed = importlib.import_module("torch.distributed")
    except ImportError:
        for what in (*_COLLECTIVES, _CALL):
            record(what, None, "torch is not installed")
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    rounds, burst = (3, 20) if smoke else (_ROUNDS, _BURST)
    try:
        with tempfile.TemporaryDirectory() as folder:
            _measure_collectives(torch, distributed, Path(folder), rounds, burst, record)
        _measure_call(torch, rounds, burst, record)
    finally:
        torch.set_num_threads(threads)


def _measure_collectives(torch: Any, distributed: Any, folder: Path, rounds: int, burst: int, record: Record) -> None:
    from smon_rt.integrations.torch import collectives, install

    distributed.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=0, world_size=1)
    assert smon_rt.start(folder, run_id=f"bench-torch-{os.getpid()}", sample_ratio=0.0, warmup_steps=0, always_steps=0)
    assert smon_rt.request_sampling(rounds, first_step=rounds + 10)
    group = distributed.group.WORLD
    tensor = torch.ones(1)
    times: dict[str, list[float]] = {"bare": [], "off": [], "unsampled": [], "sampled": []}

    def one_burst() -> float:
        began = time.perf_counter_ns()
        for _ in range(burst):
            distributed.all_reduce(tensor)
        return (time.perf_counter_ns() - began) / burst

    one_burst()
    for number in range(rounds):
        # This thread alone uses the group, so its hooks may come and go here.
        group.unregister_pre_hook(install._HOOK_ID)
        group.unregister_post_hook(install._HOOK_ID)
        times["bare"].append(one_burst())
        install._register(group)
        collectives.switch_hooks(False)
        times["off"].append(one_burst())
        collectives.switch_hooks(True)
        for name, step in (("unsampled", number), ("sampled", rounds + 10 + number)):
            with smon_rt.step(step):
                assert smon_rt.is_sampled() == (name == "sampled")
                times[name].append(one_burst())
    smon_rt.stop(closing_line=False)
    status = smon_rt.status()
    smon_rt.detach()
    distributed.destroy_process_group()
    bare_us = statistics.median(times["bare"]) / 1000
    how = f"beside a bare all_reduce of {bare_us:.0f} µs; {status.dropped_spans} spans dropped"
    for what, name in _COLLECTIVES.items():
        record(what, _difference(times[name], times["bare"]), how)


def _measure_call(torch: Any, rounds: int, burst: int, record: Record) -> None:
    """Calls without gradients, each of which is an eval span."""
    model = torch.nn.Linear(1, 1)
    model.forward = lambda: None

    def one_burst() -> float:
        began = time.perf_counter_ns()
        for _ in range(burst):
            model()
        return (time.perf_counter_ns() - began) / burst

    bare, recorded = [], []
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        for number in range(rounds):
            bare.append(one_burst())
            assert smon_rt.start(folder, run_id=f"bench-call-{os.getpid()}-{number}", sample_ratio=1.0)
            with smon_rt.step(0):
                for _ in range(3):  # it is found, and no other is looked for any more
                    one_burst()
                recorded.append(one_burst())
            smon_rt.stop(closing_line=False)
            smon_rt.detach()
    record(_CALL, _difference(recorded, bare), f"beside a bare call of {statistics.median(bare):.0f} ns")


def _difference(times: list[float], bare: list[float]) -> float:
    return statistics.median(one - other for one, other in zip(times, bare, strict=True))
