"""The last line of a recorded job, by rank 0: what was recorded, what it cost, and the verdict or the way to it.

The verdict needs the files of all ranks, a second of CPU and the analysis, which a training process never loads. So by
default the line names the command and costs nothing: an exit that waits for an analysis, or leaves a process behind
that prints into the next prompt, would be the recorder slowing the job. Whoever wants to wait says how long at most,
`stop(verdict_within_s=10)`: then a child of low priority computes it, and is killed when that time is over.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time

from smon_rt._backend import native, write_line
from smon_rt.environment import LogLevel, log_level

__all__ = ["arm", "say_closing_line", "wait_for_verdict"]

_ANALYZE = "import os; os.nice(19); from smon_rt.cli import main; main()"
#: Of torchrun's and our own variables; the child is no rank of the job, and records nothing.
_NOT_FOR_CHILD = ("SMON_RT_", "RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "TORCHELASTIC_", "MASTER_")


class _State:
    started_s: float | None = None
    """When recording started, monotonic; None when there is nothing left to say."""
    is_registered = False
    verdict_within_s = 0.0


def arm() -> None:
    """Has the line said once: by `stop`, else at the exit of the interpreter, where recording goes on to the end."""
    _State.started_s = time.monotonic()
    if not _State.is_registered:
        _State.is_registered = True
        atexit.register(_at_exit)


def wait_for_verdict(limit_s: float) -> None:
    """Has the line at the exit of the interpreter wait for the verdict, as `stop` does when it is asked to."""
    _State.verdict_within_s = limit_s


def _at_exit() -> None:
    with contextlib.suppress(Exception):
        if native.status()["is_started"]:  # not in a forked child
            if _State.verdict_within_s > 0:
                native.stop()  # the analysis reads what is in the file
            say_closing_line(_State.verdict_within_s)


def say_closing_line(verdict_within_s: float = 0.0) -> None:
    """Says the line, if this is rank 0, steps were recorded into a file, and SMON_RT_LOG asks for warnings."""
    started_s, _State.started_s = _State.started_s, None
    if started_s is None or log_level() < LogLevel.WARNING:
        return
    with contextlib.suppress(Exception):  # an exit must not fail for the sake of a line
        status = native.status()
        directory, name = os.path.split(status["file_path"])
        if status["steps"] and not status["file_error"] and name.startswith("rank-00000."):
            headline = _verdict(directory, verdict_within_s) if verdict_within_s > 0 else None
            write_line(closing_line(status, time.monotonic() - started_s, directory, headline))


def closing_line(status: dict[str, object], elapsed_s: float, directory: str, headline: str | None) -> str:
    """The line.

    Example:
        >>> counters = {"steps": 60, "sampled_steps": 24, "recorded_spans": 2408, "dropped_spans": 0}
        >>> print(closing_line(counters | {"drain_cpu_ns": 20_000_000}, 10.0, "traces", None), end="")
        smon_rt: 2,408 spans of 24 of 60 steps, none dropped, own threads 0.2 % of a core; verdict: smon analyze traces
    """
    import shlex  # not at import: a training process pays for what it needs

    command = f"smon analyze {shlex.quote(directory or '.')}"
    if int(os.environ.get("WORLD_SIZE", "1")) > int(os.environ.get("LOCAL_WORLD_SIZE", "0") or 0) > 0:
        command += " (and the directories of the other nodes)"
    dropped = status["dropped_spans"]
    cpu_ratio = int(str(status["drain_cpu_ns"])) / 1e9 / max(elapsed_s, 1e-3)
    recorded = (
        f"{status['recorded_spans']:,} spans of {status['sampled_steps']:,} of {status['steps']:,} steps, "
        f"{f'{dropped:,} dropped' if dropped else 'none dropped'}, own threads {100 * cpu_ratio:.1f} % of a core"
    )
    if headline:
        return f"smon_rt: {headline} ({recorded}; {command})\n"
    return f"smon_rt: {recorded}; verdict: {command}\n"


def _verdict(directory: str, limit_s: float) -> str | None:
    """The first line of the verdict, None if it takes longer or there is none."""
    import subprocess

    environment = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_FOR_CHILD)}
    try:
        done = subprocess.run(
            [sys.executable, "-c", _ANALYZE, "analyze", "--quiet", directory],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s,
            env=environment,
        )
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    lines = done.stdout.split("\n")
    return lines[0].strip() or None if done.returncode == 0 else None
