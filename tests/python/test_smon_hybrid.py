"""Sharding within replicas: collectives whose members are some of the dp ranks, in rows and in columns."""

from __future__ import annotations

from pathlib import Path

import pytest

from smon_rt._proto import trace_pb2
from smon_rt.analysis import analyze
from smon_rt.analysis.smon_importer import read_smon
from smon_rt.kinds import KIND_NAMES
from tests.python.recorded_jobs import WAIT_RETURN
from tests.python.smon_files import TestSpan, packet, step_packet, write_rank

MS = 1_000_000
STEPS = 6
STEP_MS = 100
SLOW_RANK = 1
#: Members of each rank's two communicators, by rank.
SHARD = {0: (0, 1), 1: (0, 1), 2: (2, 3), 3: (2, 3)}
REPLICATE = {0: (0, 2), 1: (1, 3), 2: (0, 2), 3: (1, 3)}


def compute_ms(rank: int) -> int:
    return 30 if rank == SLOW_RANK else 20


def ready_ms(rank: int) -> int:
    """When the gradients of a rank are reduced within its shard: all of its members have computed."""
    return max(map(compute_ms, SHARD[rank])) + 5


def spans_of(rank: int) -> list[TestSpan]:
    spans = []
    for step in range(STEPS):

        def add(kind: str, begin_ms: int, end_ms: int, step: int = step, **ids: int) -> None:
            times = {"start_ns": (STEP_MS * step + begin_ms) * MS, "duration_ns": (end_ms - begin_ms) * MS}
            spans.append(TestSpan(kind=kind, step=step, **times, **ids))

        collective = {"comm_seq": step + 1, "time_source": WAIT_RETURN}
        add("params_all_gather", 0, 2, comm_id=1, **collective)
        add("forward_compute", 2, 10, microbatch=0)
        add("backward_compute", 10, compute_ms(rank), microbatch=0)
        add("grads_reduce_scatter", compute_ms(rank), ready_ms(rank), comm_id=1, **collective)
        # Across replicas the slow one's partner waits for it, and so does nobody else.
        end_ms = max(map(ready_ms, REPLICATE[rank])) + 4
        add("grads_all_reduce", ready_ms(rank), end_ms, comm_id=2, **collective)
        add("optimizer", end_ms, end_ms + 3)
    return spans


def write(folder: Path, skip: tuple[int, ...] = (), lost: tuple[int, int, str] | None = None) -> None:
    for rank in sorted(set(range(4)) - set(skip)):
        # The order in which processes make their groups is the same on all; what they are called is each group's own.
        names = trace_pb2.Names(
            communicator=[
                trace_pb2.Communicator(id=number, name=f"{name} of {members}", dimension="dp", member_ranks=members)
                for number, name, members in ((1, "shard", SHARD[rank]), (2, "replicate", REPLICATE[rank]))
            ]
        )
        spans = [span for span in spans_of(rank) if (rank, span.step, span.kind) != lost]
        steps = [(step, STEP_MS * step * MS, 42 * MS, True, False) for step in range(STEPS)]
        packets = [packet(names=names), step_packet(steps)]
        write_rank(folder, spans, rank=rank, world_size=4, layout={"dp_size": 4, "dp_rank": rank}, packets=packets)


def test_partners_are_the_members_of_the_communicator(tmp_path: Path) -> None:
    write(tmp_path)
    found: dict[tuple[int, str, int], set[int]] = {}
    for row in read_smon([tmp_path]).ops.to_pylist():
        if row["group_id"] >= 0:
            found.setdefault((row["step"], KIND_NAMES[row["kind"]], row["group_id"]), set()).add(row["dp_rank"])
    sets: dict[str, set[tuple[int, ...]]] = {}
    for (_, kind, _), members in found.items():
        sets.setdefault(kind, set()).add(tuple(sorted(members)))
    shards, replicas = {(0, 1), (2, 3)}, {(0, 2), (1, 3)}
    assert sets == {"params_all_gather": shards, "grads_reduce_scatter": shards, "grads_all_reduce": replicas}


@pytest.mark.parametrize("lost", [None, (3, 2, "grads_reduce_scatter"), (0, 4, "grads_all_reduce")])
def test_a_slow_rank_is_found_through_both_kinds_of_groups(tmp_path: Path, lost: tuple[int, int, str] | None) -> None:
    write(tmp_path, lost=lost)
    report = analyze(tmp_path)
    assert report.step_count == STEPS
    assert (report.verdict.cause, report.verdict.where.rank) == ("worker", SLOW_RANK)
    assert report.mean_step_time_s.base == pytest.approx(0.042)
    assert report.mean_step_time_s.nodelay == pytest.approx(0.042, rel=1e-3)
    assert report.fidelity.early_starts.count == 0
    # Repaired it is as its peers: its backward takes 10 ms instead of 20.
    assert report.verdict.gain_s_per_step == pytest.approx(0.010, rel=0.02)
    assert report.slowdown_by_worker["0,0"] == pytest.approx(1, abs=0.08)


def test_a_missing_rank_is_named_and_waited_for_by_nobody(tmp_path: Path) -> None:
    write(tmp_path, skip=(3,))
    report = analyze(tmp_path)
    assert report.fidelity.missing_ranks == (3,)
    assert (report.verdict.cause, report.verdict.where.rank) == ("worker", SLOW_RANK)
