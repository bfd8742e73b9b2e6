"""Everything random of a job: durations, launch delays, pauses of the host, and which microbatches there are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from smon_rt.synth.durations import (
    MICROBATCH_COUNTS,
    NS_PER_MS,
    PASSES,
    FloatArray,
    draw_durations,
    draw_launch_delays,
    generator,
    plant_generator,
)
from smon_rt.synth.members import member_factors
from smon_rt.synth.plants import Pauses
from smon_rt.synth.schedule import Op, Program
from smon_rt.synth.spec import JobSpec

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Pause:
    """The host of one worker stands still in one step: from `offset_ns` after the start of the op at `row`.

    `row` None: after the start of the step, before the worker does anything else.
    """

    kind: str
    stage: int
    step: int
    dp_rank: int
    row: int | None
    offset_ns: float
    duration_ns: float


@dataclass(frozen=True)
class Draws:
    """What a job is played with; arrays of lanes are [op row, step, dp rank], times whole nanoseconds.

    `durations_ns` has the transfers of communication ops, and the pauses inside computes. `launch_delays_ns` None:
    every op launches at once. `begins_ns` [stage, step, dp rank]: when a worker has its data, None: from the step's
    start. `is_present` None: all ops are, in all lanes.
    """

    durations_ns: FloatArray
    launch_delays_ns: FloatArray | None = None
    begins_ns: FloatArray | None = None
    is_present: BoolArray | None = None
    pauses: tuple[Pause, ...] = ()

    def durations_without_pauses_ns(self) -> FloatArray:
        """Durations, with no pause in any compute."""
        durations: FloatArray = self.durations_ns.copy()
        for pause in self.pauses:
            if pause.row is not None:
                durations[pause.row, pause.step, pause.dp_rank] -= pause.duration_ns
        return durations

    def own_durations_ns(self, row: int) -> FloatArray:
        """The same of one op, [step, dp rank]."""
        durations: FloatArray = self.durations_ns[row].copy()
        for pause in self.pauses:
            if pause.row == row:
                durations[pause.step, pause.dp_rank] -= pause.duration_ns
        return durations


def draw(spec: JobSpec, program: Program) -> Draws:
    """Equal draws for specs that differ only in their plants, but for what these plant."""
    durations = draw_durations(spec, program)
    for op in program.ops:
        if (factors := member_factors(spec, op)) is not None:
            durations[op.row] = np.maximum(np.rint(durations[op.row] * factors), 1.0)
    is_present = _draw_presence(spec, program)
    begins = np.zeros((spec.pp, spec.steps, spec.dp))
    pauses: list[Pause] = []
    _load_data(spec, begins, pauses)
    for plant in spec.plants:
        if isinstance(plant, Pauses) and not plant.is_inside_a_compute and plant.cause == "gc":
            hits = _hits(spec, plant, plant_generator(spec, plant))
            for stage, step, dp_rank in np.argwhere(hits).tolist():
                _pause_before(begins, pauses, "gc", (stage, step, dp_rank), round(plant.pause_ms * NS_PER_MS))
    for plant in spec.plants:
        if isinstance(plant, Pauses) and plant.is_inside_a_compute:
            _collect_inside(spec, program, plant, durations, is_present, pauses)
    delays = draw_launch_delays(spec, program)
    return Draws(durations, delays, begins if begins.any() else None, is_present, tuple(pauses))


def _hits(spec: JobSpec, plant: Pauses, random: np.random.Generator) -> BoolArray:
    """In which steps which workers pause, [stage, step, dp rank]."""
    shape = (spec.pp, spec.steps, spec.dp)
    if plant.every_steps:
        in_step = np.arange(spec.steps) % plant.every_steps == plant.every_steps - 1
        hits: BoolArray = np.broadcast_to(in_step[None, :, None], shape).copy()
    else:
        hits = random.random(shape) < plant.probability
    for stage in range(spec.pp):
        if not plant.covers(stage):
            hits[stage] = False
    if plant.dp_rank is not None:
        hits[:, :, np.arange(spec.dp) != plant.dp_rank] = False
    return hits


def _load_data(spec: JobSpec, begins: FloatArray, pauses: list[Pause]) -> None:
    """Each worker waits for its data as long as it takes, and for what is planted."""
    waits = np.full(begins.shape, float(round(spec.data_loading_ms * NS_PER_MS)))
    for plant in spec.plants:
        if isinstance(plant, Pauses) and plant.cause == "data_loading":
            hits = _hits(spec, plant, plant_generator(spec, plant))
            waits += hits * float(round(plant.pause_ms * NS_PER_MS))
    for stage, step, dp_rank in np.argwhere(waits > 0).tolist():
        _pause_before(begins, pauses, "data_loading", (stage, step, dp_rank), float(waits[stage, step, dp_rank]))


def _pause_before(
    begins: FloatArray, pauses: list[Pause], kind: str, lane: tuple[int, int, int], duration_ns: float
) -> None:
    stage, step, dp_rank = lane
    pauses.append(Pause(kind, stage, step, dp_rank, None, float(begins[lane]), duration_ns))
    begins[lane] += duration_ns


def _collect_inside(
    spec: JobSpec,
    program: Program,
    plant: Pauses,
    durations: FloatArray,
    is_present: BoolArray | None,
    pauses: list[Pause],
) -> None:
    """Collections in computes: somewhere in the middle of one that the worker has."""
    random = plant_generator(spec, plant)
    hits = _hits(spec, plant, random)
    which, part = random.random(hits.shape), random.uniform(0.1, 0.9, hits.shape)
    computes = [[op.row for op in program.ops if op.stage == stage and op.kind in PASSES] for stage in range(spec.pp)]
    pause_ns = float(round(plant.pause_ms * NS_PER_MS))
    for stage, step, dp_rank in np.argwhere(hits).tolist():
        rows = computes[stage]
        row = rows[int(which[stage, step, dp_rank] * len(rows))]
        if is_present is not None and not is_present[row, step, dp_rank]:
            row = rows[0]
        own_ns = durations[row, step, dp_rank]
        offset_ns = float(np.rint(own_ns * part[stage, step, dp_rank]))
        # Not during another plant's collection.
        ends = [p.offset_ns + p.duration_ns for p in pauses if (p.row, p.step, p.dp_rank) == (row, step, dp_rank)]
        offset_ns = max([offset_ns, *ends])
        pauses.append(Pause("gc", stage, step, dp_rank, row, offset_ns, pause_ns))
        durations[row, step, dp_rank] += pause_ns


def _draw_presence(spec: JobSpec, program: Program) -> BoolArray | None:
    """Each dp rank has some microbatches less than the most, drawn for each step: the last ones are not there."""
    if not spec.fewer_microbatches:
        return None
    lanes = (spec.steps, spec.dp)
    counts = spec.microbatches - generator(spec, MICROBATCH_COUNTS).integers(0, spec.fewer_microbatches + 1, lanes)
    present = np.ones((len(program.ops), *lanes), np.bool_)
    for op in program.ops:
        microbatch = microbatch_of(op)
        if microbatch is not None:
            present[op.row] = microbatch < counts
    return present


def microbatch_of(op: Op) -> int | None:
    """The microbatch that an op is for: also that of a message, which the artifact does not record."""
    if op.microbatch >= 0:
        return op.microbatch
    if op.meeting is not None and op.meeting[0] in ("forward", "backward"):
        return int(str(op.meeting[1]))
    return None
