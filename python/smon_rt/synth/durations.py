"""Durations of every op of every lane: what the kind takes, times noise, times what is planted.

Arrays are float64 of shape [op row, step, dp rank] and hold whole nanoseconds, so that sums of them are exact. Each
source of randomness has a generator of its own: one option never moves what another one draws.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from smon_rt.synth.plants import LongSequences, Plant, Planted, SlowGroup, SlowLaunch, SlowLink
from smon_rt.synth.schedule import COMPUTE_KINDS, DP_SYNC_KINDS, Op, Program
from smon_rt.synth.spec import JobSpec

FloatArray = npt.NDArray[np.float64]

NS_PER_MS = 1e6
PASSES = ("forward_compute", "backward_compute")
COLLECTIVES = (
    *("params_all_gather", "grads_reduce_scatter", "separate_grads_all_reduce"),
    *("embedding_grads_all_reduce", "layernorm_grads_all_reduce"),
)
# The places of generators in the seed; new ones come last.
_COMPUTE, _COMM, _LAUNCH, _TAILS, MICROBATCH_COUNTS, CLOCKS, DROPS, MEMBERS, GPU_CLOCKS = range(9)
_PLANTS = 1000
_TAIL_EXPONENT = 2.5
_TAIL_SCALE = 0.5
_MOST_TAIL_FACTOR = 20.0
#: Of a typical microbatch: its length in sequences of median length, and the part of its time that is attention.
_TYPICAL_SEQUENCES = 16
_MOST_SEQUENCES = 256
_ATTENTION_SHARE = 0.5
#: What each link of the job carries where nothing slows it; messages and collectives are as large as that makes them.
LINK_BYTES_PER_S = 20e9


def base_duration_ns(spec: JobSpec, op: Op) -> float:
    """What the op takes without noise, for a communication op its own transfer."""
    d = spec.durations
    if op.is_no_op:
        return d.no_op_ms * NS_PER_MS
    per_kind_ms = {
        "forward_compute": d.forward_ms / spec.vpp,
        "backward_compute": d.backward_ms / spec.vpp,
        "params_all_gather": d.dp_comm_ms / spec.vpp,
        "grads_reduce_scatter": d.dp_comm_ms / spec.vpp,
        "layernorm_grads_all_reduce": d.layernorm_ms,
        "embedding_grads_all_reduce": d.embedding_ms,
        "separate_grads_all_reduce": d.separate_grads_ms,
        "optimizer_clip_main_grad": d.clip_ms,
        "optimizer": d.optimizer_ms,
        "gc": d.gc_ms,
    }
    return per_kind_ms.get(op.kind, d.p2p_ms) * NS_PER_MS


def payload_bytes(spec: JobSpec, op: Op) -> int:
    """What a rank puts into a communication op: with its transfer's time, links carry LINK_BYTES_PER_S.

    By the ring formulas of nccl-tests: of a payload of S a rank sends 2 S (n − 1) / n to reduce it, half of that to
    reduce and scatter it, and S (n − 1) to gather it.
    """
    sizes = {"embedding_grads_all_reduce": min(spec.pp, 2), "layernorm_grads_all_reduce": spec.tp}
    n = sizes.get(op.kind, spec.dp)
    sent = base_duration_ns(spec, op) / 1e9 * LINK_BYTES_PER_S
    if op.kind.endswith(("_send", "_recv")):
        return 0 if op.is_no_op else round(sent)
    if op.kind not in COLLECTIVES or n == 1:
        return 0
    if op.kind == "params_all_gather":
        return round(sent / (n - 1))
    return round(sent * n / (n - 1) / (1 if op.kind == "grads_reduce_scatter" else 2))


def generator(spec: JobSpec, *place: int) -> np.random.Generator:
    """The random numbers of one source, or of one part of it."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(spec.seed, spawn_key=place)))


def plant_generator(spec: JobSpec, plant: Planted) -> np.random.Generator:
    """The random numbers of one plant, the same whatever else is planted."""
    return generator(spec, _PLANTS, plant.stream_key)


def planted_factors(spec: JobSpec, op: Op) -> FloatArray | None:
    """Factor of each dp rank on this op, or None when nothing is planted on it; sequence lengths are not among them."""
    factors: FloatArray | None = None
    for plant in spec.plants:
        if isinstance(plant, Plant | SlowLink | SlowGroup) and _is_slowed(spec, plant, op):
            factors = np.ones(spec.dp) if factors is None else factors
            factors[plant.lanes] *= plant.factor
    return factors


def _is_slowed(spec: JobSpec, plant: Plant | SlowLink | SlowGroup, op: Op) -> bool:
    if isinstance(plant, Plant):
        return op.kind in PASSES and plant.stage == op.stage
    if isinstance(plant, SlowGroup):
        return op.kind in DP_SYNC_KINDS and op.kind != "optimizer_clip_main_grad" and plant.stage == op.stage
    if op.is_no_op or not op.kind.endswith(("_send", "_recv")):
        return False
    # A forward message comes from the stage before and goes to the one after, a backward one the other way round.
    ahead = 1 if op.kind in ("forward_send", "backward_recv") else -1
    return plant.is_between(op.stage, (op.stage + ahead) % spec.pp, spec.pp)


def sequence_factors(spec: JobSpec, plant: LongSequences) -> FloatArray:
    """What each microbatch takes of what a typical one does, [step, dp rank, microbatch]; their median is 1."""
    random = plant_generator(spec, plant)
    shape = (spec.steps, spec.dp, spec.microbatches)
    costs = np.empty(shape)
    for step in range(spec.steps):
        normal = random.standard_normal((*shape[1:], _MOST_SEQUENCES))
        lengths = np.minimum(np.exp(normal * plant.spread) / _TYPICAL_SEQUENCES, 1.0)
        # Sequence after sequence until the microbatch is full; the last one is cut.
        filled = np.minimum(np.cumsum(lengths, axis=-1), 1.0)
        costs[step] = (np.diff(filled, axis=-1, prepend=0.0) ** 2).sum(axis=-1)
    return np.asarray(1 - _ATTENTION_SHARE + _ATTENTION_SHARE * costs / np.median(costs))


def draw_durations(spec: JobSpec, program: Program) -> FloatArray:
    """Durations in ns (transfers for communication ops), without pauses of the host.

    Equal draws for specs that differ only in their plants.
    """
    compute_random, comm_random, tail_random = (generator(spec, place) for place in (_COMPUTE, _COMM, _TAILS))
    lanes = (spec.steps, spec.dp)
    sequences = [sequence_factors(spec, plant) for plant in spec.plants if isinstance(plant, LongSequences)]
    durations = np.empty((len(program.ops), *lanes))
    for op in program.ops:
        row = durations[op.row]
        is_compute = op.kind in COMPUTE_KINDS
        variation = spec.noise if is_compute else spec.comm_noise
        if variation > 0:
            sigma = math.sqrt(math.log1p(variation * variation))
            normal = (compute_random if is_compute else comm_random).standard_normal(lanes)
            np.exp(normal * sigma - sigma * sigma / 2, out=row)  # mean 1
        else:
            row.fill(1.0)
        row *= base_duration_ns(spec, op)
        if op.kind in PASSES:
            if spec.tail_ratio:
                row *= _tails(spec.tail_ratio, tail_random, lanes)
            for factors_of_microbatch in sequences:
                row *= factors_of_microbatch[:, :, op.microbatch]
        factors = planted_factors(spec, op)
        if factors is not None:
            row *= factors
        np.maximum(np.rint(row, out=row), 1.0, out=row)  # an op of no length would have no place in its stream
    return durations


def _tails(ratio: float, random: np.random.Generator, lanes: tuple[int, int]) -> FloatArray:
    excess = _TAIL_SCALE * random.pareto(_TAIL_EXPONENT, lanes)
    return np.where(random.random(lanes) < ratio, np.minimum(1 + excess, _MOST_TAIL_FACTOR), 1.0)


def draw_launch_delays(spec: JobSpec, program: Program) -> FloatArray | None:
    """Launch delays in ns, or None when every op launches at once."""
    plants = [plant for plant in spec.plants if isinstance(plant, SlowLaunch)]
    if spec.launch_delay_ms == 0 and not plants:
        return None
    shape = (len(program.ops), spec.steps, spec.dp)
    delays: FloatArray = np.zeros(shape)
    if spec.launch_delay_ms:
        delays = generator(spec, _LAUNCH).exponential(spec.launch_delay_ms * NS_PER_MS, shape)
    computes = [op for op in program.ops if op.kind in PASSES]
    for plant in plants:
        random = plant_generator(spec, plant)
        for op in computes:
            drawn = random.exponential(plant.delay_ms * NS_PER_MS, shape[1:])
            if plant.covers(op.stage):
                delays[op.row][:, plant.lanes] += drawn[:, plant.lanes]
    return np.rint(delays, out=delays)
