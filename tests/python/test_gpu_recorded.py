"""Jobs that real recorders recorded on a fake GPU, whose clock is another than the host's: what is planted is named."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smon_rt.analysis import Report, analyze
from smon_rt.trace import RankTrace, read_file
from smon_rt.trace.gpu_facts import GPU_KINDS
from smon_rt.trace.job_trace import JobReader
from smon_rt.trace.kinds import FLAGS, KIND_NUMBERS, TIME_SOURCE_NAMES
from smon_rt.trace.summary import incomplete_reasons, state_of
from tests.python.example_jobs import ROOT, environment
from tests.python.gpu_rank import BACKWARD_MS, FORWARD_MS, MESSAGE_MS, REPLICAS, STAGES, Rank, slot_bytes

_FAKE_DRIVER = ROOT / "build" / "release" / "fake_driver"
pytestmark = pytest.mark.skipif(
    not (_FAKE_DRIVER / "libcuda.so.1").exists(), reason=f"{_FAKE_DRIVER} is not built: cmake --build --preset release"
)
_STEPS = 12
_DEADLINE_S = 120
_GPU_EVENT, _WAIT_EVENT = (TIME_SOURCE_NAMES.index(name) for name in ("gpu_event", "wait_event"))
_COMPUTES = (KIND_NUMBERS["forward_compute"], KIND_NUMBERS["backward_compute"])
Change = Callable[[Rank], Rank]


run_ids: list[str] = []


@pytest.fixture(autouse=True)
def _no_memory_is_left() -> Iterator[None]:
    """What killed processes leave stays until somebody reads it, or forever."""
    yield
    while run_ids:
        for memory in Path("/dev/shm").glob(f"smon-*{run_ids.pop()}*"):
            memory.unlink()


def record(folder: Path, change: Change, exit_code: int = 0, steps: int = _STEPS) -> Path:
    """Runs all ranks, each with a GPU whose clock is an hour and 100 ppm from its host's, more or less."""
    traces, slots = folder / "job", folder / "slots"
    traces.mkdir()
    slots.write_bytes(bytes(slot_bytes(steps)))
    own = environment()
    children = []
    for number in range(STAGES * REPLICAS):
        rank = change(Rank(str(traces), str(slots), number, steps))
        clock = {
            "FAKE_CUDA_OFFSET_NS": str((-1) ** number * 3_600_000_000_000),
            "FAKE_CUDA_DRIFT_PPM": str(100 - 200 * (number % 3 == 1)),
        }
        driver = {"LD_LIBRARY_PATH": str(_FAKE_DRIVER), "FAKE_CUDA_CONTEXT": "1", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "tests.python.gpu_rank", json.dumps(dataclasses.asdict(rank))]
        streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        children.append(subprocess.Popen(command, env=own | driver | clock, **streams))
    try:
        for child in children:
            said = child.communicate(timeout=_DEADLINE_S)[0]
            assert child.returncode == exit_code, said
    finally:
        for child in children:
            child.kill()
        run_ids.append(own["SMON_RT_RUN_ID"])
    return traces


def recorded(folder: Path, change: Change) -> tuple[Report, list[RankTrace]]:
    traces = record(folder, change)
    return analyze(traces), [read_file(path) for path in sorted(traces.glob("*.smon"))]


def device_ms(trace: RankTrace, kind: str) -> float:
    """The median of what the GPU took for it."""
    spans = trace.spans
    chosen = (spans.kind == KIND_NUMBERS[kind]) & (spans.time_source == _GPU_EVENT)
    return float(np.median(spans.device_duration_ns[chosen])) / 1e6


def on(number: int, **changed: Any) -> Change:
    return lambda rank: dataclasses.replace(rank, **changed) if rank.rank == number else rank


def test_a_slow_gpu_is_named_in_what_recorders_recorded(tmp_path: Path) -> None:
    report, traces = recorded(tmp_path, on(3, slow=1.6))
    where = report.verdict.where
    assert (report.verdict.cause, where.rank, where.stage, where.dp_rank) == ("worker", 3, 1, 1), report.verdict.text
    assert where.gpu_uuid == "GPU-b4000000-0000-0000-0000-000000000000"
    assert (report.fidelity.coverage.device_times or 0) >= 0.99
    for trace in traces:
        slow = 1.6 if trace.rank == 3 else 1.0
        assert device_ms(trace, "forward_compute") == pytest.approx(FORWARD_MS * slow, rel=0.02)
        assert device_ms(trace, "backward_compute") == pytest.approx(BACKWARD_MS * slow, rel=0.02)
        # The driver's clock is far away; its times are on the host's, beside the spans' own.
        spans = trace.spans.take(trace.spans.has_device_times)
        assert set(np.unique(spans.time_source)) == {_GPU_EVENT, _WAIT_EVENT}
        assert np.abs(spans.device_start_ns - spans.start_ns).max() < 2_000_000_000
        assert {clock.gpu_uuid for clock in trace.clock_maps} == {trace.identity.gpu_uuid}
        for clock in trace.clock_maps:
            drift = 1e-4 if trace.rank % 3 == 1 else -1e-4
            off_ns = abs(clock.drift_ratio - 1 - drift) * (clock.window_end_ns - clock.window_start_ns)
            assert off_ns <= 2 * clock.bound_ns


def test_a_slow_link_is_named_in_what_recorders_recorded(tmp_path: Path) -> None:
    report, _ = recorded(tmp_path, on(1, link_ms=25 * MESSAGE_MS))
    assert (report.verdict.cause, report.verdict.scope) == ("pp_communication", "link"), report.verdict.text
    assert report.communication is not None
    slowest = report.communication.slowest
    assert slowest is not None
    assert slowest.ranks == (1, 3)
    assert slowest.transfer_s == pytest.approx(25 * MESSAGE_MS / 1e3, rel=0.1)


def test_a_stall_of_the_host_is_a_launch_delay_and_no_compute_in_what_recorders_recorded(tmp_path: Path) -> None:
    report, traces = recorded(tmp_path, on(0, stall_ms=50))
    assert (report.verdict.cause, report.verdict.where.rank) == ("host_launch_delay", 0), report.verdict.text
    for trace in traces:
        assert device_ms(trace, "forward_compute") == pytest.approx(FORWARD_MS, rel=0.02)
        assert device_ms(trace, "backward_compute") == pytest.approx(BACKWARD_MS, rel=0.02)


def test_a_killed_jobs_last_launches_are_not_taken_for_its_gpus_times(tmp_path: Path) -> None:
    traces = record(tmp_path, lambda rank: dataclasses.replace(rank, is_killed=True), exit_code=-9, steps=30)
    reader = JobReader([traces])
    ranks = list(reader)
    assert {state_of(trace) for trace in ranks} == {"killed"}
    lacking = 0
    for trace in ranks:
        is_compute = np.isin(trace.spans.kind, _COMPUTES)
        lacks = is_compute & ~trace.spans.has_device_times
        assert 0 < np.count_nonzero(lacks) < np.count_nonzero(is_compute), "some were written, and the last were not"
        lacking += int(np.count_nonzero(lacks & (trace.spans.flags & FLAGS["warmup"] == 0)))
        told = next(line for line in incomplete_reasons(trace))
        lost = re.search(r"the GPU's times of its last (\d+) spans died with it: they have the host's", told)
        # Optimizers are among these as well; in the first steps the GPU was not known yet.
        assert lost is not None, told
        assert (
            0 < int(lost[1]) <= np.count_nonzero(np.isin(trace.spans.kind, GPU_KINDS) & ~trace.spans.has_device_times)
        )
    report = analyze(traces)
    count = sum(int(np.count_nonzero(np.isin(trace.spans.kind, _COMPUTES))) for trace in ranks)
    assert 0 < (report.fidelity.coverage.device_times or 0) < 1
    assert f"{lacking} spans of GPU computes without the GPU's times" in report.fidelity.left_out, count
    for kind, took_ms in (("forward_compute", FORWARD_MS), ("backward_compute", BACKWARD_MS)):
        for median_s in report.worker_median_s[kind].values():
            assert median_s == pytest.approx(took_ms / 1e3, rel=0.02)
