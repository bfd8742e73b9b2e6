"""What recording costs a training step of your own: steps without any of it, unsampled and sampled ones take turns.

Example:
    >>> import smon_rt
    >>> print(smon_rt.bench.measure(train_one_step, seconds=20))  # doctest: +SKIP
    bare step      12.31 ms, p99 14.02 ms (192 steps in 16 rounds)
    not sampled    +0.06 % (-0.11 to +0.20), no more than noise
    sampled        +0.45 % (+0.31 to +0.62): 55 µs a step, 2.1 µs for each of its 26 spans; none dropped
    at ratio 0.1   +0.10 %
    noise          -0.02 % (-0.14 to +0.13) between bare steps
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from smon_rt import _recording as recording
from smon_rt import integrations as hooks
from smon_rt._backend import native
from smon_rt._interleaved import FEWEST_ROUNDS, Added, Round, StepTimes, added, times_of
from smon_rt._layout import torch_distributed
from smon_rt._measured_step import StepError, check_bare, check_recorded, idle_kind, refuse_undone
from smon_rt.errors import RecordingError

__all__ = ["Added", "Measurement", "StepTimes", "measure"]

BARE, BARE_AGAIN, UNSAMPLED, SAMPLED = ARMS = ("bare", "bare again", "unsampled", "sampled")
_DEFAULT_RATIO = 0.1
_WARMUP_STEPS = 3
_MOST_ROUNDS = 100_000
#: On a busy machine the recorder's thread may take longer to end than `stop` waits, and nothing starts until it has.
_PATIENCE_S = 3.0
#: There is one recording in a process: two measurements would each take the other's for its own.
_ALONE = threading.Lock()


@dataclass(frozen=True)
class Block:
    """How many steps an arm has in a round, and how many before them are not counted."""

    steps: int
    after_change: int
    """Once hooks were put in or taken out: they look longer at first, and Python has to get used to changed classes."""
    after_start: int = 2


#: Steps of this length in seconds, and longer → their blocks.
_BLOCKS = ((0.05, Block(2, 4)), (0.005, Block(6, 6)), (0.0, Block(30, 20)))
#: Where ranks must agree, whatever the length.
_BLOCK = Block(4, 4)


@dataclass(frozen=True)
class Measurement:
    """What recording adds to a step. Prints as some lines; `to_json` has it as plain values."""

    bare: StepTimes
    """Steps while nothing is recorded and no hook is in."""
    unsampled: StepTimes
    sampled: StepTimes
    unsampled_added: Added
    """What a step costs of which only the time is recorded."""
    sampled_added: Added
    """What a step costs whose spans are recorded."""
    noise: Added
    """What bare steps seem to add to bare steps: a smaller difference than this interval shows nothing."""
    spans_per_step: float
    """Spans of a sampled step, the step's own among them."""
    dropped_spans: int
    round_count: int

    def added_at(self, sample_ratio: float) -> float:
        """What a step costs on average when this share of them (0 to 1) is sampled, as a share of a bare step."""
        return sample_ratio * self.sampled_added.value + (1.0 - sample_ratio) * self.unsampled_added.value

    def to_json(self) -> dict[str, Any]:
        """Plain values, times in seconds, what is added as a share of a bare step."""
        shares = {name: getattr(self, name).to_json() for name in ("unsampled_added", "sampled_added", "noise")}
        return {**asdict(self), **shares, "added_at_ratio_0.1": self.added_at(_DEFAULT_RATIO)}

    def __str__(self) -> str:
        bare = self.bare
        added_us = 1e6 * self.sampled_added.value * bare.median_s
        a_span = f", {added_us / self.spans_per_step:.1f} µs for each of its {self.spans_per_step:.0f} spans"
        dropped = f"{self.dropped_spans:,} dropped" if self.dropped_spans else "none dropped"
        share = f"{added_us:.0f} µs a step{a_span if self.spans_per_step else ''}; {dropped}"
        counts = f"({bare.step_count} steps in {self.round_count} rounds)"
        lines = {
            "bare step": f"{_ms(bare.median_s)}, p99 {_ms(bare.p99_s)} {counts}",
            "not sampled": f"{self.unsampled_added}{_noise(self.unsampled_added)}",
            "sampled": f"{self.sampled_added}{_noise(self.sampled_added)}: {share}",
            f"at ratio {_DEFAULT_RATIO:g}": f"{100 * self.added_at(_DEFAULT_RATIO):+.2f} %",
            "noise": f"{self.noise} between bare steps",
        }
        return "\n".join(f"{name:14s} {text}" for name, text in lines.items())


def _ms(time_s: float) -> str:
    return f"{1000 * time_s:.4g} ms"


def _noise(one: Added) -> str:
    return ", no more than noise" if one.is_noise and one.has_interval else ""


def measure(
    step_fn: Callable[[], object],
    *,
    seconds: float = 10.0,
    rounds: int | None = None,
    integrations: str | Sequence[str] = "auto",
    trace_dir: str | os.PathLike[str] | None = None,
) -> Measurement:
    """Measures what recording adds to a training step: with all hooks, threads and files that a job would have.

    Each round runs bare steps (nothing is recorded, no hook is in) and recorded ones, sampled and not, in random order;
    with or without torch. What `step_fn` records itself, by `smon_rt.span` or `smon_rt.step`, counts; without a step of
    its own each call is one. Afterwards the process is as before: recording is off, hooks that were attached are in.
    Process groups that exist keep their hooks in bare steps too, switched off.

    Args:
        step_fn: does one training step; it is called some hundred times. What it raises is raised here. It has to
            leave the recording and its hooks alone.
        seconds: how long this takes, about; at least six rounds are done, of 18 to 162 steps each (the longer a
            step, the fewer).
        rounds: so many rounds, however long they take. A job of several processes needs it: all run the same steps.
            Fewer than six tell no interval.
        integrations: as of `start`: "auto" (all), "none", or some names.
        trace_dir: where files are while it runs, to measure with that file system; a temporary directory if not given.

    Raises:
        RecordingError: recording is on already, disabled (SMON_RT_DISABLE) or cannot start; another measurement is
            under way in this process; an argument is out of its range; there are several processes and no `rounds`; the
            step is a coroutine or a generator, which does nothing when called, or starts, stops or pauses the
            recording, or attaches or detaches hooks.

    Example:
        >>> import smon_rt
        >>> measurement = smon_rt.bench.measure(lambda: sum(range(1000)), rounds=6, integrations="none")
        >>> measurement.dropped_spans
        0
    """
    if not callable(step_fn):
        raise RecordingError(f"measure: {step_fn!r:.80} is no function: give one that does a training step")
    if kind := idle_kind(step_fn):
        raise StepError(f"measure: the step is {kind}: it does nothing when called; give a function that does one step")
    if isinstance(seconds, bool) or not (isinstance(seconds, (int, float)) and 0 < seconds < math.inf):
        raise RecordingError(f"measure: seconds is {seconds!r:.80}, expected a number above 0")
    if rounds is not None and (
        isinstance(rounds, bool) or not (isinstance(rounds, int) and 1 <= rounds <= _MOST_ROUNDS)
    ):
        raise RecordingError(f"measure: rounds is {rounds!r:.80}, expected a whole number from 1 to {_MOST_ROUNDS}")
    if not (trace_dir is None or isinstance(trace_dir, (str, bytes, os.PathLike))):
        raise RecordingError(f"measure: trace_dir is {trace_dir!r:.80}, expected a path")
    distributed = torch_distributed()
    if rounds is None and distributed is not None and distributed.get_world_size() > 1:
        raise RecordingError("measure: a job of several processes needs rounds=N: all of them must run the same steps")
    chosen = hooks.check("measure", integrations)
    with _alone(), _folder(trace_dir) as folder, _as_before():
        return _Bench(step_fn, chosen, folder).run(seconds, rounds)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """No other measurement and no recording goes on."""
    if not _ALONE.acquire(blocking=False):
        raise RecordingError("measure: another measurement is under way in this process: let it end first")
    try:
        if native.status()["is_started"]:
            raise RecordingError(
                "measure: recording is on: call smon_rt.stop() first, since bare steps are measured too"
            )
        yield
    finally:
        _ALONE.release()


@contextlib.contextmanager
def _folder(given: str | os.PathLike[str] | None) -> Iterator[str | os.PathLike[str]]:
    """Where files go meanwhile."""
    if given is not None:
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="smon-bench-", ignore_cleanup_errors=True) as folder:
        yield folder


@contextlib.contextmanager
def _as_before() -> Iterator[None]:
    """Takes all hooks out; afterwards recording is off, and those that were in are in again."""
    attached = hooks.attached()
    hooks.detach()
    try:
        yield
    finally:
        _stop()
        hooks.detach()
        hooks.attach(attached)


def _stop() -> dict[str, Any]:
    """Ends the recording, if there is one; its counters."""
    status = native.status()
    if status["is_started"]:
        if not recording.stop(closing_line=False):
            time.sleep(_PATIENCE_S)
        status = native.status()
    return status


def _remove_files(path: str) -> None:
    """Those of one recording."""
    if path:
        for file in Path(path).parent.glob(Path(path).name.removesuffix(".smon") + ".*"):
            file.unlink(missing_ok=True)


@dataclass
class _Bench:
    """The arms of one measurement, and what was measured so far."""

    step_fn: Callable[[], object]
    integrations: list[str]
    folder: str | os.PathLike[str]
    clock_ns: Callable[[], int] = time.perf_counter_ns
    chance: random.Random = field(default_factory=lambda: random.Random(1))
    times: dict[str, list[Round]] = field(default_factory=lambda: {arm: [] for arm in ARMS})
    makes_steps: bool | None = None
    """Whether what is measured says itself where its steps are, or hooks do; None until seen."""
    starts: int = 0
    path: str = ""
    """Of the file of the recording that is on; empty while none is."""
    attached: list[str] = field(default_factory=list)
    sampled_steps: int = 0
    recorded_spans: int = 0
    dropped_spans: int = 0

    def run(self, seconds: float, rounds: int | None) -> Measurement:
        """Rounds until the time is over, or so many. Leaves no file."""
        try:
            return self._rounds(seconds, rounds)
        finally:
            _stop()
            _remove_files(self.path)

    def _rounds(self, seconds: float, rounds: int | None) -> Measurement:
        refuse_undone(self.step_fn())
        check_bare()
        began_ns = self.clock_ns()
        usual_s = statistics.median(self._step(self.step_fn) for _ in range(_WARMUP_STEPS))
        block = _BLOCK if rounds is not None else next(one for length_s, one in _BLOCKS if usual_s >= length_s)
        for done in itertools.count():
            elapsed_s = (self.clock_ns() - began_ns) / 1e9
            if done == rounds or (rounds is None and done >= FEWEST_ROUNDS and elapsed_s >= seconds):
                break
            parts = [self._bare, self._recorded]
            self.chance.shuffle(parts)
            for part in parts:
                part(block)
        return self._result()

    def _bare(self, block: Block) -> None:
        hooks.detach()
        self._warm_up(self.step_fn, block.after_change)
        for arm in self.chance.sample((BARE, BARE_AGAIN), 2):
            self._block(arm, self.step_fn, block)
        check_bare()

    def _recorded(self, block: Block) -> None:
        for number, arm in enumerate(self.chance.sample((UNSAMPLED, SAMPLED), 2)):
            self._start(1.0 if arm == SAMPLED else 0.0)
            self._warm_up(self._recorded_step(), 1)  # shows who makes the steps
            check_recorded(self.path, self.attached)
            self._warm_up(self._recorded_step(), (block.after_start if number else block.after_change) - 1)
            before = native.status()
            self._block(arm, self._recorded_step(), block)
            check_recorded(self.path, self.attached)
            status = _stop()
            _remove_files(self.path)
            self.dropped_spans += status["dropped_spans"]
            if arm == SAMPLED:
                self.sampled_steps += status["sampled_steps"] - before["sampled_steps"]
                self.recorded_spans += status["recorded_spans"] - before["recorded_spans"]

    def _start(self, sample_ratio: float) -> None:
        self.starts += 1
        is_on = recording.start(
            self.folder,
            run_id=f"bench-{os.getpid()}",
            attempt=self.starts,  # one that is slow to stop keeps the memory of its number for a while
            sample_ratio=sample_ratio,
            warmup_steps=0,
            always_steps=0,
            integrations=self.integrations or "none",
        )
        problem = native.status()["file_error"] if is_on else native.last_error()
        if problem or not is_on:
            raise RecordingError(f"measure: recording cannot start: {problem}")
        self.path = native.status()["file_path"]
        self.attached = hooks.attached()

    def _recorded_step(self) -> Callable[[], object]:
        """The step as a job runs it: if nobody says where it begins, we do."""
        step_fn = self.step_fn
        if self.makes_steps:
            return step_fn
        if self.makes_steps is None:
            return self._look_for_steps

        def step() -> None:
            with recording.step():
                step_fn()

        return step

    def _look_for_steps(self) -> None:
        self.step_fn()
        self.makes_steps = native.status()["steps"] > 0

    def _warm_up(self, step: Callable[[], object], count: int) -> None:
        for _ in range(count):
            step()

    def _block(self, arm: str, step: Callable[[], object], block: Block) -> None:
        self.times[arm].append(Round((tuple(self._step(step) for _ in range(block.steps)),)))

    def _step(self, step: Callable[[], object]) -> float:
        clock_ns = self.clock_ns
        began_ns = clock_ns()
        step()
        return (clock_ns() - began_ns) / 1e9

    def _result(self) -> Measurement:
        bases = [self.times[BARE], self.times[BARE_AGAIN]]
        return Measurement(
            bare=times_of([*bases[0], *bases[1]]),
            unsampled=times_of(self.times[UNSAMPLED]),
            sampled=times_of(self.times[SAMPLED]),
            unsampled_added=added(self.times[UNSAMPLED], bases),
            sampled_added=added(self.times[SAMPLED], bases),
            noise=added(bases[1], bases[:1]),
            spans_per_step=self.recorded_spans / max(self.sampled_steps, 1),
            dropped_spans=self.dropped_spans,
            round_count=len(bases[0]),
        )
