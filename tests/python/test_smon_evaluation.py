"""Evaluation between the ops of a step: time that is explained."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from smon_rt.analysis import analyze
from smon_rt.analysis.smon_importer import read_smon
from smon_rt.kinds import KIND_NAMES
from smon_rt.synth import JobSpec, make_job
from smon_rt.trace.kinds import FLAGS
from tests.python.recorded_jobs import RecordedJob
from tests.python.smon_files import TestSpan

SPEC = JobSpec(dp=2, pp=3, microbatches=4, steps=3, noise=0.1, seed=3)


def test_an_evaluation_within_a_step_explains_its_time_and_one_at_its_end_is_none_of_it(tmp_path: Path) -> None:
    def change(_rank: int, spans: list[TestSpan]) -> list[TestSpan]:
        within, end = TestSpan(kind="eval", duration_ns=40_000_000), TestSpan(kind="eval", duration_ns=900_000_000)
        changed = []
        for step in range(SPEC.steps):
            own = [span for span in spans if span.step == step]
            optimizer_ns = max(span.start_ns for span in own if span.kind == "optimizer")
            end_ns = max(span.start_ns + span.duration_ns for span in own)
            changed += [
                dataclasses.replace(span, start_ns=span.start_ns + 40_000_000 * (span.start_ns >= optimizer_ns))
                for span in own
            ]
            for index, (span, start_ns) in enumerate(((within, optimizer_ns), (end, end_ns + 41_000_000))):
                flags = FLAGS["forward_only"]
                changed.append(dataclasses.replace(span, step=step, start_ns=start_ns, flags=flags, op_index=index))
        return changed

    RecordedJob(make_job(SPEC), change=change).write(tmp_path)
    ops = read_smon([tmp_path]).ops
    evaluations = [row for row in ops.to_pylist() if row["kind"] == KIND_NAMES.index("eval")]
    assert {row["duration_ns"] for row in evaluations} == {40_000_000}
    assert len(evaluations) == SPEC.dp * SPEC.pp * SPEC.steps
    report = analyze(tmp_path)
    assert report.fidelity.simulation_error_mean < 0.01
    assert all(report.step_time_s_by_step.base[str(step)] < 0.5 for step in range(SPEC.steps))
