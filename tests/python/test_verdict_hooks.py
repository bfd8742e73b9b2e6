"""What hooks did not see is said, and nobody is sent to a machine for what no GPU does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from smon_rt import cli
from smon_rt._proto import trace_pb2
from smon_rt.analysis import analyze
from smon_rt.analysis.recording import Member, Recording
from smon_rt.analysis.report import Report
from tests.python.recorded_jobs import WAIT_RETURN
from tests.python.report_fixtures import make_cause, make_raw, make_trace
from tests.python.smon_files import TestSpan, packet, step_packet, write_rank

MS = 1_000_000
GENERATOR = "next() of generator is not seen, since it is not of Python: only of a DataLoader inside"
IN = ("megatron.schedules", "megatron.data")
SEEN = ("megatron.data_iterator", "")
UNSEEN = ("megatron.data_iterator", GENERATOR)


def write_job(
    folder: Path,
    *hooks: tuple[str, str],
    forward_ms: int = 40,
    backward_ms: int = 20,
    loads: bool = False,
    hosts: int = 1,
    layout: dict[str, Any] | None = None,
) -> Path:
    """Four dp ranks, of which rank 1 has such a forward and backward; the others' take 10 and 20 ms."""
    folder.mkdir(parents=True)
    names = trace_pb2.Names(communicator=[trace_pb2.Communicator(id=1, name="dp", member_ranks=range(4))])
    known = [trace_pb2.Hook(name=name, installed=True) for name in IN]
    known += [trace_pb2.Hook(name=name, installed=not reason, reason=reason) for name, reason in hooks]
    for rank in range(4):
        spans, steps = [], []
        for step in range(8):
            begin = at = 100 * step
            lengths = (forward_ms, backward_ms) if rank == 1 else (10, 20)
            loading = [("data_loading", 1)] if loads else []
            for name, length in (*loading, *zip(("forward_compute", "backward_compute"), lengths, strict=True)):
                microbatch = 0 if name.endswith("_compute") else -1
                spans.append(
                    TestSpan(kind=name, step=step, microbatch=microbatch, start_ns=at * MS, duration_ns=length * MS)
                )
                at += length
            times = {"start_ns": at * MS, "duration_ns": (begin + 82 - at) * MS, "time_source": WAIT_RETURN}
            spans.append(TestSpan(kind="grads_all_reduce", step=step, comm_id=1, comm_seq=step + 1, **times))
            spans.append(TestSpan(kind="optimizer", step=step, start_ns=(begin + 82) * MS, duration_ns=3 * MS))
            steps.append((step, begin * MS, 85 * MS, True, False))
        node = rank * hosts // 4
        write_rank(
            folder,
            spans,
            rank=rank,
            world_size=4,
            layout={"dp_size": 4, "dp_rank": rank, **(layout or {"microbatch_count": 1, "schedule": "1f1b"})},
            hooks=known,
            host=f"node{node}",
            boot_id=f"boot{node}",
            packets=[packet(names=names), step_packet(steps)],
        )
    return folder


def verdict_of(folder: Path) -> tuple[str, str]:
    """Action and trust line of a job whose rank 1 is slow."""
    report = analyze(folder)
    assert (report.verdict.cause, report.verdict.where.rank) == ("worker", 1)
    return report.verdict.action, report.verdict.text.splitlines()[-1]


def report_of(
    ratios: tuple[float, float], workers: list[list[int]] | None = None, name: str = "worker", **more: Any
) -> Report:
    """A job of dp 4, pp 4 of which one worker, or such workers, give back half a second of 2.1 s."""
    raw = make_raw()
    detail = more | {"forward_compute_ratio": ratios[0], "backward_compute_ratio": ratios[1]}
    step_s = [value - 0.5 for value in raw["step_time_s"]["base"]]
    workers = workers or [[1, 0]]
    dp_rank, stage = workers[0]
    raw["causes"] = [make_cause(name, step_s, detail=detail, dp_rank=dp_rank, stage=stage, workers=workers)]
    return Report.from_raw(raw, make_trace(raw))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ratios", "is_forward_only"),
    [((4.6, 1.0), True), ((1.5, 1.04), True), ((4.6, 1.3), True), ((1.4, 1.2), False), ((1.1, 1.1), False)],
)
def test_no_gpu_is_slow_in_the_forward_alone(ratios: tuple[float, float], is_forward_only: bool) -> None:
    verdict = report_of(ratios).verdict
    assert ("take rank 1's machine out" not in verdict.action) == is_forward_only
    if is_forward_only:
        assert verdict.action == (
            "look at what the forward of rank 1 does beside computing (data, host) first: a slow GPU would be slow in "
            "the backward, too"
        )
        assert verdict.probable_cause == "work of the host in the forward, such as data: the backward is not slow"


def test_a_member_that_is_slow_in_the_forward_alone_keeps_its_machine() -> None:
    verdict = report_of((2.0, 1.0), name="tensor_parallel_member", members=[[7, 1, 0]]).verdict
    assert verdict.action.startswith("look at what the forward of rank 7 does beside computing (data, host) first")
    assert verdict.probable_cause == "work of the host in the forward, such as data: the backward is not slow"
    both = report_of((2.0, 1.9), name="tensor_parallel_member", members=[[7, 1, 0]]).verdict
    assert "machine out" in both.action


def test_several_workers_slow_in_the_forward_are_named_so() -> None:
    action = report_of((2.0, 1.0), [[2, 1], [1, 1]]).verdict.action
    assert action.startswith("look at what the forwards of ranks 5 and 6 do beside computing (data, host) first")


def test_data_that_no_hook_saw_are_looked_at_first(tmp_path: Path) -> None:
    action, trust = verdict_of(write_job(tmp_path / "generator", UNSEEN))
    assert action.startswith(
        "look at the data loading of rank 1 first: it was not recorded and is part of the forward, which alone is slow"
    )
    assert "machine" not in action
    assert ", data loading not recorded (part of the forward), " in trust

    action, trust = verdict_of(write_job(tmp_path / "in part", UNSEEN, loads=True))
    assert action.startswith("look at the data loading of rank 1 first: it was recorded only in part, and the rest is ")
    assert ", data loading recorded in part (the rest is part of the forward), " in trust

    action, trust = verdict_of(write_job(tmp_path / "class", SEEN, loads=True))
    assert action.startswith("look at what the forward of rank 1 does beside computing")
    assert "data loading" not in trust


@pytest.mark.parametrize(
    ("backward", "unseen", "is_first"), [(1.0, "not", True), (1.6, "not", False), (1.0, "", False)]
)
def test_layers_move_after_a_look_at_data_that_no_hook_saw(backward: float, unseen: str, is_first: bool) -> None:
    raw = make_raw()
    detail = {"forward_compute_ratio": 1.6, "backward_compute_ratio": backward}
    step_s = [value - 0.5 for value in raw["step_time_s"]["base"]]
    raw["causes"] = [make_cause("stage", step_s, detail=detail, stage=1)]
    trace = make_trace(raw)
    members = {(dp, stage): [Member(4 * stage + dp, 0, 0, 0, "", "")] for dp in range(4) for stage in range(4)}
    trace.recording = Recording(members=members, world_size=16, unseen_data={5: unseen} if unseen else {})
    action = Report.from_raw(raw, trace).verdict.action  # type: ignore[arg-type]
    moves = "move layers from stage 1 to the other stages"
    was = "it was not recorded and is part of the forward, which alone is slow"
    assert action == (f"look at the data loading of stage 1 first: {was}; then {moves}" if is_first else moves)


def test_data_that_no_hook_saw_excuse_no_slow_backward(tmp_path: Path) -> None:
    action, trust = verdict_of(write_job(tmp_path / "slow", UNSEEN, forward_ms=20, backward_ms=40, hosts=4))
    assert "take rank 1's machine out" in action
    assert "data loading not recorded" in trust


def test_a_host_with_ranks_that_are_not_slow_is_not_taken_out(tmp_path: Path) -> None:
    action, _ = verdict_of(write_job(tmp_path / "one host", SEEN, forward_ms=20, backward_ms=40))
    assert action == (
        "check rank 1's GPU (clocks, ECC, neighbours) or process on node0, not the machine: ranks 0 and 2–3 there are "
        "not slow"
    )
    action, _ = verdict_of(write_job(tmp_path / "two hosts", SEEN, forward_ms=20, backward_ms=40, hosts=2))
    assert "take rank 1's machine out" in action


def test_a_schedule_that_was_fetched_before_start_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def info(folder: Path) -> str:
        assert cli.run(["info", str(folder)]) == 0
        return capsys.readouterr().out

    none = {"microbatch_count": 0, "schedule": ""}
    # Without a pipeline the script may have a loop of its own, and miss nothing.
    alone = write_job(tmp_path / "no pipeline", layout=none)
    assert " not megatron.passes: no pass of a schedule was seen: if the script uses Megatron's, " in info(alone)
    assert "schedule" not in verdict_of(alone)[1]

    early = write_job(tmp_path / "pipeline", layout={**none, "pp_size": 2, "dp_size": 2})
    assert (
        " not megatron.passes: no pass came through a hooked schedule, so microbatches of messages and data "
        "loading are not recorded: call smon_rt.start before get_forward_backward_func\n"
    ) in info(early)

    seen = write_job(tmp_path / "seen", SEEN, layout=none)
    assert "megatron.passes" not in info(seen)


def test_the_trust_line_says_that_no_schedule_was_seen(tmp_path: Path) -> None:
    """Two pipelines of two stages, whose messages nobody gave a microbatch."""
    layout = {"dp_size": 2, "pp_size": 2, "microbatch_count": 0, "schedule": ""}
    names = trace_pb2.Names(
        communicator=[
            trace_pb2.Communicator(id=1, name="pp", member_ranks=[0, 2]),
            trace_pb2.Communicator(id=2, name="pp", member_ranks=[1, 3]),
        ]
    )
    for rank in range(4):
        dp_rank, stage = rank % 2, rank // 2
        spans, steps = [], []
        for step in range(8):
            begin = 100 * step
            message = {
                "comm_id": 1 + dp_rank,
                "comm_seq": step + 1,
                "peer": 1 - stage,
                "step": step,
                "start_ns": (begin + 20) * MS,
                "duration_ns": 2 * MS,
                "time_source": WAIT_RETURN,
            }
            spans.append(TestSpan(kind="forward_recv" if stage else "forward_send", **message))
            for kind, at in (("forward_compute", 25 if stage else 0), ("backward_compute", 50)):
                times = {"start_ns": (begin + at) * MS, "duration_ns": 20 * MS}
                spans.append(TestSpan(kind=kind, step=step, microbatch=0, chunk=0, **times))
            steps.append((step, begin * MS, 75 * MS, True, False))
        spans.sort(key=lambda span: span.start_ns)
        hooks = [trace_pb2.Hook(name=name, installed=True) for name in IN]
        who: dict[str, Any] = {"layout": {**layout, "dp_rank": dp_rank, "stage": stage}, "hooks": hooks}
        write_rank(tmp_path, spans, rank=rank, world_size=4, packets=[packet(names=names), step_packet(steps)], **who)
    trust = analyze(tmp_path).verdict.text.splitlines()[-1]
    assert ", no schedule seen (smon_rt.start came after get_forward_backward_func), " in trust
    assert ", data loading not recorded (part of the forward), " in trust
