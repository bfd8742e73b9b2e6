"""Hooks that torch calls as functions of C++: without Python for transfers, and nowhere but where they surely work."""

from __future__ import annotations

import pytest

from smon_rt.integrations.state import NOT_WAITED
from tests.python.recording_process import job
from tests.python.torch_jobs import TorchJob, counts_by_step, needs_hooks, nursery, rows, torch_job

__all__ = ["job", "nursery", "torch_job"]

pytestmark = needs_hooks

_FAKE = """
from torch.testing._internal.distributed.fake_pg import FakeStore
dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
x = torch.ones(4)
from smon_rt.integrations.torch import collectives, hook_functions, install
def reason(): return install._Attached.facts["hook.torch.c10d_functions"]
def transfer(group=None):
    work = dist.isend(x, 2, group=group)
    is_open = smon_rt.current() != 0
    work.wait()
    assert smon_rt.current() == 0
    return is_open
"""
#: Counts what hooks read of torch's objects, and so whether there are any.
_COUNTED = """
from smon_rt.integrations.torch import collectives
reads, native = [], collectives.native
def counting(getter):
    def read(args):
        reads.append(threading.get_ident())
        return getter(args)
    return read
learn = native.learn_torch
native.learn_torch = lambda operations, *given: learn(operations, *map(counting, given[:9]), *given[9:])
"""


def test_unsampled_transfers_run_nothing_of_python(torch_job: TorchJob) -> None:
    torch_job.run(
        _COUNTED,
        "start(sample_ratio=0.0, always_steps=0)",
        _FAKE,
        """
        assert reason() == "", reason()
        assert install._hooked and not install._hooked_by_python
        assert smon_rt.request_sampling(1, first_step=2)
        with smon_rt.step(0):
            assert all([transfer() for _ in range(40)])
        assert reads
        with smon_rt.step(1):
            reads.clear()
            assert all([transfer() for _ in range(40)])
            assert not reads, len(reads)
        with smon_rt.step(2):
            for _ in range(3): transfer()
        smon_rt.stop()
        transfer()
        status = smon_rt.status()
        assert status.foreign_tokens == status.stale_tokens == status.dropped_spans == 0
        # A child of fork has the hooks, and records nothing.
        if os.fork() == 0:
            assert not transfer()
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
        """,
    )
    (trace,) = torch_job.traces()
    found = rows(trace, "forward_send")
    assert [(row.step, row.comm_seq, row.peer, row.payload_bytes) for row in found] == [
        (2, number, 2, 16) for number in (81, 82, 83)
    ]


def test_a_pipelines_transfers_run_nothing_of_python(torch_job: TorchJob) -> None:
    torch_job.run(
        _COUNTED,
        "start(sample_ratio=0.0, always_steps=0)",
        _FAKE,
        """
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B
        example = torch.ones(2, 4)
        options = {"input_args": (example.requires_grad_(),), "output_args": (example,)}
        stage = PipelineStage(torch.nn.Linear(4, 4), 1, 4, torch.device("cpu"), **options)
        schedule = Schedule1F1B(stage, 4, loss_fn=torch.nn.functional.mse_loss)
        asked, data_ptr = [], torch.Tensor.data_ptr
        torch.Tensor.data_ptr = lambda tensor: asked.append(tensor.shape) or data_ptr(tensor)
        assert smon_rt.request_sampling(3, first_step=3)
        ours = []
        def profile(frame, event, _argument):
            if event == "call" and os.path.sep + "smon_rt" + os.path.sep in frame.f_code.co_filename:
                ours.append(frame.f_code.co_name)
        for k in range(5):
            with smon_rt.step(k):
                reads.clear()
                asked.clear()
                sys.setprofile(profile if k in (2, 4) else None)
                schedule.step()
                sys.setprofile(None)
                assert smon_rt.current() == 0
                assert k < 1 or not reads, (k, reads)
                assert (k in (1, 2)) == (not asked), (k, asked)
        # Models' calls are looked at in the first steps only.
        assert {*ours} <= {"__call__"}, ours
        # The work of a send that nobody waits for is gone; another one's lies there, which has no span of its own.
        kind = smon_rt.KIND_NAMES.index("forward_send")
        with smon_rt.step(5):
            for number in range(20):
                collectives.native.expect_transfer(x, kind, number, 0, 16)
                dist.isend(x, 2)
                with smon_rt.span("collective"): dist.isend(x, 2).wait()
        with smon_rt.step(6): pass
        assert smon_rt.current() == 0
        smon_rt.stop()
        status = smon_rt.status()
        assert status.foreign_tokens == status.stale_tokens == status.dropped_spans == 0
        """,
    )
    (trace,) = torch_job.traces()
    dropped = [row for row in rows(trace, "forward_send") if row.step == 5]
    assert [row.microbatch for row in dropped] == list(range(20))
    after = [row for row in rows(trace, "collective") if row.step == 5]
    assert all(send.flags & NOT_WAITED and send.end_ns < one.start_ns for send, one in zip(dropped, after, strict=True))
    for kind, peer in [("forward_send", 2), ("forward_recv", 0), ("backward_send", 0), ("backward_recv", 2)]:
        found = [row for row in rows(trace, kind) if row.step < 5]
        assert [(row.step, row.microbatch) for row in found] == [(step, at) for step in (3, 4) for at in range(4)], kind
        assert {(row.peer, row.payload_bytes) for row in found} == {(peer, 32)}
        assert all(row.end_ns > row.start_ns for row in found)


def test_child_of_a_recording_job_records_nothing(torch_job: TorchJob) -> None:
    torch_job.run(
        "start()",
        _FAKE,
        """
        with smon_rt.step(0):
            for _ in range(40): transfer()
            kept = dist.isend(x, 2)
            child = os.fork()
            if child == 0:
                for _ in range(40): assert not transfer()
                dist.all_reduce(x)
                assert smon_rt.current() == 0
                os._exit(7)
            assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
            kept.wait()
            assert transfer()
        smon_rt.stop()
        """,
    )
    (trace,) = torch_job.traces()
    assert counts_by_step(trace, range(1))[0]["forward_send"] == 42


def test_groups_that_cannot_have_them_get_the_hooks_of_python(torch_job: TorchJob) -> None:
    torch_job.run(
        "start()",
        _FAKE,
        """
        made, why = hook_functions.native.make_hook_functions, hook_functions.native.why_no_hook_functions
        owner = torch._C._distributed_c10d.ProcessGroup
        ranks = [1, 2]
        def group_of(said, **patched):
            "A group that is made while these are so, and what the header says of it."
            for name, value in patched.items(): setattr(hook_functions.native, name, value)
            hook_functions.learn(owner)
            before = len(install._hooked_by_python)
            group = dist.new_group(ranks)
            assert said in reason(), reason()
            assert len(install._hooked_by_python) == before + 1
            hook_functions.native.make_hook_functions = made
            return group
        groups = [
            group_of("too many", make_hook_functions=lambda before: None),
            group_of("keeps", make_hook_functions=lambda before: next(
                hooks for hooks in install._hooked.values() if hooks[0] is before)),
            group_of("no reason", why_no_hook_functions=lambda register: "no reason"),
        ]
        collectives._KNOWN_LAYOUT = "0."
        groups.append(group_of("not known"))
        with smon_rt.step(0):
            for group in groups:
                for _ in range(10): assert transfer(group)
        smon_rt.stop()
        for other in (len, dist.isend, None): assert "another pybind11" in why(other), why(other)
        """,
    )
    (trace,) = torch_job.traces()
    assert counts_by_step(trace, range(1))[0]["forward_send"] == 40


def test_what_hooks_raise_is_said_once_and_interrupts_reach_the_job(torch_job: TorchJob) -> None:
    output = torch_job.run(
        "start()",
        _FAKE,
        """
        from smon_rt.integrations.torch import groups
        register = groups.Group.register
        def raising(error):
            def raises(_group): raise error
            groups.Group.register = raises
        with smon_rt.step(0):
            for error in (ValueError("first"), KeyError("again")):
                raising(error)
                dist.isend(x, 2).wait()
            raising(KeyboardInterrupt())
            try:
                dist.isend(x, 2).wait()
                for _ in range(1000): pass
            except KeyboardInterrupt: caught = True
            assert caught
            groups.Group.register = register
            assert transfer()
        smon_rt.stop()
        """,
    )
    assert output.stderr.count("the hook torch.c10d failed") == 1
    (trace,) = torch_job.traces()
    assert counts_by_step(trace, range(1))[0]["forward_send"] == 1


@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_transfers_of_many_threads_meet_at_nothing(torch_job: TorchJob, ratio: float) -> None:
    torch_job.run(
        f"start(sample_ratio={ratio}, always_steps=0)",
        _FAKE,
        """
        groups = [dist.new_group([0, 1, 2, 3]) for _ in range(4)]
        failed = []
        def work(group):
            try:
                for number in range(400):
                    works = [dist.isend(x, 2, group=group), dist.irecv(x, 0, group=group)]
                    assert smon_rt.current() != 0
                    for one in works: one.wait()
                    assert smon_rt.current() == 0
            except BaseException as error: failed.append(error)
        with smon_rt.step(0):
            threads = [threading.Thread(target=work, args=(group,)) for group in groups]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
        assert not failed, failed
        smon_rt.stop()
        status = smon_rt.status()
        assert status.foreign_tokens == status.stale_tokens == 0
        assert (status.recorded_spans + status.dropped_spans >= 4 * 800) == SAMPLED
        """.replace("SAMPLED", str(ratio == 1.0)),
    )
