"""What recording costs a job is found in its step times, and said only where it is sure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from smon_rt import cli
from smon_rt.trace.overhead import Overhead, overhead_of
from smon_rt.trace.rank_trace import StepColumns
from tests.python.recording_process import RecordedJob, job
from tests.python.smon_files import step_packet, write_rank

__all__ = ["job"]

Duration = Callable[[int, bool], float]


def steps_of(count: int, duration_s: Duration) -> StepColumns:
    """A job whose steps are sampled as by default: 3 of warm-up, 20 early ones, then 4 of 40."""
    step = np.arange(count)
    is_sampled = (step < 23) | ((step + step // 40 * 7) % 40 < 4)
    ns = np.array(
        [
            round(duration_s(number, is_on) * 1e9)
            for number, is_on in zip(step.tolist(), is_sampled.tolist(), strict=True)
        ],
        np.int64,
    )
    return StepColumns(step, np.cumsum(ns) - ns, ns, is_sampled, step < 3)


def estimate(count: int, duration_s: Duration) -> Overhead:
    found = overhead_of(steps_of(count, duration_s))
    assert found is not None
    return found


def test_a_planted_five_percent_is_found_in_noise() -> None:
    noise = np.random.default_rng(1).normal(0, 0.02, 2000)
    found = estimate(2000, lambda step, is_sampled: (1.05 if is_sampled else 1.0) + noise[step])
    assert found.ratio == pytest.approx(0.05, abs=0.005)
    assert found.low < found.ratio < found.high
    assert found.is_alarming


def test_noise_raises_no_alarm() -> None:
    random = np.random.default_rng(2)
    alarms = 0
    for _ in range(200):
        noise = random.lognormal(0, 0.1, 600)
        alarms += estimate(600, lambda step, _is_sampled, noise=noise: noise[step]).is_alarming  # type: ignore[misc]
    assert alarms <= 6


def test_slow_first_steps_and_a_drift_are_not_recordings() -> None:
    found = estimate(2000, lambda step, _: 1.0 + 9.0 * float(np.exp(-step / 5)) + 0.001 * step)
    assert found.ratio == pytest.approx(0, abs=0.002)
    assert not found.is_alarming


def test_too_few_windows_say_nothing() -> None:
    assert overhead_of(steps_of(250, lambda _, is_sampled: 2.0 if is_sampled else 1.0)) is None
    assert overhead_of(steps_of(0, lambda _step, _is_sampled: 1.0)) is None
    assert overhead_of(steps_of(3, lambda _step, _is_sampled: 1.0)) is None
    assert overhead_of(steps_of(1000, lambda _step, _is_sampled: 0.0)) is None


def info_of(folder: Path, steps: StepColumns, capsys: pytest.CaptureFixture[str]) -> str:
    columns = (steps.step, steps.start_ns, steps.duration_ns, steps.is_sampled, steps.is_warmup)
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    write_rank(folder, packets=[step_packet(rows)])
    assert cli.run(["info", str(folder)]) == 0
    return capsys.readouterr().out


def test_info_raises_the_alarm_with_what_to_do_about_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = info_of(tmp_path, steps_of(600, lambda _, is_sampled: 1.03 if is_sampled else 1.0), capsys)
    assert "sampled steps take +3.00 % (+3.00 to +3.00 %) against the steps around them on rank 0" in out
    assert "MORE THAN THE 1 % IT MAY COST: sample less (SMON_RT_SAMPLE_RATIO=" in out
    assert "smon_rt.pause() at the same step on all ranks" in out


def test_info_raises_none_for_noise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    noise = np.random.default_rng(3).normal(0, 0.05, 600)
    out = info_of(tmp_path, steps_of(600, lambda step, _: 1.0 + noise[step]), capsys)
    assert "against the steps around them" in out
    assert "MORE THAN" not in out


PLANTED = """
    smon_rt.start(DIR, sample_ratio=0.25, warmup_steps=0, always_steps=0)
    for k in range(240):
        with smon_rt.step(k):
            time.sleep({slow} if smon_rt.is_sampled() else 0.002)
    smon_rt.stop()
"""


def test_the_process_says_it_once_and_the_trace_holds_what_its_reader_finds(job: RecordedJob) -> None:
    output = job.run(PLANTED.format(slow=0.004), SMON_RT_LOG="warning")
    assert output.stderr.count("more than the 1 % that recording may cost") == 1
    assert "SMON_RT_SAMPLE_RATIO=0.025 on all ranks" in output.stderr
    trace = job.trace()
    found = overhead_of(trace.steps)
    assert found is not None
    assert found.is_alarming
    assert trace.cost.overhead_ratio == pytest.approx(found.ratio)
    assert trace.cost.overhead_low_ratio == pytest.approx(found.low)


def test_the_process_is_silent_where_there_is_nothing_to_say(job: RecordedJob) -> None:
    output = job.run(PLANTED.format(slow=0.002), SMON_RT_LOG="warning")
    assert "recording may cost" not in output.stderr
    found = overhead_of(job.trace().steps)
    assert found is not None
    assert not found.is_alarming
