"""What a report says of garbage collection: whether a plan pays, with which interval, and how a plan went."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from smon_rt._proto import trace_pb2
from smon_rt.analysis import Report, analyze
from smon_rt.analysis.garbage import Garbage
from smon_rt.synth import JobSpec, SyntheticJob, make_job, parse_plant
from smon_rt.synth.spec import Durations
from smon_rt.trace.garbage import collections
from smon_rt.trace.reader import read_file
from tests.python.smon_files import TestSpan, packet, span_packet

_NAMES = (
    *("gc memory before bytes", "gc memory after bytes", "gc freed objects"),
    *("generation 2 pause s", "planned generation 1 pause s", "guard generation 2 pause s"),
)
_SPEC = JobSpec(dp=2, pp=2, microbatches=4, steps=40, noise=0.02, seed=3)


def job_with(spec: JobSpec, *plants: str) -> SyntheticJob:
    return make_job(dataclasses.replace(spec, plants=tuple(parse_plant(text) for text in plants)))


def add_collections(path: Path, found: list[tuple[int, str, float, float]]) -> None:
    """Metrics of collections, as the recorder leaves them: (step, origin and generation, MiB before, MiB after)."""
    ids = {name: 60_000 + number for number, name in enumerate(_NAMES)}
    names = [trace_pb2.Name(id=number, text=name) for name, number in ids.items()]
    spans = []
    for number, (step, words, before, after) in enumerate(found):
        values = (before * 2**20, after * 2**20, 100.0, 0.06)
        for name, value in zip((*_NAMES[:3], f"{words} pause s"), values, strict=True):
            spans.append(TestSpan(kind="metric", step=step, start_ns=number + 1, name_id=ids[name], metric_value=value))
    with path.open("ab") as file:
        file.write(packet(names=trace_pb2.Names(name=names)) + span_packet(spans, ring_id=77))


def files_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.smon"))


def report_with(folder: Path, plant: str, by_rank: dict[int, list[tuple[int, str, float, float]]]) -> Report:
    job_with(_SPEC, plant).write(folder)
    for rank, path in enumerate(files_of(folder)):
        if by_rank.get(rank):
            add_collections(path, by_rank[rank])
    return analyze(folder)


def test_128_dp_ranks_gain_as_much_as_was_published(tmp_path: Path) -> None:
    """Planned collections made a job of 128 dp ranks 12.6 % faster ("Understanding Stragglers …", OSDI 2025): so it is
    where a full collection of 0.33 s comes every 70th step of 1.86 s on each rank, at its own."""
    spec = JobSpec(dp=128, microbatches=4, steps=70, noise=0.02, seed=3, durations=Durations(150, 300))
    alone, planned = (job_with(spec, plant) for plant in ("gc=332@0.0142", "gc=332/70"))
    before_s, after_s = (job.truth["mean_step_time_s"]["base"] for job in (alone, planned))
    assert before_s / after_s - 1 == pytest.approx(0.126, abs=0.005)
    alone.write(tmp_path / "traces")
    report = analyze(tmp_path / "traces")
    assert report.verdict.cause == "gc"
    [advice] = report.advice
    assert advice.detail["interval_steps"] == pytest.approx(70, abs=7)
    assert f"smon_rt.gc.plan({advice.detail['interval_steps']})" in advice.text
    assert advice.gain_s_per_step == pytest.approx(before_s - after_s, rel=0.05)


def test_the_interval_is_as_long_as_there_is_memory_for_garbage(tmp_path: Path) -> None:
    # 64 MiB every eight steps: 1 GiB of it takes 128 steps.
    found = [(step, "generation 2", 264.0, 200.0) for step in range(0, 40, 8)]
    report = report_with(tmp_path, "gc=60@0.25", {0: found, 1: [(0, "generation 2", 0.0, 0.0)]})
    [advice] = report.advice
    assert advice.detail["interval_steps"] == 128
    assert advice.detail["garbage_bytes_per_step"] == pytest.approx(8 * 2**20)
    [gc] = [cause for cause in report.causes if cause.cause == "gc"]
    assert advice.gain_s_per_step == pytest.approx(gc.gain_s_per_step - 0.060 / 128, rel=0.01)
    assert "guard" not in report.verdict.text


def test_what_happened_beside_a_plan_is_named(tmp_path: Path) -> None:
    planned = [(step, "planned generation 1", 210.0, 200.0) for step in range(4, 40, 8)]
    by_rank = {rank: list(planned) for rank in range(4)}
    by_rank[1].append((39, "guard generation 2", 900.0, 200.0))
    by_rank[2] = [*planned[:-1], (38, "generation 2", 210.0, 200.0)]
    report = report_with(tmp_path, "gc=60@0.25", by_rank)
    trust = " ".join(str(report).split("trust ")[1].split())
    assert "the memory guard collected garbage alone on rank 1 (once)" in trust
    assert "garbage was collected beside the plan on rank 2 (once)" in trust
    assert "planned collections of 1 step were not on all ranks" in trust
    assert report.advice == (), "it is planned already"
    assert "would not pay" not in trust


def test_ranks_that_have_no_plan_are_named(tmp_path: Path) -> None:
    planned = [(step, "planned generation 1", 210.0, 200.0) for step in range(4, 40, 8)]
    own = [(step, "generation 2", 210.0, 200.0) for step in range(7, 40, 8)]
    report = report_with(tmp_path, "gc=60@0.25", {0: planned, 1: planned, 2: own})
    trust = " ".join(str(report).split("trust ")[1].split())
    assert "ranks 2–3 did not collect garbage by the plan of the others" in trust
    assert "not on all ranks" not in trust


def test_a_plan_that_went_well_is_no_news(tmp_path: Path) -> None:
    planned = [(step, "planned generation 1", 210.0, 200.0) for step in range(4, 40, 8)]
    report = report_with(tmp_path, "gc=1@0.25", dict.fromkeys(range(4), planned))
    assert "garbage" not in str(report)
    [first, *_] = (read_file(path) for path in files_of(tmp_path))
    read_back = collections(first)
    assert [(each.step, each.origin, each.generation) for each in read_back] == [
        (step, "planned", 1) for step in range(4, 40, 8)
    ]
    assert {(each.freed_objects, each.pause_s, each.memory_after_bytes) for each in read_back} == {
        (100, 0.06, 200 * 2**20)
    }


def test_many_ranks_are_named_by_the_worst() -> None:
    words = Garbage(guard={rank: rank + 1 for rank in range(6)}).words()
    assert words == [
        "the memory guard collected garbage alone on rank 5 (6 times), rank 4 (5 times), rank 3 (4 times) and 3 more"
    ]
