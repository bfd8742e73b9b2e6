"""Other torches: without hooks, with other signatures, not loaded yet, or none at all."""

from __future__ import annotations

from smon_rt.trace.garbage import collections
from smon_rt.trace.kinds import FLAGS, KIND_NUMBERS
from tests.python.recording_process import START, RecordedJob, job
from tests.python.torch_jobs import TorchJob, counts_by_step, needs_torch, nursery, rows, torch_job

__all__ = ["job", "nursery", "torch_job"]


@needs_torch
def test_groups_without_hooks_are_wrapped_and_say_so(torch_job: TorchJob) -> None:
    torch_job.run(
        """
        from torch._C._distributed_c10d import ProcessGroup, Work
        if hasattr(ProcessGroup, "register_pre_hook"): del ProcessGroup.register_pre_hook
        kept = dict(vars(ProcessGroup))
        start()
        init()
        x, out = torch.ones(100), torch.empty(200)
        peer = 1 - RANK
        def exchange():
            operations = [dist.P2POp(dist.isend, x, peer), dist.P2POp(dist.irecv, out[:100], peer)]
            for work in dist.batch_isend_irecv(operations): work.wait()
        cases = [
            lambda: dist.all_reduce(x),
            lambda: dist.all_reduce(x, async_op=True).wait(),
            lambda: dist.all_gather_into_tensor(out, x),
            lambda: dist.broadcast(x, 0),
            lambda: dist.barrier(),
            exchange,
        ]
        for k, case in enumerate(cases):
            with smon_rt.step(k): case()
        try: dist.all_reduce(5)
        except TypeError: pass
        smon_rt.detach()
        assert dict(vars(ProcessGroup)) == kept
        smon_rt.stop()
        assert smon_rt.status().stale_tokens == 0
        """,
        ranks=2,
    )
    first, second = torch_job.traces()
    for trace in (first, second):
        assert [counts["collective"] for counts in counts_by_step(trace, range(6))] == [1, 1, 1, 1, 1, 0]
        assert all(row.flags & FLAGS["fallback_hook"] for row in rows(trace))
        reasons = {hook.name: hook.reason for hook in trace.identity.hooks}
        assert "their methods are wrapped instead" in reasons["torch.c10d"]
    for sender, receiver, direction in ((first, second, "forward"), (second, first, "backward")):
        (sent,) = rows(sender, f"{direction}_send")
        (received,) = rows(receiver, f"{direction}_recv")
        assert (sent.peer, received.peer, sent.comm_seq, received.comm_seq) == (receiver.rank, sender.rank, 1, 1)
        assert sent.payload_bytes == received.payload_bytes == 400


@needs_torch
def test_a_hook_that_does_not_match_is_left_out_and_named(torch_job: TorchJob) -> None:
    output = torch_job.run(
        """
        from torch.utils.data.dataloader import _BaseDataLoaderIter
        def backward(loss, gradient=None): loss.backward()
        torch.autograd.backward = backward
        _BaseDataLoaderIter.__next__ = lambda self, more=None: None
        del sys.modules["torch.optim.optimizer"].register_optimizer_step_pre_hook
        start()
        with smon_rt.step(0): pass
        smon_rt.stop()
        assert torch.autograd.backward is backward
        """,
    )
    (trace,) = torch_job.traces()
    reasons = {hook.name: hook.reason for hook in trace.identity.hooks if not hook.installed}
    assert (
        reasons["torch.backward"]
        == "torch.autograd.backward takes (loss, gradient), expected (tensors, grad_tensors, …)"
    )
    assert "register_optimizer_step_pre_hook" in reasons["torch.optimizer"]
    assert "Traceback" not in output.stderr


@needs_torch
def test_a_hook_that_fails_says_so_once_and_the_job_goes_on(torch_job: TorchJob) -> None:
    output = torch_job.run(
        """
        start()
        init()
        from smon_rt.integrations.torch.groups import Group
        def broken(self): raise ZeroDivisionError("planted")
        Group.register = broken
        x = torch.ones(4)
        for k in range(3):
            with smon_rt.step(k): dist.all_reduce(x)
        assert x.tolist() == [1.0] * 4
        smon_rt.stop()
        """,
    )
    assert output.stderr.count("planted") == 1
    (trace,) = torch_job.traces()
    assert next(hook.name for hook in trace.identity.hooks if "planted" in hook.reason).startswith("torch.c10d")


@needs_torch
def test_torch_is_waited_for_and_never_loaded(job: RecordedJob) -> None:
    job.run(
        """
        assert smon_rt.start(DIR, sample_ratio=1.0, warmup_steps=0, strict=True)
        assert not [name for name in sys.modules if name.partition(".")[0] == "torch"]
        import torch
        torch.set_num_threads(1)
        model = torch.nn.Linear(4, 4)
        with smon_rt.step(0): model(torch.ones(1, 4)).sum().backward()
        compiled = torch.compile(torch.nn.Sequential(torch.nn.Linear(4, 4)), backend="eager", fullgraph=True)
        with smon_rt.step(1): compiled(torch.ones(1, 4)).sum().backward()
        smon_rt.stop()
        """,
        OMP_NUM_THREADS="1",
    )
    assert counts_by_step(job.trace(), range(2)) == [{"forward_compute": 1, "backward_compute": 1}] * 2


def test_without_torch_recording_is_as_it_was(job: RecordedJob) -> None:
    job.run(
        """
        sys.modules["torch"] = None  # as if it were not installed
        try: import torch
        except ImportError: pass
        assert smon_rt.start(DIR, sample_ratio=1.0, warmup_steps=0, integrations=["torch", "pipelining"], strict=True)
        with smon_rt.step(0), smon_rt.span("forward_compute"): pass
        smon_rt.stop()
        smon_rt.detach()
        """
    )
    assert counts_by_step(job.trace(), range(1)) == [{"forward_compute": 1}]


def test_what_records_by_itself_can_be_chosen(job: RecordedJob) -> None:
    job.run(
        """
        import gc
        try: smon_rt.start(DIR, integrations="tensorflow")
        except smon_rt.RecordingError as error:
            assert str(error) == (
                "start: no integration 'tensorflow': expected \\"auto\\", \\"none\\", "
                "or some of torch, pipelining, megatron, gc")
        else: raise AssertionError
        assert smon_rt.start(DIR, sample_ratio=1.0, integrations="none", strict=True)
        with smon_rt.step(0): gc.collect()
        smon_rt.attach("gc")
        with smon_rt.step(1): gc.collect()
        smon_rt.stop()
        """
    )
    trace = job.trace()
    assert {row.step for row in rows(trace, "gc")} == {1}


def test_collections_before_the_first_step_are_no_part_of_training(job: RecordedJob) -> None:
    """Imports set them off: neither spans nor metrics. From the first step on they count, also between steps."""
    job.run(
        START
        + """
import gc
gc.disable()
gc.collect()
gc.collect(1)
for k in range(2):
    with smon_rt.step(k): gc.collect()
gc.collect(1)
smon_rt.stop()
"""
    )
    trace = job.trace()
    names = [trace.names[int(name)] for name in trace.spans.name_id[trace.spans.kind == KIND_NUMBERS["gc"]]]
    assert names == ["generation 2", "generation 2", "generation 1"]
    assert [(each.step, each.generation) for each in collections(trace)] == [(0, 2), (1, 2), (1, 1)]
