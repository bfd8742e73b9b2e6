"""Recording for a long time takes no more memory than for a short one."""

from __future__ import annotations

import pytest

from tests.python.recording_process import START, RecordedJob, job

__all__ = ["job"]

_LIMIT_BYTES = 1 << 20


@pytest.mark.slow
def test_anonymous_memory_is_flat_over_100_000_steps(job: RecordedJob) -> None:
    output = job.run(
        START
        + """
        from pathlib import Path
        def anonymous_bytes():
            return int(Path("/proc/self/status").read_text().partition("RssAnon:")[2].split()[0]) * 1024
        def record(first, last):
            for k in range(first, last):
                with smon_rt.step(k):
                    for i in range(4):
                        with smon_rt.span("forward_compute", microbatch=i): pass
                        smon_rt.end(smon_rt.begin("backward_compute", i))
                    with smon_rt.span("user", name="tokenize"): smon_rt.metric("loss", 1.0)
        record(0, 10_000)
        early = anonymous_bytes()
        record(10_000, 100_000)
        print(early, anonymous_bytes(), smon_rt.status().dropped_spans)
        smon_rt.stop()
        """
    ).stdout
    early, late, _ = map(int, output.split())
    assert late - early < _LIMIT_BYTES
