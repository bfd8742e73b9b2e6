"""What NCCL told the recorder comes back as it was written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from smon_rt._proto import trace_pb2
from smon_rt.trace import RankTrace, read_file
from smon_rt.trace.comm_words import (
    ALGORITHM_NAMES,
    CHANNEL_STATE_NAMES,
    DATATYPE_NAMES,
    FUNCTION_NAMES,
    PROTOCOL_NAMES,
)
from tests.python.conftest import ROOT
from tests.python.smon_files import TestCommOp, comm_ops_packet, file_name, identity, packet, write_rank

OPS = [
    TestCommOp(number=7, step=3, start_ns=10**9, enqueue_ns=4000, flags=2, function=1, algorithm=2, protocol=3),
    TestCommOp(number=8, step=3, start_ns=10**9 - 5, flags=1, function=6, peer=5, payload_bytes=1 << 40),
    TestCommOp(number=12, step=4, start_ns=2 * 10**9, function=1, comm_id=2, comm_seq=9, library_seq=1 << 40),
    TestCommOp(
        number=13,
        step=4,
        start_ns=2 * 10**9 + 1,
        function=1,
        comm_id=2,
        comm_seq=10,
        library_seq=(1 << 40) + 1,
        transfer_count=4,
        open_transfer_count=1,
        first_transfer_ns=2 * 10**9 + 700,
        transfer_ns=50,
    ),
    TestCommOp(
        number=14,
        step=5,
        start_ns=3 * 10**9,
        function=1,
        kernel_count=2,
        open_kernel_count=1,
        kernel_start_device_ns=1_700_000_000_000_000_000,
        kernel_duration_device_ns=900,
        slowest_channel=1,
    ),
]


def assert_same(trace: RankTrace, ops: list[TestCommOp]) -> None:
    assert not trace.damage
    for name in vars(ops[0]):
        if name == "flags":
            assert trace.comm_ops.is_captured.tolist() == [bool(op.flags & 1) for op in ops]
            assert trace.comm_ops.is_enqueued.tolist() == [bool(op.flags & 2) for op in ops]
        else:
            np.testing.assert_array_equal(
                getattr(trace.comm_ops, name), [getattr(op, name) for op in ops], err_msg=name
            )


@pytest.mark.parametrize("shapes", [True, False])
@pytest.mark.parametrize("short", [True, False])
def test_operations_come_back_in_every_form(tmp_path: Path, shapes: bool, short: bool) -> None:
    assert_same(read_file(write_rank(tmp_path, packets=[comm_ops_packet(OPS, shapes=shapes, short=short)])), OPS)


def test_batches_follow_each_other_and_repeated_ones_count_once(tmp_path: Path) -> None:
    path = write_rank(tmp_path, packets=[comm_ops_packet(OPS[:2]), comm_ops_packet(OPS[2:])])
    assert_same(read_file(path), OPS)
    path.write_bytes(path.read_bytes() * 2)
    assert_same(read_file(path), OPS)


def test_only_the_steps_that_are_asked_for_are_read(tmp_path: Path) -> None:
    path = write_rank(tmp_path, packets=[comm_ops_packet(OPS[:2]), comm_ops_packet(OPS[2:])])
    trace = read_file(path, range(4, 5))
    assert trace.comm_ops.number.tolist() == [12, 13]


def test_what_the_recorder_writes_is_read(tmp_path: Path) -> None:
    path = tmp_path / file_name(rank=9, run_id="run-7f3a")
    path.write_bytes((ROOT / "tests" / "fuzz" / "corpus" / "trace_reader_fuzzer" / "file").read_bytes()[1:])
    trace = read_file(path)
    assert not trace.damage
    ops = trace.comm_ops
    assert ops.number.tolist() == [900, 903, 904, 905, 906]
    assert ops.comm_seq.tolist() == [17, 0, 18, 19, 1]
    assert ops.library_seq.tolist() == [41, 0, 42, 43, 43]
    assert (ops.first_transfer_ns - ops.start_ns)[2:].tolist() == [30_000] * 3
    assert ops.kernel_start_device_ns[3:].tolist() == [1_700_000_000_000_000_000, 1_700_000_000_000_000_005]
    assert [FUNCTION_NAMES[number] for number in ops.function] == ["all_reduce", "send", *["all_reduce"] * 3]
    assert {DATATYPE_NAMES[number] for number in ops.datatype} == {"bfloat16"}
    assert {ALGORITHM_NAMES[number] for number in ops.algorithm} == {"ring"}
    assert {PROTOCOL_NAMES[number] for number in ops.protocol} == {"simple"}
    assert trace.comm_counts is not None
    assert (trace.comm_counts.ops, trace.comm_counts.untracked) == (2, 8)
    receives, sends = trace.comm_channels
    assert (sends.is_send, receives.is_send, receives.peer, sends.moved_bytes) == (True, False, -1, 1 << 20)
    assert CHANNEL_STATE_NAMES[sends.state] == "send_wait"
    assert trace.losses.overwritten_comm_ops == 12


def test_the_newest_row_of_a_channel_holds(tmp_path: Path) -> None:
    rows = [
        trace_pb2.CommChannels(communicator=[1, 1], channel=[0, 1], begun=[5, 6], nccl_comm=[1 << 63]),
        trace_pb2.CommChannels(communicator=[1], channel=[1], begun=[8], done=[8]),
    ]
    trace = read_file(write_rank(tmp_path, packets=[packet(comm_channels=row) for row in rows]))
    assert [(row.channel, row.begun, row.done) for row in trace.comm_channels] == [(0, 5, 0), (1, 8, 8)]
    assert trace.comm_channels[0].nccl_comm == 1 << 63


def _less(name: str) -> Callable[[trace_pb2.CommOps], None]:
    return lambda batch: getattr(batch, name).pop()


def _more(name: str, value: int) -> Callable[[trace_pb2.CommOps], None]:
    return lambda batch: getattr(batch, name).append(value)


@pytest.mark.parametrize(
    "change",
    [
        _less("start_ns"),
        _more("enqueue_ns", 1),
        _more("shape", 5),
        _more("step", 1),
        _more("slowest_channel", 1),
        _less("transfer_ns"),
        lambda batch: batch.start_ns.__setitem__(0, 1 << 62),
        lambda batch: batch.payload_bytes.__setitem__(0, (1 << 64) - 1),
        lambda batch: batch.function.__setitem__(0, 256),
        lambda batch: batch.comm_seq.__setitem__(0, -1),
        lambda batch: batch.shape.__setitem__(0, 0xFFFF_FFFF),
    ],
)
def test_a_batch_that_contradicts_itself_is_damage(tmp_path: Path, change: Callable[[trace_pb2.CommOps], None]) -> None:
    whole = comm_ops_packet(OPS, shapes=True, short=False)
    message = trace_pb2.Trace.FromString(whole).packet[0].comm_ops
    change(message)
    trace = read_file(write_rank(tmp_path, packets=[packet((3, 5), comm_ops=message)]))
    assert len(trace.comm_ops) == 0
    assert len(trace.damage) == 1


def test_channels_that_contradict_themselves_are_damage(tmp_path: Path) -> None:
    row = trace_pb2.CommChannels(communicator=[1, 1, 1], done=[1, 2])
    trace = read_file(write_rank(tmp_path, packets=[packet(comm_channels=row)]))
    assert not trace.comm_channels
    assert len(trace.damage) == 1


def test_a_file_without_nccl_has_none_of_it(tmp_path: Path) -> None:
    path = tmp_path / file_name()
    path.write_bytes(packet(identity=identity()))
    trace = read_file(path)
    assert (len(trace.comm_ops), trace.comm_counts, trace.comm_channels) == (0, None, [])
