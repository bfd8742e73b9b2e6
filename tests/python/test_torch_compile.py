"""Hooks and torch.compile: no graph break, no second compilation, and the compiled model's time is recorded."""

from __future__ import annotations

from tests.python.recording_process import job
from tests.python.torch_jobs import HAS_HOOKS, TorchJob, counts_by_step, needs_torch, nursery, torch_job

__all__ = ["job", "nursery", "torch_job"]

pytestmark = needs_torch

_COMPILED = """
from torch._dynamo.utils import counters
torch._dynamo.config.error_on_recompile = True
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
    def forward(self, x): return self.layers(x).relu()
def train(call, k):
    with smon_rt.step(k): call(torch.randn(4, 8)).sum().backward()
"""


def test_compiled_models_run_whole_and_are_compiled_once(torch_job: TorchJob) -> None:
    torch_job.run(
        _COMPILED,
        """
        start()
        k = 0
        for backend in ("eager", "aot_eager"):
            for in_place in (False, True):
                torch._dynamo.reset()
                counters.clear()
                model = Model()
                if in_place: model.compile(backend=backend, fullgraph=True)
                call = model if in_place else torch.compile(model, backend=backend, fullgraph=True)
                for _ in range(5):  # discovery ends within the first of them
                    train(call, k)
                    k += 1
                assert not counters["graph_break"], counters["graph_break"]
                assert counters["stats"]["unique_graphs"] == 1, counters["stats"]
        smon_rt.detach()  # what was compiled goes on
        with smon_rt.step(k): call(torch.randn(4, 8)).sum().backward()
        smon_rt.stop()
        """,
    )
    (trace,) = torch_job.traces()
    found = counts_by_step(trace, range(20))
    # A class that was first called bare after the discovery goes unseen once.
    assert found[5] == {"backward_compute": 1}
    assert found[:5] + found[6:] == [{"forward_compute": 1, "backward_compute": 1}] * 19
    assert counts_by_step(trace, range(20, 21)) == [{}]


def test_a_model_that_was_compiled_before_recording(torch_job: TorchJob) -> None:
    torch_job.run(
        _COMPILED,
        """
        call = torch.compile(Model(), backend="eager", fullgraph=True)
        sequential = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh())
        call(torch.randn(4, 8)).sum().backward()
        start()
        for k in range(5): train(call, k)
        # Compiled during and after the discovery; torch looks at the call of such a class itself.
        smon_rt.detach()
        smon_rt.attach()
        call = torch.compile(sequential, backend="aot_eager", fullgraph=True)
        for k in range(5, 10): train(call, k)
        torch._dynamo.reset()
        for k in range(10, 12): train(call, k)
        smon_rt.stop()
        for k in range(12, 14): train(call, k)
        assert not counters["graph_break"], counters["graph_break"]
        """,
    )
    (trace,) = torch_job.traces()
    assert counts_by_step(trace, range(12)) == [{"forward_compute": 1, "backward_compute": 1}] * 12


def test_a_compiled_function_with_the_whole_model_in_it(torch_job: TorchJob) -> None:
    torch_job.run(
        _COMPILED,
        """
        model = Model()
        start()
        loss = torch.compile(lambda x: model(x).square().mean(), backend="eager", fullgraph=True)
        for k in range(5): train(loss, k)
        smon_rt.stop()
        assert not counters["graph_break"], counters["graph_break"]
        assert counters["stats"]["unique_graphs"] == 1, counters["stats"]
        """,
    )
    (trace,) = torch_job.traces()
    # No module is called as far as Python sees: its time is not known.
    assert counts_by_step(trace, range(5)) == [{"backward_compute": 1}] * 5


def test_our_hooks_are_not_compiled_with_the_job(torch_job: TorchJob) -> None:
    """Inside a compiled DDP model and a compiled step torch falls back to Python, where hooks run."""
    torch_job.run(
        """
        from torch._dynamo.utils import counters
        from torch.nn.parallel import DistributedDataParallel
        from torch.utils.data import DataLoader
        init()
        torch._dynamo.config.error_on_recompile = True
        def helper(x):
            total = torch.ones(3)
            dist.all_reduce(total, async_op=True).wait()
            return x
        def compiled(with_loader):
            torch._dynamo.reset()
            counters.clear()
            torch.manual_seed(0)
            model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()))
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            def forward(x, batches):
                y = model(x + next(batches)) if batches else model(x)
                helper(y)
                return y * 2
            call = torch.compile(forward if with_loader else model, backend="eager")
            losses = []
            for k in range(8):
                batches = iter(DataLoader(torch.ones(8, 8), batch_size=4))
                optimizer.zero_grad()
                loss = (call(torch.ones(4, 8), batches) if with_loader else call(torch.ones(4, 8))).sum()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            # Not all frames: torch itself runs more of its own where an optimizer has hooks.
            # Nor the reasons' words, in which some versions name the type that `Work.wait` is.
            return losses, sorted(counters["graph_break"].values()), dict(counters["stats"])
        for _ in range(2):  # of the first time torch remembers some
            without = [compiled(with_loader) for with_loader in (False, True)]
        start()
        recorded = [compiled(with_loader) for with_loader in (False, True)]
        smon_rt.stop()
        for before, after in zip(without, recorded): assert before == after, (before, after)
        """
    )
    (trace,) = torch_job.traces()
    # What C++ issues without hooks nobody sees.
    assert all(counts["grads_all_reduce"] == HAS_HOOKS for counts in counts_by_step(trace, range(2, 8)))
