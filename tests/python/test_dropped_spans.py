"""Spans that were dropped leave gaps that look like launch delays: those name no cause."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from smon_rt.analysis import Report, analyze
from smon_rt.synth import JobSpec, Plant, SlowLaunch, make_job
from smon_rt.synth.plants import AnyPlant

SPEC = JobSpec(dp=4, pp=4, microbatches=8, steps=20, noise=0.02, comm_noise=0.05, seed=10600)


def report_of(folder: Path, drop_ratio: float, plant: AnyPlant) -> Report:
    make_job(dataclasses.replace(SPEC, drop_ratio=drop_ratio, plants=(plant,))).write(folder)
    return analyze(folder)


def test_gaps_of_dropped_computes_do_not_come_before_a_slow_worker(tmp_path: Path) -> None:
    report = report_of(tmp_path, 0.2, Plant(1, 1.6, dp_rank=1))
    largest = report.causes[0]
    assert largest.cause == "host_launch_delay"
    assert largest.gain_s_per_step > 0.1 * report.mean_step_time_s.base
    assert (report.verdict.cause, report.verdict.where.rank) == ("worker", 5)
    assert "what was dropped looks like launch delays" in report.verdict.text


def test_launch_delays_that_a_few_dropped_spans_do_not_explain_are_named(tmp_path: Path) -> None:
    report = report_of(tmp_path, 0.02, SlowLaunch(6.0, 1, 1))
    assert (report.verdict.cause, report.verdict.where.rank) == ("host_launch_delay", 5)
