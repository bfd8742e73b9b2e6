"""Trace files of earlier versions read as what they were written from; tests/compat holds both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smon_rt._proto import trace_pb2
from smon_rt.trace.kinds import KIND_NAMES
from smon_rt.trace.reader import read_file

COMPAT = Path(__file__).resolve().parent.parent / "compat"


def expected_spans(name: str) -> dict[tuple[int, int], dict[str, Any]]:
    """Spans of an expectation by ring and index."""
    spans: dict[tuple[int, int], dict[str, Any]] = {}
    ring_id = next_index = -1
    for packet in json.loads((COMPAT / f"{name}.json").read_text(encoding="utf-8")):
        if packet["packet"] == "spans":
            ring_id, next_index = packet["ring_id"], packet["first_index"]
        elif packet["packet"] == "span":
            spans[ring_id, next_index] = packet
            next_index += 1
    return spans


@pytest.mark.parametrize("name", ["first"])
def test_the_python_reader_finds_in_old_files_what_they_were_written_from(name: str) -> None:
    trace = read_file(COMPAT / f"{name}.smon")
    assert trace.damage == []
    assert trace.end_reason == "stop"
    spans = trace.spans
    expected = expected_spans(name)
    assert len(spans) == len(expected)
    for row in range(len(spans)):
        span = expected.pop((int(spans.ring_id[row]), int(spans.ring_index[row])))
        start, end, device_start, device_end = span["start, end, device_start, device_end"]
        assert KIND_NAMES[spans.kind[row]] == span["kind"]
        assert (spans.start_ns[row], spans.duration_ns[row]) == (start, end - start)
        device = (int(spans.device_start_ns[row]), int(spans.device_duration_ns[row]))
        assert device == (device_start, device_end - device_start)
        assert spans.step[row] == span["step"]
        assert [spans.time_source[row], spans.flags[row]] == span["time_source, flags"]
        counts = np.array([spans.microbatch[row], spans.chunk[row], spans.op_index[row]]).tolist()
        assert counts == span["microbatch, chunk, op_index"]
        assert [spans.track_id[row], spans.name_id[row] + spans.comm_id[row]] == span["track_id, name_or_comm_id"]
        assert spans.payload_bytes[row] == span["payload_bytes"]
        if span["kind"] == "metric":
            assert spans.metric_value[row] == span["metric_value"]
        else:
            assert [spans.comm_seq[row], spans.peer[row]] == span["comm_seq, peer"]


def documented_functions() -> dict[str, Any]:
    """The Python of docs/trace_format.md."""
    page = COMPAT.parent.parent / "docs" / "trace_format.md"
    source = page.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    functions: dict[str, Any] = {}
    exec(compile(source, str(page), "exec"), functions)
    return functions


def test_the_documented_reader_finds_the_same_spans() -> None:
    functions = documented_functions()
    data = (COMPAT / "first.smon").read_bytes()
    found = list(functions["read"](trace_pb2.Trace.FromString(data)))
    expected = []
    for span in expected_spans("first").values():
        start, end, _, _ = span["start, end, device_start, device_end"]
        expected.append((KIND_NAMES.index(span["kind"]), span["step"], start, end - start, span["payload_bytes"]))
    assert found == expected


def test_the_documented_reader_takes_a_cut_file_up_to_its_last_whole_packet() -> None:
    packets = documented_functions()["packets"]
    data = (COMPAT / "first.smon").read_bytes()
    whole = list(packets(data))
    assert [trace_pb2.TracePacket.FromString(packet) for packet in whole] == list(
        trace_pb2.Trace.FromString(data).packet
    )
    for length in range(len(data)):
        cut = list(packets(data[:length]))
        assert cut == whole[: len(cut)]
        assert len(cut) < len(whole)
    assert list(packets(data[:40] + bytes([data[40] ^ 1]) + data[41:])) == []
