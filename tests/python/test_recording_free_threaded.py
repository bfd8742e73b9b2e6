"""On a Python without the GIL: recording leaves it off, and threads that really run at once lose nothing."""

from __future__ import annotations

import sysconfig

import pytest

from smon_rt.kinds import KIND_NAMES
from tests.python.recording_process import START, RecordedJob, count_of, job

__all__ = ["job"]

pytestmark = pytest.mark.skipif(
    not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this Python has the GIL; `make matrix` tries others"
)

THREADS, SPANS = 4, 20_000


def test_the_gil_stays_off(job: RecordedJob) -> None:
    # As errors: what needs the GIL turns it on with a warning.
    output = job.run(
        """
        import warnings
        warnings.simplefilter("error")
        smon_rt.start(DIR)
        with smon_rt.step(0), smon_rt.span("user", name="one"): smon_rt.metric("loss", 1.0)
        smon_rt.stop()
        print(sys._is_gil_enabled())
        """
    )
    assert output.stdout.split() == ["False"]


def test_the_engine_leaves_it_off_too(job: RecordedJob) -> None:
    job.run(
        """
        import warnings
        warnings.simplefilter("error")
        from smon_rt import _analysis
        assert not sys._is_gil_enabled()
        assert _analysis.bootstrap_mean([1.0, 1.0], [0, 1]) == (1.0, 1.0)
        """
    )


def test_threads_that_run_at_once_lose_nothing_silently(job: RecordedJob) -> None:
    job.run(
        START
        + f"""
        shared = smon_rt.span("user", name="shared")
        def work(thread):
            for i in range({SPANS}):
                token = smon_rt.begin("forward_compute", i % 1000, thread)
                with smon_rt.span("backward_compute", microbatch=i % 1000), shared: pass
                smon_rt.end(token)
                if i % 256 == 0: time.sleep(0.02)
        with smon_rt.step(0):
            threads = [threading.Thread(target=work, args=(t,)) for t in range({THREADS})]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
        status = smon_rt.status()
        assert status.stale_tokens == status.foreign_tokens == 0, status
        assert not sys._is_gil_enabled()
        smon_rt.stop()
        print(smon_rt.status().dropped_spans)
        """
    )
    trace = job.trace()
    for kind in ("forward_compute", "backward_compute", "user"):  # collections of garbage are spans, too
        dropped = trace.losses.dropped_by_kind.get(KIND_NAMES.index(kind), 0)
        assert count_of(trace, kind) + dropped == THREADS * SPANS, kind
    assert trace.repeated_span_count == trace.missing_span_count == 0
