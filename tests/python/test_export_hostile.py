"""Whatever a well-formed file claims, each export ends with a file or with one line."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.csv as pa_csv
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as perfetto

from smon_rt import cli
from smon_rt._proto import trace_pb2
from tests.python.smon_files import TestSpan, packet, snapshot, step_packet, write_rank

INT32 = st.sampled_from((-(2**31), -1, 0, 1, 2, 2**31 - 1))
TIMES = st.sampled_from((-(2**61), -1, 0, 1, 10**18, 2**61))
# Not what a file name cannot hold.
TEXT = st.text(st.characters(exclude_characters="/\0", codec="utf-8"), max_size=6)
SPANS = st.builds(
    TestSpan,
    kind=st.sampled_from(("forward_compute", "backward_compute", "optimizer", "gc", "forward_send", "metric", "user")),
    step=st.sampled_from((0, 1, 2**32 - 1)),
    start_ns=TIMES,
    duration_ns=st.sampled_from((0, 1, 2**61)),
    time_source=st.sampled_from((0, 1, 9)),
    device_start_ns=TIMES,
    device_duration_ns=st.sampled_from((0, 2**61)),
    flags=st.sampled_from((0, 2**16 - 1)),
    microbatch=INT32,
    chunk=INT32,
    op_index=st.sampled_from((0, 1, 65535)),
    track_id=st.sampled_from((0, 1, 5)),
    name_id=st.sampled_from((0, 1, 5)),
    comm_id=st.sampled_from((0, 1, 5)),
    comm_seq=st.sampled_from((0, 1, 2**32 - 1)),
    peer=INT32,
    payload_bytes=st.sampled_from((0, 2**63 - 1)),
    metric_value=st.sampled_from((0.0, float("nan"), float("-inf"))),
)
LAYOUTS = st.fixed_dictionaries(dict.fromkeys(("dp_size", "pp_size", "vpp_size", "stage", "dp_rank"), INT32))


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    spans=st.lists(SPANS, max_size=6),
    layout=LAYOUTS | st.just({"dp_size": 1}),
    world_size=st.just(1) | INT32,
    text=TEXT,
    clock=st.tuples(TIMES, TIMES),
)
def test_no_claim_of_a_trace_raises_anything_else(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    spans: list[TestSpan],
    layout: dict[str, int],
    world_size: int,
    text: str,
    clock: tuple[int, int],
) -> None:
    for path in tmp_path.iterdir():
        path.unlink()
    names = trace_pb2.Names(
        name=[trace_pb2.Name(id=1, text=text)],
        track=[trace_pb2.Track(id=1, thread_id=-1, thread_name=text, device=0, stream=2**64 - 1)],
        communicator=[trace_pb2.Communicator(id=1, name=text)],
    )
    for rank in range(2):
        write_rank(
            tmp_path,
            spans,
            packets=[packet(names=names), step_packet([(0, clock[0], 5, True, False)])],
            clock=snapshot(clock[0] // 4, clock[1]),
            rank=rank,
            world_size=world_size,
            layout=layout,
            host=text + str(rank),
            run_id=text or "run",
        )
    assert cli.run(["info", str(tmp_path), "--json", "-"]) in (0, 3)
    json.loads(capsys.readouterr().out)
    assert cli.run(["info", str(tmp_path)]) in (0, 3)
    for output_format in ("perfetto", "chrome", "csv", "parquet"):
        output = tmp_path / "out.parquet"
        output.unlink(missing_ok=True)
        code = cli.run(["export", str(tmp_path), "--format", output_format, "-o", str(output), "--quiet"])
        said = capsys.readouterr().err
        assert "Traceback" not in said
        assert code in (0, 2, 3), said
        assert output.exists() is (code != 2)
        assert code != 2 or len(said.splitlines()) == 1
        if code == 2:
            assert output_format == "parquet"
        elif output_format == "perfetto":
            perfetto.Trace.FromString(output.read_bytes())
        elif output_format == "chrome":
            json.loads(output.read_text(encoding="utf-8"), parse_constant=lambda name: pytest.fail(name))
        elif output_format == "csv":
            assert pa_csv.read_csv(output, parse_options=pa_csv.ParseOptions(newlines_in_values=True)).num_columns == 29
