"""Work at a step's end, on one rank alone and without a span: the next step's first op came late, and others waited."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from smon_rt._proto import trace_pb2
from smon_rt.analysis import analyze
from smon_rt.analysis.smon_spans import OpColumns
from smon_rt.analysis.smon_tails import starts_after_tails
from smon_rt.kinds import KIND_NAMES
from tests.python.smon_files import TestSpan, packet, step_packet, write_rank

MS = 1_000_000
STEPS = 20
FORWARD_NS, REDUCE_NS, SAVE_NS = 20 * MS, 2 * MS, 100 * MS


def record(folder: Path, *, saves: dict[int, int], barrier: bool = False) -> Path:
    """Two data-parallel ranks: a forward, a reduction in which each waits for the other, an optimizer.

    `saves`: how many steps there are between two at whose end this rank saves; with `barrier` the other waits for that
    where nothing is recorded, and both begin the next step together.
    """
    folder.mkdir()
    spans: dict[int, list[TestSpan]] = {0: [], 1: []}
    times: dict[int, list[tuple[int, int, int, bool, bool]]] = {0: [], 1: []}
    free_ns = {0: MS, 1: MS}
    for step in range(STEPS):
        begins = dict(free_ns)
        reduced_ns = max(begins.values()) + FORWARD_NS + REDUCE_NS
        for rank, begin_ns in begins.items():
            forward = TestSpan("forward_compute", step, begin_ns, FORWARD_NS, microbatch=0)
            reduce_ns = reduced_ns - begin_ns - FORWARD_NS
            reduce = TestSpan(
                "grads_all_reduce", step, begin_ns + FORWARD_NS, reduce_ns, comm_id=1, comm_seq=step + 1, time_source=4
            )
            optimizer = TestSpan("optimizer", step, reduced_ns, 3 * MS)
            spans[rank] += [forward, reduce, optimizer]
            saved_ns = SAVE_NS if saves.get(rank) and step % saves[rank] == 0 else 0
            free_ns[rank] = reduced_ns + 3 * MS + saved_ns
        if barrier:
            free_ns = dict.fromkeys(free_ns, max(free_ns.values()))
        for rank, begin_ns in begins.items():
            times[rank].append((step, begin_ns, free_ns[rank] - begin_ns, True, False))
    group = trace_pb2.Communicator(id=1, name="dp", dimension="dp", member_ranks=[0, 1])
    for rank in range(2):
        layout = {"dp_size": 2, "dp_rank": rank}
        packets = [packet(names=trace_pb2.Names(communicator=[group])), step_packet(times[rank])]
        write_rank(folder, spans[rank], packets=packets, rank=rank, world_size=2, layout=layout)
    return folder


def test_a_rank_that_saves_at_the_end_of_its_steps_is_named_and_its_time_is_explained(tmp_path: Path) -> None:
    report = analyze(record(tmp_path / "run", saves={0: 4}))
    step_s = (FORWARD_NS + REDUCE_NS + 3 * MS) / 1e9
    # Nobody begins another step after the last one that it saves in, but in the job it has taken its time.
    assert report.mean_step_time_s.base == pytest.approx(step_s + SAVE_NS / 1e9 / 4, rel=0.05)
    assert (report.verdict.cause, report.verdict.where.rank) == ("host_launch_delay", 0)
    assert report.verdict.gain_s_per_step == pytest.approx(SAVE_NS / 1e9 / 4, rel=0.05)
    unexplained = (report.fidelity.unexplained_error_mean, report.fidelity.unexplained_error_worst)
    assert unexplained == pytest.approx((0, 0), abs=0.05)


def test_what_all_ranks_do_between_two_steps_is_of_neither(tmp_path: Path) -> None:
    report = analyze(record(tmp_path / "run", saves={0: 4, 1: 4}))
    assert report.mean_step_time_s.base == pytest.approx((FORWARD_NS + REDUCE_NS + 3 * MS) / 1e9, rel=0.02)
    assert report.verdict.cause == "none"


def test_who_waits_for_the_others_between_two_steps_held_up_nobody(tmp_path: Path) -> None:
    """In a barrier, or a broadcast, that was not recorded: no launch of the rank that waits was late."""
    report = analyze(record(tmp_path / "run", saves={0: 4}, barrier=True))
    delays = [cause for cause in report.causes if cause.cause == "host_launch_delay"]
    assert all(cause.gain_s_per_step < 1e-3 for cause in delays)


def ops_of(rows: list[tuple[int, int, int, int]]) -> tuple[OpColumns, np.ndarray]:
    """Ops of (worker, step, start, end), and where their steps began."""
    worker, step, start, end = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    zeros = np.zeros(len(rows), np.int64)
    columns = {field.name: zeros for field in dataclasses.fields(OpColumns)}
    columns |= {"worker": worker, "step": step, "start_ns": start, "end_ns": end}
    columns["kind"] = zeros + KIND_NAMES.index("optimizer")
    return OpColumns(**columns), start


@pytest.mark.parametrize(
    ("rows", "moved"),
    [
        ([(0, 4, 0, 10), (0, 5, 30, 40), (1, 4, 0, 10), (1, 5, 10, 40)], {1: 10}),  # all of its tail
        ([(0, 4, 0, 10), (0, 5, 30, 40), (1, 4, 0, 10), (1, 5, 16, 40)], {1: 16}),  # less what both of them spent
        ([(0, 4, 0, 10), (0, 5, 30, 40), (1, 4, 0, 25), (1, 5, 25, 40)], {1: 25}),  # no earlier than the other began
        ([(0, 4, 0, 10), (0, 6, 30, 40), (1, 4, 0, 10), (1, 6, 10, 40)], {}),  # steps between were not recorded
        ([(0, 4, 0, 35), (0, 5, 30, 40), (1, 4, 0, 10), (1, 5, 10, 40)], {}),  # the device is still at work
        ([(0, 4, 0, 10), (0, 5, 30, 40), (1, 5, 10, 40)], {}),  # nobody else's tail is known: what was shared is not
        ([(0, 4, -90, -80), (0, 5, -50, -40), (1, 4, -90, -80), (1, 5, -80, -40)], {1: -80}),
        ([(0, 4, 0, 10)], {}),
    ],
)
def test_a_step_begins_where_the_one_before_had_no_op_left(
    rows: list[tuple[int, int, int, int]], moved: dict[int, int]
) -> None:
    ops, starts = ops_of(rows)
    expected = starts.copy()
    for row, start in moved.items():
        expected[row] = start
    assert starts_after_tails(ops, starts).tolist() == expected.tolist()
