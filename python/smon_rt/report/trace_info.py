"""The contents of a trace as text: what `smon info` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from smon_rt.analysis.input_file import shown
from smon_rt.analysis.units import counted, percent, seconds
from smon_rt.analysis.worker_words import ranges_words
from smon_rt.kinds import COLLECTIVE_KINDS, MESSAGE_KINDS
from smon_rt.report.gpu_info import gpu_words
from smon_rt.report.nccl_info import nccl_words
from smon_rt.report.tables import Table
from smon_rt.trace.summary import JobSummary, RankSummary

_MOST_RANK_ROWS = 32
_MOST_NAMED = 6
_MOST_INCOMPLETE_LINES = 8
_WAITING_KINDS = {*COLLECTIVE_KINDS, *MESSAGE_KINDS}
_STATE_WORDS = {
    "closed": "closed",
    "recording": "still recording",
    "cut": "cut",
    "killed": "killed",
    "open": "not closed",
}


def info_text(job: JobSummary) -> str:
    """A line for each thing one may ask of a trace: a label, then words."""
    lines = [
        ("job", _job_words(job)),
        ("layout", _layout_words(job)),
        ("steps", _step_words(job.ranks)),
        ("spans", _span_words(job)),
        ("losses", _loss_words(job)),
        *(("nccl", words) for words in nccl_words(job.nccl)),
        *(("hooks", words) for words in _hook_words(job)),
        *(("gpus", words) for words in gpu_words(job.ranks)),
        ("clocks", _clock_words(job)),
        ("cost", _cost_words(job.ranks)),
        ("memory", _counted_words(rank.memory or "unknown" for rank in job.ranks)),
        ("files", _file_words(job)),
        *(("killed", words) for words in _place_words(job.ranks, "killed")),
        *(("now", words) for words in _place_words(job.ranks, "recording")),
        *(("settings", words) for words in _setting_words(job)),
        *(("other", words) for words in _other_words(job)),
        *(("MISSING", words) for words in _shortened(job.incomplete, _MOST_INCOMPLETE_LINES)),
    ]
    width = max(len(label) for label, _ in lines) + 1
    return "\n".join(f"{label:<{width}}{shown_line(words)}" for label, words in lines)


def info_tables(job: JobSummary) -> list[Table]:
    """Spans by kind, and the ranks: all of a small job, of a large one those with something to say."""
    tables = [_kind_table(job), _rank_table(job.ranks)]
    return [table for table in tables if table.rows]


def shown_line(words: str) -> str:
    """Names come from files: nothing in them may move the cursor. Longer than `shown`, which is for one name."""
    return "".join(char if char.isprintable() else shown(char) for char in words)


def _job_words(job: JobSummary) -> str:
    hosts = counted(len(job.hosts), "host")
    words = f"run {job.run_id} attempt {job.attempt}: {len(job.ranks):,} of {job.world_size:,} ranks on {hosts}"
    return f"{words} ({', '.join(job.hosts[:_MOST_NAMED])}{', …' if len(job.hosts) > _MOST_NAMED else ''})"


def _layout_words(job: JobSummary) -> str:
    layout = job.layout
    words = [f"{name} {layout[f'{name}_size']}" for name in ("dp", "pp", "tp", "cp", "vpp")]
    if layout["microbatch_count"]:
        words.append(counted(layout["microbatch_count"], "microbatch").replace("batchs", "batches"))
    return ", ".join([*words, *([layout["schedule"]] if layout["schedule"] else [])])


def _step_words(ranks: Sequence[RankSummary]) -> str:
    known = [rank for rank in ranks if rank.step_count]
    if not known:
        return "none in the files"
    most = max(known, key=lambda rank: rank.step_count)
    first = min(rank.first_step for rank in known if rank.first_step is not None)
    last = max(rank.last_step for rank in known if rank.last_step is not None)
    words = f"{counted(most.step_count, 'step')} ({first} to {last}), {most.sampled_step_count:,} sampled"
    if most.warmup_step_count:
        words += f", {most.warmup_step_count} warm-up"
    means = [rank.mean_step_s for rank in known if rank.mean_step_s is not None]
    if means:
        words += f"; a step takes {seconds(sum(means) / len(means))}"
    fewest = min(ranks, key=lambda rank: rank.step_count)
    if fewest.step_count != most.step_count:
        words += f"; rank {fewest.rank} has {fewest.step_count:,}"
    return words


def _span_words(job: JobSummary) -> str:
    count = sum(kind.span_count for kind in job.kinds)
    file_bytes = sum(rank.file_bytes for rank in job.ranks)
    words = f"{counted(count, 'span')} of {counted(len(job.kinds), 'kind')}"
    on_device = sum(kind.device_span_count for kind in job.kinds)
    if on_device:
        words += f", {on_device:,} with device times"
    merged = sum(rank.merged_span_count for rank in job.ranks)
    if merged:
        words += f", {merged:,} from the memory of killed processes"
    in_files = count - merged
    return words + (f"; {file_bytes / in_files:.1f} bytes a span in the files" if in_files else "")


def _loss_words(job: JobSummary) -> str:
    losses = job.losses
    if not losses.any:
        return "none"
    words = []
    if losses.dropped_by_kind:
        by_kind = ", ".join(f"{kind} {count:,}" for kind, count in sorted(losses.dropped_by_kind.items()))
        words.append(f"{sum(losses.dropped_by_kind.values()):,} spans dropped ({by_kind})")
    words += [f"{name.replace('_', ' ')} {count:,}" for name, count in losses.counts.items() if count]
    if losses.missing_spans:
        words.append(f"{losses.missing_spans:,} spans missing from the files")
    return "; ".join([*words, *losses.sink_errors[:_MOST_NAMED]])


def _hook_words(job: JobSummary) -> list[str]:
    if not job.hooks:
        return ["none reported: spans are those that the script records itself"]
    installed = [hook for hook in job.hooks if hook.is_installed]
    words = [
        f"{len(installed)} installed: {', '.join(hook.name for hook in installed)}" if installed else "none installed"
    ]
    for hook in job.hooks:
        if not hook.is_installed:
            ranks = f" ({counted(hook.rank_count, 'rank')})" if hook.rank_count < len(job.ranks) else ""
            words.append(f"not {hook.name}: {hook.reason or 'no reason given'}{ranks}")
    return words


def _clock_words(job: JobSummary) -> str:
    words = [_counted_words(rank.clock_source for rank in job.ranks)]
    bounds = [rank.device_clock_bound_ns for rank in job.ranks if rank.device_clock_bound_ns is not None]
    if bounds:
        words.append(f"device clocks known within {seconds(max(bounds) / 1e9)}")
    else:
        words.append("no device clock")
    words.append(
        "one host" if len(job.hosts) == 1 else "hosts by their realtime clocks (the analysis uses their messages)"
    )
    return "; ".join(words)


def _cost_words(ranks: Sequence[RankSummary]) -> str:
    words = []
    shares = [rank.recorder_cpu_ratio for rank in ranks if rank.recorder_cpu_ratio is not None]
    if shares:
        words.append(f"own threads use {percent(max(shares), 2)} of a core at most")
    asking = [rank for rank in ranks if rank.event_query_count]
    if asking:
        late = max(asking, key=lambda rank: rank.longest_event_lag_s)
        words.append(
            f"events of GPUs asked for {sum(rank.event_query_count for rank in asking):,} times, known at most"
            f" {seconds(late.longest_event_lag_s)} after they were recorded (rank {late.rank})"
        )
    overheads = [rank for rank in ranks if rank.overhead is not None]
    if overheads:
        worst = max(overheads, key=lambda rank: rank.overhead.low if rank.overhead else 0.0)
        cost = worst.overhead
        assert cost is not None
        words.append(
            f"sampled steps take {cost.ratio * 100:+.2f} % ({cost.low * 100:+.2f} to {cost.high * 100:+.2f} %)"
            f" against the steps around them on rank {worst.rank}"
        )
        if cost.is_alarming:
            words.append(f"MORE THAN THE 1 % IT MAY COST: {_cheaper(worst)}")
    else:
        words.append("too few windows of sampled steps to compare")
    return "; ".join(words)


def _cheaper(rank: RankSummary) -> str:
    """How to turn off what costs most, which is sampling."""
    return (
        f"sample less (SMON_RT_SAMPLE_RATIO={rank.sample_ratio / 10:.3g} on all ranks), or call smon_rt.pause() at the"
        " same step on all ranks"
    )


def _file_words(job: JobSummary) -> str:
    files = [name for rank in job.ranks for name in rank.files]
    file_bytes = sum(rank.file_bytes for rank in job.ranks)
    states = Counter(_STATE_WORDS[rank.state] for rank in job.ranks)
    return f"{counted(len(files), 'file')}, {_bytes(file_bytes)}; ranks: {_listed(states)}"


def _place_words(ranks: Sequence[RankSummary], state: str) -> list[str]:
    """Where the processes are, or were when they were killed, and what had begun there: who is furthest behind first;
    of those in one step who is inside none of the operations in which ranks wait for each other, then the fewest."""
    places: dict[tuple[int, bool, str, str], list[int]] = {}
    for rank in ranks:
        if rank.state == state and rank.memory_step is not None:
            names = [
                f"{span.kind} of step {span.step}" + (f" microbatch {span.microbatch}" if span.microbatch >= 0 else "")
                for span in rank.open_spans
            ]
            inside = f", inside {', '.join(_shortened(names, _MOST_NAMED))}" if names else ""
            is_waiting = any(span.kind in _WAITING_KINDS for span in rank.open_spans)
            places.setdefault((rank.memory_step, is_waiting, rank.memory_phase, inside), []).append(rank.rank)
    in_order = sorted(places.items(), key=lambda place: (*place[0][:2], len(place[1])))
    words = []
    for (step, _, phase, inside), members in in_order:
        where = f"in step {step}" if step >= 0 else "before its first step"
        words.append(f"{ranges_words(sorted(members))} {where} ({phase}){inside}")
    return _shortened(words, _MOST_NAMED)


def _setting_words(job: JobSummary) -> list[str]:
    """Versions and environment, with all their values where ranks differ."""
    both = [*job.versions.items(), *job.environment.items()]
    if not both:
        return []
    return [", ".join(f"{name} {' or '.join(shown(value) for value in values)}" for name, values in both)]


def _other_words(job: JobSummary) -> list[str]:
    return _shortened([_other_run(job, other) for other in job.other_runs], _MOST_NAMED)


def _other_run(job: JobSummary, other: dict[str, Any]) -> str:
    name, files = f"run {other['run_id']} attempt {other['attempt']}", counted(other["file_count"], "file")
    if (other["run_id"], other["attempt"]) == (job.run_id, job.attempt):
        return f"an earlier launch of {name}, {files}: give each launch a run id or a directory of its own"
    return f"{name}, {files}: --run, --attempt"


def _kind_table(job: JobSummary) -> Table:
    rows = tuple(
        (
            kind.kind,
            f"{kind.span_count:,}",
            _duration(kind.total_s),
            _duration(kind.total_s / kind.span_count),
            f"{kind.device_span_count:,}",
            f"{job.losses.dropped_by_kind.get(kind.kind, 0):,}",
        )
        for kind in job.kinds
    )
    return Table("Spans by kind", ("kind", "spans", "total", "mean", "on device", "dropped"), rows)


def _rank_table(ranks: Sequence[RankSummary]) -> Table:
    chosen = list(ranks)
    note = ""
    if len(ranks) > _MOST_RANK_ROWS:
        chosen = [rank for rank in ranks if rank.state != "closed" or rank.damage or rank.dropped_span_count]
        chosen = (chosen or list(ranks))[:_MOST_RANK_ROWS]
        note = f"{len(chosen)} of {len(ranks):,} ranks, those with something to say first; --json has them all."
    rows = tuple(
        (
            f"rank {rank.rank}",
            str(rank.dp_rank),
            str(rank.stage),
            shown(rank.host) if rank.host else "",
            f"{rank.step_count:,}",
            f"{rank.sampled_step_count:,}",
            f"{rank.span_count:,}",
            f"{rank.dropped_span_count + rank.missing_span_count:,}",
            _bytes(rank.file_bytes),
            _STATE_WORDS[rank.state] + (", damaged" if rank.damage and rank.state != "cut" else ""),
        )
        for rank in chosen
    )
    columns = ("rank", "dp", "stage", "host", "steps", "sampled", "spans", "lost", "file", "state")
    return Table("Ranks", columns, rows, note, frozenset({"host", "state"}))


def _duration(value_s: float) -> str:
    """Spans may be far shorter than what a report of steps speaks of."""
    return f"{value_s * 1e9:.0f} ns" if 0 < value_s < 1e-6 else seconds(value_s)


def _counted_words(words: Iterable[str]) -> str:
    counts = Counter(words)
    return next(iter(counts)) if len(counts) == 1 else _listed(counts)


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count:,} {word}" for word, count in counts.most_common(_MOST_NAMED))


def _shortened(words: Sequence[str], most: int) -> list[str]:
    return [*words[:most], *([f"and {len(words) - most:,} more"] if len(words) > most else [])]


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
