"""Advice with numbers: what it says it gives back is what the generator's own simulator finds."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smon_rt.analysis import Report, analyze
from smon_rt.analysis.advice import Advice
from smon_rt.analysis.stage_split import better_splits, fit_stages, moved_words
from smon_rt.cli import run
from smon_rt.errors import QuestionError, TraceError
from smon_rt.synth import JobSpec, SyntheticJob, make_job, parse_plant
from smon_rt.synth.durations import FloatArray
from smon_rt.synth.job import replay

SPEC = JobSpec(dp=4, pp=4, microbatches=8, steps=12, noise=0.02, seed=3)
PASSES = ("forward_compute", "backward_compute")


def job_with(*plants: str, **changes: Any) -> SyntheticJob:
    return make_job(dataclasses.replace(SPEC, plants=tuple(parse_plant(text) for text in plants), **changes))


def report_of(job: SyntheticJob, folder: Path, name: str = "job.parquet", **options: Any) -> Report:
    job.write(folder / name)
    return analyze(folder / name, **options)


def only(report: Report) -> Advice:
    [advice] = report.advice
    return advice


def replayed_s(job: SyntheticJob, factors: list[float]) -> float:
    """Mean step with the passes of each stage so many times as long."""
    durations = job.durations_ns.copy()
    for op in job.program.ops:
        if op.kind in PASSES:
            durations[op.row] *= factors[op.stage]
    return float(replay(job, durations).mean())


def test_a_healthy_job_and_a_slow_machine_get_no_advice(tmp_path: Path) -> None:
    assert report_of(job_with(), tmp_path).advice == ()
    assert report_of(job_with("worker=1,0:1.6"), tmp_path, "slow.parquet").advice == ()


def test_no_work_moves_from_a_stage_that_is_slow_by_a_member_of_a_worker(tmp_path: Path) -> None:
    plants = ["--plant", "tp_member=0,1,0:1.6", "--plant", "stage=1:1.15"]
    layout = ["--dp", "1", "--pp", "2", "--tp", "2", "--tp-collectives", "4", "--steps", "8"]
    assert run(["synth", "-o", str(tmp_path / "job"), *layout, *plants]) == 0
    report = analyze(tmp_path / "job")
    assert report.verdict.cause == "tensor_parallel_member"
    [stage] = [cause for cause in report.causes if cause.cause == "stage"]
    assert stage.gain_s_per_step > 0.03 * report.mean_step_time_s.base
    assert report.advice == ()
    assert run(["analyze", str(tmp_path / "job"), "--html", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "× its peers" in page
    assert not re.search(r"(wait|last) [0-9.]+×", page)  # parts, not factors


@pytest.mark.parametrize("layers", [None, [8, 8]], ids=["share", "layers"])
def test_no_work_moves_from_the_stage_of_a_worker_that_is_named(tmp_path: Path, layers: list[int] | None) -> None:
    report = report_of(job_with("worker=1,1:1.4", "stage=1:1.15", dp=2, pp=2), tmp_path, layers=layers)
    assert (report.verdict.cause, report.verdict.where.stage) == ("worker", 1)
    [stage] = [cause for cause in report.causes if cause.cause == "stage"]
    assert stage.gain_s_per_step > 0.03 * report.mean_step_time_s.base
    assert report.advice == ()


def test_moved_work_says_of_what_it_gives_back_a_part(tmp_path: Path) -> None:
    """The verdict's gain is of a stage as fast as the others; what moves makes those slower."""
    for layers in (None, [8, 8]):
        report = report_of(job_with("stage=1:1.3", dp=2, pp=2), tmp_path, layers=layers)
        assert "fixing it gives back all of the loss: 366 → 297 ms a step" in report.verdict.text
        assert re.search(
            r": gives back 2\d\.\d ms a step \(.* ms\) of these 69\.\d ms, as the others get slower", only(report).text
        )


def test_layers_move_from_the_slow_stage_and_the_gain_is_that_of_the_replayed_job(tmp_path: Path) -> None:
    job = job_with("stage=3:1.5")
    advice = only(report_of(job, tmp_path, layers=[8, 8, 8, 8]))
    assert advice.action == "move_layers"
    before, after = advice.detail["layers"], advice.detail["layers_after"]
    assert sum(after) == 32
    assert after[3] < 8
    assert min(after[:3]) >= 8
    # Half of a layer's worth of eight is loss on the last stage: as planted.
    loads = [after[stage] / 8 for stage in range(3)] + [(after[3] + 4) / 12]
    gain = float(replay(job).mean()) - replayed_s(job, loads)
    assert advice.gain_s_per_step == pytest.approx(gain, rel=0.03)
    assert advice.text.startswith(moved_words(before, after))


def test_without_layers_a_share_of_the_work_moves(tmp_path: Path) -> None:
    job = job_with("stage=3:1.5")
    advice = only(report_of(job, tmp_path))
    assert advice.action == "move_stage_work"
    # Of loads 1, 1, 1 and 1.5 each stage should have 1.125.
    assert advice.detail["work_ratio"] == pytest.approx(0.25, abs=0.01)
    gain = float(replay(job).mean()) - replayed_s(job, [1.125, 1.125, 1.125, 0.75])
    assert advice.gain_s_per_step == pytest.approx(gain, rel=0.03)


def test_planned_collections_give_back_what_the_same_collections_at_the_same_steps_do(tmp_path: Path) -> None:
    random = job_with("gc=60@0.25", steps=40)
    planned = job_with("gc=60/4", steps=40)
    advice = only(report_of(random, tmp_path, "traces"))
    gain = random.truth["mean_step_time_s"]["base"] - planned.truth["mean_step_time_s"]["base"]
    assert advice.action == "plan_gc"
    assert advice.detail["interval_steps"] == 4
    assert advice.detail["collection_s"] == pytest.approx(0.060, rel=0.02)
    assert advice.gain_s_per_step == pytest.approx(gain, rel=0.05)


def test_collections_that_are_planned_already_get_no_advice(tmp_path: Path) -> None:
    assert report_of(job_with("gc=60/4"), tmp_path, "traces").advice == ()


def test_dealing_sequences_anew_gives_back_what_an_ideal_deal_does(tmp_path: Path) -> None:
    job = job_with("sequence_length=0.9", noise=0.0)
    advice = only(report_of(job, tmp_path))
    assert advice.action == "rebalance_sequences"
    gain = float(replay(job).mean()) - float(replay(job, dealt_longest_first(job)).mean())
    assert advice.gain_s_per_step == pytest.approx(gain, rel=0.05)


def dealt_longest_first(job: SyntheticJob) -> FloatArray:
    """Durations with the microbatches of each step dealt to the dp ranks, longest first."""
    durations: FloatArray = job.durations_ns.copy()
    count, dp = job.spec.microbatches, job.spec.dp
    rows = {(op.kind, op.stage, op.microbatch): op.row for op in job.program.ops if op.kind in PASSES}
    for step in range(job.spec.steps):
        length = np.array([[job.durations_ns[rows[PASSES[0], 0, m], step, d] for m in range(count)] for d in range(dp)])
        queue = sorted((-length[d, m], m, d) for d in range(dp) for m in range(count))
        dealt: list[list[tuple[int, int]]] = [[] for _ in range(dp)]
        for _, m, d in queue:
            free = [rank for rank in range(dp) if len(dealt[rank]) < count]
            least = min(free, key=lambda rank: (sum(length[d, m] for d, m in dealt[rank]), rank))
            dealt[least].append((d, m))
        for rank, own in enumerate(dealt):
            for place, (d, m) in enumerate(own):
                for kind in PASSES:
                    for stage in range(job.spec.pp):
                        taken = job.durations_ns[rows[kind, stage, m], step, d]
                        durations[rows[kind, stage, place], step, rank] = taken
    return durations


def test_advice_is_printed_and_in_the_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job_with("stage=3:1.5").write(tmp_path / "job.parquet")
    assert run(["analyze", str(tmp_path / "job.parquet"), "--layers", "8,8,8,8"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("advice"))
    assert line.startswith("advice   move 3 layers from stage 3 to stages 0, 1 and 2 (8,8,8,8 → 9,9,9,5): gives back")
    report = analyze(tmp_path / "job.parquet", layers=[8, 8, 8, 8])
    assert report.to_dict()["advice"][0]["action"] == "move_layers"


@pytest.mark.parametrize(
    ("layers", "words"), [([8, 8, 8], "3 numbers of layers for 4 stages"), ([8, 8, 8, 0], "above 0")]
)
def test_layers_must_fit_the_stages(layers: list[int], words: str, tmp_path: Path) -> None:
    with pytest.raises(QuestionError, match=words):
        report_of(job_with(), tmp_path, layers=layers)


def test_the_record_of_a_parquet_may_say_the_layers(tmp_path: Path) -> None:
    assert only(report_of(job_with("stage=3:1.5"), tmp_path)).action == "move_stage_work"
    meta = tmp_path / "job.yaml"
    text = meta.read_text()
    meta.write_text(text + "layers_per_stage: [8, 8, 8, 8]\n")
    assert only(analyze(tmp_path / "job.parquet")).detail["layers"] == [8, 8, 8, 8]
    for wrong in ("[8, 8, 8]", "8", "[8, 8, 8, 0]", "[8, 8, 8, many]"):
        meta.write_text(text + f"layers_per_stage: {wrong}\n")
        with pytest.raises(TraceError, match="layers_per_stage"):
            analyze(tmp_path / "job.parquet")


def test_a_fit_tells_layers_from_what_first_and_last_stage_do_besides() -> None:
    layers = [6, 8, 8, 6]
    fit = fit_stages([6 * 2.0 + 1.0, 16.0, 16.0, 6 * 2.0 + 5.0], layers)
    assert fit.layer_s == 2.0
    assert fit.extra_s == (1.0, 0.0, 0.0, 5.0)
    assert fit.times_of([7, 8, 8, 5]) == [15.0, 16.0, 16.0, 15.0]
    assert better_splits([fit], layers) == [(7, 8, 8, 5)]
    assert better_splits([fit], [7, 8, 8, 5]) == []
