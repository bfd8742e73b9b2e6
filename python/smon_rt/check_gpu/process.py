"""Processes of their own for what may crash or hang: each in a group that is ended at its deadline."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Ended", "child_environment", "run_process"]

_LOOK_S = 0.01
_MOST_SAID = 2000  # characters: the last lines of what a process wrote
#: Names of variables that would make a check record other than it means to: those of a job, and of a plug-in of NCCL's
#: that would take the place of ours. SMON_RT_LOG stays.
_CLEARED = frozenset(
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NCCL_PROFILER_PLUGIN"}
)


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    exit_code: int | None
    """Negative: the signal that ended it; None: it was ended at its deadline."""
    took_s: float
    said: str
    """The end of what it wrote to stdout and stderr."""

    @property
    def words(self) -> str:
        """How it ended, as in "SIGSEGV ended it"."""
        if self.exit_code is None:
            return f"was ended after {self.took_s:.0f} s"
        if self.exit_code < 0:
            with contextlib.suppress(ValueError):
                return f"{signal.Signals(-self.exit_code).name} ended it"
            return f"signal {-self.exit_code} ended it"
        return f"exit code {self.exit_code}"


def child_environment(environ: Mapping[str, str], **more: str) -> dict[str, str]:
    """The environment of a check: without what a job or a user set for recordings of theirs, and without a verdict."""
    kept = {
        name: value
        for name, value in environ.items()
        if name not in _CLEARED and (not name.startswith(("SMON_RT_", "TORCHELASTIC_")) or name == "SMON_RT_LOG")
    }
    return {**kept, "SMON_RT_VERDICT_WITHIN_S": "0", **more}


def run_process(
    command: Sequence[str],
    deadline_s: float,
    folder: Path,
    environment: Mapping[str, str],
    *,
    has_own_group: bool = True,
) -> Ended:
    """Runs a command in a process group of its own, to its end or its deadline; nothing of the group is left.

    `folder` is where it runs, and where what it writes is kept meanwhile. What a check itself runs stays in the check's
    group, so that whoever ends that ends both; it may have no children.
    """
    began_s = time.monotonic()
    output = folder / "said.txt"
    with output.open("wb") as stream, _running(command, stream.fileno(), folder, environment, has_own_group) as process:
        is_over = _wait(process.pid, began_s + deadline_s)
        took_s = time.monotonic() - began_s
    exit_code = process.returncode if is_over else None
    return Ended(exit_code, took_s, _tail(output))


@contextlib.contextmanager
def _running(
    command: Sequence[str], output: int, folder: Path, environment: Mapping[str, str], has_own_group: bool
) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        cwd=folder,
        env=dict(environment),
        start_new_session=has_own_group,
    )
    try:
        yield process
    finally:
        # Its leader is not waited for yet, so that the number of the group is still its own.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if has_own_group:
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
        process.wait()


def _wait(pid: int, deadline_s: float) -> bool:
    """Whether the process ended in time; it stays to be waited for."""
    while time.monotonic() < deadline_s:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return True
        time.sleep(_LOOK_S)
    return False


def _tail(path: Path) -> str:
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - 4 * _MOST_SAID))
        text = stream.read().decode("utf-8", "replace")
    return text.strip()[-_MOST_SAID:]
