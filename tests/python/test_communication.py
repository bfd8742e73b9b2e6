"""Communication by group: how fast it was, who waited for whom, and what cannot be told."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from smon_rt._proto import trace_pb2
from smon_rt.analysis import analyze
from smon_rt.analysis.communication import Communication, CommunicationGroup, NcclFacts
from smon_rt.analysis.smon_communication import bus_factors
from smon_rt.analysis.units import bandwidth, data_size
from smon_rt.report.communication_tables import communication_kind_table, group_table
from smon_rt.report.terminal import plain_table
from smon_rt.synth import JobSpec, SlowMember, make_job
from smon_rt.trace.kinds import TIME_SOURCE_NAMES
from tests.python.smon_files import TestCommOp, TestSpan, comm_ops_packet, end, packet, step_packet, write_rank

MS = 1_000_000
WAIT_RETURN = TIME_SOURCE_NAMES.index("wait_return")


@pytest.mark.parametrize(
    ("kind", "size", "bus"),
    [
        # The factors of nccl-tests, doc/PERFORMANCE.md, with n = 8; a gather's size is what all members put in.
        ("grads_all_reduce", 1.0, 2 * 7 / 8),
        ("layernorm_grads_all_reduce", 1.0, 2 * 7 / 8),
        ("grads_reduce_scatter", 1.0, 7 / 8),
        ("params_all_gather", 8.0, 8 * 7 / 8),
        ("forward_pp_comm", 1.0, 1.0),
        ("collective", 1.0, None),
    ],
)
def test_bandwidths_are_those_of_nccl_tests(kind: str, size: float, bus: float | None) -> None:
    assert bus_factors(kind, 8) == (size, bus)


def test_bytes_and_bandwidths_are_said_as_people_say_them() -> None:
    sizes = [data_size(value) for value in (0, None, 1, 999.4, 999.6, 4096, 8e6, 2.5e10, 3e12, float("nan"))]
    assert sizes == ["–", "–", "1.00 B", "999 B", "1.00 kB", "4.10 kB", "8.00 MB", "25.0 GB", "3.00 TB", "–"]
    assert (bandwidth(1.99e10), bandwidth(None), bandwidth(0)) == ("19.9 GB/s", "–", "–")


def write_reductions(
    folder: Path, late_ms: dict[int, float], *, ranks: int = 4, took_ms: float = 5, dimension: str = "dp", **span: Any
) -> None:
    """Ranks compute, each so much longer than the first, and reduce 3 MB twice a step, the second time at once."""
    folder.mkdir(exist_ok=True)
    names = trace_pb2.Names(
        communicator=[trace_pb2.Communicator(id=1, name="dp", dimension=dimension, member_ranks=range(ranks))]
    )
    for rank in range(ranks):
        spans, steps = [], []
        for step in range(6):
            at, late = 100 * step * MS, round(late_ms.get(rank, 0.0) * MS)
            spans.append(TestSpan("forward_compute", step=step, start_ns=at, duration_ns=10 * MS + late, microbatch=0))
            begin, end = at + 10 * MS + late, at + round((10 + max(late_ms.values(), default=0) + took_ms) * MS)
            reduction: dict[str, Any] = {"step": step, "comm_id": 1, "time_source": WAIT_RETURN} | span
            reduction = {"payload_bytes": 3_000_000} | reduction
            for number in (1, 2):
                times = {"start_ns": begin, "duration_ns": end - begin, "op_index": number - 1}
                spans.append(TestSpan("grads_all_reduce", comm_seq=2 * step + number, **times, **reduction))
                begin, end = end, end + round(took_ms * MS)
            steps.append((step, at, begin - at, True, False))
        layout = {"dp_size": ranks, "dp_rank": rank}
        packets = [packet(names=names), step_packet(steps)]
        write_rank(folder, spans, rank=rank, world_size=ranks, layout=layout, packets=packets)


def only_group(folder: Path) -> CommunicationGroup:
    found = analyze(folder).communication
    assert found is not None
    (group,) = found.groups
    (kind,) = found.by_kind
    assert (kind.group_count, kind.rank_count, kind.op_count) == (1, len(group.ranks), group.op_count)
    assert (kind.transfer_s, kind.bus_bytes_per_s) == (group.transfer_s, group.bus_bytes_per_s)
    return group


def test_waiting_for_the_last_one_is_no_transfer(tmp_path: Path) -> None:
    write_reductions(tmp_path, {2: 30.0, 1: 12.0})
    group = only_group(tmp_path)
    assert (group.kind, group.dimension, group.ranks, group.stage) == ("grads_all_reduce", "dp", (0, 1, 2, 3), 0)
    assert (group.op_count, group.timed_op_count, group.payload_bytes) == (12, 12, 3_000_000)
    assert group.bytes_per_step == 6_000_000
    assert group.transfer_s == pytest.approx(5e-3)
    assert group.transfer_s_per_step == pytest.approx(10e-3)
    # Of two reductions a step one has nobody to wait for: the median is between them, who waits waits for all of it.
    assert group.skew_s == pytest.approx(15e-3)
    assert group.skew_s_per_step == pytest.approx((30 + 18 + 0 + 30) / 4 * 1e-3)
    assert group.algorithm_bytes_per_s == pytest.approx(3e6 / 5e-3)
    assert group.bus_bytes_per_s == pytest.approx(3e6 / 5e-3 * 1.5)
    assert (group.last_rank, group.ratio, group.is_slow) == (2, None, False)


def test_what_a_group_is_called_moves_no_cursor(tmp_path: Path) -> None:
    write_reductions(tmp_path, {}, dimension="\x1b[2J\x9b\n" + "d" * 10_000)
    report = analyze(tmp_path)
    for table in (group_table(report), communication_kind_table(report)):
        text = plain_table(table)
        assert "\\x1b[2J\\x9b\\n" in text
        assert len(text.splitlines()) <= 5
        assert len(text) < 3_000
        assert all(char.isprintable() or char == "\n" for char in text)


def test_without_bytes_or_waits_there_is_no_bandwidth(tmp_path: Path) -> None:
    write_reductions(tmp_path / "bytes", {}, payload_bytes=0)
    group = only_group(tmp_path / "bytes")
    assert group.transfer_s == pytest.approx(5e-3)
    assert group.bus_bytes_per_s is None
    write_reductions(tmp_path / "waits", {}, flags=1 << 9)
    group = only_group(tmp_path / "waits")
    assert (group.op_count, group.timed_op_count) == (12, 0)
    assert (group.transfer_s, group.bus_bytes_per_s, group.transfer_s_per_step) == (None, None, 0)


def test_who_was_not_recorded_may_have_been_the_last(tmp_path: Path) -> None:
    write_reductions(tmp_path, {2: 30.0})
    next(tmp_path.glob("rank-00002*")).unlink()
    assert analyze(tmp_path).communication is None


def test_groups_are_compared_with_others_of_their_size_only(tmp_path: Path) -> None:
    spec = JobSpec(
        dp=2, pp=2, tp=2, microbatches=4, steps=4, tp_collectives=3, plants=(SlowMember(1, 0, 1, 1.5),), seed=1
    )
    make_job(spec).write(tmp_path / "job")
    found = analyze(tmp_path / "job").communication
    assert found is not None
    tp = [group for group in found.groups if group.kind == "collective"]
    assert {group.ranks for group in tp} == {(0, 1), (2, 3), (4, 5), (6, 7)}
    slow = next(group for group in tp if group.ranks == (2, 3))
    # The slow member makes the other one wait; what they send takes as long as elsewhere.
    assert (slow.last_rank, slow.last_ratio, slow.bus_bytes_per_s) == (3, 1.0, None)
    assert slow.skew_s is not None
    assert all(slow.skew_s > 3 * (group.skew_s or 0) for group in tp if group is not slow)
    kinds = {each.kind: each for each in found.by_kind}
    assert kinds["forward_pp_comm"].group_count == 4
    assert kinds["collective"].rank_count == 8
    assert found.group_count == len(found.groups)


def test_nothing_is_slow_among_groups_that_are_alike(tmp_path: Path) -> None:
    make_job(JobSpec(dp=4, pp=4, microbatches=8, steps=6, noise=0.05, comm_noise=0.1, seed=2)).write(tmp_path / "job")
    found = analyze(tmp_path / "job").communication
    assert isinstance(found, Communication)
    assert found.slowest is None
    # Sorted so that the slowest are first.
    ratios = [group.ratio or 0.0 for group in found.groups]
    assert ratios == sorted(ratios, reverse=True)


def nccl_ops(rank: int, ranks: int, **op: Any) -> list[TestCommOp]:
    """What NCCL says of the reductions of `write_reductions`: four transfers of 4 ms each, on a ring."""
    ops: list[TestCommOp] = []
    for step in range(6):
        for number in (1, 2):
            start_ns = (100 * step + 10) * MS + round((number - 1) * 5 * MS) + 1000
            facts: dict[str, Any] = {
                "number": len(ops),
                "step": step,
                "start_ns": start_ns,
                "enqueue_ns": 4000,
                "flags": 2,
                "function": 1,
                "datatype": 10,
                "algorithm": 2,
                "protocol": 3,
                "channel_count": 16,
                "comm_id": 1,
                "comm_seq": 2 * step + number,
                "library_seq": 2 * step + number,
                "payload_bytes": 3_000_000,
                "transfer_count": 4,
                "transfer_ns": 4 * MS,
                "first_transfer_ns": start_ns + MS // 2,
            }
            ops.append(TestCommOp(**facts | op))
    return ops


def test_what_nccl_says_of_a_group_is_told_with_it(tmp_path: Path) -> None:
    write_reductions(tmp_path, {})
    for rank in (0, 1):  # the others' plug-in told nothing
        add_packets(tmp_path, rank, comm_ops_packet(nccl_ops(rank, 4)))
    assert only_group(tmp_path).nccl == NcclFacts(24, "ring", "simple", 16, 4e-3, None, None)


def test_the_slowest_channel_is_told_where_kernels_have_times(tmp_path: Path) -> None:
    write_reductions(tmp_path, {})
    kernels = {"kernel_count": 16, "kernel_start_device_ns": 10**15, "kernel_duration_device_ns": 5 * MS}
    ops = nccl_ops(0, 4, slowest_channel=3, transfer_count=0, first_transfer_ns=0, transfer_ns=0, **kernels)
    ops = [dataclasses.replace(op, slowest_channel=7 if op.number == 2 else 3) for op in ops]
    add_packets(tmp_path, 0, comm_ops_packet(ops))
    nccl = only_group(tmp_path).nccl
    assert nccl is not None
    assert (nccl.transfer_s, nccl.slowest_channel) == (None, 3)
    assert nccl.slowest_channel_ratio == pytest.approx(11 / 12)


def test_of_several_operations_in_a_span_the_largest_speaks(tmp_path: Path) -> None:
    write_reductions(tmp_path, {})
    ops = []
    for op in nccl_ops(0, 4):
        small = dataclasses.replace(
            op, number=2 * op.number, protocol=1, payload_bytes=1, first_transfer_ns=op.first_transfer_ns - MS // 4
        )
        ops += [small, dataclasses.replace(op, number=2 * op.number + 1, start_ns=op.start_ns + 10)]
    add_packets(tmp_path, 0, comm_ops_packet(ops))
    nccl = only_group(tmp_path).nccl
    assert nccl is not None
    assert (nccl.op_count, nccl.protocol, nccl.transfer_s) == (12, "simple", 4.25e-3)


def test_operations_that_belong_to_no_span_and_hang_say_nothing(tmp_path: Path) -> None:
    write_reductions(tmp_path, {})
    assert only_group(tmp_path).nccl is None
    add_packets(tmp_path, 0, comm_ops_packet(nccl_ops(0, 4, comm_id=0, comm_seq=0)))
    assert only_group(tmp_path).nccl is None
    add_packets(tmp_path, 1, comm_ops_packet(nccl_ops(1, 4, open_transfer_count=1, transfer_ns=0)))
    nccl = only_group(tmp_path).nccl
    assert nccl is not None
    assert (nccl.op_count, nccl.transfer_s) == (12, None)
    # Of another step, or begun before the span that it would belong to.
    early = [dataclasses.replace(op, start_ns=1) for op in nccl_ops(2, 4)]
    add_packets(tmp_path, 2, comm_ops_packet(early))
    nccl = only_group(tmp_path).nccl
    assert nccl is not None
    assert nccl.op_count == 12


def test_the_kind_of_a_number_that_two_kinds_have_is_the_one_that_began_last(tmp_path: Path) -> None:
    spans = [
        TestSpan(kind, step=step, start_ns=step * 100 * MS + at * MS, duration_ns=5 * MS, comm_id=1, comm_seq=step + 1)
        for step in range(3)
        for kind, at in (("params_all_gather", 10), ("grads_reduce_scatter", 50))
    ]
    computes = [TestSpan("forward_compute", step=step, start_ns=step * 100 * MS, duration_ns=MS) for step in range(3)]
    op = TestCommOp(function=3, comm_id=1, comm_seq=1, start_ns=51 * MS, algorithm=5)
    names = trace_pb2.Names(communicator=[trace_pb2.Communicator(id=1, name="dp", dimension="dp", member_ranks=(0, 1))])
    steps = [(step, step * 100 * MS, 60 * MS, True, False) for step in range(3)]
    for rank in (0, 1):
        packets = [packet(names=names), step_packet(steps), comm_ops_packet([op])]
        write_rank(
            tmp_path,
            sorted(spans + computes, key=lambda span: span.start_ns),
            packets=packets,
            rank=rank,
            world_size=2,
            layout={"dp_size": 2, "dp_rank": rank},
        )
    found = analyze(tmp_path).communication
    assert found is not None
    facts = {group.kind: group.nccl for group in found.groups}
    assert facts["params_all_gather"] is None
    assert facts["grads_reduce_scatter"] is not None
    assert facts["grads_reduce_scatter"].algorithm == "nvls"


def add_packets(folder: Path, rank: int, *packets: bytes) -> None:
    path = next(folder.glob(f"rank-{rank:05d}*"))
    content = path.read_bytes()
    path.write_bytes(content.removesuffix(end()) + b"".join(packets) + end())
