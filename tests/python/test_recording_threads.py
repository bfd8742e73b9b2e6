"""Any number of threads and open spans: what fits is recorded, what does not is counted, no token harms another's."""

from __future__ import annotations

from smon_rt.trace.kinds import FLAGS
from tests.python.recording_process import START, RecordedJob, count_of, flags_of, job

__all__ = ["job"]


def test_a_thousand_threads_that_come_and_go(job: RecordedJob) -> None:
    job.run(
        START
        + """
        def work(i):
            with smon_rt.span("forward_compute", microbatch=i), smon_rt.span("user"): pass
        with smon_rt.step(0):
            for first in range(0, 1000, 20):
                threads = [threading.Thread(target=work, args=(i,)) for i in range(first, first + 20)]
                for thread in threads: thread.start()
                for thread in threads: thread.join()
                # Their rings are free again once they are drained.
                deadline, done = time.monotonic() + 10, 2 * (first + 20)
                while smon_rt.status().written_spans < done and time.monotonic() < deadline: time.sleep(0.002)
        smon_rt.stop()
        status = smon_rt.status()
        assert status.dropped_spans == status.threads_without_ring == 0, status
        """
    )
    trace = job.trace()
    forward = trace.spans.kind == 1
    assert sorted(trace.spans.microbatch[forward].tolist()) == list(range(1000))
    assert count_of(trace, "user") == 1000


def test_threads_beyond_the_rings_are_counted(job: RecordedJob) -> None:
    job.run(
        START
        + """
        with smon_rt.span("optimizer"): pass  # the main thread has its ring
        everyone = threading.Barrier(100)
        def work(i):
            with smon_rt.span("user", microbatch=i): everyone.wait(30)
        with smon_rt.step(0):
            threads = [threading.Thread(target=work, args=(i,)) for i in range(100)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
        smon_rt.stop()
        status = smon_rt.status()
        assert status.recorded_spans + status.dropped_spans == 100 + 2, status
        assert status.dropped_spans == status.dropped_by_kind["user"] > 0, status
        assert status.threads_without_ring > 0, status
        """
    )
    trace = job.trace()
    assert count_of(trace, "user") == 100 - trace.losses.dropped_by_kind[24]


def test_a_thousand_open_spans(job: RecordedJob) -> None:
    job.run(
        START
        + """
        with smon_rt.step(0):
            tokens = [smon_rt.begin("user", i) for i in range(1000)]
            assert len(set(tokens)) == 1000 and 0 not in tokens
            assert smon_rt.current() == tokens[-1]
            for token in tokens[::2] + tokens[1::2]: smon_rt.end(token)
            assert smon_rt.current() == 0
            too_many = [smon_rt.begin("user") for _ in range(5000)]
            for token in too_many: smon_rt.end(token)
        smon_rt.stop()
        status = smon_rt.status()
        assert status.dropped_by_kind == {"user": too_many.count(0)}, status
        assert status.stale_tokens == 0 and too_many.count(0) > 0
        """
    )
    trace = job.trace()
    assert sorted(set(trace.spans.microbatch.tolist())) == list(range(-1, 1000))


def test_deep_nesting(job: RecordedJob) -> None:
    job.run(
        START
        + """
        def descend(depth):
            with smon_rt.span("user", microbatch=depth):
                if depth: descend(depth - 1)
        with smon_rt.step(0): descend(400)
        smon_rt.stop()
        """
    )
    spans = job.trace().spans
    users = spans.kind == 24
    assert spans.microbatch[users].tolist() == list(range(401))  # in the order in which they ended
    starts, ends = spans.start_ns[users], spans.start_ns[users] + spans.duration_ns[users]
    assert (starts[1:] <= starts[:-1]).all()
    assert (ends[1:] >= ends[:-1]).all()


def test_a_span_may_end_on_another_thread(job: RecordedJob) -> None:
    job.run(
        START
        + """
        import queue
        tokens = queue.Queue()
        def ender():
            while (token := tokens.get()) is not None: smon_rt.end(token)
        thread = threading.Thread(target=ender)
        thread.start()
        with smon_rt.step(0):
            for i in range(300): tokens.put(smon_rt.begin("forward_recv", i))
            tokens.put(None)
            thread.join()
            kept = smon_rt.span("user").__enter__()
            other = threading.Thread(target=lambda: kept.__exit__(None, None, None))
            other.start(); other.join()
        smon_rt.stop()
        assert smon_rt.status().stale_tokens == smon_rt.status().dropped_spans == 0
        """
    )
    trace = job.trace()
    assert sorted(trace.spans.microbatch[trace.spans.kind == 5].tolist()) == list(range(300))
    assert all(flags & FLAGS["other_thread"] for flags in flags_of(trace, "forward_recv") + flags_of(trace, "user"))


def test_of_two_ends_one_counts(job: RecordedJob) -> None:
    job.run(
        START
        + """
        with smon_rt.step(0):
            token = smon_rt.begin("user")
            smon_rt.end(token)
            later = smon_rt.begin("optimizer")
            smon_rt.end(token)
            smon_rt.abort(token)
            assert smon_rt.current() == later
            smon_rt.end(later)
        assert smon_rt.status().stale_tokens == 2
        smon_rt.stop()
        assert smon_rt.start(DIR)
        smon_rt.end(later)
        smon_rt.stop()
        assert smon_rt.status().stale_tokens + smon_rt.status().foreign_tokens == 1
        """
    )


def test_tokens_that_nobody_gave_are_counted_and_never_followed(job: RecordedJob) -> None:
    job.run(
        START
        + """
        import random
        chance = random.Random(7)
        with smon_rt.step(0):
            mine = smon_rt.begin("user", 5)
            garbage = [chance.getrandbits(64) for _ in range(20_000)]
            garbage += [mine ^ (1 << bit) for bit in range(64)] + [1, (1 << 64) - 1, -1, -mine]
            for token in garbage: smon_rt.end(token)
            status = smon_rt.status()
            assert status.foreign_tokens + status.stale_tokens == len(garbage), status
            assert status.recorded_spans == 0 and smon_rt.current() == mine
            smon_rt.annotate(chance.getrandbits(64), microbatch=3)
            smon_rt.end(mine)
        smon_rt.stop()
        """
    )
    spans = job.trace().spans
    assert spans.microbatch[spans.kind == 24].tolist() == [5]


def test_two_threads_that_end_one_token(job: RecordedJob) -> None:
    job.run(
        START
        + """
        sys.setswitchinterval(1e-6)
        ROUNDS = 2000
        tokens, both = [0], threading.Barrier(3)
        def ender():
            for _ in range(ROUNDS):
                both.wait(30)
                smon_rt.end(tokens[0])
                both.wait(30)
        threads = [threading.Thread(target=ender) for _ in range(2)]
        for thread in threads: thread.start()
        with smon_rt.step(0):
            for i in range(ROUNDS):
                tokens[0] = smon_rt.begin("user")
                both.wait(30)
                both.wait(30)
        for thread in threads: thread.join()
        smon_rt.stop()
        status = smon_rt.status()
        assert status.stale_tokens == ROUNDS and status.foreign_tokens == 0, status
        assert status.recorded_spans + status.dropped_spans == ROUNDS + 1, status
        """
    )


def test_spans_of_many_threads_keep_their_order(job: RecordedJob) -> None:
    job.run(
        START
        + """
        def work(thread):
            for i in range(300):
                with smon_rt.span("user", microbatch=i, chunk=thread): pass
        with smon_rt.step(0):
            threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
        smon_rt.stop()
        assert smon_rt.status().dropped_spans == 0
        """
    )
    spans = job.trace().spans
    for thread in range(8):
        assert spans.microbatch[spans.chunk == thread].tolist() == list(range(300))
