"""What recording a span costs in Python, in each state of a job, beside what the language costs, all in one run.

Every round times each case once, so that the machine's moods hit all alike. A case is a burst that fits half of the
main thread's ring; between bursts the ring is drained, so that nothing is dropped, which is checked and printed.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from engine import Record

import smon_rt

# Of the 4,096 spans of the main thread's ring.
_BURST = 1000
_SAMPLED_STEP = 1_000_000
_ROUNDS = 40
#: What a call costs that does nothing, by the cheapest that Python itself has in C.
_FLOOR_OF_PAIR = "two calls of an empty C function, the floor of a pair"
_FLOOR_OF_WITH = "with a lock, the floor of `with` in C"
_Loop = Callable[[range], None]


@dataclass
class Case:
    """A loop that is timed once a round. What it costs is a time per iteration, less that of an empty loop (its median:
    a single one may be interrupted, and the difference be negative)."""

    what: str
    loop: _Loop
    loops_ns: list[float] = field(default_factory=list)
    empty_ns: list[float] = field(default_factory=list)

    def time(self, burst: range) -> None:
        began = time.perf_counter_ns()
        self.loop(burst)
        ended = time.perf_counter_ns()
        _empty(burst)
        emptied = time.perf_counter_ns()
        self.loops_ns.append((ended - began) / len(burst))
        self.empty_ns.append((emptied - ended) / len(burst))

    @property
    def p50_ns(self) -> float:
        return self._at(50)

    @property
    def p99_ns(self) -> float:
        return self._at(99)

    def _at(self, percentile: int) -> float:
        loops = sorted(self.loops_ns)
        return loops[min(len(loops) - 1, len(loops) * percentile // 100)] - statistics.median(self.empty_ns)


def _empty(burst: range) -> None:
    for _ in burst:
        pass


def _pair(burst: range) -> None:
    begin, end = smon_rt.begin, smon_rt.end
    for _ in burst:
        end(begin("forward_compute"))


def _pair_with_ids(burst: range) -> None:
    begin, end = smon_rt.begin, smon_rt.end
    for i in burst:
        end(begin("forward_compute", i, 0))


def _with_kept(burst: range) -> None:
    span = smon_rt.span("forward_compute", microbatch=3)
    for _ in burst:
        with span:
            pass


def _with_ids(burst: range) -> None:
    span = smon_rt.span
    for i in burst:
        with span("forward_compute", microbatch=i):
            pass


_FORMS: dict[str, _Loop] = {
    "pair": _pair,
    "pair with ids": _pair_with_ids,
    "with, object kept": _with_kept,
    "with ids": _with_ids,
}
_STATES = ("not started", "disabled", "paused", "unsampled", "sampled")


def measure(smoke: bool, record: Record) -> list[tuple[str, float, float]]:
    """Reports the cost of each form in each state; returns the others' (what, p50, p99) in nanoseconds."""
    cases = {state: [Case(form, loop) for form, loop in _FORMS.items()] for state in _STATES}
    steps = Case("step", _steps)
    others = [*(Case(what, loop) for what, loop in _others())]
    burst = range(100 if smoke else _BURST)
    for loop in (*_FORMS.values(), *(case.loop for case in others)):
        loop(burst[:10])  # first uses load modules
    dropped = recorded = 0
    for _ in range(2 if smoke else _ROUNDS):
        for case in others:
            case.time(burst)
        _time_off(cases, burst)
        status = _time_on(cases, steps, burst)
        dropped += status.dropped_spans
        recorded += status.recorded_spans
    how = f"bursts of {len(burst)}; {dropped:,} of {recorded + dropped:,} spans dropped"
    floors = {case.what: case.p50_ns for case in others}
    for state in _STATES:
        for case in cases[state]:
            floor_ns = floors[_FLOOR_OF_PAIR if "pair" in case.what else _FLOOR_OF_WITH]
            note = f"p99 {case.p99_ns:,.0f} ns; floor {floor_ns:,.0f} ns; {how}"
            record(f"Python, {case.what}, {state}", case.p50_ns, note)
    record("Python, with step(k)", steps.p50_ns, f"p99 {steps.p99_ns:,.0f} ns; unsampled and empty")
    return [(case.what, case.p50_ns, case.p99_ns) for case in others]


def _time_off(cases: dict[str, list[Case]], burst: range) -> None:
    for case in cases["not started"]:
        case.time(burst)
    with _environment(SMON_RT_DISABLE="1", SMON_RT_LOG="error"):
        assert not smon_rt.start()
        for case in cases["disabled"]:
            case.time(burst)


def _time_on(cases: dict[str, list[Case]], steps: Case, burst: range) -> smon_rt.Status:
    """One session; its steps are sampled on request only."""
    with tempfile.TemporaryDirectory() as folder:
        run_id = f"bench-{os.getpid()}"
        assert smon_rt.start(folder, run_id=run_id, sample_ratio=0.0, warmup_steps=0, always_steps=0)
        assert smon_rt.request_sampling(len(_FORMS), first_step=_SAMPLED_STEP)
        with smon_rt.step(0):
            assert not smon_rt.is_sampled()
            for case in cases["unsampled"]:
                case.time(burst)
            smon_rt.pause()
            for case in cases["paused"]:
                case.time(burst)
            smon_rt.resume()
        steps.time(range(1, 100))
        for number, case in enumerate(cases["sampled"]):
            with smon_rt.step(_SAMPLED_STEP + number):
                assert smon_rt.is_sampled()
                case.time(burst)
            _wait_for_drain()
        smon_rt.stop(closing_line=False)
        return smon_rt.status()


def _steps(burst: range) -> None:
    for k in burst:
        with smon_rt.step(k):
            pass


def _wait_for_drain() -> None:
    deadline_s = time.monotonic() + 5
    while smon_rt.status().written_spans < smon_rt.status().recorded_spans and time.monotonic() < deadline_s:
        time.sleep(0.001)


@contextlib.contextmanager
def _environment(**variables: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _others() -> Iterator[tuple[str, _Loop]]:
    yield _FLOOR_OF_PAIR, _two_calls
    yield _FLOOR_OF_WITH, _with_lock
    yield "with an empty object of Python", _with_empty
    yield "contextlib.contextmanager", _with_generator


def _two_calls(burst: range) -> None:
    call = callable  # takes an object, looks at it, makes none
    for _ in burst:
        call(call(None))


def _with_lock(burst: range) -> None:
    lock = threading.Lock()
    for _ in burst:
        with lock:
            pass


class _Empty:
    def __enter__(self) -> None: ...
    def __exit__(self, *_exception: object) -> None: ...


def _with_empty(burst: range) -> None:
    empty = _Empty()
    for _ in burst:
        with empty:
            pass


@contextlib.contextmanager
def _generator() -> Iterator[None]:
    yield


def _with_generator(burst: range) -> None:
    for _ in burst:
        with _generator():
            pass
