"""What tests of `smon ckpt` share: an agent with a trainer, the disk that it has written, and answers."""

from __future__ import annotations

import json
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from smon_rt import cli
from smon_rt.checkpoint_tools.agent_folder import plain_name

from .agent_trainer import AGENT, TIMEOUT_S, AgentTrainer, label

CONTENT_BYTES = 5_000_000  # two chunks, the second not full

needs_agent = pytest.mark.skipif(not AGENT.exists(), reason=f"no {AGENT}: build the target smon-agent")


def state(step: int) -> bytes:
    return random.Random(step).randbytes(CONTENT_BYTES)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where agents of this test are, and no others. Not in tmp_path: the address of a socket has 107 characters."""
    with tempfile.TemporaryDirectory(prefix="ckpt") as folder:
        monkeypatch.setenv("SMON_RT_AGENT_DIR", folder)
        yield Path(folder) / f"smon_rt-{os.geteuid()}"


class Job:
    """An agent, and the trainer of its one rank."""

    def __init__(self, base: Path, run_id: str = "run", name: str | None = None) -> None:
        self.folder = base / (name or plain_name(run_id))
        self.run_id = run_id
        self.process = subprocess.Popen([AGENT, "--folder", self.folder, "--run-id", run_id, "--ttl-s", "60"])
        wait_until(self._answers)
        self.trainer = AgentTrainer(self.folder, run_id=run_id)

    def _answers(self) -> bool:
        try:
            AgentTrainer(self.folder).close()
        except OSError:
            return False
        return True

    def begin(self, **hello: object) -> None:
        self.trainer.hello(**hello)  # type: ignore[arg-type]
        self.trainer.fence(1)
        self.trainer.list()
        self.trainer.pin(label(0, 0))
        self.trainer.reserve(CONTENT_BYTES)
        self.trainer.go_on(1)

    def capture(self, last: int) -> None:
        for step in range(1, last + 1):
            captured = self.trainer.capture(state(step))
            wait_until(lambda captured=captured: self.trainer.status().agreed == captured)  # type: ignore[misc]

    def end(self) -> None:
        self.trainer.close()
        self.process.kill()
        self.process.wait(TIMEOUT_S)


@pytest.fixture
def job(base: Path) -> Iterator[Job]:
    started = Job(base)
    yield started
    started.end()


@pytest.fixture
def disk(base: Path, tmp_path: Path) -> Path:
    """What an agent has written to disk: steps 1 and 2."""
    directory = tmp_path / "disk"
    started = Job(base)
    started.begin(disk_dir=str(directory), disk_every=1, disk_keep=2)
    for step in (1, 2):
        started.trainer.capture(state(step))
        wait_until(lambda step=step: started.trainer.status().durable == label(1, step))  # type: ignore[misc]
    started.end()
    return directory


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    capsys.readouterr()
    assert cli.run(["ckpt", *arguments, "--json", "-"]) == code
    return json.loads(capsys.readouterr().out)


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line of bad input."""
    capsys.readouterr()
    assert cli.run(["ckpt", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    return line
