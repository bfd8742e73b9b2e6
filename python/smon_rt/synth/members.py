"""What the tp members of a worker do inside a compute: each its own work, then all of them a collective, and so on.

A compute of a job with `tp_collectives` is that many rounds. The one who works longest in a round decides when its
collective begins; the last one ends with the compute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smon_rt.synth.durations import MEMBERS, PASSES, FloatArray, generator
from smon_rt.synth.plants import SlowMember
from smon_rt.synth.schedule import Op
from smon_rt.synth.spec import JobSpec

if TYPE_CHECKING:
    from smon_rt.synth.draws import Draws

#: The part of a round that is its collective's transfer.
_TRANSFER_SHARE = 0.05


def has_rounds(spec: JobSpec, op: Op) -> bool:
    """Whether members meet within the op."""
    return spec.tp_collectives > 0 and op.kind in PASSES


def work_shares(spec: JobSpec, op: Op) -> FloatArray:
    """What each member works in each round, of what the longest one works where none is slow: [step, dp, round, tp].

    Drawn anew for each op, the same whatever is planted.
    """
    shape = (spec.steps, spec.dp, spec.tp_collectives, spec.tp)
    shares: FloatArray = np.exp(generator(spec, MEMBERS, op.row).standard_normal(shape) * spec.noise)
    shares /= shares.max(axis=-1, keepdims=True)
    for plant in spec.plants:
        if isinstance(plant, SlowMember) and plant.stage == op.stage:
            shares[:, plant.dp_rank, :, plant.tp_rank] *= plant.factor
    return shares


def member_factors(spec: JobSpec, op: Op) -> FloatArray | None:
    """How many times as long the op takes because of slow members, [step, dp]; None where nothing is planted on it."""
    if not any(isinstance(plant, SlowMember) and plant.stage == op.stage for plant in spec.plants):
        return None
    return np.asarray(_rounds(work_shares(spec, op)).mean(axis=-1)) if has_rounds(spec, op) else None


def meetings_ns(spec: JobSpec, draws: Draws, op: Op, dp_rank: int, tp_rank: int) -> tuple[FloatArray, FloatArray]:
    """When one member comes to the collectives of an op, and when they end, [step, round], from the op's start on.

    A pause of the host inside the op is the first member's: the others wait for it.
    """
    shares = work_shares(spec, op)[:, dp_rank]
    rounds = _rounds(shares)
    unit_ns = (draws.own_durations_ns(op.row)[:, dp_rank] / rounds.sum(axis=-1))[:, None]
    end_ns: FloatArray = np.cumsum(rounds, axis=-1) * unit_ns
    begin_ns = np.concatenate([np.zeros((spec.steps, 1)), end_ns[:, :-1]], axis=-1)
    start_ns = begin_ns + (1 - _TRANSFER_SHARE) * shares[..., tp_rank] * unit_ns
    for pause in sorted(draws.pauses, key=lambda each: -each.offset_ns):
        if (pause.row, pause.dp_rank) != (op.row, dp_rank):
            continue
        step = pause.step
        is_held = begin_ns[step] >= pause.offset_ns
        start_ns[step, is_held | ((start_ns[step] > pause.offset_ns) & (tp_rank == 0))] += pause.duration_ns
        end_ns[step, end_ns[step] > pause.offset_ns] += pause.duration_ns
        begin_ns[step, is_held] += pause.duration_ns
    return start_ns, end_ns


def _rounds(shares: FloatArray) -> FloatArray:
    """How long each round is, in rounds in which nobody is slow."""
    return np.asarray((1 - _TRANSFER_SHARE) * shares.max(axis=-1) + _TRANSFER_SHARE)
