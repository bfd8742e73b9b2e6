"""examples/checkpoint.py over torchrun: a rank is killed, and the job ends with the losses of an uninterrupted one."""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from tests.python.example_jobs import DEADLINE_S, EXAMPLES, environment

pytestmark = pytest.mark.slow

_RANKS, _STEPS = 4, 14


def train(folder: Path, *arguments: str) -> tuple[str, dict[int, str], dict[str, torch.Tensor]]:
    """What the job printed, the last loss of each step, and what it trained."""
    folder.mkdir()
    losses, weights = folder / "losses", folder / "weights"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(_RANKS)]
    command += ["--max-restarts", "3", str(EXAMPLES / "checkpoint.py"), "--steps", str(_STEPS)]
    command += ["--losses", str(losses), "--weights", str(weights), *arguments]
    # Else gloo of torch 2.15 finds addresses of the start before in the store that torchrun shares with its workers,
    # and no restart ever connects. A short path: a unix socket's may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="smon") as agents:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            env=environment() | {"SMON_RT_AGENT_DIR": agents, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
            stdin=subprocess.DEVNULL,
        )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    lines = (line.split() for line in losses.read_text().splitlines())
    trained: dict[str, torch.Tensor] = torch.load(weights, weights_only=True)
    return done.stdout, {int(step): loss for step, loss in lines}, trained


def test_after_a_kill_the_job_goes_on_with_bitwise_the_losses_of_an_uninterrupted_one(tmp_path: Path) -> None:
    _, losses, trained = train(tmp_path / "first")
    assert len(losses) == _STEPS
    _, again, _ = train(tmp_path / "second")
    assert again == losses  # two uninterrupted runs are equal: else what follows shows nothing

    seed = random.randrange(1 << 30)
    choice = random.Random(seed)
    rank, step = choice.randrange(_RANKS), choice.randrange(7, _STEPS - 1)
    out, resumed, weights = train(tmp_path / "killed", "--kill-rank", str(rank), "--kill-step", str(step))
    words = f"seed {seed}: rank {rank} killed in step {step}\n{out}"
    assert "goes on with step" in out, words
    assert resumed == losses, words
    assert all(torch.equal(weights[name], trained[name]) for name in trained), words
    went_on = int(out.split("goes on with step ")[1].split(",")[0])
    assert step - 1 <= went_on <= step, words  # a step whose copy was not complete yet may be lost, and no more
