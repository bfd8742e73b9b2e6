"""The agent's protocol follows fresh random walks of the model, event by event."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.model import export_traces

_PROGRAM = Path(__file__).resolve().parents[2] / "build" / "release" / "bin" / "replay_model_traces"


@pytest.mark.parametrize(("ranks", "first_seed"), [(2, 10_000), (3, 20_000)])
def test_the_code_follows_five_hundred_walks_of_the_model(tmp_path: Path, ranks: int, first_seed: int) -> None:
    if not _PROGRAM.exists():
        pytest.skip(f"{_PROGRAM} is not built: cmake --build --preset release --target replay_model_traces")
    walks = tmp_path / "walks.json"
    seeds = range(first_seed, first_seed + 500)
    walks.write_text(export_traces.to_text([export_traces.walk(seed, ranks, 200) for seed in seeds]))
    result = subprocess.run([_PROGRAM, walks], check=False, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    whole = int(result.stdout.split()[0])
    # The others go to where the code waits for the next fence and the model need not.
    assert whole >= 450, result.stdout
