"""The hooks that are functions of C: what they hold, let go of, and take without a word of theirs reaching the job."""

from __future__ import annotations

import pytest

from tests.python.recording_process import job
from tests.python.torch_jobs import TorchJob, counts_by_step, needs_hooks, nursery, torch_job

__all__ = ["job", "nursery", "torch_job"]

pytestmark = needs_hooks

_GROUP = """
init()
x = torch.ones(8)
from smon_rt import _runtime as native
"""


@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_a_hundred_thousand_operations_leave_nothing_behind(torch_job: TorchJob, ratio: float) -> None:
    torch_job.run(
        f"""
        start(sample_ratio={ratio}, always_steps=0)
        """,
        _GROUP,
        """
        import gc, resource, tracemalloc
        def some(count):
            with smon_rt.step():
                for _ in range(count):
                    dist.all_reduce(x)
                    dist.all_reduce(x, async_op=True).wait()
                    dist.all_reduce(x, async_op=True)  # dropped
                    dist.barrier()
        for _ in range(30): some(100)  # what hooks and the interpreter keep by themselves is there by now
        code = dist.all_reduce.__wrapped__.__code__
        objects = (x, dist.group.WORLD, code, torch._C._distributed_c10d.Work)
        def references(): return [sys.getrefcount(one) for one in objects]
        gc.collect()
        before, blocks = references(), sys.getallocatedblocks()
        for _ in range(250): some(100)
        gc.collect()
        assert references() == before, (before, references())
        # Works of the last step are let go of at the end of the next; the interpreter's own caches move a little.
        assert sys.getallocatedblocks() - blocks < 2_000, sys.getallocatedblocks() - blocks
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(250): some(100)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resident < 8_000
        status = smon_rt.status()
        assert status.foreign_tokens == status.stale_tokens == 0
        smon_rt.stop()
        """,
    )


def test_a_work_lives_no_longer_than_its_caller_keeps_it(torch_job: TorchJob) -> None:
    torch_job.run(
        "start()",
        _GROUP,
        """
        import weakref
        gone = []
        with smon_rt.step(0):
            for number in range(3):
                work = dist.all_reduce(x, async_op=True)
                weakref.finalize(work, gone.append, number)
                work.wait()
                del work
            thread = threading.Thread(target=lambda: weakref.finalize(
                dist.all_reduce(x, async_op=True), gone.append, "thread"))
            thread.start()
            thread.join()
        # That of a thread goes after the thread, with a step.
        deadline = time.monotonic() + 60
        while len(gone) < 4 and time.monotonic() < deadline:
            with smon_rt.step(): pass
        assert sorted(map(str, gone)) == ["0", "1", "2", "thread"], gone
        smon_rt.stop()
        """,
    )


def test_hooks_take_arguments_of_any_type_and_say_it_once(torch_job: TorchJob) -> None:
    output = torch_job.run(
        "start()",
        _GROUP,
        """
        from smon_rt.integrations.torch import collectives, groups
        before, after = collectives.make_hooks(groups.describe(dist.group.WORLD, [0]))
        with smon_rt.step(0):
            dist.all_reduce(x)
            for nonsense in (None, 7, "text", x, [], type, before):
                assert before(nonsense) is None
                assert after(nonsense) is None
        wait = torch._C._distributed_c10d.Work.wait
        for call in (lambda: wait(), lambda: wait(7), lambda: wait(None, x)):
            try: call()
            except TypeError as error: assert "smon" not in str(error), error
            else: raise AssertionError
        for call in (
            lambda: native.make_collective_hooks(1, 2), lambda: native.make_collective_hooks(x, "no", [0]),
            lambda: native.make_collective_hooks(x, 0, ["no"]), lambda: native.learn_torch(1),
            lambda: native.learn_files(1, 2, 3), lambda: native.exchange_kinds(7),
            lambda: native.begin_operation(1), lambda: native.begin_operation(*["no"] * 7),
            lambda: native.issue_operation(0, "no", 0, True, x), lambda: native.end_awaited("no", 0),
            lambda: native.expect_transfer(x, "no", 0, 0), lambda: native.act_on_collectives("no"),
        ):
            try: call()
            except TypeError: pass
            else: raise AssertionError(call)
        native.end_awaited_at(7)  # lies nowhere
        smon_rt.stop()
        """,
    )
    assert output.stderr.count("the hook torch.c10d failed") == 1
    (trace,) = torch_job.traces()
    assert counts_by_step(trace, range(1))[0]["collective"] == 1


def test_hooks_do_nothing_after_stop_and_detach(torch_job: TorchJob) -> None:
    torch_job.run(
        "start()",
        _GROUP,
        """
        with smon_rt.step(0):
            dist.all_reduce(x)
            kept = [dist.all_reduce(x, async_op=True) for _ in range(5)]
        smon_rt.stop()
        for work in kept: work.wait()
        for _ in range(10): dist.all_reduce(x)
        smon_rt.detach()
        for _ in range(10): dist.all_reduce(x, async_op=True).wait()
        status = smon_rt.status()
        assert status.foreign_tokens == status.stale_tokens == 0
        """,
    )
    (trace,) = torch_job.traces()
    assert counts_by_step(trace, range(1))[0]["collective"] == 6


def test_operations_of_many_threads_are_each_recorded_once(torch_job: TorchJob) -> None:
    torch_job.run(
        "start(always_steps=1000)",
        _GROUP,
        """
        groups = [dist.new_group([0]) for _ in range(4)]
        def work(group):
            y = torch.ones(4)
            for _ in range(500):
                dist.all_reduce(y, group=group)
                works = [dist.all_reduce(y, group=group, async_op=True) for _ in range(3)]
                for one in reversed(works): one.wait()
        with smon_rt.step(0):
            threads = [threading.Thread(target=work, args=(group,)) for group in groups]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
        with smon_rt.step(1): pass
        smon_rt.stop()
        status = smon_rt.status()
        assert status.foreign_tokens == status.stale_tokens == 0
        """,
    )
    (trace,) = torch_job.traces()
    assert counts_by_step(trace, range(1))[0]["collective"] >= 4 * 500 * 4
