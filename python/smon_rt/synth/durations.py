"""Durations of every op of every lane: what the kind takes, times noise, times what is planted.

Arrays are float64 of shape [op row, step, dp rank] and hold whole nanoseconds, so that sums of them are exact.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from smon_rt.synth.schedule import COMPUTE_KINDS, Op, Program
from smon_rt.synth.spec import JobSpec

FloatArray = npt.NDArray[np.float64]

NS_PER_MS = 1e6
_PLANTED_KINDS = ("forward_compute", "backward_compute")


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


def planted_factors(spec: JobSpec, op: Op) -> FloatArray | None:
    """Factor of each dp rank on this op, or None when nothing is planted on it."""
    if op.kind not in _PLANTED_KINDS:
        return None
    factors: FloatArray | None = None
    for plant in spec.plants:
        if plant.stage == op.stage:
            factors = np.ones(spec.dp) if factors is None else factors
            factors[slice(None) if plant.dp_rank is None else plant.dp_rank] *= plant.factor
    return factors


def _streams_of(seed: int) -> list[np.random.Generator]:
    """Independent generators for compute noise, transfer noise and launch delays: one option never moves another's."""
    return [np.random.Generator(np.random.PCG64(child)) for child in np.random.SeedSequence(seed).spawn(3)]


def draw_durations(spec: JobSpec, program: Program) -> FloatArray:
    """Durations in ns (transfers for communication ops); equal draws for specs that differ only in their plants."""
    compute_random, comm_random, _ = _streams_of(spec.seed)
    lanes = (spec.steps, spec.dp)
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
        factors = planted_factors(spec, op)
        if factors is not None:
            row *= factors
        np.maximum(np.rint(row, out=row), 1.0, out=row)  # an op of no length would have no place in its stream
    return durations


def draw_launch_delays(spec: JobSpec, program: Program) -> FloatArray | None:
    """Launch delays in ns, or None when every op launches at once."""
    if spec.launch_delay_ms == 0:
        return None
    random = _streams_of(spec.seed)[2]
    delays: FloatArray = random.exponential(spec.launch_delay_ms * NS_PER_MS, (len(program.ops), spec.steps, spec.dp))
    return np.rint(delays, out=delays)
