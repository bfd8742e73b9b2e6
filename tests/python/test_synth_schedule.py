"""The order of computes and messages that a synthetic job follows."""

from __future__ import annotations

from collections import Counter

import pytest

from smon_rt.synth import Durations, JobSpec, Plant, SynthError, parse_plant
from smon_rt.synth.schedule import Compute, Program, build_program, compute_order, warmup_count


def order_text(spec: JobSpec, stage: int) -> str:
    """`F0.1` is the forward of microbatch 0 through chunk 1 of the stage."""
    return " ".join(f"{c.direction[0].upper()}{c.microbatch}.{c.chunk}" for c in compute_order(spec, stage))


def real_messages(program: Program, kind: str, stage: int) -> list[tuple[object, ...]]:
    """What a stage sends or receives, in launch order, without the ops that have no peer."""
    return [op.meeting for op in program.ops if op.kind == kind and op.stage == stage and op.meeting is not None]


def test_one_f_one_b_is_the_textbook_order() -> None:
    spec = JobSpec(pp=2, microbatches=3)
    assert order_text(spec, 0) == "F0.0 F1.0 B0.0 F2.0 B1.0 B2.0"
    assert order_text(spec, 1) == "F0.0 B0.0 F1.0 B1.0 F2.0 B2.0"


def test_interleaved_runs_each_chunk_for_pp_microbatches_and_backwards_from_the_last_chunk() -> None:
    spec = JobSpec(pp=2, vpp=2, microbatches=4)
    assert order_text(spec, 0) == ("F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 B2.1 B3.1 B2.0 B3.0")
    assert order_text(spec, 1) == ("F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0")


def test_warm_up_is_megatrons_and_never_more_than_all_forwards() -> None:
    assert [warmup_count(JobSpec(pp=4, microbatches=8), stage) for stage in range(4)] == [3, 2, 1, 0]
    assert [warmup_count(JobSpec(pp=4, microbatches=2), stage) for stage in range(4)] == [2, 2, 1, 0]
    interleaved = JobSpec(pp=4, vpp=3, microbatches=8)
    assert [warmup_count(interleaved, stage) for stage in range(4)] == [14, 12, 10, 8]
    assert warmup_count(JobSpec(pp=4, vpp=2, microbatches=4), 0) == 8


@pytest.mark.parametrize("spec", [JobSpec(pp=3, microbatches=5), JobSpec(pp=3, vpp=2, microbatches=6)])
def test_every_microbatch_goes_once_through_every_chunk_forward_before_backward(spec: JobSpec) -> None:
    for stage in range(spec.pp):
        order = compute_order(spec, stage)
        place = {compute: index for index, compute in enumerate(order)}
        assert len(place) == len(order) == 2 * spec.microbatches * spec.vpp
        for microbatch in range(spec.microbatches):
            for chunk in range(spec.vpp):
                assert place[Compute("forward", microbatch, chunk)] < place[Compute("backward", microbatch, chunk)]


@pytest.mark.parametrize(("pp", "vpp", "microbatches"), [(2, 1, 5), (4, 1, 8), (2, 2, 4), (3, 2, 6), (4, 3, 8)])
def test_the_nth_send_of_a_stage_is_the_nth_receive_of_its_neighbour(pp: int, vpp: int, microbatches: int) -> None:
    program = build_program(JobSpec(pp=pp, vpp=vpp, microbatches=microbatches))
    paired = 0
    for stage in range(pp):
        for direction, neighbour in (("forward", (stage + 1) % pp), ("backward", (stage - 1) % pp)):
            sent = real_messages(program, f"{direction}_send", stage)
            assert sent == real_messages(program, f"{direction}_recv", neighbour)
            paired += len(sent)
    assert paired == 2 * microbatches * (pp * vpp - 1)
    assert all(len(members) == 2 for key, members in program.meetings.items() if key[0] in ("forward", "backward"))


def test_counts_of_each_kind_are_the_schedules() -> None:
    program = build_program(JobSpec(dp=2, pp=3, microbatches=4, overlap=True))
    counts = Counter((op.kind, op.stage) for op in program.ops)
    for stage in range(3):
        assert counts["forward_compute", stage] == counts["backward_compute", stage] == 4
        assert counts["forward_send", stage] == counts["backward_recv", stage] == (4 if stage < 2 else 0)
        assert counts["forward_recv", stage] == counts["backward_send", stage] == (4 if stage > 0 else 0)
        assert counts["embedding_grads_all_reduce", stage] == (0 if stage == 1 else 1)
        for kind in (
            "params_all_gather",
            "grads_reduce_scatter",
            "separate_grads_all_reduce",
            "layernorm_grads_all_reduce",
            "optimizer_clip_main_grad",
            "optimizer",
            "gc",
        ):
            assert counts[kind, stage] == 1


def test_without_data_parallelism_there_is_no_data_parallel_communication() -> None:
    kinds = {op.kind for op in build_program(JobSpec(dp=1, pp=2)).ops}
    assert not kinds & {"params_all_gather", "grads_reduce_scatter", "separate_grads_all_reduce"}


def test_without_a_pipeline_there_are_no_messages_and_one_embedding_reduction() -> None:
    program = build_program(JobSpec(dp=2, pp=1))
    assert not any("send" in op.kind or "recv" in op.kind for op in program.ops)
    assert len(program.meetings["embedding",]) == 1


def test_interleaved_stages_record_one_message_a_compute_and_the_models_ends_do_nothing() -> None:
    spec = JobSpec(pp=2, vpp=2, microbatches=4)
    program = build_program(spec)
    counts = Counter((op.kind, op.stage) for op in program.ops if "send" in op.kind or "recv" in op.kind)
    assert set(counts.values()) == {8}
    idle = Counter((op.kind, op.stage) for op in program.ops if op.is_no_op)
    assert idle == {
        ("forward_recv", 0): 4,
        ("forward_send", 1): 4,
        ("backward_recv", 1): 4,
        ("backward_send", 0): 4,
    }
    assert all(op.meeting is None for op in program.ops if op.is_no_op)


def test_the_first_receive_of_stage_0_can_be_left_out() -> None:
    whole = build_program(JobSpec(pp=2, vpp=2, microbatches=4))
    short = build_program(JobSpec(pp=2, vpp=2, microbatches=4, skip_first_recv=True))
    assert len(short.ops) == len(whole.ops) - 1
    recvs = [op for op in short.ops if op.kind == "forward_recv" and op.stage == 0]
    assert [op.seq_id for op in recvs] == list(range(7))


def test_overlapped_reductions_come_in_the_order_of_their_last_backwards() -> None:
    program = build_program(JobSpec(dp=2, pp=2, vpp=3, microbatches=4, overlap=True))
    reductions = [op.chunk for op in program.ops if op.kind == "grads_reduce_scatter" and op.stage == 0]
    assert reductions == [2, 1, 0]


@pytest.mark.parametrize(
    ("text", "plant"),
    [("worker=1,0:1.5", Plant(stage=0, factor=1.5, dp_rank=1)), ("stage=3:2", Plant(stage=3, factor=2.0))],
)
def test_a_plant_reads_back_as_it_was_written(text: str, plant: Plant) -> None:
    assert parse_plant(text) == plant
    assert str(plant) == text


@pytest.mark.parametrize(
    "text", ["", "worker", "worker=1:2", "stage=1,2:3", "rank=1:2", "worker=a,0:2", "worker=0,0:x", "worker=0,0", "=:"]
)
def test_a_plant_that_cannot_be_read_is_an_error_that_shows_how(text: str) -> None:
    with pytest.raises(
        SynthError, match=r"write (worker=DP,STAGE:FACTOR|stage=STAGE:FACTOR|CAUSE=…, as worker=1,0:1.5 or)"
    ):
        parse_plant(text)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dp": 0}, "dp is 0"),
        ({"steps": -1}, "steps is -1"),
        ({"pp": 4, "vpp": 2, "microbatches": 6}, "multiple of pp"),
        ({"vpp": 2}, "pp 2 or more"),
        ({"pp": 2, "vpp": 2, "schedule": "1f1b"}, "use interleaved"),
        ({"pp": 2, "schedule": "interleaved"}, "give vpp 2 or more"),
        ({"pp": 2, "schedule": "zero_bubble"}, "choose 1f1b or interleaved"),
        ({"overlap": True}, "dp 2 or more"),
        ({"skip_first_recv": True}, "vpp 2 or more"),
        ({"noise": float("nan")}, "noise is nan"),
        ({"comm_noise": -0.1}, "comm_noise is -0.1"),
        ({"launch_delay_ms": float("inf")}, "launch_delay_ms is inf"),
        ({"durations": Durations(forward_ms=0)}, "forward_ms is 0"),
        ({"durations": Durations(p2p_ms=float("nan"))}, "p2p_ms is nan"),
        ({"seed": -1}, "seed is -1"),
        ({"plants": (Plant(stage=1, factor=2.0),)}, "no stage 1"),
        ({"plants": (Plant(stage=0, factor=2.0, dp_rank=1),)}, "no dp rank 1"),
        ({"plants": (Plant(stage=0, factor=0.0),)}, "factor from 0.001"),
        ({"plants": (Plant(stage=0, factor=float("nan")),)}, "factor from 0.001"),
        ({"plants": (Plant(stage=0, factor=2.0), Plant(stage=0, factor=3.0))}, "planted twice"),
        ({"steps": 1_000_000, "dp": 64}, "ops, the most is"),
        ({"pp": 1024, "microbatches": 65536}, "for each dp rank, the most is"),
        ({"dp": 4096, "pp": 1024, "tp": 1024, "microbatches": 1}, "ranks, the most is"),
    ],
)
def test_a_job_that_makes_no_sense_is_one_line(options: dict[str, object], said: str) -> None:
    with pytest.raises(SynthError, match=said) as error:
        JobSpec(**options)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
