"""Runs programs that record, each in a process of its own and with a deadline, and reads back what they left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from smon_rt.kinds import KIND_NAMES
from smon_rt.trace import read_file
from smon_rt.trace.rank_trace import RankTrace

DEADLINE_S = 60.0
SHARED_MEMORY = Path("/dev/shm")
#: Variables of a surrounding torchrun or of the tests' own shell would change what a child records.
_FOREIGN = ("SMON_RT_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_")
_PREAMBLE = "import os, sys, threading, time\nimport smon_rt\nDIR = sys.argv[1]\n"

#: Records what it is told; every step sampled, no warm-up.
START_WITH_GC = "assert smon_rt.start(DIR, sample_ratio=1.0, warmup_steps=0, strict=True)\n"
#: The same without collections: each is a span and some metrics that come as they like, so counts would be off.
START = "import gc; gc.disable()\n" + START_WITH_GC


@dataclass
class RecordedJob:
    """A trace directory, and a run id that no other process on this machine has."""

    folder: Path
    run_id: str = field(default_factory=lambda: f"t{uuid.uuid4().hex[:12]}")
    children: list[subprocess.Popen[str]] = field(default_factory=list)

    def environment(self, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
        return kept | {"SMON_RT_RUN_ID": self.run_id, "SMON_RT_VERDICT_WITHIN_S": "0"} | more

    def begin(self, program: str, folder: Path | None = None, **environment: str) -> subprocess.Popen[str]:
        """Starts a program, which may begin with START; `finish` waits for it."""
        start, rest = (START, program.removeprefix(START)) if program.startswith(START) else ("", program)
        child = subprocess.Popen(
            [sys.executable, "-c", _PREAMBLE + start + textwrap.dedent(rest), str(folder or self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment(**environment),
            start_new_session=True,
        )
        self.children.append(child)
        return child

    def run(self, program: str, *, exit_code: int = 0, folder: Path | None = None, **environment: str) -> Output:
        """Runs a program to its end, which must come with this exit code (negative: by that signal)."""
        return finish(self.begin(program, folder, **environment), exit_code)

    def files(self) -> list[Path]:
        return sorted(self.folder.glob("*.smon"))

    def trace(self) -> RankTrace:
        """What the only file holds."""
        (path,) = self.files()
        return read_file(path)

    def arenas(self) -> list[Path]:
        """Shared memory that processes of this run have or left."""
        return sorted(SHARED_MEMORY.glob(f"smon-*{self.run_id}*"))


@dataclass(frozen=True)
class Output:
    """What a program printed."""

    stdout: str
    stderr: str


def finish(child: subprocess.Popen[str], exit_code: int = 0, deadline_s: float = DEADLINE_S) -> Output:
    """Waits for a child; one that hangs is shown and killed with all its children."""
    try:
        stdout, stderr = child.communicate(timeout=deadline_s)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        stdout, stderr = child.communicate()
        pytest.fail(f"the child did not end within {deadline_s} s\n{stdout}\n{stderr}")
    assert child.returncode == exit_code, f"exit code {child.returncode}\n{stdout}\n{stderr}"
    return Output(stdout, stderr)


def wait_for_line(child: subprocess.Popen[str]) -> str:
    """The next line that a child prints: how it says that it is where the test wants it."""
    assert child.stdout is not None
    line = child.stdout.readline()
    assert line, f"the child ended early: {child.communicate()[1]}"
    return line.strip()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[RecordedJob]:
    """A fresh trace directory; what is left of its processes goes away with it."""
    recorded = RecordedJob(tmp_path / "traces")
    yield recorded
    for child in recorded.children:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
    for arena in recorded.arenas():
        arena.unlink()


def count_of(trace: RankTrace, kind: str) -> int:
    """How many spans of a kind there are."""
    return int((trace.spans.kind == KIND_NAMES.index(kind)).sum())


def flags_of(trace: RankTrace, kind: str) -> list[int]:
    """The flags of the spans of a kind, in the order of the file."""
    return [int(flags) for flags in trace.spans.flags[trace.spans.kind == KIND_NAMES.index(kind)]]
