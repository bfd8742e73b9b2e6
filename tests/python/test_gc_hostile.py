"""Planned garbage collection in jobs that do what they should not: nothing breaks, and Python's own way comes back."""

from __future__ import annotations

from smon_rt.gc.schedule import HAS_FULL_ONLY
from tests.python.recording_process import RecordedJob, job

__all__ = ["job"]

_JOB = """
import gc, signal, weakref
gc.set_threshold(901, 11, 12)
def steps(first, last):
    for k in range(first, last):
        with smon_rt.step(k): pass
def in_cycle(one):
    one.me = one
    return one
class Finalizer:
    def __init__(self, call): self.call = call
    def __del__(self): self.call()
def check_all_is_back():
    assert gc.get_threshold() == (901, 11, 12) and gc.isenabled() and gc.get_freeze_count() < 5000
    status = smon_rt.gc.status()
    assert status.state == "stopped", status
    return status
"""


def test_a_plan_ends_wherever_it_is_ended(job: RecordedJob) -> None:
    """By an exception, by what its own collections free, from threads."""
    output = job.run(
        _JOB
        + """
try:
    with smon_rt.gc.plan(2, warmup_steps=0):
        for k in range(5):
            with smon_rt.step(k):
                if k == 3:
                    assert not gc.isenabled()
                    raise LookupError
except LookupError:
    assert check_all_is_back().planned == 2

in_cycle(Finalizer(smon_rt.gc.stop))
smon_rt.gc.plan(2, warmup_steps=0)
steps(0, 6)
assert check_all_is_back().first_step is None, "the first collection frees who stops the plan"

smon_rt.gc.plan(2, warmup_steps=0, full_every=1)
steps(0, 1)
in_cycle(Finalizer(smon_rt.gc.stop))
steps(1, 6)
assert check_all_is_back().planned >= 1

def on_a_thread():
    thread = threading.Thread(target=smon_rt.gc.stop)
    thread.start()
    thread.join()
for first in (0, 1):  # in the first collection, and in a later one
    smon_rt.gc.plan(2, warmup_steps=0)
    steps(0, first)
    in_cycle(Finalizer(on_a_thread))
    steps(first, 6)
    check_all_is_back()

# Whoever plans while a plan collects gets none; who plans in a collection of Python's gets one.
in_cycle(Finalizer(lambda: smon_rt.gc.plan(3, warmup_steps=0)))
gc.collect()
assert smon_rt.gc.status().state == "warming up"
steps(0, 4)
in_cycle(Finalizer(lambda: smon_rt.gc.plan(5, warmup_steps=0)))
steps(4, 10)
status = smon_rt.gc.status()
assert (status.interval_steps, status.planned) == (3, 4) and "another plan" in status.conflicts[0], status
smon_rt.gc.stop()
smon_rt.gc.stop()
check_all_is_back()

def stop_and_plan_another():
    smon_rt.gc.stop()
    smon_rt.gc.plan(4, warmup_steps=1)
smon_rt.gc.plan(2, warmup_steps=0)
in_cycle(Finalizer(stop_and_plan_another))
steps(0, 12)
status = smon_rt.gc.status()
assert (status.state, status.interval_steps, status.first_step) == ("planning", 4, 2), status
smon_rt.gc.stop()
check_all_is_back()
"""
    )
    assert "Traceback" not in output.stderr, output.stderr


def test_what_others_raise_and_allocate_changes_no_plan(job: RecordedJob) -> None:
    job.run(
        _JOB
        + """
unraisable = []
sys.unraisablehook = lambda what: unraisable.append(type(what.exc_value))
def raises(*_): raise OverflowError
gc.callbacks.insert(0, raises)
planned = smon_rt.gc.plan(2, warmup_steps=0)
all_are_here = threading.Barrier(4)
def allocate():
    for _ in range(20):
        all_are_here.wait()
        kept = [in_cycle(Finalizer(int)) for _ in range(300)]
threads = [threading.Thread(target=allocate) for _ in range(3)]
steps(0, 1)
for thread in threads: thread.start()
references = []
for k in range(1, 21):
    all_are_here.wait()
    with smon_rt.step(k):  # collects while the others allocate
        cycle = in_cycle(Finalizer(raises))
        references.append(weakref.ref(cycle, raises))
        del cycle
for thread in threads: thread.join()
status = smon_rt.gc.status()
assert (status.planned, status.unplanned, status.conflicts) == (11, 0, ()), status
assert status.freed_objects > 10_000 and not any(each() for each in references[:19]), status
gc.callbacks.remove(raises)
planned.stop()
assert set(unraisable) == {OverflowError} and len(unraisable) >= 2 * 11 + 20, len(unraisable)
check_all_is_back()

# A function that fails, and callbacks that somebody empties.
def saves(step):
    if step >= 3: raise KeyError(step)
with smon_rt.gc.plan(2, warmup_steps=0, checkpoint_steps=saves):
    steps(0, 4)
    gc.callbacks.clear()
    steps(4, 9)
    status = smon_rt.gc.status()
assert status.planned == 5 and "checkpoint_steps failed" in status.conflicts[0], status
assert not gc.callbacks
check_all_is_back()

# Numbers as large, and steps as odd, as they come.
with smon_rt.gc.plan(10**30, full_every=10**30, warmup_steps=0, memory_limit_bytes=1 << 80):
    for k in (-7, 10**12, 5, 5, 0, 3):
        with smon_rt.step(k): pass
    status = smon_rt.gc.status()
    assert (status.planned, status.guard) == (3, 0), status  # the first, a way past 0, and 0
check_all_is_back()
with smon_rt.gc.plan(1, full_every=1, warmup_steps=0, memory_limit_bytes=1):
    steps(0, 20)
    status = smon_rt.gc.status()
    assert status.planned == 20 and status.guard == 0, status  # whoever collects all in each step needs no guard
check_all_is_back()
"""
    )


def test_what_a_signal_raises_while_a_plan_collects_reaches_the_job(job: RecordedJob) -> None:
    """A callback of gc's would swallow it: Python runs handlers as a function is entered."""
    job.run(
        _JOB
        + """
import functools
class Alarm:  # nothing of Python runs as it is freed
    __del__ = staticmethod(functools.partial(signal.setitimer, signal.ITIMER_REAL, 1e-6))
def on_alarm(*_): raise SystemExit(7)
signal.signal(signal.SIGALRM, on_alarm)
heap = [[i] for i in range(300_000)]
planned = smon_rt.gc.plan(2, warmup_steps=0)
interrupted = []
for k in range(8):
    if k in (0, 4):
        gc.disable()  # so that none but the plan's frees it
        in_cycle(Alarm())
    try:
        with smon_rt.step(k): pass
    except SystemExit as exit: interrupted.append((k, exit.code))
    if k == 0: gc.enable()
assert interrupted == [(0, 7), (4, 7)], interrupted
status = smon_rt.gc.status()
assert (status.state, status.first_step, status.planned, status.unplanned) == ("planning", 1, 3, 0), status
smon_rt.gc.stop()
check_all_is_back()
from smon_rt.integrations import garbage
assert not garbage.listeners
"""
    )


def test_what_a_signal_raises_in_a_collection_of_pythons_reaches_the_job(job: RecordedJob) -> None:
    """While collections are recorded, and of the job's own errors as well as of exits."""
    job.run(
        _JOB
        + """
import functools
class Alarm:  # nothing of Python runs as it is freed
    __del__ = staticmethod(functools.partial(signal.setitimer, signal.ITIMER_REAL, 1e-6))
def on_alarm(*_): raise raised
signal.signal(signal.SIGALRM, on_alarm)
heap = [[i] for i in range(300_000)]
steps(0, 2)
gc.disable()
for raised in (SystemExit(7), KeyboardInterrupt(), TimeoutError("late")):
    in_cycle(Alarm())
    try:
        with smon_rt.step(2):
            gc.collect()
            for _ in range(1000): pass
    except BaseException as error:
        assert error is raised, error
    else:
        raise AssertionError(f"{raised!r} was lost")
gc.enable()
steps(3, 5)
smon_rt.stop()
"""
    )


def test_forked_children_and_exits_are_as_ever(job: RecordedJob) -> None:
    """The plan is on as the interpreter ends, and others stop and plan at exit."""
    output = job.run(
        _JOB
        + """
import atexit
assert smon_rt.start(DIR, sample_ratio=1.0, warmup_steps=0, strict=True)
atexit.register(smon_rt.gc.stop)
atexit.register(smon_rt.gc.plan, 1, warmup_steps=0)
kept = in_cycle(Finalizer(smon_rt.gc.stop))
smon_rt.gc.plan(2, warmup_steps=0)
steps(0, 5)
pid = os.fork()
if pid == 0:  # a child may plan for itself
    assert gc.isenabled() and smon_rt.gc.status().state == "stopped" and gc.get_freeze_count() > 0
    with smon_rt.gc.plan(3, warmup_steps=0):
        steps(0, 7)
        status = smon_rt.gc.status()
    assert status.planned == 3 and "frozen already" in status.conflicts[0] and gc.isenabled(), status
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
steps(5, 9)
status = smon_rt.gc.status()
assert (status.planned, status.unplanned) == (5, 0), status
sys.exit(3)
""",
        exit_code=3,
    )
    assert "Traceback" not in output.stderr, output.stderr
    environment = job.trace().identity.environment
    full_every = 2 if HAS_FULL_ONLY else 20
    assert environment["gc_plan"] == f"every 2 steps, full every {full_every}, since step 0"
    assert environment["gc_plan_counts"] == "planned 5, unplanned 0, guard 0, late 0"
