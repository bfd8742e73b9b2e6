"""What lies at some paths: which run, how it is, what it loses, and which command says more."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smon_rt.cli.jobs import is_incomplete
from smon_rt.errors import TraceError

if TYPE_CHECKING:
    from smon_rt.analysis.report import Report
    from smon_rt.trace.job_trace import JobReader
    from smon_rt.trace.rank_trace import RankTrace

# A step may hold an evaluation or a checkpoint: a job is called stuck only after both of these.
_STUCK_AFTER_S = 60.0
_STUCK_AFTER_STEPS = 10
# Snapshots are replaced every 5 s: a process that stops for long enough to miss some may still run.
_LIVE_SNAPSHOT_S = 30.0
_MOST_NAMED = 4
_NS_PER_S = 1_000_000_000
_LABEL_WIDTH = 9


@dataclass(frozen=True)
class Look:
    """One job. `state`: finished, live, stuck, killed, unfinished; trace where a file says nothing of that.

    `silent_s` is how long no rank of a live job has finished anything, `memory_steps` are the steps that the ranks on
    this node are in. `reason` says why there is no report.
    """

    paths: tuple[str, ...]
    state: str
    found: str
    report: Report | None
    reason: str | None
    silent_s: float | None
    is_incomplete: bool
    commands: tuple[tuple[str, str], ...]
    memory_steps: tuple[int, ...] = ()

    @property
    def is_bad_input(self) -> bool:
        """True where a job that ended can say nothing."""
        return self.report is None and self.state not in ("live", "stuck")

    def text(self) -> str:
        """The verdict, what it is about, and what to run next: a label, then words."""
        from smon_rt.report.terminal import labelled_lines

        lines = [] if self.report is None else labelled_lines(self.report)
        if self.state == "stuck":
            lines = [_line("stuck", _stuck_words(self.silent_s or 0.0, self.memory_steps)), *self._stuck_lines(lines)]
        elif self.reason is not None:
            lines.insert(0, _line("nothing", f"to analyse{' yet' if self.state == 'live' else ''}: {self.reason}"))
        lines.append(_line("found", self.found))
        lines += [
            _line("next" if index == 0 else "", f"{command}  ({words})")
            for index, (command, words) in enumerate(self.commands)
        ]
        return "\n".join(lines)

    def _stuck_lines(self, lines: Sequence[str]) -> list[str]:
        """What was recorded tells of the steps before: what to do now comes before any repair."""
        from smon_rt.analysis.verdict_text import NOTHING_TO_REPAIR

        action = f"see which rank is behind, and what it is inside: {self.commands[0][0]}"
        if self.report is not None and self.report.verdict.action != NOTHING_TO_REPAIR:
            action += f"; only then {self.report.verdict.action}"
        line, label = _line("action", action), _line("action", "")
        if not any(each.startswith(label) for each in lines):
            return [*lines, line]
        return [line if each.startswith(label) else each for each in lines]

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; `report` is that of `smon analyze --json`."""
        return {
            "paths": list(self.paths),
            "state": self.state,
            "found": self.found,
            "silent_s": self.silent_s,
            "memory_steps": list(self.memory_steps),
            "reason": self.reason,
            "next": [command for command, _ in self.commands],
            "report": None if self.report is None else self.report.to_dict(),
        }


def look(
    paths: Sequence[str],
    analyze: Callable[[], Report],
    run_id: str | None = None,
    attempt: int | None = None,
    asked: Sequence[str] = (),
) -> Look:
    """Looks at one job: recorded traces, which may lie on many nodes, or one parquet.

    `asked` are the options that chose what is analysed of it: the next commands take them as well.
    Raises TraceError, one line, where nothing of it can be read.
    """
    from smon_rt.analysis import is_recorded

    if not all(map(is_recorded, paths)):
        trace = analyze()
        commands = _commands(paths, asked, trace)
        return Look(tuple(paths), "trace", _trace_words(trace), trace, None, None, False, commands)
    from smon_rt.trace.job_trace import JobReader

    reader = JobReader(paths, run_id=run_id, attempt=attempt)
    report: Report | None = None
    reason = None
    try:
        report = analyze()
    except TraceError as error:
        reason = " ".join(str(error).split())
    if report is not None and not report.fidelity.is_live and not report.fidelity.unfinished:
        life = _Life("finished")
    else:
        life = _life_of(reader)
    state = life.state
    incomplete = report is None or is_incomplete(report)
    return Look(
        paths=tuple(paths),
        state=state,
        found=_run_words(reader, state),
        report=report,
        reason=reason,
        silent_s=life.silent_s,
        memory_steps=life.memory_steps,
        is_incomplete=incomplete and state not in ("live", "stuck"),
        commands=_commands([*paths, *_chosen(run_id, attempt)], asked, report, state, incomplete),
    )


def runs_below(path: str) -> list[tuple[str, int]]:
    """The runs that a directory without a trace of its own holds, one level down: path and files, newest first.

    Those are directories of `.smon` files, and parquets.
    """
    from smon_rt.trace.job_trace import SUFFIX

    try:
        entries = sorted(Path(path).iterdir())
        if any(entry.name.endswith(SUFFIX) for entry in entries):
            return []
        found = [(entry, len(list(entry.glob(f"*{SUFFIX}"))) if entry.is_dir() else 1) for entry in entries]
        runs = [(entry, count) for entry, count in found if count and (entry.is_dir() or entry.suffix == ".parquet")]
        newest = sorted(runs, key=lambda run: -run[0].stat().st_mtime)
    except OSError:
        # The reader of traces says why.
        return []
    return [(str(entry), count) for entry, count in newest]


def _line(label: str, words: str) -> str:
    return f"{label:<{_LABEL_WIDTH}}{words}"


def _trace_words(report: Report) -> str:
    from smon_rt.analysis.input_file import shown

    job = report.job
    return f"{shown(job.name)}: dp {job.dp}, pp {job.pp}, tp {job.tp}, cp {job.cp}, vpp {job.vpp}, {job.world:,} GPUs"


def _run_words(reader: JobReader, state: str) -> str:
    from smon_rt.analysis.input_file import shown
    from smon_rt.analysis.units import counted

    job = reader.job
    hosts = {head.identity.host for head in reader.heads}
    words = f"run {shown(job.run_id)} attempt {job.attempt}: {reader.rank_count:,} of {job.world_size:,} ranks on"
    states = {"live": "still running", "stuck": "still running", "unfinished": "not closed"}
    words += f" {counted(len(hosts), 'host')}, {states.get(state, state)}"
    if job.other_runs:
        others = [f"--run {shlex.quote(other.run_id)} --attempt {other.attempt}" for other in job.other_runs]
        more = f" and {len(others) - _MOST_NAMED} more" if len(others) > _MOST_NAMED else ""
        words += f"; the newest of {len(others) + 1} here (others: {'; '.join(map(shown, others[:_MOST_NAMED]))}{more})"
    return words


@dataclass(frozen=True)
class _Life:
    """How a job is; see `Look`."""

    state: str
    silent_s: float | None = None
    memory_steps: tuple[int, ...] = ()


def _life_of(reader: JobReader) -> _Life:
    """How an unfinished job is, and for how long none of its ranks has finished a step or a span, if it still runs."""
    from smon_rt.trace.summary import state_of

    last_ns, longest_step_ns = 0, 0
    states: set[str] = set()
    steps: set[int] = set()
    for trace in reader:
        state = state_of(trace)
        states.add("recording" if state == "open" and _has_fresh_snapshot(trace) else state)
        last_ns = max(last_ns, _last_sign_ns(trace))
        if len(trace.steps):
            longest_step_ns = max(longest_step_ns, int(trace.steps.duration_ns.max()))
        if trace.arena is not None and trace.arena.is_alive:
            steps.add(trace.arena.step)
    if "recording" in states:
        silent_s = max(time.time_ns() - last_ns, 0) / _NS_PER_S if last_ns else None
        limit_s = max(_STUCK_AFTER_S, _STUCK_AFTER_STEPS * longest_step_ns / _NS_PER_S)
        is_stuck = silent_s is not None and silent_s > limit_s
        return _Life("stuck" if is_stuck else "live", silent_s, tuple(sorted(steps)))
    if "killed" in states:
        return _Life("killed")
    return _Life("finished" if states == {"closed"} else "unfinished")


def _last_sign_ns(trace: RankTrace) -> int:
    """When the rank last finished a step or a span, by its host's realtime clock; 0: unknown.

    What its memory holds beyond the file counts too: the recorder writes when it has the time.
    """
    offset_ns = trace.realtime_offset_ns
    if offset_ns is None:
        return 0
    tables: list[Any] = [trace.steps, trace.spans]
    if trace.arena is not None:
        tables += [trace.arena.steps, trace.arena.unread]
    ends = [int((table.start_ns + table.duration_ns).max()) for table in tables if len(table)]
    begun = trace.clocks.monotonic_ns[:1].tolist()
    return max([*ends, *begun], default=-offset_ns) + offset_ns


def _has_fresh_snapshot(trace: RankTrace) -> bool:
    """True where the rank's process, on another node perhaps, has just said that it runs."""
    for file in trace.files:
        with contextlib.suppress(OSError):
            if time.time() - Path(file).with_suffix(".live").stat().st_mtime < _LIVE_SNAPSHOT_S:
                return True
    return False


def _stuck_words(silent_s: float, steps: Sequence[int]) -> str:
    from smon_rt.analysis.units import seconds

    where = ""
    if steps:
        where = f" in step {steps[0]}" if len(steps) == 1 else f" in steps {steps[0]} to {steps[-1]}"
    return (
        f"looks stuck: no rank has finished a step or a span for {seconds(silent_s)}, and the processes"
        f" still run{where}; a long evaluation or checkpoint looks the same"
    )


def _commands(
    paths: Iterable[str],
    asked: Iterable[str],
    report: Report | None,
    state: str = "trace",
    incomplete: bool = False,
) -> tuple[tuple[str, str], ...]:
    """What to run next, and what it says."""
    where = " ".join(_quoted(os.fspath(path)) for path in paths)
    part = " ".join([where, *map(_quoted, asked)])
    commands = []
    if state == "stuck":
        commands.append((f"smon info {where}", "what is known of each rank, and what is missing"))
    if report is not None:
        fix = _fix(report)
        if fix is not None:
            commands.append((f"smon what-if {part} --fix {fix}", "what the step takes once that is fixed"))
        commands.append((f"smon analyze {part} --html report.html", "the whole report, with plots"))
        commands.append((f"smon export {part} --format perfetto --ideal -o trace.pftrace", "the timelines"))
    if state != "stuck" and (incomplete or report is None):
        commands.append((f"smon info {where}", "what is there, and what is missing"))
    return tuple(commands)


def _quoted(word: str) -> str:
    """A word as a shell takes it; what no terminal should get raw, such as ESC, as an escape."""
    if word.isprintable():
        return shlex.quote(word)
    return "$'" + "".join(map(_escaped, word)) + "'"


def _escaped(char: str) -> str:
    if char.isprintable():
        return f"\\{char}" if char in "\\'" else char
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(char))


def _chosen(run_id: str | None, attempt: int | None) -> list[str]:
    """The options that chose this run."""
    return [
        *(["--run", run_id] if run_id is not None else []),
        *(["--attempt", str(attempt)] if attempt is not None else []),
    ]


def _fix(report: Report) -> str | None:
    """The verdict's cause as `smon what-if` takes it."""
    from smon_rt.analysis.what_if_causes import CAUSES

    verdict = report.verdict
    where = verdict.where
    named = next((each for each in report.causes if (each.cause, each.where) == (verdict.cause, where)), None)
    is_one = named is not None and len(named.detail.get("workers", ())) <= 1
    if verdict.cause == "worker" and is_one and where.dp_rank is not None and where.stage is not None:
        return f"worker={where.dp_rank},{where.stage}"
    if verdict.cause == "stage" and where.stage is not None:
        return f"stage={where.stage}"
    return f"cause={verdict.cause}" if verdict.cause in CAUSES else None
