"""What `smon info` says of GPUs and of NCCL."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from smon_rt import cli
from smon_rt._proto import trace_pb2
from tests.python.smon_files import TestCommOp, comm_ops_packet, packet, write_rank


def info(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.run(["info", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def nccl_packets(rank: int, *, is_hung: bool = False) -> list[bytes]:
    """Counts and channels of two communicators of NCCL, one of which the job's hooks know."""
    wrong = {"lost_ends": 3, "untracked": 4} if rank else {}
    channels = trace_pb2.CommChannels(
        communicator=[1, 1, 2],
        nccl_comm=[7, 7, 9],
        comm_id=[1, 1, 0],
        channel=[0, 1, 0],
        is_send=[1, 0, 1],
        peer=[1, 1, 0],
        begun=[10, 10, 10],
        moved=[10, 10, 10],
        done=[10, 8 if is_hung else 10, 10],
        moved_bytes=[3_000_000, 3_000_000, 0],
        state=[0, 4 if is_hung else 0, 0],
    )
    names = trace_pb2.Names(communicator=[trace_pb2.Communicator(id=1, name="group 3", dimension="dp")])
    return [
        packet(names=names),
        packet(comm_counts=trace_pb2.CommCounts(communicators=2, ops=500, joined_ops=400, **wrong)),
        packet(comm_channels=channels),
    ]


def test_what_nccl_told_has_a_line_and_one_for_each_communicator(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in (0, 1):
        write_rank(tmp_path, packets=nccl_packets(rank, is_hung=rank == 1), rank=rank, world_size=2)
    _, out, _ = info(capsys, str(tmp_path))
    assert [line.split(maxsplit=1)[1] for line in out.splitlines() if line.startswith("nccl")] == [
        "1,000 operations, 2 communicators on a rank, 80 % of them in spans, 0 in the files; lost ends 3, untracked 4",
        "dp: 2 channels on 2 ranks, 6.00 MB sent; 1 with transfers under way: rank 1 channel 1 from member 1 recv_wait",
        "communicator 0x9: 1 channel on 2 ranks, nothing sent",
    ]
    _, out, _ = info(capsys, str(tmp_path), "--json", "-")
    nccl = json.loads(out)["nccl"]
    assert (nccl["ops"], nccl["joined_ops"], nccl["wrong"]) == (1000, 800, {"lost_ends": 3, "untracked": 4})
    (waiting,) = nccl["with_channels"][0]["waiting"]
    assert (waiting["rank"], waiting["channel"], waiting["is_send"], waiting["peer"]) == (1, 1, False, 1)
    assert (waiting["state"], waiting["pending_count"]) == ("recv_wait", 2)


def test_channels_of_a_process_that_was_killed_before_it_counted_operations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names, _counts, channels = nccl_packets(0, is_hung=True)
    write_rank(tmp_path, packets=[names, channels])
    _, out, _ = info(capsys, str(tmp_path))
    assert " operations were not counted yet\n" in out


def test_a_job_without_nccl_has_no_line_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rank(tmp_path)
    _, out, _ = info(capsys, str(tmp_path))
    assert "nccl" not in out
    _, out, _ = info(capsys, str(tmp_path), "--json", "-")
    assert json.loads(out)["nccl"] is None


def test_the_gpus_of_a_job_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def of(*uuids: str) -> list[bytes]:
        return [packet(clock_map=trace_pb2.ClockMap(gpu_uuid=uuid, drift_ratio=1.0)) for uuid in uuids]

    write_rank(tmp_path, packets=of("GPU-1", "GPU-2", "GPU-1"), rank=0, world_size=3, gpu_uuid="GPU-1")
    write_rank(tmp_path, packets=of("GPU-3"), rank=1, world_size=3)
    write_rank(tmp_path, rank=2, world_size=3)
    _, out, _ = info(capsys, str(tmp_path))
    assert "3 GPUs of 2 ranks: rank 0 GPU-1 and GPU-2, rank 1 GPU-3\n" in out
    _, out, _ = info(capsys, str(tmp_path), "--json", "-")
    ranks = json.loads(out)["ranks"]
    assert [rank["gpu_uuid"] for rank in ranks] == ["GPU-1", "GPU-3", ""]
    assert [rank["gpu_uuids"] for rank in ranks] == [["GPU-1", "GPU-2"], ["GPU-3"], []]
    write_rank(tmp_path, packets=of(*(f"GPU-{number}" for number in range(1, 100))), rank=2, world_size=3, attempt=1)
    _, out, _ = info(capsys, str(tmp_path))
    assert "99 GPUs of 1 rank: rank 2 GPU-1 and GPU-2 and GPU-3 and GPU-4 and 95 more\n" in out


def test_how_far_the_gpu_was_behind_its_host_is_said_with_the_costs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in (0, 1):
        costs = [
            trace_pb2.RecorderCost(event_queries=queries + rank, longest_event_lag_ns=lag_ns * rank)
            for queries, lag_ns in ((100, 2_000_000), (150, 7_000_000), (30, 1_000_000))
        ]
        write_rank(tmp_path, packets=[packet(recorder_cost=cost) for cost in costs], rank=rank, world_size=2)
    _, out, _ = info(capsys, str(tmp_path))
    assert "events of GPUs asked for 563 times, known at most 7.00 ms after they were recorded (rank 1)" in out
    _, out, _ = info(capsys, str(tmp_path), "--json", "-")
    ranks = json.loads(out)["ranks"]
    assert [rank["event_query_count"] for rank in ranks] == [280, 283]
    assert [rank["longest_event_lag_s"] for rank in ranks] == [0.0, 0.007]


def test_operations_of_nccl_that_were_overwritten_are_a_loss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rank(tmp_path, packets=[packet(losses=trace_pb2.Losses(overwritten_comm_ops=12))])
    _, out, _ = info(capsys, str(tmp_path))
    assert "overwritten comm ops 12" in out


def test_who_was_killed_before_it_counted_has_told_what_its_file_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ops = [TestCommOp(number=number, communicator=number % 2, comm_seq=number) for number in range(4)]
    write_rank(tmp_path, packets=[comm_ops_packet(ops)], closed=False)
    _, out, _ = info(capsys, str(tmp_path))
    assert "4 operations, 2 communicators on a rank, 75 % of them in spans, 4 in the files" in out
