"""What the Python tests share: where the published traces are, how many examples a property gets."""

from __future__ import annotations

import os
from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent

# deadline=None: wall time says nothing on a shared machine.
hypothesis.settings.register_profile("default", deadline=None, max_examples=100, print_blob=True)
hypothesis.settings.register_profile("soak", deadline=None, max_examples=5000, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(autouse=True)
def _stay_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that becomes another program ends the whole run, and that program's 0 would pass for success."""
    test_run = os.getpid()
    become = os.execve

    def refuse(path: str, arguments: list[str], environment: dict[str, str]) -> None:
        if os.getpid() == test_run:
            raise AssertionError(f"the process of all tests would become {path}: run it in one of its own")
        become(path, arguments, environment)

    monkeypatch.setattr(os, "execve", refuse)
    monkeypatch.setattr(os, "execv", lambda path, arguments: refuse(path, arguments, dict(os.environ)))


@pytest.fixture(scope="session")
def shared_traces() -> Path:
    """The folder of published traces, which are too large to be in the repository."""
    shared = Path(os.environ.get("SMON_TEST_SHARED", ROOT.parent / "shared"))
    folder = shared / "traces"
    if not folder.is_dir():
        pytest.skip(f"no published traces in {folder}: set SMON_TEST_SHARED to the folder that holds traces/")
    return folder
