"""One rank of a small pipeline with data parallelism, on the project's fake GPU.

The fake driver (tests/fakes/fake_libcuda.h) is found as NVIDIA's would be, and what is launched takes as long
as it says; recording is the real one. Ranks see each other's messages by a file of slots, a time each: when it arrives.

    python gpu_rank.py '{"folder": ..., "rank": 0, ...}'    # the fields of Rank
"""

from __future__ import annotations

import ctypes
import gc
import json
import mmap
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import smon_rt
from smon_rt import _runtime as native
from smon_rt.kinds import KindName
from smon_rt.trace.kinds import FLAGS, TIME_SOURCE_NAMES

MS = 1_000_000
STAGES = REPLICAS = 2
MICROBATCHES = 4
FORWARD_MS, BACKWARD_MS, OPTIMIZER_MS, MESSAGE_MS, REDUCE_MS = 5, 10, 2, 1, 2
MESSAGE_BYTES, GRADIENT_BYTES = 8_000_000, 40_000_000
_MESSAGES = 2 * REPLICAS * MICROBATCHES
_RANKS = STAGES * REPLICAS
# Messages, gradients of each rank, and when each is done with the step.
_SLOTS_OF_A_STEP = _MESSAGES + 2 * _RANKS
_WAIT_RETURN = TIME_SOURCE_NAMES.index("wait_return")


def slot_bytes(steps: int) -> int:
    """How large the file of slots is."""
    return 8 * steps * _SLOTS_OF_A_STEP


@dataclass(frozen=True)
class Rank:
    """What one rank does.

    `slow`: by how much its GPU is; `link_ms`: how long its messages take; `stall_ms`: how long its host does nothing
    between its forwards and backwards, once its GPU has nothing to do.
    """

    folder: str
    slots: str
    rank: int
    steps: int
    slow: float = 1.0
    link_ms: float = MESSAGE_MS
    stall_ms: float = 0.0
    is_killed: bool = False

    @property
    def stage(self) -> int:
        return self.rank // REPLICAS

    @property
    def dp_rank(self) -> int:
        return self.rank % REPLICAS


class _Job:
    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.gpu = ctypes.CDLL("libcuda.so.1")
        with Path(rank.slots).open("r+b") as file:
            memory = mmap.mmap(file.fileno(), slot_bytes(rank.steps))
        self.slots = (ctypes.c_int64 * (rank.steps * _SLOTS_OF_A_STEP)).from_buffer(memory)
        self.pipeline = self._communicator("pp", [rank.dp_rank + REPLICAS * stage for stage in range(STAGES)])
        self.replicas = self._communicator("dp", [rank.stage * REPLICAS + other for other in range(REPLICAS)])

    @staticmethod
    def _communicator(dimension: str, ranks: list[int]) -> int:
        number = native.register_communicator(f"{dimension} of {ranks}", dimension, ranks)
        native.set_stream_waits(number)
        return number

    def step(self, step: int) -> None:
        first = self.rank.stage == 0
        for microbatch in range(MICROBATCHES):
            if not first:
                self.receive("forward_recv", step, microbatch)
            self.compute("forward_compute", FORWARD_MS, microbatch)
            if first:
                self.send("forward_send", step, microbatch)
            else:
                self.compute("backward_compute", BACKWARD_MS, microbatch)
                self.send("backward_send", step, microbatch)
        if self.rank.stall_ms:
            self.gpu.fake_cuda_synchronize(None, None)
            time.sleep(self.rank.stall_ms / 1e3)
        for microbatch in range(MICROBATCHES if first else 0):
            self.receive("backward_recv", step, microbatch)
            self.compute("backward_compute", BACKWARD_MS, microbatch)
        self.reduce(step)
        self.compute("optimizer", OPTIMIZER_MS, -1)
        # The host is a step ahead of its GPU, as where it reads the loss of the step before.
        self.gpu.fake_cuda_signal(None, self._done_slot(step), ctypes.c_int64(0))
        if step > 0:
            self.gpu.fake_cuda_synchronize(None, self._done_slot(step - 1))

    def compute(self, kind: KindName, duration_ms: float, microbatch: int) -> None:
        token = smon_rt.begin(kind, microbatch)
        self.gpu.fake_cuda_launch(None, ctypes.c_int64(round(duration_ms * self.rank.slow * MS)))
        smon_rt.end(token)

    def send(self, kind: KindName, step: int, microbatch: int) -> None:
        token = smon_rt.begin(kind, microbatch, **self._message(step, microbatch))
        slot = self._message_slot(step, kind == "forward_send", self.rank.dp_rank, microbatch)
        self.gpu.fake_cuda_signal(None, slot, ctypes.c_int64(round(self.rank.link_ms * MS)))
        native.end_at(token, 0, 0, FLAGS["not_waited"])

    def receive(self, kind: KindName, step: int, microbatch: int) -> None:
        token = smon_rt.begin(kind, microbatch, **self._message(step, microbatch))
        self.gpu.fake_cuda_wait(None, self._message_slot(step, kind == "forward_recv", self.rank.dp_rank, microbatch))
        native.end_at(token, 0, _WAIT_RETURN, 0)

    def reduce(self, step: int) -> None:
        ids: dict[str, Any] = {"comm_id": self.replicas, "comm_seq": step + 1, "payload_bytes": GRADIENT_BYTES}
        token = smon_rt.begin("grads_reduce_scatter", **ids)
        slots = [self._slot(step, _MESSAGES + self.rank.stage * REPLICAS + n) for n in range(REPLICAS)]
        self.gpu.fake_cuda_signal(None, slots[self.rank.dp_rank], ctypes.c_int64(REDUCE_MS * MS))
        for slot in slots:
            self.gpu.fake_cuda_wait(None, slot)
        native.end_at(token, 0, _WAIT_RETURN, 0)

    def _message(self, step: int, microbatch: int) -> dict[str, Any]:
        return {
            "comm_id": self.pipeline,
            "comm_seq": step * MICROBATCHES + microbatch + 1,
            "peer": self.rank.dp_rank + REPLICAS * (1 - self.rank.stage),
            "payload_bytes": MESSAGE_BYTES,
        }

    def _message_slot(self, step: int, is_forward: bool, dp_rank: int, microbatch: int) -> Any:
        return self._slot(step, (int(is_forward) * REPLICAS + dp_rank) * MICROBATCHES + microbatch)

    def _done_slot(self, step: int) -> Any:
        return self._slot(step, _MESSAGES + _RANKS + self.rank.rank)

    def _slot(self, step: int, number: int) -> Any:
        return ctypes.byref(self.slots, 8 * (step * _SLOTS_OF_A_STEP + number))


def main() -> None:
    rank = Rank(**json.loads(sys.argv[1]))
    gc.disable()
    assert smon_rt.start(rank.folder, sample_ratio=1.0, warmup_steps=2, rank=rank.rank, world_size=_RANKS, strict=True)
    smon_rt.set_layout(
        smon_rt.Layout(
            dp_rank=rank.dp_rank, stage=rank.stage, dp_size=REPLICAS, pp_size=STAGES, microbatch_count=MICROBATCHES
        )
    )
    job = _Job(rank)
    # All have begun before anybody does: what one waits for must not be the start of another's interpreter.
    Path(rank.folder, f"ready-{rank.rank}").touch()
    while len(list(Path(rank.folder).glob("ready-*"))) < _RANKS:
        time.sleep(0.01)
    for step in range(rank.steps):
        with smon_rt.step(step):
            job.step(step)
    job.gpu.fake_cuda_synchronize(None, None)
    if rank.is_killed:
        os.kill(os.getpid(), signal.SIGKILL)
    smon_rt.stop()


if __name__ == "__main__":
    main()
