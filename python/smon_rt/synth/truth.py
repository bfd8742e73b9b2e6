"""The truth about a synthetic job, found by playing it again with other durations.

Ideal replaces every duration by its kind's: the mean for compute (forward, backward, gc, optimizer), the median of the
transfers for communication, over all lanes and stages; the host makes no pauses. Every number here comes from a full
play of the generator's own simulator, one play a question: slow, and independent of the analysis it is there to check.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import numpy.typing as npt

from smon_rt.synth.draws import Draws, draw
from smon_rt.synth.durations import FloatArray
from smon_rt.synth.schedule import COMPUTE_KINDS, Program
from smon_rt.synth.spec import JobSpec
from smon_rt.synth.timeline import Timeline, play

_NS_PER_S = 1e9
_MERGED_KINDS = {
    "forward_send": "forward_pp_comm",
    "forward_recv": "forward_pp_comm",
    "backward_send": "backward_pp_comm",
    "backward_recv": "backward_pp_comm",
}


def ideal_durations(program: Program, draws: Draws) -> FloatArray:
    """Durations without variation: one value a kind, as [op row, 1, 1] in ns (all lanes of a row are equal)."""
    durations_ns = draws.durations_without_pauses_ns() if draws.pauses else draws.durations_ns
    ideal = np.empty((len(program.ops), 1, 1))
    for kind in {op.kind for op in program.ops}:
        rows = program.rows_of(kind)
        values = durations_ns[rows]
        if draws.is_present is not None:
            values = values[draws.is_present[rows]]
        ideal[rows] = values.mean() if kind in COMPUTE_KINDS else np.median(values)
    return ideal


def _ideal_step_times_s(spec: JobSpec, program: Program, draws: Draws) -> FloatArray:
    ideal = ideal_durations(program, draws)
    if draws.is_present is None:
        # All ideal lanes are equal: one lane is played, and stands for every step.
        return np.repeat(simulated_step_times_s(play(program, Draws(ideal))), spec.steps)
    every = np.broadcast_to(ideal, draws.durations_ns.shape).copy()
    return simulated_step_times_s(play(program, Draws(every, is_present=draws.is_present)))


def recorded_step_times_s(timeline: Timeline) -> FloatArray:
    """Step times as a trace shows them, first start to last end, [step] in seconds."""
    first, last = timeline.span_ns()
    return np.asarray((last - first) / _NS_PER_S)


def simulated_step_times_s(timeline: Timeline) -> FloatArray:
    """Step times from the step's start to the end of its last optimizer, [step] in seconds."""
    return timeline.step_times_ns() / _NS_PER_S


def job_truth(spec: JobSpec, program: Program, draws: Draws, timeline: Timeline) -> dict[str, Any]:
    """Step times, slowdown and the gain of each plant, as `job.truth.json` holds them.

    `gain_s_per_step` of a plant: mean step time of the trace minus that of the same random draws without that plant; of
    two plants: without both, which is another number than the sum.
    """
    base = recorded_step_times_s(timeline)
    nodelay = base
    if draws.launch_delays_ns is not None:
        nodelay = simulated_step_times_s(play(program, dataclasses.replace(draws, launch_delays_ns=None)))

    def gain_of(*indices: int) -> float:
        healthy = play(program, draw(spec.without_plant(*indices), program))
        return float(base.mean() - recorded_step_times_s(healthy).mean())

    plants = [
        {"cause": plant.cause, "where": plant.where, **plant.parameters, "gain_s_per_step": gain_of(index)}
        for index, plant in enumerate(spec.plants)
    ]
    pairs = itertools.combinations(range(len(spec.plants)), 2)
    step_times = {"base": base, "nodelay": nodelay, "ideal": _ideal_step_times_s(spec, program, draws)}
    return {
        "name": spec.name,
        "op_count": draws.durations_ns.size if draws.is_present is None else int(draws.is_present.sum()),
        "step_count": spec.steps,
        "slowdown": float(nodelay.mean() / step_times["ideal"].mean()),
        "launch_slowdown": float(base.mean() / nodelay.mean()),
        "mean_step_time_s": {name: float(times.mean()) for name, times in step_times.items()},
        "step_time_s": {name: times.tolist() for name, times in step_times.items()},
        "plants": plants,
        "pairs": [{"plants": [*pair], "gain_s_per_step": gain_of(*pair)} for pair in pairs],
        "parameters": _parameters(spec),
    }


def _parameters(spec: JobSpec) -> dict[str, Any]:
    """The spec as it was given, so that the job can be made again."""
    parameters = dataclasses.asdict(spec)
    parameters["schedule"] = spec.resolved_schedule
    parameters["missing_ranks"] = list(spec.missing_ranks)
    parameters["plants"] = [str(plant) for plant in spec.plants]
    return parameters


def oracle_slowdowns(program: Program, draws: Draws) -> dict[str, Any]:
    """S and its parts by brute force: only one group's durations put back into the ideal job, one play a group.

    Keys: `S`, `by_kind` (snake_case, p2p merged), `by_stage` {"0"}, `by_dp_rank` {"0"}, `by_worker` {"dp,stage"}. Each
    is mean step time over mean ideal step time. Cost: one play for each kind, stage, dp rank and worker. Pauses of the
    host have no share in it.
    """
    durations_ns = draws.durations_without_pauses_ns()
    _, step_count, dp_size = durations_ns.shape
    ideal = np.broadcast_to(ideal_durations(program, draws), durations_ns.shape)

    def step_time_s(durations: FloatArray) -> float:
        return float(simulated_step_times_s(play(program, Draws(durations, is_present=draws.is_present))).mean())

    ideal_time = step_time_s(ideal.copy())
    stages = np.array([op.stage for op in program.ops])
    kinds = np.array([_MERGED_KINDS.get(op.kind, op.kind) for op in program.ops])
    lanes = np.broadcast_to(np.arange(dp_size), (step_count, dp_size))

    def slowdown(is_back: npt.NDArray[np.bool_]) -> float:
        return step_time_s(np.where(is_back, durations_ns, ideal)) / ideal_time

    def of_row(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        return mask[:, None, None]

    everything = np.ones(len(program.ops), dtype=bool)
    stage_count = int(stages.max()) + 1
    return {
        "S": slowdown(of_row(everything)),
        "by_kind": {str(kind): slowdown(of_row(kinds == kind)) for kind in np.unique(kinds)},
        "by_stage": {str(stage): slowdown(of_row(stages == stage)) for stage in range(stage_count)},
        "by_dp_rank": {str(dp_rank): slowdown(lanes == dp_rank) for dp_rank in range(dp_size)},
        "by_worker": {
            f"{dp_rank},{stage}": slowdown(of_row(stages == stage) & (lanes == dp_rank))
            for dp_rank in range(dp_size)
            for stage in range(stage_count)
        },
    }
