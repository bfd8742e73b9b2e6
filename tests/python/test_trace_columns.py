"""Every span comes back as it was written, in all forms that the schema allows."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smon_rt import _analysis
from smon_rt._proto import trace_pb2
from smon_rt.trace import RankTrace, read_file
from smon_rt.trace.kinds import FLAG_NAMES, KIND_NAMES, KIND_NUMBERS, TIME_SOURCE_NAMES, flag_names, kind_name
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
    write_rank,
)

COLUMNS = [field.name for field in dataclasses.fields(TestSpan)]


def read(folder: Path, *packets: bytes) -> RankTrace:
    path = folder / file_name()
    path.write_bytes(packet(identity=identity()) + b"".join(packets))
    return read_file(path)


def assert_same(trace: RankTrace, spans: list[TestSpan]) -> None:
    assert not trace.damage
    for name in COLUMNS:
        expected = [KIND_NUMBERS[span.kind] if name == "kind" else getattr(span, name) for span in spans]
        np.testing.assert_array_equal(getattr(trace.spans, name), expected, err_msg=name)
    np.testing.assert_array_equal(trace.spans.has_device_times, [span.has_device_times for span in spans])


@st.composite
def span_lists(draw: st.DrawFn) -> list[TestSpan]:
    few = st.integers(0, 2)
    times = st.integers(-(2**50), 2**50)
    lengths = st.integers(0, 2**50)
    spans = []
    for _ in range(draw(st.integers(1, 30))):
        kind = draw(st.sampled_from(("forward_compute", "forward_send", "metric", "user")))
        source = draw(st.integers(0, 4))
        on_device = source not in (0, 4)
        spans.append(
            TestSpan(
                kind=kind,
                step=draw(st.sampled_from((0, 1, 2, 2**32 - 1))),
                start_ns=draw(times),
                duration_ns=draw(lengths),
                device_start_ns=draw(times) if on_device else 0,
                device_duration_ns=draw(lengths) if on_device else 0,
                time_source=source,
                flags=draw(st.sampled_from((0, 1, 511))),
                microbatch=draw(st.integers(-1, 2)),
                chunk=draw(st.integers(-1, 1)),
                op_index=draw(st.sampled_from((0, 1, 65535))),
                track_id=draw(few),
                name_id=draw(few),
                comm_id=draw(few) if kind == "forward_send" else 0,
                comm_seq=draw(st.sampled_from((0, 1, 2, 2**32 - 1))),
                peer=draw(st.integers(-1, 2)),
                payload_bytes=draw(st.sampled_from((0, 1, 2**48 - 1))),
                metric_value=draw(st.sampled_from((0.0, 1.5))) if kind == "metric" else 0.0,
            )
        )
    return spans


@given(spans=span_lists(), batch=st.integers(1, 30), shapes=st.booleans(), short=st.booleans())
def test_spans_come_back_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, spans: list[TestSpan], batch: int, shapes: bool, short: bool
) -> None:
    packets = [
        span_packet(spans[first : first + batch], first_index=first, shapes=shapes, short=short)
        for first in range(0, len(spans), batch)
    ]
    trace = read(tmp_path_factory.getbasetemp(), *packets)
    assert_same(trace, spans)
    np.testing.assert_array_equal(trace.spans.ring_index, range(len(spans)))
    assert trace.missing_span_count == trace.repeated_span_count == 0


def test_the_official_library_reads_what_the_tests_write(tmp_path: Path) -> None:
    path = write_rank(tmp_path, [TestSpan(start_ns=5, duration_ns=1), TestSpan(start_ns=9, duration_ns=1)])
    trace = trace_pb2.Trace.FromString(path.read_bytes())
    assert [packet.WhichOneof("content") for packet in trace.packet] == ["identity", "clock_snapshot", "spans", "end"]
    assert list(trace.packet[2].spans.start_ns) == [5, 3]


def test_columns_that_are_not_packed_are_read_too(tmp_path: Path) -> None:
    unpacked = bytes([0x08, 2, 0x20, 10, 0x20, 4, 0x28, 1, 0x28, 1, 0x40, 24, 0x40, 24])  # a tag for each value
    trace = read(tmp_path, frame(b"\x4a" + bytes([len(unpacked)]) + unpacked))
    assert_same(trace, [TestSpan(start_ns=5, duration_ns=1), TestSpan(start_ns=8, duration_ns=1)])


def test_unknown_fields_are_passed_over(tmp_path: Path) -> None:
    spans = [TestSpan(start_ns=5, duration_ns=1)]
    message = trace_pb2.Trace.FromString(span_packet(spans)).packet[0]
    message.ClearField("crc32")
    later = message.SerializeToString() + b"\xfa\x3e\x03abc" + b"\xf0\x3e\x07"
    trace = read(tmp_path, b"\xf8\x3e\x01", frame(later), b"\xfa\x3e\x03abc")
    assert_same(trace, spans)


def test_a_checksum_of_zero_may_be_left_out(tmp_path: Path) -> None:
    assert read(tmp_path, b"\x0a\x00", end()).damage == []


def test_only_the_steps_asked_for_are_taken(tmp_path: Path) -> None:
    spans = [TestSpan(step=step, start_ns=10 * step, duration_ns=1) for step in range(20)]
    path = write_rank(tmp_path, packets=[span_packet(spans[:5]), span_packet(spans[5:], first_index=5)])
    trace = read_file(path, range(7, 9))
    assert trace.spans.step.tolist() == [7, 8]
    assert trace.skipped_span_count == 18
    assert trace.missing_span_count == 0


def test_steps_come_back_as_they_were_written(tmp_path: Path) -> None:
    rows = [(0, 100, 7, True, True), (1, 120, 8, False, False), (2**32 - 1, 90, 2**40, True, False)]
    for short in (False, True):
        again = (1, 130, 8, False, False)
        trace = read(tmp_path, step_packet(rows, short=short), step_packet([again], short=short))
        steps = trace.steps
        columns = (steps.step, steps.start_ns, steps.duration_ns, steps.is_sampled, steps.is_warmup)
        assert list(zip(*(column.tolist() for column in columns), strict=True)) == [*rows, again]


def test_spans_taken_twice_or_lost_are_known_by_their_index(tmp_path: Path) -> None:
    spans = [TestSpan(start_ns=10 * index, duration_ns=1) for index in range(10)]
    trace = read(
        tmp_path,
        span_packet(spans[:4]),
        span_packet(spans[2:6], first_index=2),
        span_packet(spans[8:], first_index=8),
        span_packet(spans[:2], ring_id=2, first_index=3),
    )
    assert trace.spans.start_ns.tolist() == [0, 10, 20, 30, 40, 50, 80, 90, 0, 10]
    assert trace.repeated_span_count == 2
    assert trace.missing_span_count == 2 + 3
    assert trace.ring_ends == {1: 10, 2: 5}


def test_small_records_are_kept_and_costs_add_up(tmp_path: Path) -> None:
    names = trace_pb2.Names(
        name=[trace_pb2.Name(id=1, text="loss")],
        track=[trace_pb2.Track(id=1, thread_id=7, thread_name="main", device=0, stream=3)],
        communicator=[trace_pb2.Communicator(id=1, name="pp", dimension="pp", member_ranks=[0, 1])],
    )
    costs = [trace_pb2.RecorderCost(drain_cpu_ns=ns, span_count=2, sampled_step_mean_ns=1.5) for ns in (5, 6)]
    trace = read(
        tmp_path,
        packet(names=names),
        packet(losses=trace_pb2.Losses(dropped_by_kind={1: 1})),
        packet(losses=trace_pb2.Losses(dropped_by_kind={1: 3}, stale_tokens=2)),
        *[packet(recorder_cost=cost) for cost in costs],
        packet(clock_map=trace_pb2.ClockMap(gpu_uuid="GPU-1", drift_ratio=1)),
        snapshot(1_000, 5_000),
        snapshot(2_000, 9_999_000),
        snapshot(3_000, 7_000),
        end("stop"),
    )
    assert trace.names == {1: "loss"}
    assert trace.tracks[1].thread_name == "main"
    assert list(trace.communicators[1].member_ranks) == [0, 1]
    assert dict(trace.losses.dropped_by_kind) == {1: 3}
    assert (trace.cost.drain_cpu_ns, trace.cost.span_count, trace.cost.sampled_step_mean_ns) == (11, 4, 1.5)
    assert trace.clock_maps[0].gpu_uuid == "GPU-1"
    assert trace.realtime_offset_ns == 4_000
    assert trace.end_reason == "stop"


def test_numbers_have_the_names_of_the_recorder() -> None:
    header = (ROOT / "csrc" / "format" / "span.h").read_text(encoding="utf-8")
    flags = [_snake(name) for name in re.findall(r"std::uint16_t k(\w+) = 1 << ", header)]
    sources = [_snake(name) for name in re.findall(r"^  k(\w+) = \d,", header, re.MULTILINE)]
    assert tuple(flags) == FLAG_NAMES
    assert tuple(sources) == TIME_SOURCE_NAMES
    assert tuple(_analysis.KIND_NAMES) == KIND_NAMES
    assert kind_name(200) == "kind_200"
    assert flag_names(1 | 1 << 12) == ["aborted", "flags_0x1000"]


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
