"""Steps that were run again, after a rollback or a second start: those count that the last one went on from."""

from __future__ import annotations

from pathlib import Path

import pytest

from smon_rt.analysis.smon_importer import read_smon
from smon_rt.errors import TraceError
from tests.python.smon_files import TestSpan, span_packet, step_packet, write_rank

_STEP_NS, _COMPUTE_NS = 1_000_000, 400_000


def write_rank_with(folder: Path, rank: int, numbers: list[int], ranks: int = 2) -> None:
    """A rank that ran these steps, one after the other; a step takes longer, the later it was run."""
    spans, steps = [], []
    for at, step in enumerate(numbers):
        start_ns = (at + 1) * _STEP_NS
        took_ns = _COMPUTE_NS + 1_000 * at
        spans.append(TestSpan("forward_compute", step=step, start_ns=start_ns + 10, duration_ns=took_ns, microbatch=0))
        steps.append((step, start_ns, _STEP_NS - 100, True, False))
    layout = {"dp_size": ranks, "pp_size": 1, "dp_rank": rank, "stage": 0}
    write_rank(folder, spans, packets=[step_packet(steps)], rank=rank, world_size=ranks, layout=layout)


def test_the_last_run_of_a_step_counts(tmp_path: Path) -> None:
    numbers = [0, 1, 2, 3, 4, 2, 3, 4, 5]
    for rank in range(2):
        write_rank_with(tmp_path, rank, numbers)
    trace = read_smon([tmp_path])
    rows = trace.ops.to_pylist()
    assert [row["step"] for row in rows if row["rank"] == 0] == [0, 1, 2, 3, 4, 5]
    last = {step: at for at, step in enumerate(numbers)}
    for row in rows:
        assert row["duration_ns"] == _COMPUTE_NS + 1_000 * last[row["step"]]
    assert trace.recording is not None
    assert "6 spans of steps that were run again" in trace.recording.left_out


def test_a_step_that_not_all_have_run_again_is_left_out(tmp_path: Path) -> None:
    write_rank_with(tmp_path, 0, [0, 1, 2, 3, 1, 2])
    write_rank_with(tmp_path, 1, [0, 1, 2, 3, 1])
    trace = read_smon([tmp_path])
    assert {row["step"] for row in trace.ops.to_pylist()} == {0, 1}  # nobody went on from the 3


def test_steps_and_time_have_the_same_order(tmp_path: Path) -> None:
    """A second recording is shorter than the first: what has higher numbers there came before it."""
    numbers = [0, 1, 2, 3, 4, 5, 0, 1, 2]
    for rank in range(2):
        write_rank_with(tmp_path, rank, numbers)
    trace = read_smon([tmp_path])
    rows = [row for row in trace.ops.to_pylist() if row["rank"] == 0]
    assert [(row["step"], row["duration_ns"]) for row in rows] == [
        (at, _COMPUTE_NS + 1_000 * (6 + at)) for at in (0, 1, 2)
    ]
    assert [row["start_ns"] for row in rows] == sorted(row["start_ns"] for row in rows)
    assert trace.recording is not None
    assert "12 spans of steps that were run again" in trace.recording.left_out


def test_nothing_in_common_is_one_line(tmp_path: Path) -> None:
    write_rank_with(tmp_path, 0, [0, 0])
    write_rank_with(tmp_path, 1, [0])
    with pytest.raises(TraceError, match="no step was sampled by all ranks"):
        read_smon([tmp_path])


def test_two_recordings_of_one_process(tmp_path: Path) -> None:
    """As after stop() and start(): another file, the same process, numbers from 0 again."""
    for part, start_ns in enumerate((1_000_000, 9_000_000)):
        spans, steps = [], []
        for step in range(3):
            at_ns = start_ns + step * _STEP_NS
            spans.append(
                TestSpan("forward_compute", step=step, start_ns=at_ns, duration_ns=_COMPUTE_NS + part, microbatch=0)
            )
            steps.append((step, at_ns, _STEP_NS, True, False))
        packets = [span_packet(spans, ring_id=part + 1), step_packet(steps)]
        write_rank(tmp_path, [], packets=packets, file_index=part)
    rows = read_smon([tmp_path]).ops.to_pylist()
    assert [row["duration_ns"] for row in rows] == [_COMPUTE_NS + 1] * 3
