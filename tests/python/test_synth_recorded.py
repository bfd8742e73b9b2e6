"""A synthetic job as a directory of `.smon` files: what is in them is what the job did, on the clocks of its hosts."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smon_rt.analysis import analyze
from smon_rt.synth import JobSpec, LongSequences, Pauses, Plant, SlowLink, SynthError, SyntheticJob, make_job
from smon_rt.synth.recorded import BEGIN_NS, STEP_GAP_NS, host_clocks
from smon_rt.synth.smon_file import numbers_among_equals
from smon_rt.trace import RankTrace, read_file
from smon_rt.trace.kinds import KIND_NAMES
from tests.python.example_jobs import check_messages_pair
from tests.python.recorded_jobs import RecordedJob

SPEC = JobSpec(dp=2, pp=3, microbatches=5, steps=4, noise=0.05, comm_noise=0.1, plants=(Plant(1, 1.5, 1),), seed=3)
INTERLEAVED = JobSpec(dp=2, pp=2, vpp=2, microbatches=4, steps=3, noise=0.05, overlap=True, seed=4)


def read(job: SyntheticJob, folder: Path) -> list[RankTrace]:
    """What all ranks recorded; whole."""
    traces = [read_file(path) for path in job.write(folder)[:-1]]
    assert all(trace.damage == [] and trace.missing_span_count == 0 and not trace.is_cut for trace in traces)
    return traces


def rows_of(trace: RankTrace) -> list[tuple[object, ...]]:
    """Everything that a span says, in the order in which they began."""
    spans = trace.spans
    columns: list[npt.NDArray[Any]] = [
        spans.step,
        spans.kind,
        spans.start_ns,
        spans.duration_ns,
        spans.microbatch,
        spans.chunk,
        spans.op_index,
    ]
    columns += [spans.comm_id, spans.comm_seq, spans.peer, spans.time_source, spans.flags]
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize("spec", [SPEC, INTERLEAVED, dataclasses.replace(SPEC, tp=2)], ids=["1f1b", "vpp 2", "tp 2"])
def test_the_files_say_what_another_writer_of_the_same_job_says(tmp_path: Path, spec: JobSpec) -> None:
    job = make_job(spec)
    mine = read(job, tmp_path / "mine")
    theirs = [read_file(path) for path in RecordedJob(job).write(tmp_path / "theirs")]
    assert [trace.rank for trace in mine] == [trace.rank for trace in theirs] == list(range(spec.world_size))
    for trace, other in zip(mine, theirs, strict=True):
        assert rows_of(trace) == rows_of(other)
        assert trace.communicators == other.communicators
        assert trace.steps.duration_ns.tolist() == other.steps.duration_ns.tolist()
        fields = {name.name: value for name, value in trace.identity.layout.ListFields()}
        assert fields.pop("schedule") == spec.resolved_schedule
        assert fields == {name.name: value for name, value in other.identity.layout.ListFields()}
    messages = 2 * 2 * spec.tp * spec.microbatches * (spec.pp * spec.vpp - 1) * spec.steps
    assert check_messages_pair(mine) == messages


def test_the_analysis_says_of_a_directory_what_it_says_of_the_parquet(tmp_path: Path) -> None:
    job = make_job(SPEC)
    parquet = analyze(job.write(tmp_path / "job.parquet")[0]).to_dict()
    job.write(tmp_path / "job")
    report = analyze(tmp_path / "job").to_dict()
    for key, value in parquet["mean_step_time_s"].items():
        assert report["mean_step_time_s"][key] == pytest.approx(value, rel=1e-3)
    assert report["verdict"]["cause"] == parquet["verdict"]["cause"] == "worker"
    assert report["fidelity"]["simulation_error_mean"] < 1e-3


@settings(max_examples=15)
@given(st.integers(0, 100), st.sampled_from([1.0, 0.4]), st.integers(0, 2))
def test_pauses_lie_where_they_were_made_and_are_in_no_other_rank(
    tmp_path_factory: pytest.TempPathFactory, seed: int, probability: float, fewer: int
) -> None:
    plants = (
        Pauses("gc", 30, probability),
        Pauses("data_loading", 20, probability, dp_rank=1, stage=0),
        Pauses("gc", 10, every_steps=2, dp_rank=0, stage=2),
    )
    job = make_job(dataclasses.replace(SPEC, seed=seed, plants=plants[:2], fewer_microbatches=fewer, tp=2))
    planned = make_job(dataclasses.replace(SPEC, seed=seed, plants=plants[2:]))
    for one in (job, planned):
        found: Counter[tuple[int, int, int, int]] = Counter()
        expected: Counter[tuple[int, int, int, int]] = Counter()
        for trace in read(one, tmp_path_factory.mktemp("job") / "traces"):
            layout, spans = trace.identity.layout, trace.spans
            pauses = np.isin(spans.kind, [KIND_NAMES.index("gc"), KIND_NAMES.index("data_loading")])
            for row in np.flatnonzero(pauses & (spans.duration_ns > 1_000_000)).tolist():
                found[trace.rank, int(spans.step[row]), int(spans.kind[row]), int(spans.duration_ns[row])] += 1
                starts, ends = spans.start_ns, spans.start_ns + spans.duration_ns
                around = np.isin(
                    spans.kind, [KIND_NAMES.index("forward_compute"), KIND_NAMES.index("backward_compute")]
                )
                around &= (starts < starts[row]) & (ends > ends[row])
                is_inside = one is job and KIND_NAMES[int(spans.kind[row])] == "gc"
                assert around.sum() == is_inside
                assert is_inside or ends[row] <= starts[around].min(initial=ends[row])
            for pause in one.draws.pauses:
                if (pause.stage, pause.dp_rank) == (layout.stage, layout.dp_rank) and (
                    pause.row is None or layout.tp_rank == 0
                ):
                    kind = KIND_NAMES.index(pause.kind)
                    expected[trace.rank, pause.step, kind, int(pause.duration_ns)] += 1
        assert found == expected


def test_hosts_have_clocks_of_their_own_and_times_on_them_are_those_of_the_job(tmp_path: Path) -> None:
    right = dataclasses.replace(SPEC, hosts=3)
    wrong = dataclasses.replace(right, clock_offset_ms=500, clock_drift_ppm=100)
    clocks = host_clocks(wrong)
    assert (clocks[0].offset_ns, clocks[0].drift_ratio) == (0, 0.0)
    assert all(1_000_000 < abs(clock.offset_ns) <= 500_000_000 for clock in clocks[1:])
    assert all(1e-6 < abs(clock.drift_ratio) <= 1e-4 for clock in clocks[1:])
    traces = zip(read(make_job(right), tmp_path / "right"), read(make_job(wrong), tmp_path / "wrong"), strict=True)
    for trace, other in traces:
        assert trace.identity.host == other.identity.host == f"node{trace.rank // 2}"
        clock = clocks[trace.rank // 2]
        assert sorted(other.spans.start_ns.tolist()) == sorted(clock.at(trace.spans.start_ns).tolist())
    fidelity = analyze(tmp_path / "wrong").fidelity
    assert fidelity.clock_bound_s is not None
    assert 0 < fidelity.clock_bound_s < 1e-3


def test_dropped_spans_are_counted_by_kind_and_missing_ranks_have_no_file(tmp_path: Path) -> None:
    whole = read(make_job(SPEC), tmp_path / "whole")
    lossy = dataclasses.replace(SPEC, drop_ratio=0.1, missing_ranks=(2, 5))
    traces = {trace.rank: trace for trace in read(make_job(lossy), tmp_path / "lossy")}
    assert sorted(traces) == [0, 1, 3, 4]
    lost = 0
    for rank, trace in traces.items():
        counts = Counter(whole[rank].spans.kind.tolist())
        counts.subtract(trace.spans.kind.tolist())
        dropped = {kind: count for kind, count in counts.items() if count}
        assert dict(trace.losses.dropped_by_kind) == dropped
        lost += sum(dropped.values())
    assert 0.05 < lost / sum(len(whole[rank].spans) for rank in traces) < 0.15
    assert make_job(lossy).truth["plants"] == make_job(SPEC).truth["plants"]


def test_a_dp_rank_with_fewer_microbatches_records_fewer(tmp_path: Path) -> None:
    job = make_job(dataclasses.replace(SPEC, fewer_microbatches=2, steps=12))
    counts = set()
    for trace in read(job, tmp_path / "traces"):
        for step in range(12):
            of = trace.spans.kind[trace.spans.step == step]
            forwards, backwards = (
                int((of == KIND_NAMES.index(f"{way}_compute")).sum()) for way in ("forward", "backward")
            )
            assert forwards == backwards
            counts.add(forwards)
    assert counts == {3, 4, 5}
    assert analyze(tmp_path / "traces").fidelity.simulation_error_mean < 5e-3


def test_the_same_seed_gives_the_same_files(tmp_path: Path) -> None:
    plants = (LongSequences(1.0), Pauses("gc", 30, 0.4), SlowLink(0, 5))
    spec = dataclasses.replace(SPEC, plants=plants, hosts=2, clock_offset_ms=9, drop_ratio=0.05, tail_ratio=0.01)
    first, again = (make_job(spec).write(tmp_path / name)[:-1] for name in ("first", "again"))
    other = make_job(dataclasses.replace(spec, seed=4)).write(tmp_path / "other")[:-1]
    for one, two, three in zip(first, again, other, strict=True):
        assert one.read_bytes() == two.read_bytes() != three.read_bytes()


@pytest.mark.parametrize(
    ("spec", "digest"),
    [
        (
            JobSpec(
                dp=2,
                pp=3,
                microbatches=5,
                steps=3,
                noise=0.1,
                comm_noise=0.2,
                launch_delay_ms=0.3,
                plants=(Plant(1, 1.5, 0), Plant(0, 1.2)),
                seed=9,
            ),
            "ea6bf02493f62bdd",
        ),
        (JobSpec(dp=2, pp=2, vpp=2, microbatches=4, steps=2, noise=0.05, overlap=True, seed=3), "a6ead068a1d68f85"),
    ],
)
def test_what_can_be_planted_besides_moves_no_time_of_jobs_of_earlier_versions(spec: JobSpec, digest: str) -> None:
    timeline = make_job(spec).timeline
    times = timeline.starts_ns.tobytes() + timeline.ends_ns.tobytes()
    assert hashlib.sha256(times).hexdigest()[:16] == digest


def test_a_directory_with_trace_files_is_left_alone(tmp_path: Path) -> None:
    make_job(SPEC).write(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(SynthError, match=r"choose an empty directory$"):
        make_job(dataclasses.replace(SPEC, seed=8)).write(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_steps_follow_each_other_on_every_rank(tmp_path: Path) -> None:
    job = make_job(SPEC)
    for trace in read(job, tmp_path / "traces"):
        starts, ends = trace.steps.start_ns, trace.steps.start_ns + trace.steps.duration_ns
        assert starts[0] == BEGIN_NS
        assert (starts[1:] - ends[:-1]).tolist() == [STEP_GAP_NS] * (SPEC.steps - 1)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=20))
def test_numbers_among_equals_count_what_came_before(pairs: list[tuple[int, int]]) -> None:
    columns = [np.array([pair[place] for pair in pairs], np.int64) for place in (0, 1)]
    assert numbers_among_equals(*columns).tolist() == [pairs[:row].count(pair) for row, pair in enumerate(pairs)]
