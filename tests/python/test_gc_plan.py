"""Planned garbage collection, in real processes: at the same step on all ranks, none beside it, all put back."""

from __future__ import annotations

import doctest
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from smon_rt.errors import RecordingError
from smon_rt.gc import plan
from smon_rt.gc.schedule import HAS_FULL_ONLY, YOUNG
from smon_rt.trace.garbage import collections
from smon_rt.trace.kinds import KIND_NUMBERS
from smon_rt.trace.rank_trace import RankTrace
from tests.python.recording_process import START_WITH_GC as START
from tests.python.recording_process import RecordedJob, job
from tests.python.torch_jobs import needs_torch

__all__ = ["job"]

_BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "gc_modes.py"
_GARBAGE = """
import gc
class Node: pass
def leave_garbage(count, size=0):
    for _ in range(count):
        one, other = Node(), Node()
        one.other, other.other, one.ballast = other, one, bytearray(size)
"""
_BEFORE = "before = gc.get_threshold(), gc.isenabled(), gc.get_freeze_count()\n"
_AS_BEFORE = """
assert (gc.get_threshold(), gc.isenabled()) == before[:2]
assert gc.get_freeze_count() <= before[2]  # 3.12 has frozen some of its own
"""


def steps_of(trace: RankTrace, origin: str) -> list[tuple[int, int]]:
    """(step, generation) of the collections of one origin."""
    return [(each.step, each.generation) for each in collections(trace) if each.origin == origin]


def test_one_process_collects_at_planned_steps_only_and_gets_all_back(job: RecordedJob) -> None:
    job.run(
        START
        + _GARBAGE
        + _BEFORE
        + """
heap = [[i] for i in range(50_000)]
plan = smon_rt.gc.plan(5, full_every=3, warmup_steps=2)
for k in range(34):
    with smon_rt.step(k):
        leave_garbage(2000)
    if k == 3:
        assert not gc.isenabled() and gc.get_freeze_count() > 50_000
status = smon_rt.gc.status()
assert (status.state, status.interval_steps, status.first_step) == ("planning", 5, 2), status
assert (status.planned, status.unplanned, status.guard, status.conflicts) == (7, 0, 0, ()), status
assert status.freed_objects >= 2 * 2000 * 28 and 0 < status.longest_pause_s
plan.stop()
plan.stop()
"""
        + _AS_BEFORE
        + """
assert smon_rt.gc.status().state == "stopped"
smon_rt.stop()
"""
    )
    trace = job.trace()
    young = [(step, YOUNG) for step in (5, 10, 20, 25)]
    assert steps_of(trace, "planned") == sorted([(2, 2), (15, 2), (30, 2), *young])
    planned = [each for each in collections(trace) if each.origin == "planned"]
    assert all(each.pause_s > 0 and each.memory_before_bytes > 1 << 20 for each in planned)
    assert [each.freed_objects >= 2 * 2000 * 4 for each in planned[2:]] == [True] * 5
    # The same as spans, inside their steps.
    is_gc = trace.spans.kind == KIND_NUMBERS["gc"]
    names = [trace.names[int(name)] for name in trace.spans.name_id[is_gc]]
    assert [name for name in names if name.startswith("planned")] == [
        f"planned generation {each.generation}" for each in planned
    ]
    assert trace.identity.environment["gc_plan_counts"] == "planned 7, unplanned 0, guard 0, late 0"
    plan_words = f"every 5 steps, full every {5 if HAS_FULL_ONLY else 15}, since step 2; stopped in step 33"
    assert trace.identity.environment["gc_plan"] == plan_words


def test_the_guard_collects_before_the_limit_and_is_named_in_steps_that_are_not_sampled(job: RecordedJob) -> None:
    output = job.run(
        _GARBAGE
        + """
from smon_rt._memory import anonymous_bytes
smon_rt.start(DIR, sample_ratio=0, always_steps=0, warmup_steps=0, strict=True)
limit = anonymous_bytes() + (250 << 20)
smon_rt.gc.plan(1000, warmup_steps=0, memory_limit_bytes=limit)
most = 0
for k in range(40):
    with smon_rt.step(k):
        leave_garbage(1, 40 << 20)  # malloc keeps nothing of such a size
        most = max(most, anonymous_bytes())
status = smon_rt.gc.status()
assert most < limit == status.memory_limit_bytes, (most, limit)
assert status.guard >= 2 and status.unplanned == 0 and not status.conflicts, status
kept, guard_counts = [], []
while not (said := smon_rt.gc.status().conflicts):
    k += 1
    with smon_rt.step(k):
        kept.append(bytearray(8 << 20))
assert "no garbage" in said[0], said
for k in range(k + 1, k + 6):
    with smon_rt.step(k): pass
    guard_counts = guard_counts[-2:] + [smon_rt.gc.status().guard]
assert len(set(guard_counts)) == 1, "it does not collect in every step"
smon_rt.stop()
print(limit)
""",
        MIMALLOC_PURGE_DELAY="0",  # free-threaded Pythons give memory back later than a step of this job takes
    )
    trace = job.trace()
    guarded = [each for each in collections(trace) if each.origin == "guard"]
    assert len(guarded) >= 3
    assert all(each.memory_before_bytes < int(output.stdout) for each in guarded[:-1])
    assert guarded[0].memory_before_bytes - guarded[0].memory_after_bytes > 100 << 20
    assert not (trace.spans.kind == KIND_NUMBERS["gc"]).any(), "no step was sampled"
    assert trace.identity.environment["gc_guard"].startswith(f"{len(guarded)} alone, before ")
    assert output.stderr.count("no garbage") == 1


def test_everyone_else_who_has_a_say_is_respected_and_named(job: RecordedJob) -> None:
    """Without recording: steps are those of smon_rt.step."""
    output = job.run(
        _GARBAGE
        + _BEFORE
        + """
import types
def steps(first, last):
    for k in range(first, last):
        with smon_rt.step(k): pass
def module(name, **names):
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(names)
    return sys.modules[name]

# A second plan; fork; collections, enabling and unfreezing by somebody.
heap = [[i] for i in range(600_000)]
with smon_rt.gc.plan(2, full_every=2, warmup_steps=0):
    inner = smon_rt.gc.plan(7)
    steps(0, 3)
    inner.stop()
    assert smon_rt.gc.status().state == "planning" and smon_rt.gc.status().interval_steps == 2
    pid = os.fork()
    if pid == 0:
        steps(3, 30)
        os._exit(0 if gc.isenabled() and smon_rt.gc.status().state == "stopped" and gc.get_freeze_count() else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert not gc.isenabled()
    gc.collect()
    gc.enable()
    steps(3, 9)
    assert not gc.isenabled()
    gc.unfreeze()
    steps(9, 13)
    assert gc.get_freeze_count() > 600_000
    status = smon_rt.gc.status()
assert status.unplanned == 1, status
for words in ("another plan", "__main__.<module> collects", "enabled by somebody", "unfrozen by somebody"):
    assert sum(words in conflict for conflict in status.conflicts) == 1, (words, status)
"""
        + _AS_BEFORE
        + """
del heap
# Megatron: its own plan; else its checkpoints.
arguments = types.SimpleNamespace(manual_gc=True, manual_gc_interval=50, save_interval=4)
module("megatron.training.global_vars", get_args=lambda: arguments)
with smon_rt.gc.plan(3, warmup_steps=1):
    steps(0, 12)
    status = smon_rt.gc.status()
    assert gc.isenabled() and gc.get_freeze_count() < 5000
assert status.state == "left to others" and status.planned == 0, status
assert "Megatron's --manual-gc (interval 50)" in status.conflicts[0]
arguments.manual_gc = False
seen = []
gc.callbacks.append(lambda phase, info: phase == "stop" and seen.append((k, info["generation"])))
with smon_rt.gc.plan(100, warmup_steps=0):
    for k in range(1, 12):
        with smon_rt.step(k): pass
assert seen == [(1, 2), (3, 2), (7, 2), (11, 2)], seen
seen.clear()
with smon_rt.gc.plan(3, warmup_steps=0, checkpoint_steps=5):
    for k in range(1, 11):
        with smon_rt.step(k): pass
gc.callbacks.pop()
young = smon_rt.gc.schedule.YOUNG
assert seen == [(1, 2), (3, young), (5, 2), (6, young), (9, young), (10, 2)], seen

# torchtitan: found after the warm-up, or by what it does.
class GarbageCollection:
    def run(self): gc.collect(1)
titan = module("torchtitan.tools.utils", GarbageCollection=GarbageCollection)
gc.disable()
with smon_rt.gc.plan(3, warmup_steps=1):  # the module alone collects nothing
    steps(0, 5)
    assert smon_rt.gc.status().planned == 2
handler = GarbageCollection()
with smon_rt.gc.plan(3, warmup_steps=1):
    steps(0, 5)
    assert smon_rt.gc.status().state == "left to others"
assert not gc.isenabled()
del handler
gc.enable()
run = types.FunctionType(GarbageCollection.run.__code__, vars(titan) | {"gc": gc})
with smon_rt.gc.plan(3, warmup_steps=1):
    steps(0, 2)
    run(None)
    planned = smon_rt.gc.status().planned
    steps(2, 9)
    status = smon_rt.gc.status()
assert status.state == "left to others" and status.planned == planned, status
assert not gc.isenabled() and gc.get_freeze_count() < 5000, "as who plans wants it"
gc.enable()

# A CUDA graph's capture, as torch tells of it.
is_capturing = True
cuda = types.SimpleNamespace(is_initialized=lambda: True, is_current_stream_capturing=lambda: is_capturing)
del sys.modules["torchtitan.tools.utils"]
module("torch", cuda=cuda)
with smon_rt.gc.plan(2, warmup_steps=0):
    steps(0, 3)
    assert smon_rt.gc.status().state == "warming up" and gc.isenabled()
    is_capturing = False
    steps(3, 4)
    is_capturing = True
    steps(4, 7)
    status = smon_rt.gc.status()
assert (status.planned, status.skipped) == (1, 2), status
assert "capture" in status.conflicts[0]
del sys.modules["torch"]

# Whatever fails in here is not the job's.
from smon_rt.gc import planner
planner.Planner._act = lambda self, step: 1 / 0
with smon_rt.gc.plan(2, warmup_steps=0):
    steps(0, 9)
    assert gc.isenabled() and smon_rt.gc.status().state == "stopped", "else nothing would be collected any more"
    assert "the plan failed" in smon_rt.gc.status().conflicts[-1]
"""
        + _AS_BEFORE
    )
    assert output.stderr.count("ZeroDivisionError") == 1
    assert output.stderr.count("another plan was asked for") == 1


@needs_torch
def test_the_benchmark_finds_all_ranks_at_the_same_steps_and_nothing_beside(tmp_path: Path) -> None:
    """Two processes with a heap, and the page that a run writes."""
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- made by benchmarks/gc_modes.py -->\nold\n<!-- end of what it made -->\nafter\n")
    command = [sys.executable, str(_BENCHMARK), "--smoke", "--modes", "default", "plan", "--write", str(page)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0, ended.stderr
    text = page.read_text()
    assert "every 20" in text
    assert "old" not in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")


@pytest.mark.parametrize(
    "arguments",
    [
        {"interval": 0},
        {"interval": "often"},
        {"interval": 2.5},
        {"full_every": 0},
        {"warmup_steps": -1},
        {"memory_limit_bytes": 0},
        {"checkpoint_steps": 0},
    ],
)
def test_what_makes_no_sense_is_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(RecordingError, match=f"gc.plan: {next(iter(arguments))} is "):
        plan(**arguments)  # type: ignore[arg-type]


def test_disabled_it_does_nothing(job: RecordedJob) -> None:
    job.run(
        """
        import gc
        with smon_rt.gc.plan(1, warmup_steps=0):
            for k in range(3):
                with smon_rt.step(k): assert gc.isenabled()
            assert smon_rt.gc.status().state == "disabled"
        """,
        SMON_RT_DISABLE="1",
    )


@pytest.mark.parametrize("end", ["smon_rt.gc.stop()", ""])
def test_a_job_that_says_no_step_hears_that_nothing_was_planned(job: RecordedJob, end: str) -> None:
    """By its stop, or, where it has none, by its exit."""
    output = job.run(f"smon_rt.gc.plan(1)\n{end}\n")
    assert output.stderr.count("the plan met no step") == 1


@pytest.mark.parametrize("name", ["gc", "gc.schedule", "_memory"])
def test_examples_of_the_documentation_hold(name: str) -> None:
    found = doctest.testmod(importlib.import_module(f"smon_rt.{name}"))
    assert found.failed == 0
    assert found.attempted > 0
