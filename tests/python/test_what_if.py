"""Questions to the simulator: what they answer against the generator's own simulator, which shares no code with it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import jsonschema
import numpy as np
import pytest

from smon_rt import _analysis
from smon_rt.analysis import Report, analyze
from smon_rt.analysis.engine import ask_engine
from smon_rt.cli import run
from smon_rt.errors import QuestionError
from smon_rt.report.json_output import answer_schema
from smon_rt.synth import JobSpec, SyntheticJob, make_job, parse_plant
from smon_rt.synth.draws import Draws
from smon_rt.synth.job import replay
from smon_rt.synth.timeline import play
from smon_rt.synth.truth import simulated_step_times_s

SPEC = JobSpec(dp=4, pp=3, microbatches=6, steps=8, noise=0.02, seed=5)


def job_with(*plants: str, **changes: Any) -> SyntheticJob:
    return make_job(dataclasses.replace(SPEC, plants=tuple(parse_plant(text) for text in plants), **changes))


def report_of(job: SyntheticJob, folder: Path, name: str = "job.parquet") -> Report:
    job.write(folder / name)
    return analyze(folder / name)


def step_s_of_ranks(job: SyntheticJob, dp_ranks: Sequence[int]) -> float:
    """Mean step of the same draws with only these dp ranks, without launch delays."""
    chosen = Draws(np.ascontiguousarray(job.draws.durations_ns[:, :, list(dp_ranks)]))
    return float(simulated_step_times_s(play(job.program, chosen)).mean())


def test_a_fixed_worker_gives_back_what_the_job_without_its_plant_does(tmp_path: Path) -> None:
    job = job_with("worker=1,0:1.6")
    answer = report_of(job, tmp_path).what_if(["worker=1,0"])
    assert answer.gain_s_per_step == pytest.approx(job.truth["plants"][0]["gain_s_per_step"], rel=0.02)
    assert answer.before_s_per_step == pytest.approx(job.truth["mean_step_time_s"]["base"])
    assert answer.after_s_per_step == pytest.approx(answer.before_s_per_step - answer.gain_s_per_step)
    assert answer.low is not None
    assert answer.high is not None
    assert answer.low < answer.gain_s_per_step < answer.high
    times_s = f"{answer.before_s_per_step:.4g} → {answer.after_s_per_step:.4g} s a step"
    assert repr(answer) == f"<Answer to {answer.question}: {times_s}>"  # what a prompt shows


def test_fixes_of_one_question_hold_at_once(tmp_path: Path) -> None:
    job = job_with("worker=1,0:1.6", "stage=2:1.4")
    report = report_of(job, tmp_path)
    both = report.what_if(["worker=1,0", "stage=2"]).gain_s_per_step
    [pair] = job.truth["pairs"]
    assert both == pytest.approx(pair["gain_s_per_step"], rel=0.03)
    alone = [report.what_if([fix]).gain_s_per_step for fix in ("worker=1,0", "stage=2")]
    assert abs(both - sum(alone)) > 0.05 * both


def test_dropped_ranks_are_the_slowest_and_nobody_waits_for_them(tmp_path: Path) -> None:
    job = job_with("worker=2,1:1.5", "worker=0,0:1.2")
    answer = report_of(job, tmp_path).what_if(drop_slowest_dp=2)
    assert answer.dropped_dp_ranks == (0, 2)
    assert (answer.dp_before, answer.dp_after) == (4, 2)
    assert answer.after_s_per_step == pytest.approx(step_s_of_ranks(job, [1, 3]), rel=1e-9)
    assert answer.throughput_ratio == pytest.approx(answer.before_s_per_step / answer.after_s_per_step / 2)


def test_ranks_are_dropped_after_what_is_fixed(tmp_path: Path) -> None:
    report = report_of(job_with("worker=2,1:1.5", "worker=0,0:1.2"), tmp_path)
    assert report.what_if(["worker=2,1"], drop_slowest_dp=1).dropped_dp_ranks == (0,)


def test_launch_delays_of_a_recorded_job_stay_when_ranks_leave(tmp_path: Path) -> None:
    job = job_with("worker=2,1:1.5", launch_delay_ms=0.5)
    answer = report_of(job, tmp_path, "traces").what_if(drop_slowest_dp=1)
    kept = [0, 1, 3]
    assert job.draws.launch_delays_ns is not None
    delays = np.ascontiguousarray(job.draws.launch_delays_ns[:, :, kept])
    chosen = Draws(np.ascontiguousarray(job.draws.durations_ns[:, :, kept]), delays)
    first, last = play(job.program, chosen).span_ns()
    assert answer.dropped_dp_ranks == (2,)
    assert answer.after_s_per_step == pytest.approx(float((last - first).mean()) / 1e9, rel=0.01)


def test_ranks_with_unlike_microbatches_leave_and_multiply(tmp_path: Path) -> None:
    job = job_with("worker=2,1:1.5", fewer_microbatches=2)
    report = report_of(job, tmp_path, "traces")
    answer = report.what_if(drop_slowest_dp=1)
    kept = [0, 1, 3]
    assert job.draws.is_present is not None
    chosen = Draws(
        np.ascontiguousarray(job.draws.durations_ns[:, :, kept]),
        is_present=np.ascontiguousarray(job.draws.is_present[:, :, kept]),
    )
    assert answer.dropped_dp_ranks == (2,)
    first, last = play(job.program, chosen).span_ns()
    assert answer.after_s_per_step == pytest.approx(float((last - first).mean()) / 1e9, rel=1e-6)
    more = report.what_if(["worker=2,1"], scale_dp=3)
    assert more.dp_after == 12
    assert answer.after_s_per_step < more.after_s_per_step < answer.before_s_per_step


def test_more_ranks_wait_for_the_slowest_of_more(tmp_path: Path) -> None:
    noisy: dict[str, Any] = {"noise": 0.2, "steps": 40}
    report = report_of(job_with(**noisy), tmp_path)
    answer = report.what_if(scale_dp=4)
    larger = make_job(dataclasses.replace(SPEC, dp=16, **noisy)).truth["mean_step_time_s"]["base"]
    assert answer.dp_after == 16
    assert answer.draw_count > 1
    assert answer.after_s_per_step > 1.01 * answer.before_s_per_step
    assert answer.after_s_per_step == pytest.approx(larger, rel=0.02)
    assert "a draw" in answer.text


def test_fewer_ranks_are_drawn_from_the_measured(tmp_path: Path) -> None:
    job = job_with(noise=0.2)
    answer = report_of(job, tmp_path).what_if(scale_dp=0.25)
    single = fmean(step_s_of_ranks(job, [rank]) for rank in range(4))
    assert answer.dp_after == 1
    assert answer.after_s_per_step == pytest.approx(single, rel=0.02)


def test_a_kind_takes_its_ideal(tmp_path: Path) -> None:
    job = job_with("worker=1,0:1.6")
    answer = report_of(job, tmp_path).what_if(["kind=backward_compute"])
    rows = job.program.rows_of("backward_compute")
    durations = job.durations_ns.copy()
    durations[rows] = durations[rows].mean()
    assert answer.after_s_per_step == pytest.approx(float(replay(job, durations).mean()), rel=1e-9)


RECORDED_PLANTS = (
    ("worker=1,0:1.6", "host_launch_delay=3,1:3"),
    ("gc=40@0.4", "dp_communication=1:6"),
    ("data_loading=2,0:60@0.5", "sequence_length=0.6"),
    ("pp_communication=1,0:20",),
)


@pytest.mark.parametrize("plants", RECORDED_PLANTS, ids=" ".join)
def test_a_cause_that_is_fixed_gives_back_what_the_report_says(plants: tuple[str, ...], tmp_path: Path) -> None:
    assert_causes_are_answers(report_of(job_with(*plants), tmp_path, "traces"), plants)


@pytest.mark.parametrize("plant", ["stage=2:1.5", "sequence_length=0.8"])
def test_so_does_one_where_a_rank_is_missing(plant: str, tmp_path: Path) -> None:
    assert_causes_are_answers(report_of(job_with(plant, missing_ranks=(5,)), tmp_path, "traces"), (plant,))


def assert_causes_are_answers(report: Report, plants: tuple[str, ...]) -> None:
    names = [cause.cause for cause in report.causes if cause.cause != "noise"]
    asked = [name for name in names if names.count(name) == 1]
    assert {parse_plant(text).cause for text in plants} <= set(names)
    for name in asked:
        [cause] = [each for each in report.causes if each.cause == name]
        answer = report.what_if([f"cause={name}"])
        assert answer.gain_s_per_step == pytest.approx(cause.gain_s_per_step, rel=1e-6, abs=1e-9), name


BAD_QUESTIONS: tuple[tuple[list[str], str], ...] = (
    (["--fix", "worker=4,0"], "worker 4,0 is outside the job: dp ranks 0 to 3, stages 0 to 2"),
    (["--fix", "worker=0,3"], "worker 0,3 is outside the job"),
    (["--fix", "worker=first"], "write the worker as DP,STAGE"),
    (["--fix", "stage=3"], "stage 3 is outside the job"),
    (["--fix", "stage=-1"], "write the number of a stage"),
    (["--fix", "cause=bad_luck"], "no such cause; one of worker, stage"),
    (["--fix", "cause=noise"], "no such cause"),
    (["--fix", "cause=data_loading"], "not among the causes that this trace can show"),
    (["--fix", "kind=checkpoint_wait"], "no such kind in this trace"),
    (["--fix", "rank=3"], "what to fix is worker=DP,STAGE"),
    (["--fix", "\x1b[2J"], "what to fix is worker=DP,STAGE"),
    (["--drop-slowest-dp", "4"], "dropping 4 of 4 dp ranks leaves none"),
    (["--drop-slowest-dp", "-1"], "must be a whole number from 0"),
    (["--scale-dp", "0"], "must be a number above 0"),
    (["--scale-dp", "nan"], "must be a number above 0"),
    (["--scale-dp", "inf"], "must be a number above 0"),
    (["--scale-dp", "1e9"], "more than can be replayed"),
    ([], "nothing is asked"),
)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("what_if") / "job.parquet"
    job_with("worker=1,0:1.6").write(path)
    return str(path)


@pytest.mark.parametrize(("options", "words"), BAD_QUESTIONS, ids=[" ".join(options) for options, _ in BAD_QUESTIONS])
def test_a_question_that_makes_no_sense_is_one_line_and_exit_code_2(
    options: list[str], words: str, trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["what-if", trace, *options]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1
    assert captured.err.rstrip("\n").isprintable()
    assert captured.out == ""


BAD_PARTS: tuple[tuple[dict[str, Any], type[Exception], str], ...] = (
    ({"colour": 1}, ValueError, "a question has no part 'colour'"),
    ({"ideal_kinds": ["nap"]}, ValueError, "there is no kind 'nap'"),
    ({"microbatches": "odd"}, ValueError, "microbatches must be"),
    ({"launch_delays": "few"}, ValueError, "launch_delays must be"),
    ({"removed_work": [("lunch", -1, -1)]}, ValueError, "work of the host must be"),
    ({"fixed_workers": [1]}, TypeError, "'fixed_workers' of a question is of another type"),
    ({"fixed_workers": [(-1, 0)]}, TypeError, "'fixed_workers' of a question is of another type"),
    ({"dropped_dp_count": -1}, TypeError, "'dropped_dp_count' of a question is of another type"),
    ({"scales": [("forward_compute", 0, 0, -1.0)]}, ValueError, "a factor of durations must be a positive number"),
)


@pytest.mark.parametrize(("parts", "error", "words"), BAD_PARTS, ids=[str(parts) for parts, _, _ in BAD_PARTS])
def test_the_engine_refuses_parts_of_questions_that_it_does_not_know(
    parts: dict[str, Any], error: type[Exception], words: str, trace: str
) -> None:
    source = analyze(trace).source
    with pytest.raises(error, match=words):
        _analysis.what_if(source.trace.ops, source.trace.recorded_sizes(), [parts])


def test_a_long_draw_is_ended_within_it(trace: str) -> None:
    asked = []

    def interrupt(done: int, total: int) -> None:
        asked.append((done, total))
        if len(asked) == 4:
            raise KeyboardInterrupt  # as a signal's handler does, which has its turn at the same places

    with pytest.raises(KeyboardInterrupt):
        ask_engine(analyze(trace).source.trace, [{"dp_count": 12}], interrupt)
    assert asked == [(1, 1)] * 4


def test_a_job_of_one_worker_has_no_peers(tmp_path: Path) -> None:
    report = report_of(make_job(dataclasses.replace(SPEC, dp=1, pp=1)), tmp_path)
    for fix in ("worker=0,0", "stage=0"):
        with pytest.raises(QuestionError, match="no other one to be as fast as"):
            report.what_if([fix])


def test_the_answer_is_said_and_written(trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "answer.json"
    question = ["what-if", trace, "--fix", "worker=1,0", "--drop-slowest-dp", "1", "--json", str(output)]
    assert run(question) == 0
    written = json.loads(output.read_text())
    jsonschema.validate(written, answer_schema())
    said = capsys.readouterr().out
    assert said == written["text"] + "\n"
    assert [line.split(" ")[0] for line in said.splitlines()] == ["question", "answer", "replicas", "worth", "assumed"]
    assert run([*question[:-1], "-", "--quiet"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out) == written
    assert captured.err.count("\n") == 1


def test_only_the_steps_that_are_asked_for_count(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    def answer(*options: str) -> Any:
        assert run(["what-if", trace, "--fix", "worker=1,0", "--json", "-", *options]) == 0
        return json.loads(capsys.readouterr().out)

    one, every = answer("--steps", "2"), answer()
    assert one["low"] is None
    assert one["before_s_per_step"] != every["before_s_per_step"]


def test_missing_ranks_are_said_and_exit_code_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job_with("worker=1,0:1.6", missing_ranks=(5,)).write(tmp_path / "traces")
    assert run(["what-if", str(tmp_path / "traces"), "--fix", "worker=1,0"]) == 3
    assert "1 of 12 ranks is missing: what they did is not known" in capsys.readouterr().out
    missing = [key for key, rank in analyze(tmp_path / "traces").worker_rank.items() if rank < 0]
    assert run(["what-if", str(tmp_path / "traces"), "--fix", f"worker={missing[0]}"]) == 2
    assert "was not recorded: nothing is known of its speed" in capsys.readouterr().err


def test_the_trace_is_never_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job_with().write(tmp_path / "job.parquet")
    path, before = str(tmp_path / "job.parquet"), (tmp_path / "job.parquet").read_bytes()
    for output in (path, str(tmp_path / "job.yaml"), str(tmp_path)):
        assert run(["what-if", path, "--fix", "stage=0", "--json", output]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert (tmp_path / "job.parquet").read_bytes() == before


def test_every_key_of_an_answer_is_in_the_page(trace: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / "what_if.md").read_text(encoding="utf-8")
    answer = analyze(trace).what_if(["worker=1,0"])
    assert list(answer.to_dict()) == list(answer_schema()["properties"])
    assert [name for name in answer.to_dict() if f"`{name}`" not in text] == []
