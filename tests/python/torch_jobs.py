"""Runs torch programs of one or several ranks that record, in real processes over gloo, and reads back what they left.

Importing torch takes most of a test's time. So one process imports it, and each job is a fork of that: it has torch,
and nothing of smon_rt.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smon_rt.kinds import KIND_NAMES
from smon_rt.trace import read_file
from smon_rt.trace.rank_trace import RankTrace
from tests.python.recording_process import Output, RecordedJob

HAS_TORCH = importlib.util.find_spec("torch") is not None
_VERSION = importlib.metadata.version("torch") if HAS_TORCH else "0.0"

#: For each test module: `pytestmark = needs_torch`, or the other one.
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed: pip install torch")
#: Whether process groups take hooks.
HAS_HOOKS = tuple(map(int, _VERSION.split(".")[:2])) >= (2, 15)
needs_hooks = pytest.mark.skipif(
    not HAS_HOOKS,
    reason=f"torch {_VERSION}: process groups take hooks from 2.15 on" if HAS_TORCH else "torch is not installed",
)

DEADLINE_S = 120.0

_NURSERY = """
import gc, json, os, sys, warnings
warnings.filterwarnings("ignore")
import torch, torch._dynamo, torch.distributed
gc.collect()
gc.freeze()  # else each job's exit walks through all of torch, a second long
job = None
for line in sys.stdin:
    job = json.loads(line)
    pid = os.fork()
    if pid == 0:
        break
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    job = None
if job is not None:
    os.setsid()
    for descriptor, path in enumerate(("/dev/null", job["stdout"], job["stderr"])):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), descriptor)
    os.environ.clear()
    os.environ.update(job["environment"])
    sys.argv = ["-c", job["folder"]]
    exec(compile(job["program"], "<job>", "exec"), {"__name__": "__main__"})
"""

_PREAMBLE = """
import os, sys, threading, time
import torch, torch.distributed as dist
import smon_rt
DIR = sys.argv[1]
WORLD = int(os.environ["WORLD_SIZE"])
RANK = next((rank for rank in range(1, WORLD) if os.fork() == 0), 0)
os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(RANK)
def init():
    dist.init_process_group("gloo", init_method="file://" + os.environ["STORE"], rank=RANK, world_size=WORLD)
def start(**options):
    assert smon_rt.start(DIR, **({"sample_ratio": 1.0, "warmup_steps": 0, "strict": True} | options))
def end_of_rank(*expected):
    sys.stdout.flush()
    if RANK == 0:
        ended = sorted(os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(1, WORLD))
        assert ended == sorted(expected or [0] * (WORLD - 1)), ended
"""


class Nursery:
    """The process that has imported torch."""

    def __init__(self) -> None:
        # By the environment: torch.set_num_threads makes a pool of threads, which no fork survives.
        environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _NURSERY],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def run(self, program: str, folder: Path, environment: dict[str, str], exit_code: int) -> Output:
        paths = {name: folder.parent / name for name in ("stdout", "stderr")}
        job = {name: str(path) for name, path in paths.items()}
        job |= {"program": program, "folder": str(folder)}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job | {"environment": environment}) + "\n")
        self._process.stdin.flush()
        pid = int(self._line())
        ended = self._line()
        if not ended:
            os.killpg(pid, signal.SIGKILL)
            self._line()
        output = Output(*(path.read_text() for path in paths.values()))
        assert ended == str(exit_code), f"exit code {ended or 'none in time'}\n{output.stdout}\n{output.stderr}"
        return output

    def close(self) -> None:
        self._process.communicate()

    def _line(self) -> str:
        """The next line, "" if there is none in time."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], DEADLINE_S)
        return self._process.stdout.readline().strip() if ready else ""


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    one = Nursery()
    yield one
    one.close()


@dataclass
class TorchJob:
    """A job of some ranks, and its trace directory."""

    recorded: RecordedJob
    nursery: Nursery

    @property
    def folder(self) -> Path:
        return self.recorded.folder

    def run(self, *parts: str, ranks: int = 1, exit_code: int = 0, ended: str = "", **environment: str) -> Output:
        """Runs a program in each rank: it has torch, dist, smon_rt, DIR, RANK, WORLD, init() and start().

        Args:
            parts: of the program, one after the other.
            ranks: how many processes.
            exit_code: what rank 0 must end with.
            ended: what the others must end with, "0, -9"; all with 0 if not given.
            environment: further variables.
        """
        program = "\n".join([_PREAMBLE, *map(textwrap.dedent, parts), f"end_of_rank({ended})\n"])
        own = {"WORLD_SIZE": str(ranks), "STORE": str(self.folder.parent / "store"), "OMP_NUM_THREADS": "1"}
        return self.nursery.run(program, self.folder, self.recorded.environment(**own, **environment), exit_code)

    def traces(self) -> list[RankTrace]:
        """Of all ranks, by rank."""
        return sorted((read_file(path) for path in self.recorded.files()), key=lambda trace: trace.rank)


@pytest.fixture
def torch_job(job: RecordedJob, nursery: Nursery) -> TorchJob:
    return TorchJob(job, nursery)


@dataclass(frozen=True)
class Row:
    """One span."""

    kind: str
    step: int
    start_ns: int
    end_ns: int
    microbatch: int
    chunk: int
    communicator: str
    """Its dimension, else its name; "" if there is none."""
    comm_seq: int
    peer: int
    payload_bytes: int
    time_source: int
    flags: int


def rows(trace: RankTrace, *kinds: str) -> list[Row]:
    """Spans in the order in which they began, of these kinds, or of all but step, gc and metric."""
    spans = trace.spans
    order = np.argsort(spans.start_ns, kind="stable")
    found = [_row(trace, spans, int(index)) for index in order]
    return [row for row in found if (row.kind in kinds if kinds else row.kind not in ("step", "gc", "metric"))]


def _row(trace: RankTrace, spans: Any, index: int) -> Row:
    communicator = trace.communicators.get(int(spans.comm_id[index]))
    return Row(
        kind=KIND_NAMES[int(spans.kind[index])],
        step=int(spans.step[index]),
        start_ns=int(spans.start_ns[index]),
        end_ns=int(spans.start_ns[index] + spans.duration_ns[index]),
        communicator="" if communicator is None else communicator.dimension or communicator.name,
        **{
            name: int(getattr(spans, name)[index])
            for name in ("microbatch", "chunk", "comm_seq", "peer", "payload_bytes", "time_source", "flags")
        },
    )


def counts_by_step(trace: RankTrace, steps: range) -> list[Counter[str]]:
    """How many spans of each kind there are in each of these steps."""
    found = rows(trace)
    return [Counter(row.kind for row in found if row.step == step) for step in steps]


def step_numbers(trace: RankTrace) -> list[int]:
    """Steps whose times were recorded."""
    return [int(step) for step in trace.steps.step]
