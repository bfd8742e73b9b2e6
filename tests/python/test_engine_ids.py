"""The engine by the rules of our own ids finds what the generator knows, and what the reference rules find."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smon_rt import _analysis
from smon_rt.analysis.raw import RawResult
from smon_rt.synth import JobSpec, Plant, SyntheticJob, make_job
from tests.python.synthetic_ids import Row, batch_of, id_rows, sizes_of

EXACT = 1e-12
# Where the two sets of rules differ. Interleaved, the generator records transfers that do nothing; ours let the first
# collective of the tail wait for the last backward send, theirs do not, and in the ideal job that send takes time.
INTERLEAVED = 0.005

LAYOUTS = {
    "1f1b": (JobSpec(dp=3, pp=4, microbatches=6, steps=3, noise=0.1, comm_noise=0.3, seed=1), EXACT),
    "overlapped reduction": (
        JobSpec(dp=4, pp=2, microbatches=5, steps=2, noise=0.1, comm_noise=0.3, overlap=True, seed=4),
        EXACT,
    ),
    "no data parallelism": (JobSpec(dp=1, pp=4, microbatches=5, steps=3, noise=0.1, seed=6), EXACT),
    "no pipeline": (JobSpec(dp=4, pp=1, microbatches=5, steps=3, noise=0.1, seed=7), EXACT),
    "one worker": (JobSpec(dp=1, pp=1, microbatches=3, steps=2, noise=0.1, seed=8), EXACT),
    "host delays": (JobSpec(dp=2, pp=3, microbatches=4, steps=3, noise=0.1, launch_delay_ms=2.0, seed=9), EXACT),
    "more lanes than a block": (JobSpec(dp=120, pp=2, microbatches=2, steps=2, noise=0.1, seed=10), EXACT),
    "interleaved": (
        JobSpec(dp=2, pp=3, vpp=2, microbatches=6, steps=2, noise=0.1, comm_noise=0.3, seed=2),
        INTERLEAVED,
    ),
    "interleaved and overlapped": (
        JobSpec(dp=2, pp=2, vpp=2, microbatches=4, steps=2, noise=0.2, overlap=True, seed=5),
        INTERLEAVED,
    ),
}


def analyze_ids(job: SyntheticJob, **changes: Any) -> RawResult:
    return _analysis.analyze(batch_of(id_rows(job)), {**sizes_of(job), **changes}, rules="ids")


def assert_agrees(raw: RawResult, job: SyntheticJob, tolerance: float) -> None:
    def approx(expected: Any) -> Any:
        return pytest.approx(expected, rel=tolerance, abs=1e-15)

    truth, oracle = job.truth, job.oracle_slowdowns()
    assert raw["step_time_s"]["base"] == pytest.approx(truth["step_time_s"]["base"], rel=EXACT)
    assert raw["step_time_s"]["nodelay"] == approx(truth["step_time_s"]["nodelay"])
    assert raw["slowdown"]["value"] == approx(oracle["S"])
    assert raw["slowdown_by"]["kind"] == approx(oracle["by_kind"])
    assert raw["slowdown_by"]["stage"] == approx(oracle["by_stage"])
    assert raw["slowdown_by"]["dp_rank"] == approx(oracle["by_dp_rank"])
    by_worker = {
        f"{dp_rank},{stage}": value
        for dp_rank, stages in enumerate(raw["slowdown_by_worker"])
        for stage, value in enumerate(stages)
    }
    assert by_worker == approx(oracle["by_worker"])
    assert raw["launch_slowdown"] == approx(truth["launch_slowdown"])


@pytest.mark.parametrize("name", LAYOUTS)
def test_slowdowns_equal_the_brute_force_of_the_generator(name: str) -> None:
    spec, tolerance = LAYOUTS[name]
    job = make_job(spec)
    raw = analyze_ids(job)
    assert_agrees(raw, job, tolerance)
    assert (raw["left_out_steps"], raw["absent_op_count"]) == ([], 0)
    assert raw["fidelity"]["early_starts"]["count"] == 0
    assert raw["fidelity"]["negative_transfers"]["count"] == 0


@settings(max_examples=25)
@given(
    dp=st.integers(1, 3), pp=st.integers(1, 4), microbatches=st.integers(1, 6), steps=st.integers(1, 3),
    noise=st.sampled_from([0.0, 0.05, 0.5]), seed=st.integers(0, 1000),
)  # fmt: skip
def test_any_small_pipeline_has_the_slowdown_of_the_reference_rules(
    dp: int, pp: int, microbatches: int, steps: int, noise: float, seed: int
) -> None:
    job = make_job(JobSpec(dp=dp, pp=pp, microbatches=microbatches, steps=steps, noise=noise, seed=seed))
    batch, sizes = batch_of(id_rows(job)), sizes_of(job)
    by_ids, by_reference = (_analysis.analyze(batch, sizes, rules=rules) for rules in ("ids", "reference"))
    assert by_ids["slowdown"]["value"] == pytest.approx(by_reference["slowdown"]["value"], rel=EXACT)
    assert by_ids["step_time_s"]["base"] == by_reference["step_time_s"]["base"]


def test_a_planted_worker_is_found_among_lanes_of_uneven_length_with_lost_ops_and_a_missing_rank() -> None:
    plant = Plant(stage=2, dp_rank=1, factor=1.6)
    job = make_job(JobSpec(dp=4, pp=4, microbatches=8, steps=12, noise=0.01, plants=(plant,), seed=12))
    kinds = _analysis.KIND_NAMES

    def keeps(row: Row) -> bool:
        if (row["dp_rank"], row["stage"]) == (3, 1):
            return False
        # A ramp, and every thousandth op or so lost.
        in_ramp = row["microbatch"] >= 4 + row["step"] // 2 and row["step"] < 8
        lost = (row["start_ns"] // 7 + row["stage"]) % 997 == 0 and kinds[row["kind"]] != "optimizer"
        return not in_ramp and not lost

    raw = _analysis.analyze(batch_of(id_rows(job), keeps), sizes_of(job), rules="ids")
    assert raw["left_out_steps"] == []
    assert raw["absent_op_count"] > 0
    assert raw["worker_rank"][3][1] == -1
    assert math.isnan(raw["worker_median_s"]["forward_compute"][3][1])
    worker = next(cause for cause in raw["causes"] if cause["cause"] == "worker")
    assert (worker["dp_rank"], worker["stage"], worker["workers"]) == (1, 2, [[1, 2]])
    assert worker["detail"]["forward_compute_ratio"] == pytest.approx(1.6, rel=0.01)
    assert raw["m_w_exact"]["workers"] == [[1, 2]]
    assert {"gc", "worker", "stage", "noise"} <= {cause["cause"] for cause in raw["causes"]}


def test_a_step_in_another_order_is_left_out_and_returned() -> None:
    job = make_job(JobSpec(dp=2, pp=2, microbatches=4, steps=4, noise=0.05, seed=3))
    rows = id_rows(job)
    forward = _analysis.KIND_NAMES.index("forward_compute")
    for row in rows:
        if row["step"] == 2 and row["kind"] == forward and row["microbatch"] < 2:
            row["microbatch"] = 1 - row["microbatch"]
    raw = _analysis.analyze(batch_of(rows), sizes_of(job), rules="ids")
    assert [step["step"] for step in raw["left_out_steps"]] == [2]
    assert "forward_compute of microbatch" in raw["left_out_steps"][0]["reason"]
    assert raw["steps"] == [0, 1, 3]


def test_the_clock_bound_is_what_early_ops_are_forgiven() -> None:
    job = make_job(JobSpec(dp=1, pp=2, microbatches=4, steps=2, noise=0.05, seed=3))
    rows = id_rows(job)
    for row in rows:
        row["start_ns"] -= 5_000_000 * row["stage"]
    batch = batch_of(rows)
    found = {}
    for bound_ns in (0, 10_000_000):
        fidelity = _analysis.analyze(batch, {**sizes_of(job), "clock_bound_ns": bound_ns}, rules="ids")["fidelity"]
        assert fidelity["clock_tolerance_s"] == bound_ns / 1e9
        found[bound_ns] = fidelity["negative_transfers"]["count"] + fidelity["early_starts"]["count"]
    assert found[0] > 0
    assert found[10_000_000] == 0


@pytest.mark.parametrize("bound", ["1", None, 2.5, -1])
def test_a_clock_bound_that_is_none_is_refused(bound: Any) -> None:
    with pytest.raises(_analysis.AnalysisError, match="clock_bound_ns must"):
        analyze_ids(make_job(JobSpec()), clock_bound_ns=bound)


def test_unknown_rules_are_refused() -> None:
    job = make_job(JobSpec())
    with pytest.raises(ValueError, match="rules must be 'reference' or 'ids', not 'own'"):
        _analysis.analyze(batch_of(id_rows(job)), sizes_of(job), rules="own")  # type: ignore[arg-type]
