"""The trace of a whole job: which files of some directories belong to its newest run, and which ranks are missing.

Example:
    >>> from smon_rt.trace import read_job
    >>> job = read_job(["/node0/traces", "/node1/traces"])  # doctest: +SKIP
    >>> job.run_id, len(job.ranks), job.missing_text()  # doctest: +SKIP
    ('job', 15, '7')
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from smon_rt.analysis.input_file import is_url, local_path, reason, shown
from smon_rt.errors import TraceError
from smon_rt.trace.arena import merge_memory
from smon_rt.trace.packets import Damage
from smon_rt.trace.rank_trace import RankTrace
from smon_rt.trace.reader import FileHead, process_key, read_files, read_head

SUFFIX = ".smon"
_MOST_NAMED = 12

StrPath = str | os.PathLike[str]


@dataclass(frozen=True)
class OtherRun:
    """A run, or an attempt, that lies in the same directories and was not taken."""

    run_id: str
    attempt: int
    file_count: int


@dataclass
class JobTrace:
    """The ranks of one attempt of one run. Iterating over a `JobReader` fills it."""

    run_id: str
    attempt: int
    world_size: int = 0
    ranks: list[RankTrace] = field(default_factory=list)
    present: set[int] = field(default_factory=set)
    other_runs: list[OtherRun] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)

    def missing_ranges(self) -> list[tuple[int, int]]:
        """Ranks without a readable file, as ranges with both ends included."""
        ranges = []
        expected = 0
        for rank in [*sorted(rank for rank in self.present if rank < self.world_size), self.world_size]:
            if rank > expected:
                ranges.append((expected, rank - 1))
            expected = rank + 1
        return ranges

    @property
    def missing_count(self) -> int:
        """How many ranks have no readable file."""
        return sum(last - first + 1 for first, last in self.missing_ranges())

    def missing_text(self) -> str:
        """`3, 7–9`, or an empty text."""
        ranges = self.missing_ranges()
        words = [f"{first}" if first == last else f"{first}–{last}" for first, last in ranges[:_MOST_NAMED]]
        return ", ".join(words) + (", …" if len(ranges) > _MOST_NAMED else "")


def read_job(
    paths: Sequence[StrPath], *, run_id: str | None = None, attempt: int | None = None, steps: range | None = None
) -> JobTrace:
    """Reads the newest attempt of the newest run in some directories, files or globs, or the one asked for.

    Raises TraceError when there is no readable rank.
    """
    reader = JobReader(paths, run_id=run_id, attempt=attempt, steps=steps)
    for trace in reader:
        reader.job.ranks.append(trace)
    return reader.job


def read_directory(
    paths: StrPath | Sequence[StrPath],
    *,
    run_id: str | None = None,
    attempt: int | None = None,
    steps: range | None = None,
) -> list[RankTrace]:
    """The ranks of `read_job`, sorted."""
    several = [paths] if isinstance(paths, str | os.PathLike) else paths
    return read_job(several, run_id=run_id, attempt=attempt, steps=steps).ranks


class JobReader:
    """Reads a job rank by rank, so that one rank at a time is in memory; `job` is complete after the last."""

    def __init__(
        self,
        paths: Sequence[StrPath],
        *,
        run_id: str | None = None,
        attempt: int | None = None,
        steps: range | None = None,
    ) -> None:
        files = find_files(paths)
        self._steps = steps
        unreadable: list[str] = []
        heads: list[FileHead] = []
        for path in files:
            head = _head_or_reason(path)
            if isinstance(head, str):
                unreadable.append(head)
            else:
                heads.append(head)
        if not heads:
            more = f" ({len(unreadable)} files, none can be read)" if len(unreadable) > 1 else ""
            raise TraceError(unreadable[0] + more)
        chosen = _choose(heads, run_id, attempt)
        self.job = JobTrace(*chosen, unreadable=unreadable, other_runs=_others(heads, chosen))
        self._earlier_by_file: dict[str, int] = {}  # a job may be read twice, and they are counted once
        self._by_rank: dict[int, list[FileHead]] = {}
        for head in heads:
            if _run_key(head) == chosen:
                self._by_rank.setdefault(head.identity.rank, []).append(head)
                self.job.world_size = max(self.job.world_size, head.identity.world_size)

    @property
    def rank_count(self) -> int:
        """Ranks that have files."""
        return len(self._by_rank)

    @property
    def heads(self) -> list[FileHead]:
        """The first file of each rank, by rank."""
        return [min(heads, key=_file_order) for _, heads in sorted(self._by_rank.items())]

    def __iter__(self) -> Iterator[RankTrace]:
        key = (self.job.run_id, self.job.attempt)
        taken: dict[int, str] = {}
        for _, heads in sorted(self._by_rank.items()):
            try:
                traces = read_files([head.path for head in sorted(heads, key=_file_order)], self._steps)
            except TraceError as error:
                self._say_unreadable(str(error))
                continue
            chosen, earlier = _one_process_a_rank([trace for trace in traces if trace.run_key == key])
            self._count_earlier(earlier)
            for trace in chosen:
                if trace.rank in taken:
                    other = shown(taken[trace.rank])
                    self._say_unreadable(
                        f"{shown(trace.files[0])}: holds rank {trace.rank}, which is in {other}; left out"
                    )
                    continue
                taken[trace.rank] = trace.files[0]
                merge_memory(trace, self._steps)
                self.job.present.add(trace.rank)
                self.job.world_size = max(self.job.world_size, trace.identity.world_size)
                yield trace
        if not self.job.present:
            raise TraceError(self.job.unreadable[0])

    def _count_earlier(self, traces: list[RankTrace]) -> None:
        """Files of an earlier launch under the same name, as where a fixed run id is used twice."""
        if not traces:
            return
        self._earlier_by_file.update({trace.files[0]: len(trace.files) for trace in traces})
        key = (self.job.run_id, self.job.attempt)
        others = [other for other in self.job.other_runs if (other.run_id, other.attempt) != key]
        self.job.other_runs = [*others, OtherRun(*key, sum(self._earlier_by_file.values()))]

    def _say_unreadable(self, words: str) -> None:
        # A job may be read twice; what is said once is enough.
        if words not in self.job.unreadable:
            self.job.unreadable.append(words)


def find_files(paths: Sequence[StrPath]) -> list[str]:
    """The trace files that paths name: files, directories that hold them, globs of both. Raises TraceError."""
    found: dict[str, str] = {}
    for path in map(os.fsdecode, paths):
        if "\0" in path:
            raise TraceError(f"{shown(path)}: no file has a NUL in its name; check the path")
        for name in _expand(path):
            for file in [name] if is_url(name) else _in_directory(name):
                found.setdefault(file if is_url(file) else os.path.realpath(local_path(file)), file)
    return list(found.values())


def _expand(path: str) -> list[str]:
    is_pattern = any(character in path for character in "*?[") and not is_url(path) and not os.path.lexists(path)
    return (sorted(glob.glob(path)) if is_pattern else []) or [path]  # noqa: PTH207


def _in_directory(name: str) -> list[str]:
    path = local_path(name)
    try:
        if not path.is_dir():
            return [name]
        # What a reader of a live job must not trip over: snapshots and reports have other suffixes.
        files = sorted(str(entry) for entry in path.iterdir() if entry.name.endswith(SUFFIX))
    except (OSError, ValueError) as error:
        raise TraceError(f"{shown(name)}: cannot be read ({reason(error)}); check the path") from None
    if not files:
        raise TraceError(f"{shown(name)}: holds no {SUFFIX} file; give the directory that `start()` was given")
    return files


def _head_or_reason(path: str) -> FileHead | str:
    try:
        return read_head(path)
    except TraceError as error:
        return str(error)


def _run_key(head: FileHead) -> tuple[str, int]:
    return head.identity.run_id, head.identity.attempt


def _file_order(head: FileHead) -> tuple[int, str]:
    return head.identity.file_index, head.path


def _age_ns(head: FileHead) -> int:
    """When the process started by its own clock; for a file without a reading of it, when it was written."""
    if head.started_ns is not None:
        return head.started_ns
    try:
        return Path(head.path).stat().st_mtime_ns
    except (OSError, ValueError):
        return 0


def _choose(heads: list[FileHead], run_id: str | None, attempt: int | None) -> tuple[str, int]:
    # A name may be read in more than one way: it must not make up a run beside those that say who they are.
    heads = [head for head in heads if head.is_identified] or heads
    keys = sorted({_run_key(head) for head in heads})
    fitting = [key for key in keys if run_id in (None, key[0]) and attempt in (None, key[1])]
    if not fitting:
        there = ", ".join(f"run {shown(run)} attempt {number}" for run, number in keys[:_MOST_NAMED])
        asked = " ".join(
            [
                *([f"run {shown(run_id)}"] if run_id is not None else []),
                *([f"attempt {attempt}"] if attempt is not None else []),
            ]
        )
        raise TraceError(f"{shown(heads[0].path)}: no files of {asked} here; there is {there}")
    newest: dict[str, int] = {}
    for head in heads:
        if _run_key(head) in fitting:
            newest[head.identity.run_id] = max(newest.get(head.identity.run_id, 0), _age_ns(head))
    latest_run = max(newest, key=lambda run: (newest[run], run))
    return max(key for key in fitting if key[0] == latest_run)


def _others(heads: list[FileHead], chosen: tuple[str, int]) -> list[OtherRun]:
    counts: dict[tuple[str, int], int] = {}
    for head in heads:
        if _run_key(head) != chosen:
            counts[_run_key(head)] = counts.get(_run_key(head), 0) + 1
    return [OtherRun(*key, count) for key, count in sorted(counts.items())]


def _one_process_a_rank(traces: list[RankTrace]) -> tuple[list[RankTrace], list[RankTrace]]:
    """One process of each rank, and those of an earlier launch that said to be the same run and attempt.

    Of two that ran at the same time, as after copying a directory over another, the one that recorded more is taken.
    """
    by_rank: dict[int, list[RankTrace]] = {}
    for trace in traces:
        by_rank.setdefault(trace.rank, []).append(trace)
    chosen, earlier = [], []
    for _, candidates in sorted(by_rank.items()):
        newest_ns = max(_recorded_ns(trace)[0] for trace in candidates)
        at_once = [trace for trace in candidates if _recorded_ns(trace)[1] >= newest_ns]
        earlier += [trace for trace in candidates if _recorded_ns(trace)[1] < newest_ns]
        best = max(at_once, key=lambda trace: (len(trace.spans) + len(trace.steps), process_key(trace.identity)))
        for other in at_once:
            if other is not best:
                what = f"another process (pid {other.identity.pid}) recorded rank {other.rank} too; left out"
                best.damage.append(Damage(shown(other.files[0]), 0, what))
        chosen.append(best)
    return chosen, earlier


def _recorded_ns(trace: RankTrace) -> tuple[int, int]:
    """From when to when a process recorded, by its realtime clock: as far as is known."""
    times = trace.clocks.realtime_ns
    return (int(times.min()), int(times.max())) if len(times) else (0, 0)
