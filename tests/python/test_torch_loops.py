"""Plain torch loops: forward and backward by microbatch, steps that nobody says, evaluation, exceptions, data, gc."""

from __future__ import annotations

import itertools

from smon_rt.trace.kinds import FLAGS
from tests.python.recording_process import job
from tests.python.torch_jobs import TorchJob, counts_by_step, needs_torch, nursery, rows, step_numbers, torch_job

__all__ = ["job", "nursery", "torch_job"]

pytestmark = needs_torch

_MODEL = """
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(4, 8), torch.randn(4, 1)
"""


def test_a_loop_with_gradient_accumulation(torch_job: TorchJob) -> None:
    torch_job.run(
        _MODEL,
        """
        criterion = torch.nn.MSELoss()
        start()
        for k in range(4):
            with smon_rt.step(k):
                for microbatch in range(3):
                    loss = criterion(model(x), y)
                    loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                with torch.no_grad(): model(x)
        smon_rt.stop()
        status = smon_rt.status()
        assert status.stale_tokens == status.foreign_tokens == status.dropped_spans == 0, status
        """,
    )
    (trace,) = torch_job.traces()
    expected = {"forward_compute": 3, "backward_compute": 3, "optimizer": 1, "eval": 1}
    assert counts_by_step(trace, range(4)) == [expected] * 4
    for step in range(4):
        computes = [row for row in rows(trace, "forward_compute", "backward_compute") if row.step == step]
        names = [(row.kind[0], row.microbatch, row.chunk) for row in computes]
        assert names == [("f", 0, 0), ("b", 0, 0), ("f", 1, 0), ("b", 1, 0), ("f", 2, 0), ("b", 2, 0)]
        # The loss belongs to the forward: it ends where the backward begins.
        gaps = [later.start_ns - earlier.end_ns for earlier, later in zip(computes[::2], computes[1::2], strict=True)]
        assert all(0 <= gap < 1_000_000 for gap in gaps), gaps
    assert {row.flags for row in rows(trace, "eval")} == {FLAGS["forward_only"]}
    assert {row.flags for row in rows(trace, "forward_compute", "backward_compute", "optimizer")} == {0}


def test_a_loop_that_says_no_steps(torch_job: TorchJob) -> None:
    output = torch_job.run(
        _MODEL,
        """
        start()
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x.repeat(4, 1)), batch_size=4)
        for (batch,) in loader:
            torch.nn.functional.mse_loss(model(batch), y).backward()
            optimizer.step()
        assert smon_rt.status().step == 4, smon_rt.status()
        smon_rt.stop()
        """,
    )
    assert "several optimizers" not in output.stderr
    (trace,) = torch_job.traces()
    assert step_numbers(trace) == [0, 1, 2, 3]
    computes = {"forward_compute": 1, "backward_compute": 1, "optimizer": 1}
    found = counts_by_step(trace, range(4))
    assert found[0] == computes | {"data_loading": 1}
    # A step closes with its optimizer, so what is loaded next belongs to the next.
    assert found[1:] == [computes | {"data_loading": 1}] * 3
    # The call that found no more batches; nothing was loaded.
    assert [row.flags & FLAGS["aborted"] for row in rows(trace, "data_loading")] == [0, 0, 0, 0, 1]
    assert all(row.flags & FLAGS["step_counted"] for row in rows(trace, "forward_compute"))


def test_what_cannot_be_counted_without_step_is_said_once(torch_job: TorchJob) -> None:
    output = torch_job.run(
        _MODEL,
        """
        start()
        other = torch.optim.SGD(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cpu")
        for k in range(3):
            scaler.scale(model(x).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            other.step()
        smon_rt.stop()
        """,
    )
    assert output.stderr.count("several optimizers") == 1
    assert output.stderr.count("GradScaler") == 1
    assert "with smon_rt.step(k)" in output.stderr
    (trace,) = torch_job.traces()
    assert step_numbers(trace) == [0, 1, 2]


def test_an_exception_passes_unchanged_and_leaves_nothing_open(torch_job: TorchJob) -> None:
    torch_job.run(
        _MODEL,
        """
        class Broken(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = torch.nn.Parameter(torch.ones(1))
            def forward(self, x): raise KeyError("forward")
        class Fails(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x): return x.clone()
            @staticmethod
            def backward(ctx, gradient): raise ValueError("backward")
        class BrokenOptimizer(torch.optim.SGD):
            def step(self, closure=None): raise OSError("optimizer")
        broken_optimizer = BrokenOptimizer(model.parameters(), lr=0.1)
        def loader():
            class Dataset(torch.utils.data.Dataset):
                def __len__(self): return 1
                def __getitem__(self, i): raise IndexError("data")
            return torch.utils.data.DataLoader(Dataset())
        cases = [
            (lambda: Broken()(x), KeyError),
            (lambda: Fails.apply(model(x)).sum().backward(), ValueError),
            (broken_optimizer.step, OSError),
            (lambda: next(iter(loader())), IndexError),
        ]
        start()
        for k, (fails, error) in enumerate(cases):
            try:
                with smon_rt.step(k): fails()
            except error as caught:
                assert caught.__class__ is error
                frames = []
                where = caught.__traceback__
            else:
                raise AssertionError(error)
            assert smon_rt.current() == 0, k
        with smon_rt.step(4):
            model(x).sum().backward()
            optimizer.step()
        assert smon_rt.current() == 0
        smon_rt.stop()
        assert smon_rt.status().stale_tokens == 0
        """,
    )
    (trace,) = torch_job.traces()
    aborted = [row.kind for row in rows(trace) if row.flags & FLAGS["aborted"]]
    assert aborted == ["forward_compute", "backward_compute", "optimizer", "data_loading"]
    assert counts_by_step(trace, range(4, 5)) == [{"forward_compute": 1, "backward_compute": 1, "optimizer": 1}]


def test_spans_that_the_script_opens_are_not_recorded_twice(torch_job: TorchJob) -> None:
    torch_job.run(
        _MODEL,
        """
        start()
        for k in range(2):
            with smon_rt.step(k):
                with smon_rt.span("data_loading"):
                    next(iter(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x))))
                with smon_rt.span("forward_compute", microbatch=7): loss = model(x).sum()
                with smon_rt.span("backward_compute", microbatch=7): loss.backward()
                with smon_rt.span("optimizer"): optimizer.step()
        smon_rt.stop()
        """,
    )
    (trace,) = torch_job.traces()
    expected = {"data_loading": 1, "forward_compute": 1, "backward_compute": 1, "optimizer": 1}
    assert counts_by_step(trace, range(2)) == [expected] * 2
    assert {row.microbatch for row in rows(trace, "forward_compute", "backward_compute")} == {7}


def test_an_optimizer_with_a_closure_is_the_time_beside_what_that_computes(torch_job: TorchJob) -> None:
    torch_job.run(
        _MODEL,
        """
        class Closure:
            calls = []
            def __call__(self, *args, **kwargs):
                self.calls.append((args, kwargs))
                optimizer.zero_grad()
                with torch.no_grad(): model(x)
                loss = model(x).sum()
                loss.backward()
                return loss
        class Particular(torch.optim.SGD):
            def step(self, closure=None):
                assert closure is own and isinstance(closure, Closure)
                with torch.enable_grad(): loss = closure(1, backward=True)
                with torch.no_grad(): weight.sub_(weight.grad, alpha=1e-3)
                return loss
        weight = model[0].weight
        own = Closure()
        particular = Particular(model.parameters(), lr=1e-3)
        lbfgs = torch.optim.LBFGS(model.parameters(), max_iter=2, lr=1e-3)
        start()
        with smon_rt.step(0): assert float(particular.step(own).detach()) < 1e9
        with smon_rt.step(1): lbfgs.step(closure=own)
        with smon_rt.step(2):
            loss = own()
            assert optimizer.step(lambda: loss) is loss
        with smon_rt.step(3), smon_rt.span("optimizer"): particular.step(closure=own)
        smon_rt.stop()
        assert own.calls[0] == own.calls[-1] == ((1,), {"backward": True})
        assert smon_rt.current() == 0
        """,
    )
    (trace,) = torch_job.traces()
    computes = {"eval": 1, "forward_compute": 1, "backward_compute": 1}
    first, lbfgs, without, explicit = counts_by_step(trace, range(4))
    assert first == computes | {"optimizer": 3}  # before the evaluation, between it and the forward, after the backward
    assert lbfgs["forward_compute"] == lbfgs["backward_compute"] > 1
    assert lbfgs["optimizer"] == 2 * lbfgs["forward_compute"] + 1
    assert without == explicit == computes | {"optimizer": 1}
    spans = sorted((row.start_ns, row.end_ns) for row in rows(trace, *computes, "optimizer") if row.step < 3)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


def test_recomputed_activations_belong_to_the_backward(torch_job: TorchJob) -> None:
    torch_job.run(
        """
        from torch.utils.checkpoint import checkpoint
        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh())
            def forward(self, x): return checkpoint(self.inner, x, use_reentrant=REENTRANT).sum()
        model = Model()
        start()
        for k, REENTRANT in enumerate((False, True)):
            with smon_rt.step(k): model(torch.randn(4, 8, requires_grad=True)).backward()
        smon_rt.stop()
        """,
    )
    (trace,) = torch_job.traces()
    assert counts_by_step(trace, range(2)) == [{"forward_compute": 1, "backward_compute": 1}] * 2


def test_a_model_that_comes_late_is_noticed(torch_job: TorchJob) -> None:
    torch_job.run(
        _MODEL,
        """
        start()
        class Late(torch.nn.Linear): pass
        late = Late(8, 8)
        for k in range(10):
            with smon_rt.step(k): (model if k < 6 else late)(x).sum().backward()
        smon_rt.stop()
        """,
    )
    (trace,) = torch_job.traces()
    found = [counts["forward_compute"] for counts in counts_by_step(trace, range(10))]
    # Its first step goes by; the next looks for such models again.
    assert found == [1] * 6 + [0] + [1] * 3


def test_collections_are_recorded_by_generation(torch_job: TorchJob) -> None:
    torch_job.run("""
        import gc
        start()
        with smon_rt.step(0):
            gc.collect(0)
            gc.collect(1)
            gc.collect()
        smon_rt.detach()
        with smon_rt.step(1): gc.collect()
        smon_rt.stop()
    """)
    (trace,) = torch_job.traces()
    spans = trace.spans
    names = [trace.names[int(spans.name_id[i])] for i in range(len(spans.kind)) if spans.kind[i] == 18]
    assert names.count("generation 2") >= 1
    assert "generation 0" not in names
    assert {row.step for row in rows(trace, "gc")} == {0}


def test_workers_of_a_data_loader_record_nothing(torch_job: TorchJob) -> None:
    torch_job.run(
        _MODEL,
        """
        start()
        dataset = torch.utils.data.TensorDataset(x.repeat(4, 1))
        loader = torch.utils.data.DataLoader(dataset, batch_size=4, num_workers=2)
        for k, (batch,) in enumerate(loader):
            with smon_rt.step(k): model(batch).sum().backward()
        smon_rt.stop()
        """,
    )
    (trace,) = torch_job.traces()
    loading = rows(trace, "data_loading")
    assert len(loading) == 5
    assert len(rows(trace, "forward_compute")) == 4
    assert trace.missing_span_count == 0
