"""A rank that is slow within its worker, over gloo: the others wait for it in the collectives of every layer."""

from __future__ import annotations

from pathlib import Path

from smon_rt.analysis import Report, analyze
from tests.python.recording_process import job
from tests.python.torch_jobs import TorchJob, needs_hooks, nursery, torch_job

__all__ = ["job", "nursery", "torch_job"]

pytestmark = needs_hooks

#: Two workers of two ranks. Sleeps stand for kernels: what a member takes is known, however busy the machine is.
_TP = """
init()
from torch.distributed.device_mesh import init_device_mesh
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
tp, dp = mesh.get_group("tp"), mesh.get_group("dp")

def work(ms, is_slow):
    time.sleep(ms * (SLOW if is_slow else 1) / 1e3)

class Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, is_slow):
        ctx.is_slow = is_slow
        work(3, is_slow)
        y = x.clone()
        dist.all_reduce(y, group=tp)
        return y
    @staticmethod
    def backward(ctx, gradient):
        work(6, ctx.is_slow)
        gradient = gradient.clone()
        dist.all_reduce(gradient, group=tp)
        return gradient, None

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))
        self.is_slow = False
    def forward(self, x):
        x = x * self.weight
        for _ in range(3): x = Layer.apply(x, self.is_slow)
        return x

SLOW = 2.5
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
os.makedirs(DIR, exist_ok=True)
def train(name, slow_ranks):
    assert smon_rt.start(DIR + "/" + name, sample_ratio=1.0, warmup_steps=1, strict=True)
    model.is_slow = RANK in slow_ranks
    for k in range(9):
        with smon_rt.step(k):
            for microbatch in range(2):
                model(torch.ones(8, 4)).sum().backward()
            dist.all_reduce(model.weight.grad, group=dp)
            optimizer.step()
            optimizer.zero_grad()
    smon_rt.stop()
    dist.barrier()
"""


def test_a_slow_member_is_named_and_a_slow_worker_stays_one(torch_job: TorchJob) -> None:
    """Three recordings of one launch: one slow member, all members of a worker slow, nobody slow."""
    torch_job.run(
        _TP,
        """
        train("member", {3})
        train("worker", {2, 3})
        train("healthy", set())
        """,
        ranks=4,
    )
    _a_slow_member_is_named(analyze(torch_job.folder / "member"))
    _a_slow_worker_stays_one(analyze(torch_job.folder / "worker"))
    healthy = analyze(torch_job.folder / "healthy")
    assert "tensor_parallel_member" not in {cause.cause for cause in healthy.causes}
    _a_missing_member_is_said_and_nobody_named_for_it(torch_job.folder / "member")


def _a_slow_member_is_named(report: Report) -> None:
    verdict, where = report.verdict, report.verdict.where
    assert (verdict.cause, verdict.scope, verdict.time_kind) == ("tensor_parallel_member", "tp_group", "compute")
    assert (where.rank, where.dp_rank, where.stage, where.tp_rank) == (3, 1, 0, 1)
    assert where.host
    assert "rank 3, tp 1 of worker (dp 1, stage 0)" in verdict.text
    [cause] = [cause for cause in report.causes if cause.cause == "tensor_parallel_member"]
    assert cause.detail["wait_ratio"] > 0.9
    assert 1.5 < cause.detail["forward_compute_ratio"] < 3.5
    # Of three layers and two microbatches: (3 + 6) ms · 1.5 each, which the machine may draw out, but not shorten.
    assert 0.06 < cause.gain_s_per_step < 0.2
    others = [other for other in report.causes if other.cause == "worker"]
    assert all(other.gain_s_per_step < 0.3 * cause.gain_s_per_step for other in others)
    fixed = report.what_if(["cause=tensor_parallel_member"])
    assert abs(fixed.gain_s_per_step - cause.gain_s_per_step) < 1e-6


def _a_slow_worker_stays_one(report: Report) -> None:
    assert report.verdict.cause == "worker"
    assert (report.verdict.where.dp_rank, report.verdict.where.stage) == (1, 0)
    assert "its 2 tp members move together" in report.verdict.text


def _a_missing_member_is_said_and_nobody_named_for_it(folder: Path) -> None:
    [lost] = folder.glob("rank-00003.*.smon")
    lost.unlink()
    report = analyze(folder)
    assert "tensor_parallel_member" not in {cause.cause for cause in report.causes}
    assert any("the members of worker (dp 1, stage 0)" in words for words in report.fidelity.left_out)
