"""DistributedDataParallel over gloo: every bucket's reduction is one span on each rank, none part of a compute."""

from __future__ import annotations

from smon_rt.trace import read_directory
from smon_rt.trace.kinds import FLAGS
from tests.python.recording_process import job
from tests.python.torch_jobs import TorchJob, counts_by_step, needs_hooks, nursery, rows, torch_job

__all__ = ["job", "nursery", "torch_job"]

pytestmark = needs_hooks

_WAIT_RETURN = 4
_DDP = """
init()
torch.manual_seed(0)
layers = [torch.nn.Linear(64, 64) for _ in range(3)]
# Buckets of one layer each: the first holds the last layer.
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.017)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(4, 64)
def bucket_count():  # DDP makes its buckets anew in the second step
    return len(str(model._get_ddp_logging_data()["rebuilt_bucket_sizes"]).split(","))
"""


def test_a_loop_with_gradient_accumulation_and_a_loader(torch_job: TorchJob) -> None:
    output = torch_job.run(
        "start()",
        _DDP,
        """
        import contextlib
        dataset = torch.utils.data.TensorDataset(torch.randn(32, 64))
        sampler = torch.utils.data.DistributedSampler(dataset)
        loader = torch.utils.data.DataLoader(dataset, batch_size=2, sampler=sampler, num_workers=1)
        batches = iter(loader)
        for k in range(8):
            with smon_rt.step(k):
                (batch,) = next(batches)
                for microbatch in range(2):
                    with model.no_sync() if microbatch == 0 else contextlib.nullcontext():
                        model(batch).sum().backward()
                optimizer.step()
        smon_rt.stop()
        status = smon_rt.status()
        assert status.stale_tokens == status.foreign_tokens == status.dropped_spans == 0, status
        dist.destroy_process_group()
        if RANK == 0: print(bucket_count())
        """,
        ranks=2,
    )
    buckets = int(output.stdout)
    first, second = torch_job.traces()
    assert [trace.identity.layout.dp_rank for trace in (first, second)] == [0, 1]
    assert first.identity.layout.dp_size == 2
    assert buckets > 1
    expected = {"data_loading": 1, "forward_compute": 2, "backward_compute": 2, "optimizer": 1}
    for trace in (first, second):
        assert counts_by_step(trace, range(2, 8)) == [expected | {"grads_all_reduce": buckets}] * 6
        assert not [row for row in rows(trace) if row.flags & (FLAGS["aborted"] | FLAGS["not_waited"])]
        _reductions_follow_the_backward(trace)
    pairs = zip(rows(first, "grads_all_reduce"), rows(second, "grads_all_reduce"), strict=True)
    for one, other in pairs:
        assert (one.step, one.comm_seq, one.payload_bytes) == (other.step, other.comm_seq, other.payload_bytes)
        assert (one.communicator, one.time_source) == ("world", _WAIT_RETURN)
        assert one.flags & other.flags & FLAGS["other_thread"]
        # One host, one clock: neither rank is done before both have begun.
        assert min(one.end_ns, other.end_ns) >= max(one.start_ns, other.start_ns)


def _reductions_follow_the_backward(trace: object) -> None:
    """They begin inside the last backward of their step; it ends when it has computed, not when they have."""
    for step in range(2, 8):
        in_step = [row for row in rows(trace) if row.step == step]  # type: ignore[arg-type]
        backward = [row for row in in_step if row.kind == "backward_compute"][-1]
        assert backward.microbatch == 1
        reductions = [row for row in in_step if row.kind == "grads_all_reduce"]
        assert all(backward.start_ns < row.start_ns <= backward.end_ns for row in reductions)
        optimizer = next(row for row in in_step if row.kind == "optimizer")
        assert all(row.end_ns <= optimizer.start_ns for row in reductions)


def test_a_late_peer_is_waited_for_outside_the_backward(torch_job: TorchJob) -> None:
    torch_job.run(
        "start()",
        _DDP,
        """
        for k in range(4):
            with smon_rt.step(k):
                loss = model(x).sum()
                if RANK == 1: time.sleep(0.2)
                loss.backward()
                optimizer.step()
        smon_rt.stop()
        """,
        ranks=2,
    )
    first, _ = torch_job.traces()
    backwards = sorted(row.end_ns - row.start_ns for row in rows(first, "backward_compute"))
    reductions = sorted(row.end_ns - row.start_ns for row in rows(first, "grads_all_reduce"))
    assert backwards[1] < 100_000_000 < reductions[-4]


def test_gradients_are_told_from_other_reductions(torch_job: TorchJob) -> None:
    output = torch_job.run(
        "start()",
        _DDP,
        """
        class Parallel(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x): return x.clone()
            @staticmethod
            def backward(ctx, gradient):
                gradient = gradient.clone()
                dist.all_reduce(gradient)
                return gradient
        plain = torch.nn.Linear(64, 1)
        def train(model, x):
            model(x).sum().backward()
        for _ in range(3): train(model, x)
        with smon_rt.step(1):  # DDP's reducer, and what tensor parallelism reduces inside the backward
            train(model, Parallel.apply(x.requires_grad_()))
        with smon_rt.step(2):  # by hand, after the backward
            train(plain, x.detach())
            for parameter in plain.parameters(): dist.all_reduce(parameter.grad)
            loss = torch.ones(1)
            dist.all_reduce(loss)
        with smon_rt.step(3):  # as one flat tensor
            train(plain, x.detach())
            flat = torch.cat([parameter.grad.flatten() for parameter in plain.parameters()])
            dist.all_reduce(flat)
        with smon_rt.step(4):  # by a hook in the backward
            reduce = lambda p: dist.all_reduce(p.grad)
            for parameter in plain.parameters(): parameter.register_post_accumulate_grad_hook(reduce)
            train(plain, x.detach())
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
        model.register_comm_hook(None, fp16_compress_hook)
        with smon_rt.step(5): train(model, x.detach())
        smon_rt.stop()
        if RANK == 0: print(bucket_count())
        """,
        ranks=2,
    )
    buckets = int(output.stdout)
    for trace in torch_job.traces():
        found = [(counts["grads_all_reduce"], counts["collective"]) for counts in counts_by_step(trace, range(1, 6))]
        assert found == [(buckets, 1), (2, 1), (1, 0), (2, 0), (buckets, 0)]


def test_a_killed_rank_leaves_a_readable_trace(torch_job: TorchJob) -> None:
    output = torch_job.run(
        "start()",
        _DDP,
        """
        import signal
        try:
            for k in range(50):
                with smon_rt.step(k):
                    model(x).sum().backward()
                    optimizer.step()
                if RANK == 1 and k == 20: os.kill(os.getpid(), signal.SIGKILL)
        except RuntimeError:
            print("peer lost")
        smon_rt.stop()
        """,
        ranks=2,
        ended="-9",
    )
    assert "peer lost" in output.stdout
    # What the killed one had not written yet is still in this machine's memory.
    first, second = read_directory(torch_job.folder)
    assert first.end_reason == "stop"
    assert second.end_reason != "stop"
    complete = {"forward_compute": 1, "backward_compute": 1, "optimizer": 1}
    for trace in (first, second):
        found = counts_by_step(trace, range(2, 18))
        assert found == [complete | {"grads_all_reduce": found[0]["grads_all_reduce"]}] * 16
        assert found[0]["grads_all_reduce"] > 1
