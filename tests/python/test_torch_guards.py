"""Whatever goes wrong in our own code, the job's loop goes on: nothing of it comes out of a hook."""

from __future__ import annotations

from tests.python.recording_process import job
from tests.python.torch_jobs import TorchJob, needs_torch, nursery, torch_job

__all__ = ["job", "nursery", "torch_job"]

pytestmark = needs_torch


def test_no_function_of_ours_that_raises_is_seen_by_the_job(torch_job: TorchJob) -> None:
    """Each function that hooks call by its name in a module is replaced in turn by one that raises."""
    output = torch_job.run(
        """
        import types
        from torch.nn.parallel import DistributedDataParallel
        from torch.utils.data import DataLoader
        init()
        start()
        from smon_rt.integrations.torch import collectives, compute, gradients, groups, steps
        model = DistributedDataParallel(torch.nn.Linear(4, 4))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        def train():
            for batch in DataLoader(torch.ones(4, 4), batch_size=2):
                optimizer.zero_grad()
                model(batch).sum().backward()
                dist.all_reduce(torch.ones(2), async_op=True).wait()
                with torch.no_grad(): model(batch)
                optimizer.step()
            return model.module.weight.sum().item()
        def gone(*args, **kwargs): raise LookupError("gone")
        for _ in range(3): train()
        replaced = []
        for module in (collectives, compute, gradients, groups, steps):
            for name, function in list(vars(module).items()):
                is_ours = isinstance(function, types.FunctionType) and function.__module__ == module.__name__
                if is_ours and name not in ("recorded",):
                    setattr(module, name, gone)
                    train()
                    setattr(module, name, function)
                    replaced.append(name)
        assert {"_begin_forward", "_close_step", "optimizer_stepped", "begin_unless_explicit"} <= {*replaced}
        smon_rt.stop()
        print("went on", len(replaced))
        """
    )
    assert "went on" in output.stdout
    assert "failed: LookupError: gone" in output.stderr
