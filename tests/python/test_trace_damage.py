"""A cut or damaged file is read as far as it goes, its damage said by position; no bytes raise anything else."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from smon_rt import TraceError
from smon_rt._proto import trace_pb2
from smon_rt.trace import RankTrace, read_file, read_files
from tests.python.conftest import ROOT
from tests.python.smon_files import (
    TestSpan,
    end,
    file_name,
    frame,
    identity,
    packet,
    snapshot,
    span_packet,
    step_packet,
    varint,
    write_rank,
)

SPANS = [
    TestSpan(
        kind="forward_send", step=step, start_ns=1000 * step, duration_ns=300, microbatch=step, comm_id=1, comm_seq=step
    )
    for step in range(1, 9)
]
PACKETS = [
    packet(identity=identity(versions={"python": "3.11"})),
    snapshot(),
    span_packet(SPANS[:4]),
    step_packet([(1, 1000, 900, True, False), (2, 2000, 900, True, False)]),
    span_packet(SPANS[4:], first_index=4),
    end(),
]
WHOLE = b"".join(PACKETS)
STARTS = [sum(map(len, PACKETS[:index])) for index in range(len(PACKETS))]


def try_read(path: Path) -> RankTrace | None:
    """What can be read, or None after an error of one line."""
    said = ""
    try:
        (trace, *_) = read_files([str(path)])
    except TraceError as error:
        said = str(error)
    assert "\n" not in said
    if said:
        return None
    for damage in trace.damage:
        assert 0 <= damage.offset <= path.stat().st_size
        assert "\n" not in str(damage)
    return trace


def test_every_length_of_a_cut_file_gives_its_whole_packets(tmp_path: Path) -> None:
    path = tmp_path / file_name()
    for length in range(len(WHOLE)):
        path.write_bytes(WHOLE[:length])
        trace = try_read(path)
        whole = [start for start, part in zip(STARTS, PACKETS, strict=True) if start + len(part) <= length]
        if not whole:
            assert trace is None
            continue
        assert trace is not None
        assert len(trace.spans) == 4 * (len(whole) >= 3) + 4 * (len(whole) >= 5)
        boundary = length in STARTS
        assert trace.is_cut is not boundary
        assert [damage.offset for damage in trace.damage] == ([] if boundary else [STARTS[len(whole)]])
        assert trace.end_reason is None


def test_each_flipped_bit_costs_its_packet_alone(tmp_path: Path) -> None:
    path = tmp_path / file_name()
    for offset in range(len(PACKETS[0]), len(WHOLE)):
        damaged = bytearray(WHOLE)
        damaged[offset] ^= 1 << offset % 8
        path.write_bytes(damaged)
        trace = try_read(path)
        assert trace is not None
        hit = max(index for index, start in enumerate(STARTS) if start <= offset)
        assert trace.damage, offset
        assert trace.damage[0].offset == STARTS[hit]
        assert len(trace.spans) == 8 - 4 * (hit in (2, 4)), offset


def test_a_file_without_its_identity_is_known_by_its_name(tmp_path: Path) -> None:
    damaged = bytearray(WHOLE)
    damaged[20] ^= 1
    path = tmp_path / file_name(rank=7, run_id="my-run-2", attempt=3, file_index=1)
    path.write_bytes(damaged)
    trace = read_file(path)
    assert (trace.rank, trace.run_key, trace.identity.file_index) == (7, ("my-run-2", 3), 1)
    assert len(trace.spans) == 8
    assert "from the file's name" in str(trace.damage[-1])
    path = tmp_path / "other.smon"
    path.write_bytes(damaged)
    assert try_read(path) is None


@given(data=st.binary(max_size=300))
def test_no_bytes_raise_anything_but_a_trace_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / file_name()
    for content in (data, PACKETS[0] + data, PACKETS[0] + data + PACKETS[2], PACKETS[0] + frame(data)):
        path.write_bytes(content)
        try_read(path)


@given(data=st.binary(max_size=100), field=st.integers(8, 16))
@example(data=b"\x29" + bytes(8), field=9)  # durations as one fixed64
def test_no_content_of_a_packet_raises_anything_but_a_trace_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, field: int
) -> None:
    path = tmp_path_factory.getbasetemp() / file_name()
    path.write_bytes(PACKETS[0] + frame(varint(field << 3 | 2) + varint(len(data)) + data) + PACKETS[2])
    trace = try_read(path)
    assert trace is not None
    assert len(trace.spans) >= 4 or trace.damage or field == 8


COLUMN_BYTES = st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 3), max_size=4).map(
    lambda values: b"".join(map(varint, values))
)


@given(
    count=st.integers(0, 4) | st.integers(0, 2**32),
    columns=st.dictionaries(st.integers(4, 22), COLUMN_BYTES | st.binary(max_size=20)),
    good=st.booleans(),
)
def test_no_columns_of_a_batch_raise_anything(
    tmp_path_factory: pytest.TempPathFactory, count: int, columns: dict[int, bytes], good: bool
) -> None:
    if good:
        columns = {4: b"\x02" * min(count, 9), 5: b"\x01" * min(count, 9)} | columns
    batch = (
        b"\x08"
        + varint(count)
        + b"".join(varint(number << 3 | 2) + varint(len(data)) + data for number, data in columns.items())
    )
    path = tmp_path_factory.getbasetemp() / file_name()
    path.write_bytes(PACKETS[0] + frame(b"\x4a" + varint(len(batch)) + batch) + span_packet(SPANS, ring_id=9))
    trace = try_read(path)
    assert trace is not None
    assert len(trace.spans) >= 8


@given(seed=st.integers(0, 2**32))
def test_random_damage_never_raises(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    chance = random.Random(seed)
    damaged = bytearray(WHOLE)
    for _ in range(chance.randrange(1, 20)):
        where = chance.randrange(len(damaged))
        action = chance.randrange(3)
        if action == 0:
            damaged[where] = chance.randrange(256)
        elif action == 1:
            del damaged[where : where + chance.randrange(1, 20)]
        else:
            damaged[where:where] = chance.randbytes(chance.randrange(1, 20))
        if not damaged:
            break
    path = tmp_path_factory.getbasetemp() / file_name()
    path.write_bytes(damaged)
    try_read(path)


def test_a_claim_of_many_spans_costs_no_memory(tmp_path: Path) -> None:
    batch = trace_pb2.SpanBatch(span_count=2**32 - 1, kind=[1], start_ns=[1], duration_ns=[1])
    path = tmp_path / file_name()
    path.write_bytes(PACKETS[0] + packet(spans=batch) + PACKETS[2])
    trace = read_file(path)
    assert len(trace.spans) == 4
    assert "4294967295 spans lack starts" in str(trace.damage[0])


def test_impossible_times_are_left_out_and_counted(tmp_path: Path) -> None:
    spans = [
        TestSpan(start_ns=10, duration_ns=2**64 - 5),
        TestSpan(start_ns=20, duration_ns=1, time_source=1, device_start_ns=2**62, device_duration_ns=1),
    ]
    path = tmp_path / file_name()
    path.write_bytes(PACKETS[0] + span_packet(spans))
    trace = read_file(path)
    assert trace.spans.start_ns.tolist() == [20]
    assert trace.spans.has_device_times.tolist() == [False]
    assert ["impossible" in damage.what for damage in trace.damage] == [True, True]


@pytest.mark.parametrize(
    "numbers", [{"drift_ratio": float("nan")}, {"offset_ns": float("inf")}, {"bound_ns": 2**64 - 1}]
)
def test_a_clock_map_with_impossible_numbers_is_damage(tmp_path: Path, numbers: dict[str, Any]) -> None:
    good = trace_pb2.ClockMap(drift_ratio=1.0, bound_ns=20_000)
    bad = trace_pb2.ClockMap(**({"drift_ratio": 1.0} | numbers))
    trace = read_file(write_rank(tmp_path, packets=[packet(clock_map=bad), packet(clock_map=good)]))
    assert [clock.bound_ns for clock in trace.clock_maps] == [20_000]
    assert [damage.what for damage in trace.damage] == [
        "packet with a right checksum that makes no sense: a clock map has impossible numbers"
    ]


def test_a_file_made_of_false_beginnings_is_given_up_in_time(tmp_path: Path) -> None:
    path = tmp_path / file_name()
    path.write_bytes(PACKETS[0] + b"\x0a\x80\x80\x80\x01\x0d" * 200_000 + b"\0" * (3 << 20))
    trace = read_file(path)
    assert len(trace.damage) == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "is empty"), (b"PAR1 and more", "is no trace of smon_rt"), (b"\0" * 1000, "is no trace of smon_rt")],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / file_name()
    path.write_bytes(content)
    with pytest.raises(TraceError, match=said):
        read_file(path)
    with pytest.raises(TraceError, match="no such file"):
        read_file(tmp_path / "missing.smon")


SEEDS = sorted((ROOT / "tests" / "fuzz" / "corpus" / "trace_reader_fuzzer").iterdir())


@pytest.mark.parametrize("seed", SEEDS, ids=lambda path: path.name)
def test_the_seeds_of_the_recorders_own_reader_are_read(tmp_path: Path, seed: Path) -> None:
    """Their first byte says whether a file or the inside of a packet follows."""
    kind, content = seed.read_bytes()[0], seed.read_bytes()[1:]
    path = tmp_path / file_name()
    path.write_bytes(PACKETS[0] + (frame(content) if kind else content))
    assert try_read(path) is not None
    if seed.name not in ("spans_random", "comm_ops_random", "file_cut"):
        assert not read_files([str(path)])[-1].damage
