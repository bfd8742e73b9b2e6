"""The last line of a recorded job, by rank 0: what was recorded, what it cost, and the verdict or the way to it.

The verdict needs the files of all ranks, a second or two of CPU and the analysis, which a training process never loads:
a child of low priority computes it, and is killed when the time for it is over (`verdict_within_s`). The line names the
command instead where that would be in vain or in the way: ranks have no file here (other nodes wrote elsewhere), there
is more to read than can be in that time, or the process ends by an exception, whose news must not wait.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from smon_rt._backend import native, write_line
from smon_rt.environment import LogLevel, log_level, verdict_within_s

__all__ = ["arm", "say_closing_line", "wait_for_verdict"]

# Modules of the script's folder must not stand in for those of the analysis.
_ANALYZE = """
import os, sys
os.nice(19)
sys.path = [path for path in sys.path if path]
from smon_rt.analysis import analyze
from smon_rt.errors import SmonError
try:
    print(analyze(sys.argv[1]).verdict.sentence)
except SmonError as error:
    print(error)
    sys.exit(3)
"""
_REFUSED = 3
#: More than this takes longer to read and replay than anyone waits for at an exit.
_MAX_BYTES = 64 << 20
#: Whoever recorded for longer meant to record something.
_NOT_JUST_TRIED_S = 10.0
#: A longer wait is none that anyone means, and more than a clock may be able to count.
_LONGEST_WAIT_S = 86_400.0
#: At most so many files are asked when they were written.
_MOST_RANKS_LOOKED_AT = 1024
_MOST_RANGES = 6
#: What hosts' clocks, and starts of ranks, differ by.
_CLOCKS_WITHIN_S = 60.0
#: A recorder writes what there is at least once a second.
_SILENT_S = 30.0
_END_BYTES = 32
_NO_STEP = (
    "smon_rt: warning: no step was recorded (spans: {:,}), and without steps nothing can be analysed: "
    "put each step into `with smon_rt.step(k):`\n"
)
_RAISED = "smon_rt: the script raised before its first step: nothing to analyse (spans: {:,})\n"
#: Of torchrun's and our own variables; the child is no rank of the job, and records nothing.
_NOT_FOR_CHILD = ("SMON_RT_", "RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "TORCHELASTIC_", "MASTER_")


class _State:
    started_s: float | None = None
    """When recording started, monotonic; None when there is nothing left to say."""
    is_registered = False
    verdict_within_s: float | None = None
    """At the exit of the interpreter; None: as the environment says."""


def arm() -> None:
    """Has the line said once: by `stop`, else at the exit of the interpreter, where recording goes on to the end."""
    _State.started_s = time.monotonic()
    if not _State.is_registered:
        _State.is_registered = True
        atexit.register(_at_exit)


def wait_for_verdict(limit_s: float | None) -> None:
    """How long the line at the exit of the interpreter waits for the verdict, as `stop` does."""
    _State.verdict_within_s = limit_s


def _at_exit() -> None:
    with contextlib.suppress(Exception):
        if native.status()["is_started"]:  # not in a forked child
            # Who watches this process learns of what it raised by its end.
            limit_s = 0.0 if _has_shown_a_traceback() else _State.verdict_within_s
            if limit_s != 0:
                native.stop()  # the analysis reads what is in the file
            say_closing_line(limit_s)


def _has_shown_a_traceback() -> bool:
    """Whether the interpreter has, of what ends it: one that people type into goes on after it."""
    return hasattr(sys, "last_type") and not hasattr(sys, "ps1")


def _is_script_raising() -> bool:
    """At the exit, and where `stop` is called on the way out of an exception."""
    kind = sys.exc_info()[0]
    return _has_shown_a_traceback() or (kind is not None and not issubclass(kind, SystemExit))


def say_closing_line(limit_s: float | None = None) -> None:
    """Says the line, if this is rank 0, there is a file, and SMON_RT_LOG asks for warnings.

    Without steps it says what to do, or that the script raised.

    Args:
        limit_s: how long the verdict may take; 0: it is left to the command; None: as SMON_RT_VERDICT_WITHIN_S says.
    """
    started_s, _State.started_s = _State.started_s, None
    if started_s is None or log_level() < LogLevel.WARNING:
        return
    with contextlib.suppress(Exception):  # an exit must not fail for the sake of a line
        status = native.status()
        directory, name = os.path.split(status["file_path"])
        if status["file_error"] or not name.startswith("rank-00000."):
            return
        elapsed_s = time.monotonic() - started_s
        if not status["steps"]:
            if status["recorded_spans"] or elapsed_s > _NOT_JUST_TRIED_S:
                write_line((_RAISED if _is_script_raising() else _NO_STEP).format(status["recorded_spans"]))
        else:
            limit_s = verdict_within_s() if limit_s is None else limit_s
            sentence, reason = None, ""
            if limit_s > 0 and _is_all_here(directory):
                sentence, reason = _verdict(directory, min(limit_s, _LONGEST_WAIT_S))
            absent = absent_words(status["file_path"], elapsed_s, status["steps"])
            write_line(closing_line(status, elapsed_s, directory, sentence, reason, absent))


def closing_line(
    status: dict[str, object],
    elapsed_s: float,
    directory: str,
    sentence: str | None,
    reason: str = "",
    absent: str = "",
) -> str:
    """The line, whose counts are rank 0's.

    `reason` is why there is no sentence, where it was tried, `absent` what `absent_words` says.

    Example:
        >>> counters = {"steps": 60, "sampled_steps": 24, "recorded_spans": 48, "dropped_spans": 0}
        >>> print(closing_line(counters | {"drain_cpu_ns": 20_000_000}, 10.0, "tr", None), end="")
        smon_rt: rank 0: 48 spans of 24 of 60 steps, none dropped, own threads 0.2 % of a core; verdict: smon analyze tr
    """
    import shlex  # not at import: a training process pays for what it needs

    command = f"smon analyze {shlex.quote(directory or '.')}"
    if _number("WORLD_SIZE", 1) > _number("LOCAL_WORLD_SIZE", 0) > 0:
        command += " (and the directories of the other nodes)"
    dropped = status["dropped_spans"]
    cpu_ratio = int(str(status["drain_cpu_ns"])) / 1e9 / max(elapsed_s, 1e-3)
    recorded = (
        f"rank 0: {status['recorded_spans']:,} spans of {status['sampled_steps']:,} of {status['steps']:,} steps, "
        f"{f'{dropped:,} dropped' if dropped else 'none dropped'}, own threads {100 * cpu_ratio:.1f} % of a core"
    )
    if sentence:
        return f"smon_rt: {sentence} ({recorded}; {absent}more: {command})\n"
    return f"smon_rt: {recorded}; {absent}verdict: {command}{f' ({reason})' if reason else ''}\n"


def _number(name: str, default: int) -> int:
    """Of a launcher's variable; the line does not depend on its being one."""
    try:
        return int(os.environ.get(name) or default)
    except ValueError:
        return default


def absent_words(path: str, elapsed_s: float, step_count: int) -> str:
    """`no file here of rank 3; `: ranks that could not write, as their files show; "" for none.

    Files that are older than the recording of this rank, in `path`, are of an earlier launch. A rank that only waits
    does so with others: who has written nothing for long, while others have, or for half of the recording, cannot.
    """
    world, local = _number("WORLD_SIZE", 1), _number("LOCAL_WORLD_SIZE", 0)
    if not 1 < world <= _MOST_RANKS_LOOKED_AT:
        return ""
    own = Path(path)
    own_s = own.stat().st_mtime  # of the same clock as the others', whosever that is
    files = {
        rank: file for rank, file in _newest_files(own.parent, own_s - elapsed_s - _CLOCKS_WITHIN_S) if rank < world
    }
    # Other nodes may have a directory of their own.
    is_one_of_many = 0 < local < world and all(rank < local for rank in files)
    missing = [rank for rank in range(1, local if is_one_of_many else world) if rank not in files]
    words = f"no file here of {_ranks_words(missing)}; " if missing else ""
    slack_s = max(_SILENT_S, 2 * elapsed_s / max(step_count, 1))
    latest = sorted((written_s for written_s, _ in files.values()), reverse=True)
    silent = {}
    for rank, (written_s, file) in sorted(files.items()):
        others_s = [latest[1 if written_s == latest[0] else 0]] if len(latest) > 1 else []
        if written_s < max([own_s - elapsed_s / 2, *others_s]) - slack_s and not _is_closed(file):
            silent[rank] = own_s - written_s
    if silent:
        words += f"{_ranks_words(list(silent))} wrote nothing for the last {min(silent.values()):.0f} s; "
    return words


def _newest_files(directory: Path, since_s: float) -> Iterator[tuple[int, tuple[float, Path]]]:
    """When the file of each rank but this one was written last, and that file; those that are not older."""
    newest: dict[int, tuple[float, Path]] = {}
    for path in directory.glob("rank-*.smon"):
        number = path.name.removeprefix("rank-").partition(".")[0]
        rank = int(number) if number.isdecimal() else 0
        written_s = path.stat().st_mtime
        if rank and written_s >= since_s:
            newest[rank] = max((written_s, path), newest.get(rank, (written_s, path)))
    yield from newest.items()


def _is_closed(path: Path) -> bool:
    """Whether the file ends with what a recorder writes that stops: an end (field 16 of a packet) and its reason."""
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - _END_BYTES))
        tail = stream.read(_END_BYTES)
    return tail.endswith((b"stop", b"exit")) and b"\x82\x01" in tail


def _ranks_words(ranks: list[int]) -> str:
    """`rank 3`, `ranks 1 and 6-7`: in the encoding of any terminal, and without the modules of the analysis."""
    ranges: list[list[int]] = []
    for rank in ranks:
        if ranges and rank == ranges[-1][1] + 1:
            ranges[-1][1] = rank
        else:
            ranges.append([rank, rank])
    named = [f"{first}-{last}" if first != last else str(first) for first, last in ranges[:_MOST_RANGES]]
    if len(ranges) > _MOST_RANGES:
        named.append("more")
    listed = " and ".join([", ".join(named[:-1]), named[-1]] if len(named) > 1 else named)
    return f"rank{'' if len(ranks) == 1 else 's'} {listed}"


def _is_all_here(directory: str) -> bool:
    """Whether each rank of the job has a file here, and all of them are read soon."""
    ranks, size_bytes = set(), 0
    for entry in os.scandir(directory or "."):
        if entry.name.endswith(".smon"):
            ranks.add(entry.name.partition(".")[0])
            size_bytes += entry.stat().st_size
            if size_bytes > _MAX_BYTES:  # not each of ten thousand files is asked for its size
                return False
    return len(ranks) >= _number("WORLD_SIZE", 1)


def _verdict(directory: str, limit_s: float) -> tuple[str | None, str]:
    """The verdict in one sentence; or None and the reason: it takes longer, or the trace cannot be analysed."""
    import subprocess

    environment = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_FOR_CHILD)}
    try:
        done = subprocess.run(
            [sys.executable, "-c", _ANALYZE, directory or "."],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        return None, f"it takes longer than {limit_s:g} s here: SMON_RT_VERDICT_WITHIN_S"
    except (OSError, subprocess.SubprocessError, ValueError):
        return None, "the analysis could not be started"
    said = " ".join(done.stdout.split())
    if done.returncode == 0 and said:
        return said, ""
    return None, said if done.returncode == _REFUSED and said else "the analysis failed"
