"""What is planted in synthetic jobs: how it is written, what it changes, and what removing it gives back."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smon_rt.synth import (
    JobSpec,
    LongSequences,
    Pauses,
    Plant,
    SlowGroup,
    SlowLaunch,
    SlowLink,
    SynthError,
    make_job,
    parse_plant,
)
from smon_rt.synth.draws import Draws, draw
from smon_rt.synth.plants import AnyPlant
from smon_rt.synth.schedule import DP_SYNC_KINDS, Program

BASE = JobSpec(dp=3, pp=3, microbatches=6, steps=6, noise=0.05, comm_noise=0.1, seed=11)
PLANTS: dict[str, AnyPlant] = {
    "worker=2,1:1.5": Plant(1, 1.5, 2),
    "stage=2:1.3": Plant(2, 1.3),
    "sequence_length=1.2": LongSequences(1.2),
    "gc=80@0.25": Pauses("gc", 80, 0.25),
    "gc=1,2:80/3": Pauses("gc", 80, every_steps=3, dp_rank=1, stage=2),
    "data_loading=0,0:50@0.5": Pauses("data_loading", 50, 0.5, dp_rank=0, stage=0),
    "data_loading=30/2": Pauses("data_loading", 30, every_steps=2),
    "pp_communication=1:20": SlowLink(1, 20),
    "pp_communication=2,0:20": SlowLink(0, 20, 2),
    "dp_communication=1:6": SlowGroup(1, 6),
    "host_launch_delay=1,1:4": SlowLaunch(4, 1, 1),
    "host_launch_delay=0.5": SlowLaunch(0.5),
}


@pytest.mark.parametrize("text", PLANTS)
def test_each_plant_is_read_as_it_is_written(text: str) -> None:
    assert parse_plant(text) == PLANTS[text]
    assert str(PLANTS[text]) == text


@pytest.mark.parametrize(
    "text",
    [
        *("", "gc", "gc=", "gc=5", "gc=1:5@1", "gc=5@x", "gc=5/1.5", "gc=5/0", "noise=1", "stage=1,2:3", "worker=1:2"),
        *("sequence_length=0,1:2", "pp_communication=3", "dp_communication=0,1:3", "host_launch_delay=1:2"),
        "worker=1,2,3:4",
    ],
)
def test_another_form_is_refused_with_the_right_one(text: str) -> None:
    with pytest.raises(SynthError, match=r"^--plant .*: write [^\n]*$"):
        parse_plant(text)


@pytest.mark.parametrize("text", PLANTS)
def test_a_plant_costs_time_and_leaves_every_other_draw_alone(text: str) -> None:
    job = make_job(dataclasses.replace(BASE, plants=(PLANTS[text],)))
    healthy = make_job(BASE)
    (fact,) = job.truth["plants"]
    assert fact["gain_s_per_step"] > 0.002
    assert fact["cause"] == text.partition("=")[0]
    changed = job.durations_ns != healthy.durations_ns
    kinds = {op.kind for op in job.program.ops if changed[op.row].any()}
    passes, messages = {"forward_compute", "backward_compute"}, {"forward_send", "forward_recv"}
    messages |= {kind.replace("forward", "backward") for kind in messages}
    expected: dict[str, set[str]] = {
        "worker": passes,
        "stage": passes,
        "sequence_length": passes,
        "gc": passes if "@" in text else set(),
        "pp_communication": messages,
        "dp_communication": {"params_all_gather", "grads_reduce_scatter"},
    }
    assert kinds == expected.get(fact["cause"], set())


def test_slow_links_are_those_between_two_stages_and_slow_groups_those_of_one() -> None:
    healthy = make_job(BASE)
    job = make_job(dataclasses.replace(BASE, plants=(SlowLink(1, 10, 2), SlowGroup(0, 3))))
    for op in job.program.ops:
        ratio = job.durations_ns[op.row] / healthy.durations_ns[op.row]
        # From stage 1 to 2 forward, back the other way.
        over_link = (op.stage, op.kind) in {
            *((1, "forward_send"), (2, "forward_recv"), (2, "backward_send"), (1, "backward_recv"))
        }
        in_group = op.stage == 0 and op.kind in ("params_all_gather", "grads_reduce_scatter")
        expected = np.full_like(ratio, 3.0 if in_group else 1.0)
        if over_link:
            expected[:, 2] = 10.0
        assert ratio == pytest.approx(expected, rel=1e-4)


def test_long_sequences_slow_a_microbatch_alike_on_all_stages_and_in_both_passes() -> None:
    job = make_job(dataclasses.replace(BASE, noise=0, microbatches=40, plants=(LongSequences(1.2),)))
    factors: dict[int, list[Any]] = {}
    for op in job.program.ops:
        if op.kind in ("forward_compute", "backward_compute"):
            base_ns = 1e7 if op.kind == "forward_compute" else 2e7
            factors.setdefault(op.microbatch, []).append(job.durations_ns[op.row] / base_ns)
    for found in factors.values():
        assert len(found) == 2 * BASE.pp
        assert all(factor == pytest.approx(found[0], rel=1e-6) for factor in found)
    every = np.array([found[0] for found in factors.values()])
    assert np.median(every) == pytest.approx(1.0, rel=1e-6)
    assert 0.5 < every.min() < 0.9
    assert every.max() > 1.5


def test_random_collections_come_as_often_as_asked_and_planned_ones_together() -> None:
    spec = dataclasses.replace(BASE, steps=60)
    random = make_job(dataclasses.replace(spec, plants=(Pauses("gc", 50, 0.3),))).draws.pauses
    assert 0.25 < len(random) / (9 * 60) < 0.35
    assert all(pause.row is not None and pause.offset_ns > 0 for pause in random)
    planned = make_job(dataclasses.replace(spec, plants=(Pauses("gc", 50, every_steps=20),))).draws.pauses
    assert {pause.step for pause in planned} == {19, 39, 59}
    assert len(planned) == 3 * 9
    assert all(pause.row is None and pause.duration_ns == 50e6 for pause in planned)


def test_collections_of_two_plants_do_not_overlap() -> None:
    plants = (Pauses("gc", 500, 1.0), Pauses("gc", 700, 1.0, dp_rank=0, stage=0))
    job = make_job(JobSpec(microbatches=1, steps=200, plants=plants))
    by_lane: dict[tuple[int, int | None], list[tuple[float, float]]] = {}
    for pause in job.draws.pauses:
        by_lane.setdefault((pause.step, pause.row), []).append((pause.offset_ns, pause.duration_ns))
    both = [sorted(found) for found in by_lane.values() if len(found) == 2]
    assert len(both) > 50
    assert all(first[0] + first[1] <= second[0] for first, second in both)


def test_of_mixed_plants_each_gain_and_each_pair_is_a_play_without_them() -> None:
    plants = (PLANTS["worker=2,1:1.5"], PLANTS["gc=80@0.25"], PLANTS["sequence_length=1.2"])
    job = make_job(dataclasses.replace(BASE, plants=plants))
    base_s = job.truth["mean_step_time_s"]["base"]

    def without(*indices: int) -> float:
        kept = tuple(plant for index, plant in enumerate(plants) if index not in indices)
        rest = make_job(dataclasses.replace(BASE, plants=kept)).truth["mean_step_time_s"]["base"]
        return float(base_s - rest)

    for index, fact in enumerate(job.truth["plants"]):
        assert fact["gain_s_per_step"] == pytest.approx(without(index), rel=1e-12)
    assert [pair["plants"] for pair in job.truth["pairs"]] == [[0, 1], [0, 2], [1, 2]]
    for pair in job.truth["pairs"]:
        assert pair["gain_s_per_step"] == pytest.approx(without(*pair["plants"]), rel=1e-12)


def test_a_heavy_tail_is_of_few_computes_and_long() -> None:
    healthy = make_job(dataclasses.replace(BASE, steps=50))
    job = make_job(dataclasses.replace(BASE, steps=50, tail_ratio=0.02))
    ratio = job.durations_ns / healthy.durations_ns
    rows = job.program.rows_of("forward_compute", "backward_compute")
    assert 0.015 < (ratio[rows] > 1.0001).mean() < 0.025
    assert ratio.max() > 2
    assert ratio.min() > 0.999


@st.composite
def planted_specs(draw_value: st.DrawFn) -> JobSpec:
    pp, dp = draw_value(st.integers(1, 3)), draw_value(st.integers(1, 3))
    vpp = draw_value(st.integers(1, 2)) if pp > 1 else 1
    microbatches = pp * draw_value(st.integers(1, 2)) + (draw_value(st.integers(0, 2)) if vpp == 1 else 0)
    possible: list[AnyPlant] = [
        *(Plant(pp - 1, 2.0, dp - 1), Plant(0, 1.4), LongSequences(1.0), Pauses("gc", 20, 0.5)),
        *(Pauses("gc", 15, every_steps=2), Pauses("data_loading", 25, 0.5, dp_rank=0, stage=0)),
        *(SlowLaunch(3.0, dp - 1, 0), SlowLaunch(0.2)),
    ]
    possible += [SlowLink(0, 30.0), SlowLink(0, 30.0, dp - 1)] if pp > 1 else []
    possible += [SlowGroup(pp - 1, 4.0)] if dp > 1 else []
    plants = draw_value(st.lists(st.sampled_from(possible), max_size=3, unique_by=lambda plant: plant.place))
    most_fewer = microbatches - pp if vpp == 1 else 0
    return JobSpec(
        dp=dp,
        pp=pp,
        vpp=vpp,
        microbatches=microbatches,
        steps=2,
        noise=0.1,
        comm_noise=0.2,
        tail_ratio=draw_value(st.sampled_from([0.0, 0.1])),
        fewer_microbatches=draw_value(st.integers(0, most_fewer)),
        data_loading_ms=draw_value(st.sampled_from([0.0, 1.0])),
        overlap=dp > 1 and draw_value(st.booleans()),
        plants=tuple(plants),
        seed=draw_value(st.integers(0, 1000)),
    )


def naive_step_times_s(spec: JobSpec, program: Program, draws: Draws) -> list[float]:
    """Step by step, op by op, until nothing changes any more; what a lane lacks is not in its graph at all."""
    return [_naive_step_ns(spec, program, draws, step) / 1e9 for step in range(spec.steps)]


def _naive_step_ns(spec: JobSpec, program: Program, draws: Draws, step: int) -> float:
    nodes = {
        (op.row, lane)
        for op in program.ops
        for lane in range(spec.dp)
        if draws.is_present is None or draws.is_present[op.row, step, lane]
    }
    before: dict[tuple[int, int], list[tuple[int, int]]] = {node: [] for node in nodes}
    for stream in program.streams:
        for lane in range(spec.dp):
            rows = [(op.row, lane) for op in stream if (op.row, lane) in nodes]
            for earlier, later in pairwise(rows):
                before[later].append(earlier)
    for op in program.ops:
        for lane in range(spec.dp):
            if (op.row, lane) in nodes:
                before[op.row, lane] += [(row, lane) for row in op.waits if (row, lane) in nodes]
    # The collections after the last compute wait for the last one that is there, by the stream.
    ops = {op.row: op for op in program.ops}
    for row, lane in nodes:
        if ops[row].kind in ("gc", "grads_reduce_scatter"):
            lacking = [other for other in ops[row].waits if (other, lane) not in nodes]
            for other in lacking:
                stream = next(stream for stream in program.streams if ops[other] in stream)
                there = [(op.row, lane) for op in stream if (op.row, lane) in nodes]
                before[row, lane].append(there[-1])
    start = dict.fromkeys(nodes, 0.0)
    end = dict.fromkeys(nodes, 0.0)
    is_moving = True
    while is_moving:
        is_moving = False
        for row, lane in nodes:
            begin = 0.0 if draws.begins_ns is None else draws.begins_ns[ops[row].stage, step, lane]
            delay = 0.0 if draws.launch_delays_ns is None else draws.launch_delays_ns[row, step, lane]
            start[row, lane] = max([begin, *(end[other] for other in before[row, lane])]) + delay
        for row, lane in nodes:
            op = ops[row]
            members = [row] if op.meeting is None else [other.row for other in program.meetings[op.meeting]]
            lanes = range(spec.dp) if op.kind in DP_SYNC_KINDS else [lane]
            gate = max(start[member, there] for member in members for there in lanes)
            found = gate + draws.durations_ns[row, step, lane]
            is_moving |= found != end[row, lane]
            end[row, lane] = found
    first = 0.0 if draws.begins_ns is not None else min(start.values())
    return max(end.values()) - first


@settings(max_examples=25)
@given(planted_specs())
def test_the_truth_is_what_a_naive_simulation_of_each_job_says(spec: JobSpec) -> None:
    job = make_job(spec)
    base = naive_step_times_s(spec, job.program, job.draws)
    assert job.truth["step_time_s"]["base"] == pytest.approx(base, rel=1e-12)
    for index, fact in enumerate(job.truth["plants"]):
        healthy = spec.without_plant(index)
        rest = naive_step_times_s(healthy, job.program, draw(healthy, job.program))
        assert fact["gain_s_per_step"] == pytest.approx(float(np.mean(base) - np.mean(rest)), rel=1e-9, abs=1e-12)


@settings(max_examples=50)
@given(planted_specs())
def test_no_time_is_negative_and_the_order_of_every_stream_is_kept(spec: JobSpec) -> None:
    job = make_job(spec)
    draws, timeline = job.draws, job.timeline
    assert draws.durations_ns.min() >= 1
    assert draws.durations_without_pauses_ns().min() >= 1
    assert draws.launch_delays_ns is None or draws.launch_delays_ns.min() >= 0
    assert timeline.starts_ns.min() >= 0
    assert (timeline.ends_ns >= timeline.starts_ns).all()
    for stream in job.program.streams:
        for earlier, later in pairwise(stream):
            assert (timeline.starts_ns[later.row] >= timeline.ends_ns[earlier.row]).all()
    for pause in draws.pauses:
        assert pause.offset_ns >= 0
        own_ns = draws.begins_ns[pause.stage] if pause.row is None and draws.begins_ns is not None else None
        room = draws.durations_ns[pause.row] if own_ns is None else own_ns
        assert pause.offset_ns + pause.duration_ns <= room[pause.step, pause.dp_rank]


def test_with_one_count_everywhere_fewer_microbatches_are_a_smaller_job() -> None:
    spec = JobSpec(dp=1, pp=3, microbatches=6, steps=12, fewer_microbatches=3, seed=5)
    job = make_job(spec)
    present = job.draws.is_present
    assert present is not None
    first = [op.row for op in job.program.ops if op.stage == 0 and op.kind == "forward_compute"]
    counts = present[first].sum(axis=0)[:, 0]
    assert {3, 4, 5, 6} == set(counts.tolist())
    times = job.truth["step_time_s"]["base"]
    for step, count in enumerate(counts.tolist()):
        smaller = make_job(dataclasses.replace(spec, microbatches=count, fewer_microbatches=0))
        assert times[step] == pytest.approx(smaller.truth["step_time_s"]["base"][0], rel=1e-12)
