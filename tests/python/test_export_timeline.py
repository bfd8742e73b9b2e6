"""Exports to Perfetto and the Trace Event Format say what was recorded: read back with their published schemas."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as perfetto

from smon_rt import cli
from smon_rt._proto import trace_pb2
from smon_rt.export.timeline import flow_id, rank_timeline
from smon_rt.synth import JobSpec, make_job
from smon_rt.trace import read_file
from tests.python.smon_files import TestSpan, packet, step_packet, write_rank
from tests.python.synthetic_smon import REALTIME_NS, START_NS, write_synthetic

JOB = JobSpec(dp=2, pp=4, microbatches=6, steps=2, noise=0.1, seed=3)
BEGIN, END, COUNTER = 1, 2, 4


def export(folder: Path, output_format: str, output: Path, *more: str) -> int:
    return cli.run(["export", str(folder), "--format", output_format, "-o", str(output), *more])


class Slices:
    """A Perfetto file, played back: slices by track, flows by id."""

    def __init__(self, path: Path) -> None:
        trace = perfetto.Trace.FromString(path.read_bytes())
        self.tracks: dict[int, Any] = {}
        self.slices: list[dict[str, Any]] = []
        self.counters: list[tuple[str, int, float]] = []
        self.flows: dict[int, list[dict[str, Any]]] = {}
        self._names: dict[tuple[int, str], dict[int, str]] = {}
        self._stacks: dict[int, list[dict[str, Any]]] = {}
        for message in trace.packet:
            self._take(message)
        assert not any(self._stacks.values()), "every slice ends"

    def _take(self, message: Any) -> None:
        sequence = message.trusted_packet_sequence_id
        assert sequence
        if message.sequence_flags & 1:
            for kind in ("event_names", "debug_annotation_names"):
                entries = getattr(message.interned_data, kind)
                self._names[sequence, kind] = {entry.iid: entry.name for entry in entries}
        if message.HasField("track_descriptor"):
            self.tracks[message.track_descriptor.uuid] = message.track_descriptor
        if not message.HasField("track_event"):
            return
        event = message.track_event
        track = self.tracks[event.track_uuid]
        stack = self._stacks.setdefault(event.track_uuid, [])
        if event.type == BEGIN:
            arguments = {
                self._names[sequence, "debug_annotation_names"][note.name_iid]: getattr(note, note.WhichOneof("value"))
                for note in event.debug_annotations
            }
            made = {
                "name": self._names[sequence, "event_names"][event.name_iid],
                "track": track.name,
                "process": self.tracks[track.parent_uuid].process.process_name,
                "args": arguments,
                "start_ns": message.timestamp,
                "depth": len(stack),
            }
            stack.append(made)
            self.slices.append(made)
        elif event.type == END:
            made = stack.pop()
            made["end_ns"] = message.timestamp
            assert made["end_ns"] >= made["start_ns"]
            assert not stack or stack[-1]["start_ns"] <= made["start_ns"]
        else:
            assert event.type == COUNTER
            self.counters.append((track.name, message.timestamp, event.double_counter_value))
            return
        for flow in event.flow_ids:
            self.flows.setdefault(flow, []).append(made)


@pytest.mark.parametrize("hosts", [1, 2])
def test_perfetto_has_every_span_and_an_arrow_for_every_message(tmp_path: Path, hosts: int) -> None:
    job = make_job(JOB)
    folder = tmp_path / "traces"
    folder.mkdir()
    write_synthetic(job, folder, hosts=hosts)
    output = tmp_path / "trace.pftrace"
    assert export(folder, "perfetto", output) == 0
    found = Slices(output)
    rows = job.table.to_pylist()
    recorded = Counter(row["optype"].replace("-", "_") for row in rows)
    drawn = Counter(piece["name"] for piece in found.slices if piece["track"] == "main 100")
    assert drawn == recorded
    assert sum(piece["track"] == "steps" for piece in found.slices) == job.spec.steps * 8
    assert {piece["process"] for piece in found.slices} == {
        f"rank {rank} (dp {rank % 2}, stage {rank // 2}) node{rank * hosts // 8}" for rank in range(8)
    }
    messages = recorded["forward_send"] + recorded["backward_send"]
    assert len(found.flows) == messages
    for ends in found.flows.values():
        send, recv = sorted(ends, key=lambda piece: piece["name"].endswith("recv"))
        assert (send["name"], recv["name"]) in (("forward_send", "forward_recv"), ("backward_send", "backward_recv"))
        assert send["start_ns"] <= recv["end_ns"]
    first = min(found.slices, key=lambda piece: piece["start_ns"])
    assert first["start_ns"] == (START_NS if hosts == 1 else REALTIME_NS)


def test_slices_carry_what_is_known_of_their_span(tmp_path: Path) -> None:
    names = trace_pb2.Names(
        name=[trace_pb2.Name(id=1, text="my région"), trace_pb2.Name(id=2, text="loss")],
        track=[trace_pb2.Track(id=1, thread_id=9, thread_name="autograd", device=1, stream=0xAB)],
        communicator=[trace_pb2.Communicator(id=3, name="pp of 0", member_ranks=[0, 1])],
    )
    spans = [
        TestSpan(name_id=1, start_ns=100, duration_ns=50, track_id=1, microbatch=2, chunk=1, flags=3, step=5),
        TestSpan(
            kind="forward_send",
            start_ns=110,
            duration_ns=20,
            track_id=1,
            comm_id=3,
            comm_seq=4,
            peer=1,
            payload_bytes=2**47,
            time_source=1,
            device_start_ns=300,
            device_duration_ns=40,
        ),
        TestSpan(kind="metric", name_id=2, start_ns=120, metric_value=float("nan")),
        TestSpan(kind="metric", name_id=2, start_ns=130, metric_value=0.5),
        TestSpan(kind="optimizer", start_ns=160, duration_ns=5),
    ]
    write_rank(tmp_path, spans, packets=[packet(names=names), step_packet([(5, 90, 400, True, True)])])
    assert export(tmp_path, "perfetto", tmp_path / "out") == 0
    found = Slices(tmp_path / "out")
    by_name = {(piece["name"], piece["track"]): piece for piece in found.slices}
    assert by_name["step", "steps"]["args"] == {"step": 5, "sampled": True, "warmup": True}
    assert ("optimizer", "thread (ring 1)") in by_name  # of a thread that nothing was said of
    mine = by_name["my région", "autograd 9"]
    assert mine["args"] == {"step": 5, "microbatch": 2, "chunk": 1, "op_index": 0, "flags": "aborted in_capture"}
    host, device = by_name["forward_send", "autograd 9"], by_name["forward_send", "GPU 1 stream 0xab"]
    assert host["depth"] == 0  # it is no part of the compute during which it is sent
    assert (device["start_ns"], device["end_ns"]) == (300, 340)
    assert device["args"] == host["args"]
    assert device["args"]["payload_bytes"] == 2**47
    assert device["args"]["communicator"] == "pp of 0"
    assert device["args"]["time_source"] == "gpu_event"
    assert [name for name, _, _ in found.counters] == ["loss", "loss"]
    assert found.counters[1][1:] == (130, 0.5)
    ((drawn,),) = found.flows.values()
    assert drawn is device

    assert export(tmp_path, "chrome", tmp_path / "out.json") == 0
    events = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["traceEvents"]
    phases = Counter(event["ph"] for event in events)
    assert phases == {"M": 12, "X": 5, "s": 1, "C": 1}


def test_chrome_parses_and_has_the_same_slices_and_arrows(tmp_path: Path) -> None:
    job = make_job(JOB)
    folder = tmp_path / "traces"
    folder.mkdir()
    write_synthetic(job, folder, hosts=2)
    assert export(folder, "chrome", tmp_path / "trace.json.gz") == 0
    document = json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))
    events = document["traceEvents"]
    slices = [event for event in events if event["ph"] == "X" and event["name"] != "step"]
    assert len(slices) == job.table.num_rows
    sent = Counter(event["id"] for event in events if event["ph"] == "s")
    received = Counter(event["id"] for event in events if event["ph"] == "f")
    assert sent == received
    assert set(sent.values()) == {1}
    # Microseconds as float64 must not lose nanoseconds.
    origin_ns = document["otherData"]["origin_ns"]
    starts = sorted(origin_ns + round(event["ts"] * 1000) for event in slices)
    recorded = sorted(REALTIME_NS + round(row["start_ts"] * 1e9) for row in job.table.to_pylist())
    assert starts == recorded
    assert max(event["ts"] for event in slices) < 2**43


@given(
    spans=st.lists(
        st.tuples(st.integers(0, 30), st.integers(0, 10), st.booleans()).map(
            lambda drawn: TestSpan(
                kind="collective", start_ns=drawn[0], duration_ns=drawn[1], track_id=1 + drawn[2], comm_id=1
            )
        ),
        min_size=1,
        max_size=30,
    )
)
def test_overlapping_spans_go_to_lanes_in_which_slices_nest(
    tmp_path_factory: pytest.TempPathFactory, spans: list[TestSpan]
) -> None:
    tracks = [trace_pb2.Track(id=number, thread_id=number, thread_name="t", device=-1) for number in (1, 2)]
    folder = tmp_path_factory.getbasetemp()
    path = write_rank(folder, spans, packets=[packet(names=trace_pb2.Names(track=tracks))])
    timeline = rank_timeline(read_file(path), 1000)
    drawn = []
    for lane in timeline.lanes:
        ends: list[int] = []
        for piece in lane.slices:
            while ends and ends[-1] <= piece.start_ns:
                ends.pop()
            assert not ends or piece.end_ns <= ends[-1]
            ends.append(piece.end_ns)
            drawn.append((lane.name, piece.start_ns - 1000, piece.end_ns - 1000))
    recorded = [(f"t {span.track_id}", span.start_ns, span.start_ns + span.duration_ns) for span in spans]
    assert sorted(drawn) == sorted(recorded)
    assert export_to_perfetto(path, folder) == len(spans)


def export_to_perfetto(path: Path, folder: Path) -> int:
    assert cli.run(["export", str(path), "--format", "perfetto", "-o", str(folder / "out"), "--quiet"]) == 0
    return len(Slices(folder / "out").slices)


def test_a_flow_is_known_by_both_ends_and_by_nothing_else() -> None:
    one = flow_id("pp", 0, 1, True, 5)
    others = {
        flow_id("pp", 1, 0, True, 5),
        flow_id("pp", 0, 1, False, 5),
        flow_id("pp", 0, 1, True, 6),
        flow_id("tp", 0, 1, True, 5),
    }
    assert one not in others
    assert len(others) == 4
    assert 0 < one < 2**63
