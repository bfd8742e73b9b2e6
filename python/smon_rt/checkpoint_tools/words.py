"""What was found, as lines and tables for people."""

from __future__ import annotations

from smon_rt._proto import agent_pb2
from smon_rt.analysis.input_file import shown
from smon_rt.analysis.units import counted, seconds, three_digits
from smon_rt.checkpoint_tools.disk_folder import DiskRun
from smon_rt.checkpoint_tools.overview import (
    SKIP_CAUSES,
    AgentView,
    Label,
    Overview,
    label_of,
    lag_steps,
    no_agent_words,
    rate_gb_per_s,
)
from smon_rt.report.tables import Table

_NONE = "–"
_LABEL_WIDTH = 9
_SKIP_WORDS = {
    "no_promise": "no slot was free in time",
    "cancelled": "its copy was not complete when the optimizer went on",
    "layout": "its tensors changed",
    "failed": "its capture failed",
    "dead": "another rank had skipped it",
}


def overview_text(found: Overview) -> str:
    """One line a thing: a label, then words."""
    lines = [_line("found", _found_words(found))]
    for agent in found.agents:
        lines += [_line(label, words) for label, words in _agent_lines(agent)]
    for disk in found.disks:
        lines += [_line("disk", words) for words in _disk_words(disk)]
    lines += [_line("PROBLEM", problem) for problem in found.problems]
    return "\n".join(lines)


def overview_tables(found: Overview) -> list[Table]:
    tables = [_rank_table(agent.run_id, agent.status) for agent in found.agents if agent.status is not None]
    tables += [_disk_table(disk) for disk in found.disks]
    return [table for table in tables if table.rows]


def bytes_words(count: int) -> str:
    """`1.25 GB`; a thousand, not 1,024, a unit."""
    for limit, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= limit * 0.9995:
            return f"{three_digits(count / limit)} {unit}"
    return counted(count, "byte")


def label_words(label: Label | None) -> str:
    """`step 12 of incarnation 3`."""
    if label is None or label == (0, 0):
        return "none"
    return f"step {label[1]} of incarnation {label[0]}"


def _line(label: str, words: str) -> str:
    return f"{label:<{_LABEL_WIDTH}}" + "".join(char if char.isprintable() else shown(char) for char in words)


def _found_words(found: Overview) -> str:
    agents = counted(len(found.agents), "agent") if found.agents else no_agent_words()
    return f"{agents}; {counted(len(found.disks), 'run')} on disk" if found.disks else agents


def _agent_lines(agent: AgentView) -> list[tuple[str, str]]:
    name = f"run {shown(agent.run_id)}"
    status = agent.status
    if status is None:
        if agent.problem is not None:
            return [("agent", f"{name}: does not say what it holds (process {agent.lock.pid})")]
        return [("gone", f"{name}: its agent is gone, and what it held in memory ({shown(agent.folder)})")]
    states = {"live": "live", "orphan": f"ORPHAN, its job was not seen for {agent.lock.idle_s} s"}
    fenced = ", between fence and go-on" if status.is_fenced else ""
    ranks = counted(len(status.ranks), "rank")
    memory = f"{bytes_words(status.memory_bytes)} of memory, {bytes_words(status.memory_budget_bytes)} left"
    lines = [
        (
            "agent",
            f"{name}: {states.get(agent.state, agent.state)}, process {status.pid}, "
            f"incarnation {status.incarnation}{fenced}, {ranks}, {memory}",
        ),
        (
            "steps",
            f"agreed: {label_words(label_of(status, 'agreed'))}; durable: {label_words(label_of(status, 'durable'))}; "
            f"skipped: {status.skipped_steps:,}{_skip_words(status)}",
        ),
        (
            "speed",
            f"hashed at {_rate(status.hashed_bytes, status.hash_ns)}, "
            f"written at {_rate(status.written_bytes, status.write_ns)}",
        ),
    ]
    if status.disk_error:
        lines.append(("DISK", f"nothing is written: {shown(status.disk_error)}"))
    return lines


def _skip_words(status: agent_pb2.Status) -> str:
    if not status.HasField("last_skip"):
        return ""
    skip = status.last_skip
    cause = _SKIP_WORDS.get(SKIP_CAUSES.get(skip.cause, ""), "for a reason that is not known")
    return f", the last was {label_words((skip.label.incarnation, skip.label.step))} by {shown(skip.owner)}: {cause}"


def _rate(byte_count: int, duration_ns: int) -> str:
    rate = rate_gb_per_s(byte_count, duration_ns)
    return _NONE if rate is None else f"{three_digits(rate)} GB/s"


def _short(label: Label | None) -> str:
    return _NONE if label is None else f"{label[1]} ({label[0]})"


def _rank_table(run_id: str, status: agent_pb2.Status) -> Table:
    rows = []
    for rank in status.ranks:
        lag = lag_steps(status, rank)
        rows.append(
            (
                shown(rank.owner),
                str(rank.rank),
                str(rank.pid) if rank.is_connected else "away",
                _short(label_of(rank, "promised")),
                _short(label_of(rank, "captured")),
                _NONE if lag is None else f"{lag:,}",
                bytes_words(rank.content_bytes),
                f"{rank.captures:,}",
                f"{rank.skips:,}",
                seconds(rank.blocked_ns / 1e9) if rank.captures else _NONE,
                _rate(rank.content_bytes, rank.copy_ns),
            )
        )
    columns = (
        "owner",
        "rank",
        "process",
        "promised",
        "captured",
        "lag",
        "state",
        "captures",
        "skips",
        "blocked",
        "copy",
    )
    note = "promised, captured: step (incarnation); lag in steps; blocked, copy: of the last capture"
    return Table(f"ranks of run {shown(run_id)}", columns, tuple(rows), note)


def _disk_words(disk: DiskRun) -> list[str]:
    newest = label_words(disk.steps[0].label) if disk.steps else "none"
    incomplete = f"; without a manifest: {', '.join(disk.incomplete[:4])}" if disk.incomplete else ""
    count = counted(len(disk.steps), "complete step")
    return [f"run {shown(disk.run_id)} in {shown(disk.folder)}: {count}, the newest: {newest}{incomplete}"]


def _disk_table(disk: DiskRun) -> Table:
    rows = tuple(
        (
            step.folder.name,
            str(step.incarnation),
            str(step.step),
            str(len(step.shards)),
            bytes_words(step.content_bytes),
            ", ".join(shown(shard.owner) for shard in step.shards[:4]) + (", …" if len(step.shards) > 4 else ""),
        )
        for step in disk.steps
    )
    columns = ("folder", "incarnation", "step", "shards", "size", "owners")
    return Table(f"run {shown(disk.run_id)} on disk", columns, rows, text_columns=frozenset({"owners"}))
