"""A restart over several ranks: one choice on all, deadlines that name who is missing, failures that all hear of."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from smon_rt.checkpoint.attaching import open_checkpoint
from smon_rt.checkpoint.calls import Label, OpenOptions
from smon_rt.checkpoint.recovery import choose
from smon_rt.checkpoint.rounds import LocalStore, Rounds
from smon_rt.checkpoint.state import TrainingState
from smon_rt.checkpoint.tensors import CheckpointError
from smon_rt.checkpoint.training_checkpoint import Checkpoint, Restored
from tests.python.checkpoint_stand_in import PythonTable, StandIn, attach_to, options_for


def on_ranks(count: int, do: Callable[[Rounds], Any], timeout_s: float = 10.0) -> list[Any]:
    """What each rank's thread returned or raised, over one store."""
    store = LocalStore()
    results: list[Any] = [None] * count

    def run(rank: int) -> None:
        try:
            results[rank] = do(Rounds(store, rank, count, "test", timeout_s))
        except CheckpointError as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_all_ranks_gather_the_same() -> None:
    assert on_ranks(3, lambda rounds: rounds.gather("testing", rounds.rank * 10)) == [[0, 10, 20]] * 3


@pytest.mark.parametrize("absent", [0, 2])
def test_a_rank_that_does_not_come_is_named_by_all_others(absent: int) -> None:
    def do(rounds: Rounds) -> Any:
        return None if rounds.rank == absent else rounds.gather("meeting", 1)

    for rank, error in enumerate(on_ranks(3, do, timeout_s=0.2)):
        if rank != absent:
            assert str(error) == f"meeting: waited 0.2 s for rank {absent}"


def test_the_newest_state_that_every_rank_has_is_chosen() -> None:
    lists = [[[1, 9, 1], [1, 8, 1], [2, 3, 1]], [[1, 8, 2], [1, 8, 1], [1, 9, 2]]]
    chosen = choose(lists, set())
    assert chosen is not None
    assert (chosen.label, chosen.tiers, chosen.kept) == (Label(1, 9), (1, 2), (Label(1, 8),))
    chosen = choose(lists, {(1, 1, 9, 2)})
    assert chosen is not None
    assert (chosen.label, chosen.tiers) == (Label(1, 8), (1, 1))
    assert choose([[[1, 1, 1]], []], set()) is None


def model_of(value: float) -> torch.nn.Linear:
    model = torch.nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.fill_(value)
    return model


def captured(steps: int) -> dict[Label, bytearray]:
    """Copies of steps 0 and on, whose weights are their step."""
    agent = StandIn()
    model = model_of(-1.0)
    ckpt = attach_to(agent, TrainingState([model], [], {}, None))
    ckpt.restore()
    for k in range(steps):
        with torch.no_grad():
            model.weight.fill_(float(k))
        ckpt.step(k)
        agent.before_update(0)
    return agent.copies


def test_when_one_rank_cannot_fetch_a_step_all_restore_the_one_before() -> None:
    copies = captured(3)
    agents = [StandIn(dict(copies), incarnation=rank) for rank in range(2)]
    agents[1].unfetchable.add(Label(1, 2))
    models = [model_of(-1.0) for _ in range(2)]

    def do(rounds: Rounds) -> tuple[Checkpoint, Restored | None]:
        state = TrainingState([models[rounds.rank]], [], {}, None)
        ckpt = attach_to(StandIn(), state)  # only for its topology, which is of a world of one
        agent = agents[rounds.rank]
        options: OpenOptions = options_for(ckpt._capturer._calls.options.topology)  # type: ignore[union-attr]
        ckpt = open_checkpoint(state, 1, rounds, agent, PythonTable, options)
        return ckpt, ckpt.restore()

    for rank, (_, found) in enumerate(on_ranks(2, do)):
        assert found.step == 1
        assert torch.equal(models[rank].weight, torch.ones(2, 2))
        # One more than the newest that any agent has heard of.
        assert agents[rank].log[0] == "fence 2"
        assert agents[rank].log[-1] == "go on 2"


def test_copies_of_another_topology_are_refused_with_both_named() -> None:
    agent = StandIn(captured(1))
    other = torch.nn.Linear(3, 2)
    state = TrainingState([other], [], {}, None)
    original = StandIn.list

    def of_another(self: StandIn) -> Any:
        import dataclasses

        return [dataclasses.replace(copy, topology="world 8: dp 8") for copy in original(self)]

    agent.list = of_another.__get__(agent)  # type: ignore[method-assign]
    with pytest.raises(CheckpointError, match=r"another topology, 'world 8: dp 8'; this job is 'world 1"):
        attach_to(agent, state).restore()


def test_what_a_scheduler_raises_at_a_restore_reaches_all_ranks() -> None:
    def do(rounds: Rounds) -> Any:
        from smon_rt.checkpoint.recovery import Recovery

        recovery = Recovery(StandIn(), rounds, 0, "")

        def fail() -> None:
            if rounds.rank == 1:
                raise CheckpointError("no such group")

        recovery._all("restoring", fail)

    first, second = on_ranks(2, do)
    assert str(first) == "restoring failed on rank 1: no such group"
    assert str(second) == "no such group"
