"""The engine finds what the generator knows: two implementations that share no code agree on synthetic jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from smon_rt.analysis import analyze
from smon_rt.synth import JobSpec, Plant, SyntheticJob, make_job

# Both sides add the same whole nanoseconds in doubles; means may be summed in another order.
TOLERANCE = 1e-12


def report_of(job: SyntheticJob, folder: Path) -> dict[str, Any]:
    path = folder / "job.parquet"
    job.write(path)
    return analyze(path).to_dict()


def approx(expected: Any) -> Any:
    return pytest.approx(expected, rel=TOLERANCE, abs=1e-15)


def assert_agrees(report: dict[str, Any], job: SyntheticJob) -> None:
    truth, oracle = job.truth, job.oracle_slowdowns()
    assert report["mean_step_time_s"] == approx(truth["mean_step_time_s"])
    assert report["slowdown"]["value"] == approx(oracle["S"])
    assert report["slowdown_by_kind"] == approx(oracle["by_kind"])
    assert report["slowdown_by_stage"] == approx(oracle["by_stage"])
    assert report["slowdown_by_dp_rank"] == approx(oracle["by_dp_rank"])
    assert report["slowdown_by_worker"] == approx(oracle["by_worker"])
    assert report["launch_slowdown"] == approx(truth["launch_slowdown"])


LAYOUTS = {
    "1f1b": JobSpec(dp=3, pp=4, microbatches=6, steps=3, noise=0.1, comm_noise=0.3, seed=1),
    "interleaved": JobSpec(dp=2, pp=3, vpp=2, microbatches=6, steps=2, noise=0.1, comm_noise=0.3, seed=2),
    "interleaved without the first recv": JobSpec(
        dp=2, pp=2, vpp=3, microbatches=4, steps=2, noise=0.1, skip_first_recv=True, seed=3
    ),
    "overlapped reduction": JobSpec(
        dp=4, pp=2, microbatches=5, steps=2, noise=0.1, comm_noise=0.3, overlap=True, seed=4
    ),
    "interleaved and overlapped": JobSpec(dp=2, pp=2, vpp=2, microbatches=4, steps=2, noise=0.2, overlap=True, seed=5),
    "no data parallelism": JobSpec(dp=1, pp=4, microbatches=5, steps=3, noise=0.1, seed=6),
    "no pipeline": JobSpec(dp=4, pp=1, microbatches=5, steps=3, noise=0.1, seed=7),
    "one worker": JobSpec(dp=1, pp=1, microbatches=3, steps=2, noise=0.1, seed=8),
    "host delays": JobSpec(dp=2, pp=3, microbatches=4, steps=3, noise=0.1, launch_delay_ms=2.0, seed=9),
    "more lanes than a block": JobSpec(dp=300, pp=2, microbatches=2, steps=2, noise=0.1, seed=10),
    "more steps than a block": JobSpec(dp=2, pp=2, microbatches=2, steps=300, noise=0.1, seed=11),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_slowdowns_equal_the_brute_force_of_the_generator(name: str, tmp_path: Path) -> None:
    job = make_job(LAYOUTS[name])
    assert_agrees(report_of(job, tmp_path), job)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    dp=st.integers(1, 4),
    pp=st.integers(1, 4),
    vpp=st.integers(1, 3),
    rounds=st.integers(1, 3),
    steps=st.integers(1, 3),
    noise=st.sampled_from([0.0, 0.05, 0.5]),
    overlap=st.booleans(),
    delay_ms=st.sampled_from([0.0, 1.0]),
    seed=st.integers(0, 1000),
)
def test_any_small_job_agrees(
    tmp_path: Path, dp: int, pp: int, vpp: int, rounds: int, steps: int, noise: float, overlap: bool, delay_ms: float,
    seed: int,
) -> None:  # fmt: skip
    job = make_job(
        JobSpec(
            dp=dp, pp=pp, vpp=vpp if pp > 1 else 1, microbatches=rounds * pp, steps=steps, noise=noise,
            overlap=overlap and dp > 1, launch_delay_ms=delay_ms, seed=seed,
        )
    )  # fmt: skip
    assert_agrees(report_of(job, tmp_path), job)


@pytest.mark.parametrize("vpp", [1, 2])
def test_a_planted_worker_is_named_with_what_its_repair_gives_back(vpp: int, tmp_path: Path) -> None:
    plant = Plant(stage=2, dp_rank=1, factor=1.6)
    job = make_job(JobSpec(dp=8, pp=4, vpp=vpp, microbatches=8, steps=12, noise=0.01, plants=(plant,), seed=12))
    report = report_of(job, tmp_path)
    verdict = report["verdict"]
    assert (verdict["cause"], verdict["where"]["dp_rank"], verdict["where"]["stage"]) == ("worker", 1, 2)
    assert verdict["gain_s_per_step"] == pytest.approx(job.truth["plants"][0]["gain_s_per_step"], rel=0.10)
    slowest = max(report["slowdown_by_worker"], key=report["slowdown_by_worker"].__getitem__)
    assert slowest == "1,2"


def test_a_planted_stage_is_named(tmp_path: Path) -> None:
    job = make_job(
        JobSpec(dp=4, pp=4, microbatches=8, steps=12, noise=0.01, plants=(Plant(stage=3, factor=1.5),), seed=13)
    )
    verdict = report_of(job, tmp_path)["verdict"]
    assert (verdict["cause"], verdict["where"]["stage"], verdict["scope"]) == ("stage", 3, "stage")


def test_a_healthy_job_has_nothing_to_fix(tmp_path: Path) -> None:
    report = report_of(make_job(JobSpec(dp=8, pp=4, microbatches=8, steps=12, noise=0.02, seed=14)), tmp_path)
    assert report["verdict"]["cause"] == "none"
    assert report["slowdown"]["value"] < 1.1


def test_without_delays_the_recorded_steps_replay_to_themselves(tmp_path: Path) -> None:
    steps = report_of(make_job(LAYOUTS["1f1b"]), tmp_path)["step_time_s_by_step"]
    assert steps["nodelay"] == steps["base"]


def test_context_parallel_ranks_may_be_numbered_within_dp_rank(tmp_path: Path) -> None:
    job = make_job(JobSpec(dp=4, pp=2, microbatches=4, steps=2, noise=0.1, seed=15))
    path = tmp_path / "job.parquet"
    job.write(path)
    meta = path.with_suffix(".yaml")
    meta.write_text(meta.read_text().replace("dp_size: 4", "dp_size: 2").replace("dsp_size: 1", "dsp_size: 2"))
    assert "dsp_size: 2" in meta.read_text()
    assert_agrees(analyze(path).to_dict(), job)
