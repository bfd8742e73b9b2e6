"""A synthetic job as a whole: its table, its files, its plants and the truth about it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from smon_rt.synth import JobSpec, Plant, SynthError, make_job, replay

SMALL = JobSpec(dp=3, pp=2, tp=2, microbatches=4, steps=4, noise=0.05, comm_noise=0.1, seed=7)


def test_the_table_has_the_artifacts_columns_and_spelling() -> None:
    job = make_job(SMALL)
    assert job.table.column_names == [
        "dp_rank",
        "stage",
        "rank",
        "step",
        "optype",
        "start_ts",
        "duration",
        "seq_id",
        "mc",
        "mb_id",
        "gmc",
    ]
    assert job.table.num_rows == len(job.program.ops) * SMALL.dp * SMALL.steps
    assert {"forward-compute", "grads-reduce-scatter", "gc"} < set(job.table["optype"].to_pylist())
    assert all(column.null_count == 0 for column in job.table.columns)


def test_ranks_grow_with_tp_then_dp_then_stage() -> None:
    columns = make_job(SMALL).table.select(["dp_rank", "stage", "rank"]).to_pydict()
    workers = set(zip(columns["dp_rank"], columns["stage"], columns["rank"], strict=True))
    assert workers == {(dp, stage, (stage * 3 + dp) * 2) for dp in range(3) for stage in range(2)}


def test_computes_carry_chunk_and_microbatch_and_only_they_carry_all_ids() -> None:
    job = make_job(JobSpec(dp=2, pp=2, vpp=2, microbatches=4))
    for row in job.table.to_pylist():
        if row["optype"].endswith("-compute"):
            assert row["gmc"] == row["mc"] * 2 + row["stage"]
            assert 0 <= row["mb_id"] < 4
        else:
            assert row["gmc"] == row["mb_id"] == -1
            assert (row["mc"] >= 0) == (row["optype"] in ("params-all-gather", "grads-reduce-scatter"))


def test_metadata_describes_the_layout() -> None:
    assert make_job(SMALL).meta == {
        "trial_name": "synthetic",
        "run_id": 0,
        "dp_size": 3,
        "dsp_size": 1,
        "pp_size": 2,
        "tp_size": 2,
        "vpp_size": 1,
        "world_size": 12,
    }


def test_steps_follow_each_other_and_times_are_whole_nanoseconds() -> None:
    table = make_job(SMALL).table
    steps, starts = table["step"].to_numpy(), table["start_ts"].to_numpy()
    ends = starts + table["duration"].to_numpy()
    for step in range(1, SMALL.steps):
        assert ends[steps == step - 1].max() < starts[steps == step].min()
    for times in (starts, table["duration"].to_numpy()):
        assert np.abs(times * 1e9 - np.rint(times * 1e9)).max() < 1e-4
    assert table["duration"].to_numpy().min() > 0


def test_a_planted_worker_slows_its_own_computes_by_the_factor_and_nothing_else() -> None:
    healthy = make_job(SMALL)
    planted = make_job(dataclasses.replace(SMALL, plants=(Plant(stage=1, factor=1.5, dp_rank=2),)))
    for op in healthy.program.ops:
        ratio = planted.durations_ns[op.row] / healthy.durations_ns[op.row]
        expected = np.ones_like(ratio)
        if op.stage == 1 and op.kind in ("forward_compute", "backward_compute"):
            expected[:, 2] = 1.5
        assert ratio == pytest.approx(expected, rel=1e-6)


def test_a_planted_stage_slows_all_its_workers() -> None:
    healthy = make_job(SMALL)
    planted = make_job(dataclasses.replace(SMALL, plants=(Plant(stage=0, factor=2.0),)))
    for op in healthy.program.ops:
        ratio = planted.durations_ns[op.row] / healthy.durations_ns[op.row]
        is_planted = op.stage == 0 and op.kind in ("forward_compute", "backward_compute")
        assert ratio == pytest.approx(2.0 if is_planted else 1.0, rel=1e-6)


def test_the_gain_of_each_plant_is_what_the_same_draws_give_back_without_it() -> None:
    slow_worker, slow_stage = Plant(stage=0, factor=1.8, dp_rank=1), Plant(stage=1, factor=1.3)
    job = make_job(dataclasses.replace(SMALL, plants=(slow_worker, slow_stage), launch_delay_ms=0.01))
    for fact, rest in zip(job.truth["plants"], ((slow_stage,), (slow_worker,)), strict=True):
        without = make_job(dataclasses.replace(job.spec, plants=rest))
        given_back = job.truth["mean_step_time_s"]["base"] - without.truth["mean_step_time_s"]["base"]
        assert fact["gain_s_per_step"] == pytest.approx(given_back, rel=1e-12)
        assert fact["gain_s_per_step"] > 0.01
    assert [fact["where"] for fact in job.truth["plants"]] == [{"dp_rank": 1, "stage": 0}, {"stage": 1}]


def test_without_noise_and_plants_there_is_no_slowdown() -> None:
    truth = make_job(JobSpec(dp=2, pp=2, steps=3)).truth
    assert truth["slowdown"] == pytest.approx(1.0, abs=1e-12)
    assert truth["launch_slowdown"] == 1.0


def test_without_launch_delays_the_trace_is_its_own_replay() -> None:
    job = make_job(SMALL)
    assert replay(job) == pytest.approx(job.truth["step_time_s"]["base"], rel=1e-12)
    assert job.truth["step_time_s"]["base"] == job.truth["step_time_s"]["nodelay"]


def test_launch_delays_are_left_out_of_nodelay_only() -> None:
    job = make_job(dataclasses.replace(SMALL, launch_delay_ms=0.1))
    assert job.truth["launch_slowdown"] > 1.001
    assert job.truth["step_time_s"]["nodelay"] == pytest.approx(make_job(SMALL).truth["step_time_s"]["base"], rel=1e-12)


def test_ideal_is_the_mean_of_computes_and_the_median_of_transfers() -> None:
    job = make_job(dataclasses.replace(SMALL, plants=(Plant(stage=0, factor=1.5, dp_rank=0),)))
    ideal = np.empty_like(job.durations_ns)
    for kind in {op.kind for op in job.program.ops}:
        rows = [op.row for op in job.program.ops if op.kind == kind]
        is_compute = kind in ("forward_compute", "backward_compute", "optimizer", "gc")
        ideal[rows] = np.mean(job.durations_ns[rows]) if is_compute else np.median(job.durations_ns[rows])
    assert replay(job, ideal) == pytest.approx(job.truth["step_time_s"]["ideal"], rel=1e-12)


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(0, 100))
def test_the_oracle_agrees_with_the_truth_and_blames_the_planted_worker(dp: int, pp: int, seed: int) -> None:
    plant = Plant(stage=pp - 1, factor=2.0, dp_rank=dp - 1)
    spec = JobSpec(dp=dp, pp=pp, microbatches=4, steps=2, noise=0.01, plants=(plant,), seed=seed)
    job = make_job(spec)
    oracle = job.oracle_slowdowns()
    assert oracle["S"] == pytest.approx(job.truth["slowdown"], rel=1e-12)
    assert set(oracle["by_stage"]) == {str(stage) for stage in range(pp)}
    assert len(oracle["by_worker"]) == dp * pp
    assert "forward_send" not in oracle["by_kind"]
    if dp * pp > 1:
        assert max(oracle["by_worker"], key=oracle["by_worker"].__getitem__) == f"{dp - 1},{pp - 1}"


def test_the_files_hold_the_table_the_metadata_and_the_truth(tmp_path: Path) -> None:
    job = make_job(dataclasses.replace(SMALL, plants=(Plant(stage=0, factor=1.5),)))
    paths = job.write(tmp_path / "job.parquet")
    assert [path.name for path in paths] == ["job.parquet", "job.yaml", "job.truth.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.parquet", "job.truth.json", "job.yaml"]
    assert pq.read_table(paths[0]).equals(job.table)
    assert yaml.safe_load(paths[1].read_text()) == job.meta
    assert json.loads(paths[2].read_text()) == job.truth


def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not(tmp_path: Path) -> None:
    first, again, other = (
        make_job(dataclasses.replace(SMALL, seed=seed)).write(tmp_path / f"{name}.parquet")[0].read_bytes()
        for name, seed in (("first", 7), ("again", 7), ("other", 8))
    )
    assert first == again
    assert first != other


@pytest.mark.parametrize("name", ["job.csv", "missing/job.parquet", "file/job.parquet", "missing/job", "file/job"])
def test_an_output_that_cannot_be_written_is_one_line_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SynthError, match="job") as error:
        make_job(SMALL).write(tmp_path / name)
    assert "\n" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
