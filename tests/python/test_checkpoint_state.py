"""What is captured is what is restored, bit for bit, of every kind of state that a training process has."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from smon_rt.checkpoint.calls import Label
from smon_rt.checkpoint.state import TrainingState
from smon_rt.checkpoint.tensors import CheckpointError
from tests.python.checkpoint_stand_in import StandIn, attach_to


@dataclass
class Job:
    """One training loop; made anew, it is a process that was started again."""

    model: torch.nn.Module
    optimizers: list[torch.optim.Optimizer]
    stateful: dict[str, Any] = field(default_factory=dict)
    extra: Callable[[], dict[str, Any]] | None = None

    def state(self) -> TrainingState:
        return TrainingState([self.model], list(self.optimizers), self.stateful, self.extra)

    def train(self) -> float:
        x = torch.randn(4, 6)
        loss = self.model(x).float().pow(2).mean()
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        for thing in self.stateful.values():
            if hasattr(thing, "step") and not isinstance(thing, torch.amp.GradScaler):
                thing.step()
        return float(loss)


def plain() -> Job:
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3))
    return Job(model, [torch.optim.AdamW(model.parameters(), lr=1e-2)])


def scheduled() -> Job:
    job = plain()
    job.stateful["scheduler.0"] = torch.optim.lr_scheduler.MultiStepLR(job.optimizers[0], [2, 4, 6], gamma=0.5)
    return job


def several_optimizers() -> Job:
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 3))
    first = torch.optim.SGD(model[0].parameters(), lr=1e-2, momentum=0.9)
    return Job(model, [first, torch.optim.Adam(model[2].parameters(), lr=1e-2, amsgrad=True)])


def scaled() -> Job:
    job = plain()
    job.stateful["scaler"] = torch.amp.GradScaler("cpu", init_scale=8.0)
    return job


def permuted() -> Job:
    model = torch.nn.Sequential(
        torch.nn.Unflatten(1, (1, 2, 3)), torch.nn.Conv2d(1, 4, 2), torch.nn.Flatten(), torch.nn.Linear(8, 2)
    ).to(memory_format=torch.channels_last)
    return Job(model, [torch.optim.Adam(model.parameters(), lr=1e-2)])


def in_bfloat16() -> Job:
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Linear(8, 3)).bfloat16()

    class Cast(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.inner(x.bfloat16())
            return out

    return Job(Cast(), [torch.optim.Adam(model.parameters(), lr=1e-2)])


def lists_in_optimizer() -> Job:
    model = torch.nn.Linear(6, 3)

    class Closing(torch.optim.LBFGS):
        def step(self, closure: Any = None) -> Any:
            def again() -> torch.Tensor:
                loss: torch.Tensor = model(torch.ones(4, 6)).pow(2).mean()
                self.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                return loss

            return super().step(again)  # type: ignore[no-untyped-call]

    return Job(model, [Closing(model.parameters(), lr=1e-2, max_iter=3)])


JOBS = [plain, scheduled, several_optimizers, scaled, permuted, in_bfloat16, lists_in_optimizer]


def seeded(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


@pytest.mark.parametrize("make", JOBS, ids=lambda make: make.__name__)
def test_a_restored_job_has_bitwise_the_losses_of_an_uninterrupted_one(make: Callable[[], Job]) -> None:
    losses: list[list[float]] = []
    for _ in range(2):
        seeded(1)
        job = make()
        losses.append([job.train() for _ in range(8)])
    assert losses[0] == losses[1]  # two uninterrupted runs are equal: else the comparison below shows nothing

    agent = StandIn()
    seeded(1)
    job = make()
    ckpt = attach_to(agent, job.state())
    assert ckpt.restore() is None
    begun = []
    for k in range(5):
        begun.append(job.train())
        ckpt.step(k)
    # Killed: of step 4 nothing was copied yet.
    assert max(agent.copies) == Label(1, 3)
    assert ckpt.status().failures == 0

    seeded(99)
    job = make()
    ckpt = attach_to(StandIn(agent.copies, incarnation=1), job.state())
    found = ckpt.restore()
    assert found is not None
    assert (found.tier, found.step, found.next_step) == ("memory", 3, 4)
    went_on = [job.train() for _ in range(4, 8)]
    assert begun[:4] + went_on == losses[0]


def test_an_update_right_after_the_capture_does_not_leak_into_it() -> None:
    agent = StandIn()
    job = plain()
    ckpt = attach_to(agent, job.state())
    ckpt.restore()
    job.train()
    before = {name: tensor.clone() for name, tensor in job.model.state_dict().items()}
    ckpt.step(0)
    job.train()  # its forward changes BatchNorm's statistics, its optimizer everything else
    assert not torch.equal(job.model.state_dict()["1.running_mean"], before["1.running_mean"])

    again = plain()
    attach_to(StandIn(agent.copies), again.state()).restore()
    for name, tensor in again.model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


class Odd(torch.nn.Module):
    """Tensors of many kinds."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.weight = torch.nn.Parameter(torch.randn(5, 7))
            self.tied = self.weight
            self.frozen = torch.nn.Parameter(torch.randn(3), requires_grad=False)
            self.register_buffer("gaps", torch.randn(6, 8)[:, ::2])
            self.register_buffer("permuted", torch.randn(2, 3, 4).permute(2, 0, 1))
            self.register_buffer("expanded", torch.randn(1, 5).expand(4, 5))
            self.register_buffer("empty", torch.empty(0, 3))
            self.register_buffer("scalar", torch.randn(()))
            self.register_buffer("mask", torch.rand(9) > 0.5)
            self.register_buffer("transient", torch.randn(2), persistent=False)
            self.register_buffer("conjugated", torch.randn(3, dtype=torch.complex64).conj())
            self.register_buffer("wide", torch.randn(3, dtype=torch.complex128))
            for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "bfloat16", "float16"):
                self.register_buffer(f"in_{name}", torch.randn(11).to(getattr(torch, name)))
            self.register_buffer("sliced", torch.randn(10)[3:7])
            self.nan = torch.nn.Parameter(torch.tensor([float("nan"), -0.0, float("inf")]))


def bits(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().resolve_conj().contiguous().flatten()
    return bytes(flat.view(torch.uint8).numpy()) if flat.numel() else b""


def test_tensors_of_every_kind_come_back_bit_for_bit() -> None:
    agent = StandIn()
    job = Job(Odd(1), [])
    ckpt = attach_to(agent, job.state())
    ckpt.restore()
    ckpt.step(0)
    agent.before_update(0)
    assert ckpt.status().last_failure == ""
    other = Odd(2)
    attach_to(StandIn(agent.copies), Job(other, []).state()).restore()
    theirs = dict(job.model.named_parameters()) | dict(job.model.named_buffers())
    ours = dict(other.named_parameters()) | dict(other.named_buffers())
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert (bits(tensor), tensor.shape) == (bits(theirs[name]), theirs[name].shape), name
    assert other.tied is other.weight


def test_the_content_is_a_safetensors_file_with_tied_tensors_once(tmp_path: Any) -> None:
    from safetensors import safe_open

    agent = StandIn()
    job = Job(Odd(1), [])
    ckpt = attach_to(agent, job.state())
    ckpt.restore()
    ckpt.step(0)
    agent.before_update(0)
    path = tmp_path / "a.safetensors"
    path.write_bytes(agent.copies[Label(1, 0)])
    length = 8 + int.from_bytes(agent.copies[Label(1, 0)][:8], "little")
    assert length % 4096 == 0
    with safe_open(path, "pt") as file:
        names = set(file.keys())
        assert torch.equal(file.get_tensor("model.weight"), job.model.get_parameter("weight"))
        assert torch.equal(file.get_tensor("model.gaps"), job.model.get_buffer("gaps"))
    assert "model.weight" in names
    assert "model.tied" not in names


class Wrapped(torch.Tensor):
    """Of another tensor, without memory of its own."""

    @staticmethod
    def __new__(cls) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, (3,))

    def __tensor_flatten__(self) -> Any:
        return [], None

    @classmethod
    def __torch_dispatch__(cls, *_args: Any) -> Any:
        raise NotImplementedError


def fake() -> torch.Tensor:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.zeros(3)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(3, device="meta"),
        lambda: torch.zeros(3).to_sparse(),
        lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        fake,
        Wrapped,
    ],
    ids=["meta", "sparse", "quantized", "fake", "wrapper"],
)
def test_a_tensor_without_memory_of_its_own_is_refused_by_name(make: Callable[[], torch.Tensor]) -> None:
    model = torch.nn.Linear(2, 2)
    model.register_buffer("strange_one", make())
    from smon_rt.checkpoint.layout import CaptureLayout

    with pytest.raises(CheckpointError, match=r"model\.strange_one"):
        CaptureLayout(Job(model, []).state(), 0)


def test_an_object_in_extra_is_refused_by_its_path() -> None:
    job = plain()
    job.extra = lambda: {"loader": {"at": object()}}
    from smon_rt.checkpoint.layout import CaptureLayout

    with pytest.raises(CheckpointError, match=r"values\.extra\.loader\.at: a value of type builtins\.object"):
        CaptureLayout(job.state(), 0)


def test_extra_comes_back_as_it_was_given() -> None:
    given = {
        "bytes": b"\x00\xff" * 100,
        "tensor": torch.arange(5),
        "nested": {1: (2.5, float("nan"), None), "!": {"x"}},
        "array": np.arange(6, dtype=np.int16).reshape(2, 3),
        "number": np.float32(0.1),
        "big": 1 << 200,
    }
    agent = StandIn()
    job = plain()
    job.extra = lambda: given
    ckpt = attach_to(agent, job.state())
    ckpt.restore()
    ckpt.step(0)
    agent.before_update(0)
    found = attach_to(StandIn(agent.copies), plain().state()).restore()
    assert found is not None
    extra = found.extra
    assert (extra["bytes"], extra["big"], extra["number"]) == (given["bytes"], given["big"], given["number"])
    assert torch.equal(extra["tensor"], torch.arange(5))
    assert np.array_equal(extra["array"], np.arange(6).reshape(2, 3))
    assert extra["nested"]["!"] == {"x"}
    assert extra["nested"][1][0] == 2.5
    assert np.isnan(extra["nested"][1][1])


def test_optimizer_state_that_comes_late_or_changes_its_size_is_a_new_layout() -> None:
    agent = StandIn()
    job = plain()
    job.extra = dict
    ckpt = attach_to(agent, job.state())
    ckpt.restore()
    ckpt.step(0)
    assert agent.layouts == 1
    job.train()
    ckpt.step(1)
    assert agent.layouts == 2  # Adam's averages are there now
    job.train()
    ckpt.step(2)
    assert agent.layouts == 2
    (optimizer,) = job.optimizers
    weight = next(iter(job.model.parameters()))
    optimizer.state[weight]["exp_avg"] = optimizer.state[weight]["exp_avg"].clone()
    ckpt.step(3)
    assert agent.layouts == 2  # it moved, which is no new layout
    optimizer.state[weight]["more"] = torch.ones(3)
    ckpt.step(4)
    optimizer.state[weight]["more"].resize_(300)
    ckpt.step(5)
    assert agent.layouts == 4
    moved = optimizer.state[weight]["exp_avg"].clone()
    agent.before_update(0)
    again = plain()
    attach_to(StandIn(agent.copies), again.state()).restore()
    state = again.optimizers[0].state[next(iter(again.model.parameters()))]
    assert torch.equal(state["exp_avg"], moved)
    assert state["more"].shape == (300,)


def test_a_model_of_another_shape_is_refused_and_left_as_it_is() -> None:
    agent = StandIn()
    job = plain()
    ckpt = attach_to(agent, job.state())
    ckpt.restore()
    ckpt.step(0)
    agent.before_update(0)
    first = torch.nn.Linear(6, 8)
    model = torch.nn.Sequential(first, torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 4))
    other = Job(model, [torch.optim.AdamW(model.parameters(), lr=1e-2)])
    before = first.weight.detach().clone()
    with pytest.raises(
        CheckpointError, match=r"model\.2\.weight is torch\.float32 \[4, 8\] here, in the checkpoint .*3, 8"
    ):
        attach_to(StandIn(agent.copies), other.state()).restore()
    assert torch.equal(first.weight, before)


def test_without_numbers_an_iteration_ends_at_the_next_forward() -> None:
    agent = StandIn()
    job = scheduled()
    ckpt = attach_to(agent, job.state(), every=2)
    ckpt.restore()
    for _ in range(6):
        job.train()
    assert sorted(label.step for label in agent.copies) == [0, 2, 4][: len(agent.copies)]
    assert len(agent.copies) == 3


def test_thousands_of_small_tensors_move_nothing_and_walk_once() -> None:
    model = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(1000))
    agent = StandIn()
    ckpt = attach_to(agent, Job(model, []).state())
    ckpt.restore()
    for k in range(4):
        ckpt.step(k)
    assert agent.layouts == 1
    assert ckpt._capturer is not None
    assert ckpt._capturer.walks == 1
