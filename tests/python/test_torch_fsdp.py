"""FSDP2 over gloo: gathers of parameters and reductions of gradients by their kinds; layout from names of meshes."""

from __future__ import annotations

from tests.python.recording_process import job
from tests.python.torch_jobs import TorchJob, counts_by_step, needs_hooks, nursery, rows, torch_job

__all__ = ["job", "nursery", "torch_job"]

pytestmark = needs_hooks


def test_shards_on_a_mesh_of_one_dimension(torch_job: TorchJob) -> None:
    torch_job.run(
        """
        start()
        init()
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.device_mesh import init_device_mesh
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("fsdp",))
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(3)))
        for layer in model: fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters())
        for k in range(4):
            with smon_rt.step(k):
                model(torch.randn(4, 16)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        smon_rt.stop()
        assert smon_rt.status().stale_tokens == 0
        """,
        ranks=2,
    )
    first, second = torch_job.traces()
    # Each of three layers is gathered for the forward and again for the backward.
    expected = {"forward_compute": 1, "backward_compute": 1, "optimizer": 1}
    expected |= {"params_all_gather": 6, "grads_reduce_scatter": 3}
    for trace in (first, second):
        assert counts_by_step(trace, range(1, 4)) == [expected] * 3
        layout = trace.identity.layout
        assert (layout.dp_rank, layout.dp_size, layout.pp_size) == (trace.rank, 2, 1)
    kinds = ("params_all_gather", "grads_reduce_scatter")
    for one, other in zip(rows(first, *kinds), rows(second, *kinds), strict=True):
        assert (one.kind, one.step, one.comm_seq) == (other.kind, other.step, other.comm_seq)


def test_replicated_shards_beside_tensor_parallelism(torch_job: TorchJob) -> None:
    torch_job.run(
        """
        start()
        init()
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.device_mesh import init_device_mesh
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
        model = torch.nn.Linear(16, 16)
        fully_shard(model, mesh=mesh)
        for k in range(3):
            with smon_rt.step(k): model(torch.randn(4, 16)).sum().backward()
        smon_rt.stop()
        """,
        ranks=4,
    )
    traces = torch_job.traces()
    assert [(t.identity.layout.dp_rank, t.identity.layout.dp_size) for t in traces] == [(i, 4) for i in range(4)]
    expected = {"forward_compute": 1, "backward_compute": 1, "params_all_gather": 1}
    # Among the shards, then among their replicas.
    expected |= {"grads_reduce_scatter": 1, "grads_all_reduce": 1}
    for trace in traces:
        assert counts_by_step(trace, range(1, 3)) == [expected] * 2
        assert {row.communicator for row in rows(trace, "grads_reduce_scatter", "grads_all_reduce")} == {"dp"}


def test_coordinates_come_from_the_names_of_a_mesh(torch_job: TorchJob) -> None:
    torch_job.run(
        """
        start()
        init()
        from torch.distributed.device_mesh import init_device_mesh
        init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("pipeline", "data_parallel", "tensor"))
        with smon_rt.step(0): pass
        smon_rt.set_layout(smon_rt.Layout(dp_rank=7, dp_size=9)) if RANK == 3 else None
        smon_rt.stop()
        """,
        ranks=4,
    )
    layouts = [trace.identity.layout for trace in torch_job.traces()]
    found = [(layout.stage, layout.tp_rank, layout.dp_rank) for layout in layouts]
    assert found[:3] == [(0, 0, 0), (0, 1, 0), (1, 0, 0)]
    assert (layouts[0].pp_size, layouts[0].tp_size, layouts[0].dp_size) == (2, 2, 1)
    assert (layouts[3].dp_rank, layouts[3].dp_size) == (7, 9)
