"""What the calls of a step are given may be anything: it is said once, counted, and never raised, unless asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from smon_rt.environment import VARIABLES, markdown_table
from tests.python.conftest import ROOT
from tests.python.recording_process import START, RecordedJob, count_of, flags_of, job

__all__ = ["job"]


def test_a_kind_that_is_unknown_while_the_job_is_set_up_is_one_clear_error(job: RecordedJob) -> None:
    job.run("""
        cases = {
            "forward_compue": "span: there is no kind 'forward_compue': did you mean 'forward_compute'?",
            "": "span: there is no kind ''; smon_rt.KIND_NAMES lists them",
            25: "span: there is no kind 25: give a name, or a number from 0 to 24; smon_rt.KIND_NAMES lists them",
            -1: "span: there is no kind -1: give a name, or a number from 0 to 24; smon_rt.KIND_NAMES lists them",
        }
        for kind, message in cases.items():
            try: smon_rt.span(kind)
            except smon_rt.RecordingError as error: assert str(error) == message, error
            else: raise AssertionError(kind)
        for make in (smon_rt.wrap, smon_rt.begin):
            for kind in ("nonsense", 99, None, 1.5):
                try: make(kind)
                except smon_rt.SmonError as error: assert "there is no kind" in str(error)
                else: raise AssertionError(kind)
        def batches(): yield 1
        try: smon_rt.wrap("data_loading")(batches)
        except smon_rt.RecordingError as error: assert "batches is a generator" in str(error)
        else: raise AssertionError
    """)


def test_in_a_step_nothing_raises_and_each_mistake_is_said_once(job: RecordedJob) -> None:
    output = job.run(
        """
        assert smon_rt.start(DIR, sample_ratio=1.0, warmup_steps=0)
        class Odd:
            def __index__(self): raise RuntimeError("no")
            def __repr__(self): raise RuntimeError("no repr")
        for k in range(3):
            with smon_rt.step(k):
                with smon_rt.span("nonsense"): pass
                assert smon_rt.begin("nonsense") == 0
                assert smon_rt.begin(Odd()) == 0
                for bad in ("3", 1 << 40, -2, 1.5, Odd()):
                    with smon_rt.span("user", microbatch=bad): pass
                    smon_rt.end(smon_rt.begin("user", bad))
                with smon_rt.span("user", microbach=3): pass
                with smon_rt.span("user", name=7): pass
                smon_rt.metric(3, 1.0)
                smon_rt.metric("loss", "high")
                for bad in ("token", None, 1.5, -1, 1 << 70, Odd()): smon_rt.end(bad)
                smon_rt.annotate("token", peer=3)
                smon_rt.span("user").__exit__(None, None, None)
        with smon_rt.step("four"), smon_rt.span("user", name="\\ud800"): pass
        status = smon_rt.status()
        assert status.dropped_spans == 3 * 3, status
        assert status.foreign_tokens == 3 * 7, status
        smon_rt.stop(closing_line=False)
        """
    )
    lines = output.stderr.splitlines()
    assert 10 < len(lines) <= 20
    assert len(lines) == len(set(lines))
    assert "smon_rt: warning: span: there is no kind 'nonsense'; smon_rt.KIND_NAMES lists them (said once)" in lines
    assert "smon_rt: warning: span: microbatch is a str, expected int; left out (said once)" in lines
    assert "smon_rt: warning: span: microbatch is 1099511627776, which is out of range; left out (said once)" in lines
    assert "smon_rt: warning: metric 'loss': the value is a str, expected a number; left out (said once)" in lines
    trace = job.trace()
    assert count_of(trace, "user") == 3 * (2 * 5 + 2) + 1
    assert set(trace.spans.microbatch.tolist()) == {-1}
    assert trace.steps.step.tolist() == [0, 1, 2, 3]


def test_what_start_cannot_take_is_one_line(job: RecordedJob) -> None:
    job.run(
        """
        class Whole:
            def __index__(self): return 3
        odd = {
            "rank": (1.5, 2.0, "1", -1, 2**31, [], float("nan")),
            "max_file_bytes": (1.5, 0, 2**63, "1 GiB"),
            "warmup_steps": (1e9, -1), "always_steps": (object(),), "attempt": ("0",), "world_size": (0,),
            "sample_ratio": ("0.1", 1.1, -1, float("nan"), []),
            "run_id": ("\\ud800", "a\\0b", b"run", 7),
            "trace_dir": ("\\ud800", "a\\0b", b"a\\0b", 5),
            "integrations": (5, "", ["nope"], [[]]),
        }
        for name, values in odd.items():
            for value in values:
                try: smon_rt.start(**{"trace_dir": DIR, name: value})
                except smon_rt.RecordingError as error:
                    assert str(error).startswith("start: ") and "\\n" not in str(error), error
                    assert name == "integrations" or name in str(error), error
                else: raise AssertionError((name, value))
        assert not os.path.exists("a")
        assert smon_rt.start(DIR, rank=Whole(), attempt=True, sample_ratio=1)
        assert "rank-00003" in smon_rt.status().file_path
    """
    )


def test_a_mistake_that_was_said_costs_little_from_then_on(job: RecordedJob) -> None:
    job.run("""
        import difflib
        assert smon_rt.start(DIR, sample_ratio=1.0)
        calls = []
        look = difflib.get_close_matches
        difflib.get_close_matches = lambda *args, **more: calls.append(args) or look(*args, **more)
        with smon_rt.step(0):
            for _ in range(100): smon_rt.begin("forward_compue")
            for i in range(100): smon_rt.begin(f"kind {i}")
            smon_rt.begin("x" * 100_000)
        assert len(calls) == 20, len(calls)
        assert smon_rt.status().dropped_spans == 201
    """)


def test_an_endless_mistake_is_said_in_short(job: RecordedJob) -> None:
    output = job.run("""
        with smon_rt.step(0): smon_rt.begin("x" * 100_000)
    """)
    (line,) = output.stderr.splitlines()
    assert "there is no kind 'xxx" in line
    assert len(line) < 400


def test_a_thousand_different_mistakes_take_twenty_lines(job: RecordedJob) -> None:
    output = job.run("""
        with smon_rt.step(0):
            for i in range(1000): smon_rt.begin(f"kind {i}")
    """)
    assert len(output.stderr.splitlines()) == 20


def test_strict_raises_in_a_step(job: RecordedJob) -> None:
    job.run(
        START
        + """
        def raises(call, *args, **ids):
            try: call(*args, **ids)
            except smon_rt.RecordingError: return
            raise AssertionError((call, args, ids))
        with smon_rt.step(0):
            raises(smon_rt.span, "nonsense")
            raises(smon_rt.begin, "user", 1 << 40)
            raises(smon_rt.end, "token")
            raises(smon_rt.metric, "loss", None)
            raises(smon_rt.span("user").__exit__, None, None, None)
        smon_rt.stop()
        """
    )


def test_kinds_go_by_name_and_by_number_of_any_type(job: RecordedJob) -> None:
    job.run(
        START
        + """
        import enum, numpy
        class Kind(enum.IntEnum): OPTIMIZER = 16
        built_at_run_time = "".join(["opti", "mizer"])
        class Text(str): pass
        with smon_rt.step(0):
            for kind in ("optimizer", 16, Kind.OPTIMIZER, numpy.int32(16), built_at_run_time, Text("optimizer")):
                smon_rt.end(smon_rt.begin(kind, numpy.int64(3)))
                with smon_rt.span(kind, microbatch=None): pass
        smon_rt.stop()
        """
    )
    assert flags_of(job.trace(), "optimizer") == [0] * 12


def test_names_without_end_do_not_grow_the_process(job: RecordedJob) -> None:
    job.run(
        START
        + """
        import resource
        with smon_rt.step(0):
            for i in range(70_000): smon_rt.metric(f"name {i}", 1.0)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            for i in range(200_000): smon_rt.metric(f"other {i}", 1.0)
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown_kib < 8192, grown_kib
        smon_rt.stop()
        """
    )


def test_arguments_of_start_are_checked(job: RecordedJob) -> None:
    job.run("""
        for bad in (dict(sample_ratio=1.5), dict(sample_ratio=float("nan")), dict(rank=-1), dict(world_size=0),
                    dict(warmup_steps=-3), dict(max_file_bytes=0), dict(attempt=1 << 40)):
            try: smon_rt.start(DIR, **bad)
            except smon_rt.RecordingError as error: assert next(iter(bad)) in str(error), error
            else: raise AssertionError(bad)
        assert not smon_rt.status().is_started
    """)
    assert not job.folder.exists()


@pytest.mark.parametrize("value", ["1", "true", "YES"])
def test_the_kill_switch_makes_everything_inert(job: RecordedJob, value: str) -> None:
    output = job.run(
        """
        assert smon_rt.start(DIR) is False and smon_rt.start(DIR, strict=True) is False
        with smon_rt.step(0), smon_rt.span("user", name="x"):
            assert smon_rt.begin("user") == 0 and not smon_rt.is_sampled()
            smon_rt.metric("loss", 1.0)
        smon_rt.pause(); smon_rt.resume()
        assert smon_rt.stop() is False and smon_rt.status().steps == 0
        assert threading.active_count() == 1 and len(os.listdir("/proc/self/task")) == 1
        """,
        SMON_RT_DISABLE=value,
    )
    assert set(output.stderr.splitlines()) == {"smon_rt: warning: SMON_RT_DISABLE is set: nothing is recorded"}
    assert not job.folder.exists()
    assert job.arenas() == []


def test_a_tree_without_the_library_is_inert_and_says_so_once(tmp_path: Path) -> None:
    program = """
import sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name == "smon_rt._runtime": raise ImportError("no such library")
sys.meta_path.insert(0, Without())
import smon_rt
assert smon_rt.start(sys.argv[1]) is False
for k in range(3):
    with smon_rt.step(k), smon_rt.span("forward_compute", microbatch=1) as span:
        smon_rt.end(smon_rt.begin("user", 3, name="x"))
        smon_rt.annotate(span.token, peer=3)
        smon_rt.metric("loss", 1.0)
@smon_rt.wrap("optimizer")
def optimize(): return 3
assert optimize() == 3 and smon_rt.current() == 0 and not smon_rt.is_sampled()
smon_rt.pause(); smon_rt.resume()
smon_rt.set_layout(smon_rt.Layout(dp_rank=1, dp_size=2))
assert smon_rt.stop() is False
assert smon_rt.status().file_error and smon_rt.status().recorded_spans == 0
try: smon_rt.start(sys.argv[1], strict=True)
except smon_rt.RecordingError as error: assert "no such library" in str(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    expected = "smon_rt: warning: the recorder cannot be loaded, nothing is recorded: no such library"
    assert done.stderr.splitlines() == [expected]
    assert list(tmp_path.iterdir()) == []


def test_a_library_of_another_version_is_inert_and_says_so(tmp_path: Path) -> None:
    program = """
import sys, types
sys.modules["smon_rt._runtime"] = old = types.ModuleType("smon_rt._runtime")
old.begin = old.end = old.start = None
import smon_rt
smon_rt._runtime = old
assert smon_rt.start(sys.argv[1]) is False
with smon_rt.step(0), smon_rt.span("forward_compute"): pass
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "cannot be loaded, nothing is recorded: it is not of this version, and has no span; install" in done.stderr


def test_the_log_level_holds_for_what_python_says(job: RecordedJob) -> None:
    program = "smon_rt.start(DIR)\nwith smon_rt.step(0): smon_rt.begin('nonsense')"
    assert job.run(program, SMON_RT_LOG="error").stderr == ""
    assert job.run(program, SMON_RT_LOG="off").stderr == ""


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="subinterpreters of another interface")
def test_a_subinterpreter_is_refused_clearly(job: RecordedJob) -> None:
    output = job.run("""
        import _xxsubinterpreters as interpreters
        assert smon_rt.start(DIR)
        other = interpreters.create()
        interpreters.run_string(other, "import smon_rt; assert smon_rt.start('/nowhere') is False")
        with smon_rt.step(0): pass
        assert smon_rt.stop() and smon_rt.status().steps == 1
    """)
    assert "nothing is recorded: " in output.stderr
    assert "interpreter" in output.stderr


def test_the_readme_lists_every_variable() -> None:
    assert markdown_table() in (ROOT / "README.md").read_text()
    assert {"SMON_RT_TRACE_DIR", "SMON_RT_SAMPLE_RATIO", "SMON_RT_WARMUP_STEPS", "SMON_RT_DISABLE"} <= {
        variable.name for variable in VARIABLES
    }


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("smon_rt.start(DIR, run_id=5)", "start: run_id is 5, expected a text in UTF-8, without NUL"),
        (r"smon_rt.start(b'\xff')", r"start: trace_dir is b'\xff', expected a text in UTF-8, without NUL"),
        ("smon_rt.start(7)", "start: trace_dir is 7, expected a text in UTF-8, without NUL"),
        ("smon_rt.start(DIR, nccl_detail='yes')", "start: nccl_detail is 'yes', expected True or False"),
        ("smon_rt.start(DIR); smon_rt.request_sampling('a')", "no window of 'a' steps from None"),
        ("smon_rt.start(DIR); smon_rt.request_sampling(2**40)", "no window of 1099511627776 steps from None"),
    ],
)
def test_arguments_of_another_type_are_one_line(job: RecordedJob, call: str, expected: str) -> None:
    output = job.run(f"try: {call}\nexcept smon_rt.RecordingError as error: print(str(error))\n")
    assert output.stdout.strip() == expected


def test_once_steps_run_they_are_said_and_not_raised(job: RecordedJob) -> None:
    output = job.run("""
        smon_rt.start(DIR)
        with smon_rt.step(0):
            assert not smon_rt.request_sampling("a")
            smon_rt.set_layout(smon_rt.Layout(dp_rank="x"))
    """)
    assert "request_sampling: no window of 'a' steps from None" in output.stderr
    assert "set_layout: a layout has whole numbers" in output.stderr


def test_a_stderr_that_raises_or_takes_nothing_is_no_matter(job: RecordedJob) -> None:
    job.run("""
        import io, os
        class Odd(io.StringIO):
            def write(self, text): raise RuntimeError("not mine")
        kept, sys.stderr = sys.stderr, Odd()
        smon_rt.start(DIR)
        with smon_rt.step(0): smon_rt.end(smon_rt.begin("nonsense"))
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        try:
            while True: os.write(writer, b"x" * 65536)
        except BlockingIOError: pass
        os.set_blocking(writer, True)
        sys.stderr = os.fdopen(writer, "w")
        with smon_rt.step(1): smon_rt.end(smon_rt.begin("other nonsense"))
        smon_rt.stop()
        sys.stderr = kept
    """)
    assert len(job.trace().steps) == 2
