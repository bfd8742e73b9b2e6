"""Sets a checkpoint up: looks at the state, meets the other ranks, and has the agent of the node started."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from smon_rt._backend import say
from smon_rt.checkpoint.calls import Calls, OpenOptions
from smon_rt.checkpoint.capturing import AddressTable, Capturer
from smon_rt.checkpoint.identity import node_of_process, owner_of_process, topology_of, unique_owners
from smon_rt.checkpoint.layout import CaptureLayout
from smon_rt.checkpoint.recovery import Recovery
from smon_rt.checkpoint.rounds import Rounds, rounds_of_job
from smon_rt.checkpoint.state import TrainingState
from smon_rt.checkpoint.tensors import CheckpointError
from smon_rt.checkpoint.training_checkpoint import Checkpoint
from smon_rt.environment import LogLevel
from smon_rt.errors import words_of


def attach(
    model: torch.nn.Module | Sequence[torch.nn.Module],
    optimizer: Any = None,
    scheduler: Any = None,
    *,
    scaler: Any = None,
    every: int = 1,
    extra: Callable[[], Mapping[str, Any]] | None = None,
    run_id: str | None = None,
    owner: str | None = None,
    own_slots: int = 2,
    disk_dir: str | os.PathLike[str] | None = None,
    disk_every: int = 100,
    disk_keep: int = 2,
    agent_ttl_s: int = 600,
    agent_dir: str | None = None,
    copy_threads: int = 0,
    timeout_s: float = 30.0,
) -> Checkpoint:
    """Begins to keep checkpoints of a training state in the memory of an agent, which outlives this process.

    On all ranks, once models, optimizers and torch.distributed are set up.

    Args:
        model: one, or several (chunks of a pipeline); wrapped by DDP, FSDP2, Megatron or torch.compile or not.
        optimizer, scheduler: one, several in a list, or None. Schedulers are whatever has state_dict and
            load_state_dict.
        scaler: a GradScaler.
        every: steps between captures.
        extra: what else a restart needs, asked at each capture: plain values, bytes and tensors, no objects.
        run_id: the same for all starts of the job; SMON_RT_RUN_ID, TORCHELASTIC_RUN_ID, else "run".
        owner: whose state this is, in logical coordinates; found out by itself.
        own_slots: copies that the agent has room for, 2 or 3.
        disk_dir: also written there every `disk_every` steps, of which the last `disk_keep` are kept.
        agent_ttl_s: how long the agent waits for the job to come back.
        timeout_s: of each wait for other ranks or the agent.

    Returns:
        A checkpoint; an inert one, whose status says why, where there can be none (no agent, several nodes).

    Raises:
        CheckpointError: the state has a tensor or value that cannot be captured, or a rank did not come in time.

    Example:
        >>> ckpt = smon_rt.checkpoint.attach(model, optimizer, scheduler)  # doctest: +SKIP
        >>> found = ckpt.restore()  # doctest: +SKIP
        >>> for k in range(found.next_step if found else 0, steps):  # doctest: +SKIP
        ...     train(k)
        ...     ckpt.step(k)
    """
    if every < 1 or own_slots not in (2, 3):
        raise CheckpointError(f"every is {every}, at least 1; own_slots is {own_slots}, 2 or 3")
    rounds = rounds_of_job(timeout_s)
    state, topology = _look_at_state(rounds, _list(model), _list(optimizer), _list(scheduler), scaler, extra)
    error = _why_not(rounds)
    owners = unique_owners(rounds.gather("naming owners", owner or owner_of_process(rounds.rank)))
    attempt = rounds.gather("naming the attempt", uuid.uuid4().hex)[0]
    if error:
        return _inert(state, every, rounds, error)
    calls, make_table = native_calls()
    options = OpenOptions(
        run_id=run_id,
        rank=rounds.rank,
        world_size=rounds.world_size,
        owner=owners[rounds.rank],
        topology=topology,
        attempt=attempt,
        every=every,
        own_slots=own_slots,
        disk_dir=None if disk_dir is None else os.fspath(disk_dir),
        disk_every=disk_every,
        disk_keep=disk_keep,
        agent_ttl_s=agent_ttl_s,
        agent_dir=agent_dir,
        copy_threads=copy_threads,
        timeout_s=timeout_s,
    )
    return open_checkpoint(state, every, rounds, calls, make_table, options)


def open_checkpoint(
    state: TrainingState,
    every: int,
    rounds: Rounds,
    calls: Calls,
    make_table: AddressTable,
    options: OpenOptions,
) -> Checkpoint:
    """Says hello to the agent, on all ranks; where one cannot, all go without."""
    reason, newest = "", 0
    try:
        newest = calls.open(options)
    except CheckpointError as error:
        reason = str(error)
    answers = rounds.gather("meeting the agents", [newest, reason])
    if failures := [f"rank {rank}: {why}" for rank, (_, why) in enumerate(answers) if why]:
        if not reason:
            calls.close(False)
        return _inert(state, every, rounds, "; ".join(failures)[:1000])
    recovery = Recovery(calls, rounds, max(one for one, _ in answers), options.topology)
    capturer = Capturer(state, calls, make_table)
    return Checkpoint(state, every, calls=calls, capturer=capturer, recovery=recovery, error="")


def native_calls() -> tuple[Calls, AddressTable]:
    """Those of the library."""
    from smon_rt.checkpoint.native_calls import NativeCalls, make_table

    return NativeCalls(), make_table


def _look_at_state(
    rounds: Rounds,
    models: list[torch.nn.Module],
    optimizers: list[Any],
    schedulers: list[Any],
    scaler: Any,
    extra: Callable[[], Mapping[str, Any]] | None,
) -> tuple[TrainingState, str]:
    """A state that can be captured as it is now, on all ranks."""
    reason = ""
    raised: Exception | None = None
    try:
        if not models:
            raise CheckpointError("there is no model")
        stateful = {f"scheduler.{at}": one for at, one in enumerate(schedulers)}
        if scaler is not None:
            stateful["scaler"] = scaler
        state = TrainingState(models, optimizers, stateful, extra)
        layout = CaptureLayout(state, 0)
        topology = topology_of(state, layout.found, rounds.world_size)
    except Exception as error:
        raised, reason = error, str(error) or type(error).__name__
    reasons = [f"rank {rank}: {one}" for rank, one in enumerate(rounds.gather("attaching", reason)) if one]
    if raised is not None:
        raise raised
    if reasons:
        raise CheckpointError("; ".join(reasons)[:1000])
    return state, topology


def _why_not(rounds: Rounds) -> str:
    """Why this job has no checkpoints, the same on all ranks; "" if it has."""
    mine = ""
    try:
        native_calls()
    except ImportError as error:
        mine = f"the library cannot be loaded: {words_of(error)}"
    if os.environ.get("SMON_RT_DISABLE", "0") not in ("", "0"):
        mine = "SMON_RT_DISABLE is set"
    answers = rounds.gather("finding nodes", [node_of_process(), mine])
    nodes = {node for node, _ in answers}
    if len(nodes) > 1:
        return f"the job's ranks are on {len(nodes)} nodes: checkpoints over several nodes come later"
    return next((f"rank {rank}: {why}" for rank, (_, why) in enumerate(answers) if why), "")


def _inert(state: TrainingState, every: int, rounds: Rounds, error: str) -> Checkpoint:
    if rounds.rank == 0:
        say(LogLevel.WARNING, f"checkpoint: there is none, training goes on without: {error}")
    return Checkpoint(state, every, calls=None, capturer=None, recovery=None, error=error)


def _list(one_or_several: Any) -> list[Any]:
    if one_or_several is None:
        return []
    return list(one_or_several) if isinstance(one_or_several, (list, tuple)) else [one_or_several]
