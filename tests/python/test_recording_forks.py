"""Forked workers record nothing into their parent, and may record for themselves; spawned ones are as any process."""

from __future__ import annotations

import sys

from smon_rt.trace import read_file
from tests.python.recording_process import START, RecordedJob, count_of, job

__all__ = ["job"]


def test_a_forked_child_that_records_leaves_the_parent_untouched(job: RecordedJob) -> None:
    job.run(
        START
        + """
        with smon_rt.step(0):
            outer = smon_rt.begin("user")
            for i in range(10): smon_rt.end(smon_rt.begin("forward_compute", i))
        before = smon_rt.status()
        pid = os.fork()
        if pid == 0:
            smon_rt.end(outer)
            for k in range(100):
                with smon_rt.step(k):
                    for i in range(2000):
                        with smon_rt.span("optimizer"): pass
                        smon_rt.metric("loss", 1.0)
            status = smon_rt.status()
            os._exit(0 if not status.is_started and smon_rt.begin("user") == 0 else 1)
        assert os.waitpid(pid, 0)[1] == 0
        assert smon_rt.status().recorded_spans == before.recorded_spans
        assert smon_rt.status().stale_tokens == smon_rt.status().foreign_tokens == 0
        smon_rt.end(outer)
        with smon_rt.step(1): smon_rt.end(smon_rt.begin("forward_compute", 10))
        smon_rt.stop()
        """
    )
    trace = job.trace()
    assert [count_of(trace, kind) for kind in ("forward_compute", "user", "optimizer", "metric")] == [11, 1, 0, 0]
    assert trace.steps.step.tolist() == [0, 1]


def test_a_forked_child_exits_as_it_would(job: RecordedJob) -> None:
    job.run(
        START
        + """
        with smon_rt.step(0), smon_rt.span("user"):
            for end, expected in ((lambda: sys.exit(3), 3), (lambda: os._exit(4), 4), (lambda: smon_rt.stop(), 0)):
                pid = os.fork()
                if pid == 0:
                    end()
                    os._exit(0)
                assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == expected
        smon_rt.stop()
        """
    )
    assert count_of(job.trace(), "user") == 1


def test_a_forked_child_may_record_as_another_rank(job: RecordedJob) -> None:
    job.run(
        START
        + """
        with smon_rt.step(0), smon_rt.span("user"): pass
        pid = os.fork()
        if pid == 0:
            assert smon_rt.start(DIR, rank=1, sample_ratio=1.0)
            with smon_rt.step(5), smon_rt.span("optimizer", name="child"): pass
            assert smon_rt.stop()
            os._exit(0)
        with smon_rt.step(1), smon_rt.span("user", name="parent"): pass
        assert os.waitpid(pid, 0)[1] == 0
        smon_rt.stop()
        """
    )
    parent, child = map(read_file, job.files())
    assert (parent.rank, count_of(parent, "user"), count_of(parent, "optimizer")) == (0, 2, 0)
    assert (child.rank, count_of(child, "user"), count_of(child, "optimizer")) == (1, 0, 1)
    assert list(child.names.values()) == ["child"]
    assert list(parent.names.values()) == ["parent"]


def test_forked_loaders_that_come_and_go_while_threads_record(job: RecordedJob) -> None:
    job.run(
        START
        + """
        import multiprocessing
        context = multiprocessing.get_context("fork")
        def load(queue, i):
            for _ in range(500):
                with smon_rt.span("data_loading", microbatch=i): pass
            queue.put(i)
        stopping = threading.Event()
        def background():
            while not stopping.is_set(): smon_rt.end(smon_rt.begin("user", name="background"))
        threads = [threading.Thread(target=background) for _ in range(2)]
        for thread in threads: thread.start()
        for k in range(4):
            with smon_rt.step(k):
                queue = context.Queue()
                workers = [context.Process(target=load, args=(queue, i)) for i in range(3)]
                for worker in workers: worker.start()
                assert sorted(queue.get(timeout=30) for _ in workers) == [0, 1, 2]
                for worker in workers: worker.join(30)
                assert [worker.exitcode for worker in workers] == [0, 0, 0]
        stopping.set()
        for thread in threads: thread.join()
        smon_rt.stop()
        status = smon_rt.status()
        assert status.recorded_spans == status.written_spans, status
        """
    )
    trace = job.trace()
    assert count_of(trace, "data_loading") == 0
    assert count_of(trace, "user") > 0
    assert trace.missing_span_count == 0


def test_spawned_workers_record_into_files_of_their_own(job: RecordedJob) -> None:
    # Spawn imports the main module again, so it is a file.
    script = job.folder.parent / "train.py"
    script.write_text("""
import multiprocessing, sys
import smon_rt

def work(folder, rank):
    assert smon_rt.start(folder, rank=rank, world_size=3, sample_ratio=1.0)
    with smon_rt.step(0), smon_rt.span("data_loading", microbatch=rank): pass

if __name__ == "__main__":
    assert smon_rt.start(sys.argv[1], rank=0, world_size=3, sample_ratio=1.0)
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=work, args=(sys.argv[1], rank)) for rank in (1, 2)]
    for worker in workers: worker.start()
    with smon_rt.step(0), smon_rt.span("user"): pass
    for worker in workers: worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0]
""")
    job.run(f"os.execv({sys.executable!r}, [{sys.executable!r}, {str(script)!r}, DIR])")
    traces = [read_file(path) for path in job.files()]
    assert [trace.rank for trace in traces] == [0, 1, 2]
    assert [count_of(trace, "data_loading") for trace in traces] == [0, 1, 1]
    assert job.arenas() == []


def test_a_fork_inside_a_span_does_not_stop_the_child_from_leaving_it(job: RecordedJob) -> None:
    job.run(
        START
        + """
        pid = None
        with smon_rt.step(0):
            for i in range(3):
                with smon_rt.span("forward_compute", microbatch=i):
                    if i == 1: pid = os.fork()
                    if pid == 0: continue
        if pid == 0: os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        smon_rt.stop()
        assert smon_rt.status().stale_tokens == 0
        """
    )
    trace = job.trace()
    assert trace.spans.microbatch[trace.spans.kind == 1].tolist() == [0, 1, 2]
