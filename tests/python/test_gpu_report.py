"""Jobs recorded on GPUs: the report is by the times of the devices, and says what ranks sent each other how fast."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import jsonschema
import pytest

from smon_rt._proto import trace_pb2
from smon_rt.analysis import Report, analyze
from smon_rt.report.html import html_page
from smon_rt.report.json_output import json_schema
from smon_rt.report.terminal import print_report
from smon_rt.synth import JobSpec, Plant, SlowGroup, SlowLaunch, SlowLink, make_job
from smon_rt.synth.durations import LINK_BYTES_PER_S
from smon_rt.trace import read_file
from tests.python.smon_files import packet

SPEC = JobSpec(dp=4, pp=2, microbatches=6, steps=8, noise=0.02, comm_noise=0.02, gpu_times=True, hosts=2, seed=5)


def analysed(folder: Path, **changed: object) -> tuple[Report, list[float]]:
    """The report of a job, and the true gains of what is planted in it."""
    job = make_job(dataclasses.replace(SPEC, **changed))  # type: ignore[arg-type]
    job.write(folder / "job")
    return analyze(folder / "job"), [fact["gain_s_per_step"] for fact in job.truth["plants"]]


def test_a_slow_gpu_is_named_with_its_uuid_by_the_times_of_the_gpus(tmp_path: Path) -> None:
    report, [gain_s] = analysed(tmp_path, plants=(Plant(1, 1.5, dp_rank=2),))
    where = report.verdict.where
    assert (report.verdict.cause, where.rank, where.host, where.gpu_uuid) == ("worker", 6, "node1", "GPU-0001-6")
    assert report.verdict.gain_s_per_step == pytest.approx(gain_s, rel=0.01)
    assert report.fidelity.coverage.device_times == 1
    assert report.verdict.text.endswith("GPU times within 20.0 µs")


def test_a_host_that_is_ahead_of_its_gpu_launches_nothing_late(tmp_path: Path) -> None:
    report, _ = analysed(tmp_path)
    assert report.verdict.cause == "none"
    assert report.launch_slowdown == pytest.approx(1, abs=0.01)


def test_a_host_that_stalls_between_two_ops_of_the_gpu_launches_late(tmp_path: Path) -> None:
    report, [gain_s] = analysed(tmp_path, plants=(SlowLaunch(4, dp_rank=1, stage=0),))
    assert (report.verdict.cause, report.verdict.where.rank) == ("host_launch_delay", 1)
    assert report.verdict.gain_s_per_step == pytest.approx(gain_s, rel=0.01)


def test_a_slow_link_is_named_and_its_bandwidth_told(tmp_path: Path) -> None:
    report, [gain_s] = analysed(tmp_path, plants=(SlowLink(0, 12, dp_rank=3),))
    assert (report.verdict.cause, report.verdict.scope) == ("pp_communication", "link")
    assert report.verdict.gain_s_per_step == pytest.approx(gain_s, rel=0.01)
    assert report.communication is not None
    slowest = report.communication.slowest
    assert slowest is not None
    assert set(slowest.ranks) == {3, 7}
    assert slowest.ratio == pytest.approx(12, rel=0.1)
    assert slowest.bus_bytes_per_s == pytest.approx(LINK_BYTES_PER_S / 12, rel=0.1)
    # Its ends are on two hosts; what their clocks, and their GPUs', may be apart cannot be what makes it slow.
    assert slowest.clock_bound_s == pytest.approx(report.fidelity.clock_bound_s)
    assert not dataclasses.replace(slowest, clock_bound_s=0.91 * (slowest.transfer_s or 0)).is_slow
    assert not dataclasses.replace(slowest, clock_bound_s=None).is_slow
    bounds = {group.clock_bound_s for group in report.communication.groups if max(group.ranks) < 4}
    assert [*bounds] == [pytest.approx(40.002e-6)]
    assert "x other links (1.66 GB/s, others 20." in report.verdict.text
    terminal = io.StringIO()
    print_report(report, stream=terminal)
    row = next(line for line in terminal.getvalue().splitlines() if "rank 3 → 7 (dp 3, stage 0 → 1)" in line)
    assert "8.00 MB   4." in row
    assert row.endswith("x")
    page = "".join(html_page([report]))
    for words in (
        "rank 3 → 7 (dp 3, stage 0 → 1)",
        "Transfer and waiting",
        "of 100 % of the computes, within 20.0 µs of",
    ):
        assert words in page
    jsonschema.validate(report.to_dict(), json_schema(), cls=jsonschema.Draft202012Validator)


def test_a_slow_group_is_told_apart_from_one_that_waits(tmp_path: Path) -> None:
    report, _ = analysed(tmp_path, plants=(SlowGroup(1, 3), Plant(0, 1.4, dp_rank=2)))
    assert report.communication is not None
    groups = {(group.kind, group.stage): group for group in report.communication.groups if group.dimension == "dp"}
    slow, fast = groups["params_all_gather", 1], groups["params_all_gather", 0]
    assert slow.ratio == pytest.approx(3, rel=0.1)
    for group, factor in ((slow, 3), (fast, 1)):
        assert group.bus_bytes_per_s == pytest.approx(LINK_BYTES_PER_S / factor, rel=0.05)
    waits = groups["grads_reduce_scatter", 0]
    assert waits.ranks == (0, 1, 2, 3)
    assert (waits.last_rank, waits.last_ratio) == (2, 1.0)


def test_a_link_is_as_exact_as_its_own_ranks_were_then(tmp_path: Path) -> None:
    """One GPU's clock is hardly known, and all clocks less in the first steps: neither is every link's matter."""
    job = make_job(dataclasses.replace(SPEC, plants=(SlowLink(0, 12, dp_rank=3),), hosts=1))
    paths = [path for path in job.write(tmp_path / "job") if path.suffix == ".smon"]
    for path in paths:
        trace = read_file(path)
        (found,) = trace.clock_maps
        first_ns = found.window_start_ns + (found.window_end_ns - found.window_start_ns) // 6
        wide = trace_pb2.ClockMap.FromString(found.SerializeToString())
        wide.window_end_ns, wide.bound_ns = first_ns, 900_000
        if trace.rank == 1:
            wide.bound_ns = 5_000_000
            wide.window_end_ns = found.window_end_ns
        with path.open("ab") as file:
            file.write(packet(clock_map=wide))
    report = analyze(tmp_path / "job")
    assert report.fidelity.device_bound_s == pytest.approx(5e-3)
    assert report.fidelity.clock_bound_s == pytest.approx(5.9e-3)
    assert report.communication is not None
    slowest = report.communication.slowest
    assert slowest is not None
    assert set(slowest.ranks) == {3, 7}
    # Twice 20 µs in all steps but the first, whose ops may be any of the others.
    assert 40e-6 <= (slowest.clock_bound_s or 0) <= 150e-6
    of_first = [group for group in report.communication.groups if 1 in group.ranks and len(group.ranks) == 2]
    assert of_first
    for group in of_first:
        assert group.clock_bound_s == pytest.approx(5.02e-3, rel=0.01)
