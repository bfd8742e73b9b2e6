"""`smon analyze DIR` finds in recorded traces what was planted, and says how far to trust it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from smon_rt import cli
from smon_rt._proto import trace_pb2
from smon_rt.analysis import analyze
from smon_rt.report.html import html_page
from smon_rt.report.json_output import json_schema
from smon_rt.synth import JobSpec, Plant, make_job
from tests.python.clock_jobs import HostClock
from tests.python.recorded_jobs import WAIT_RETURN, RecordedJob
from tests.python.smon_files import TestSpan, packet, step_packet, write_rank

WORKER = Plant(1, 1.6, dp_rank=1)
SPECS = {
    "1f1b": JobSpec(dp=2, pp=3, microbatches=6, steps=8, noise=0.05, plants=(WORKER,), seed=3),
    "interleaved": JobSpec(dp=2, pp=2, vpp=2, microbatches=4, steps=8, noise=0.05, plants=(WORKER,), seed=4),
    "dp alone": JobSpec(dp=4, microbatches=3, steps=8, noise=0.05, plants=(Plant(0, 1.6, dp_rank=1),), seed=5),
    "tp members": JobSpec(dp=2, pp=2, tp=2, microbatches=4, steps=8, noise=0.05, plants=(WORKER,), seed=6),
    "a slow stage": JobSpec(dp=3, pp=4, microbatches=8, steps=8, noise=0.05, plants=(Plant(3, 1.5),), seed=7),
    "one pipeline": JobSpec(dp=1, pp=4, microbatches=8, steps=8, noise=0.05, plants=(Plant(3, 1.5),), seed=8),
}


def report_of(folder: Path, capsys: pytest.CaptureFixture[str], *more: str, exit_code: int = 0) -> dict[str, Any]:
    """The JSON of `smon analyze`, checked against its schema."""
    assert cli.run(["analyze", str(folder), "--json", "-", *more]) == exit_code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    jsonschema.validate(found, json_schema(), cls=jsonschema.Draft202012Validator)
    return found


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("name", SPECS)
def test_the_planted_cause_is_named_with_the_numbers_of_the_jobs_own_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, hosts: int
) -> None:
    job = RecordedJob(make_job(SPECS[name]))
    job.clocks = [HostClock(), HostClock(77_000_000_000, 1e-5)][:hosts]
    job.write(tmp_path / "traces")
    (original, *_) = job.job.write(tmp_path / "original.parquet")
    report, expected = report_of(tmp_path / "traces", capsys), analyze(original).to_dict()
    bound_s = report["fidelity"]["clock_bound_s"]
    assert (bound_s == 0) == (hosts == 1)
    tolerance = 1e-3 + 20 * bound_s / expected["mean_step_time_s"]["ideal"]
    for key in ("base", "nodelay", "ideal"):
        assert report["mean_step_time_s"][key] == pytest.approx(expected["mean_step_time_s"][key], rel=tolerance)
    assert report["slowdown"]["value"] == pytest.approx(expected["slowdown"]["value"], rel=tolerance)
    assert report["slowdown_by_worker"] == pytest.approx(expected["slowdown_by_worker"], rel=tolerance)
    assert report["verdict"]["cause"] == expected["verdict"]["cause"]
    for key in ("rank", "dp_rank", "stage"):
        assert report["verdict"]["where"][key] == expected["verdict"]["where"][key]
    gain = expected["verdict"]["gain_s_per_step"]
    assert report["verdict"]["gain_s_per_step"] == pytest.approx(gain, rel=0.02 + tolerance)
    assert report["fidelity"]["simulation_error_mean"] < 0.01 + tolerance


def test_the_place_says_on_which_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = RecordedJob(make_job(SPECS["1f1b"]), who={"gpu_uuid": "GPU-7f"})
    job.clocks = [HostClock(), HostClock(10**12)]
    job.write(tmp_path)
    report = report_of(tmp_path, capsys)
    where = report["verdict"]["where"]
    assert (where["rank"], where["host"], where["gpu_uuid"], where["local_rank"]) == (3, "node1", "GPU-7f", 3)
    assert "worker: rank 3 (dp 1, stage 1) on node1, GPU 3 (GPU-7f)" in report["verdict"]["text"]


def test_the_trust_line_says_what_there_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = RecordedJob(make_job(SPECS["1f1b"]), warmup_steps=1)
    job.clocks = [HostClock(), HostClock(10**12)]
    job.write(tmp_path)
    report = report_of(tmp_path, capsys)
    trust = report["verdict"]["text"].splitlines()[-1]
    for words in (
        "7 of 7 sampled steps, 6 of 6 workers, replay error",
        "no drops, left out: 1 warm-up step, clocks of 2 hosts put together by their messages within",
        "host time only",
    ):
        assert words in trust
    assert report["fidelity"]["time_sources"]["wait_return"] > 0
    assert report["fidelity"]["coverage"] == {"ranks": 1.0, "steps": 1.0, "device_times": 0.0}


def test_a_missing_rank_is_named_and_the_plant_is_found_without_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for missing in (0, 5):
        folder = tmp_path / f"without-{missing}"
        RecordedJob(make_job(SPECS["1f1b"]), skip_ranks=(missing,)).write(folder)
        report = report_of(folder, capsys, exit_code=3)
        assert report["fidelity"]["missing_ranks"] == [missing]
        assert report["fidelity"]["coverage"]["ranks"] == pytest.approx(5 / 6)
        assert "5 of 6 workers, replay error" in report["verdict"]["text"]
        assert f"rank {missing} missing" in report["verdict"]["text"]
        assert (report["verdict"]["cause"], report["verdict"]["where"]["rank"]) == ("worker", 3)
        unknown = [key for key, value in report["slowdown_by_worker"].items() if value is None]
        assert unknown == [key for key, rank in report["worker_rank"].items() if rank == -1]
        assert (len(unknown), len(report["slowdown_by_worker"])) == (1, 6)


def test_a_slow_worker_that_was_not_recorded_is_looked_for_where_it_may_be(tmp_path: Path) -> None:
    spec = JobSpec(dp=4, pp=4, steps=10, noise=0.02, plants=(Plant(3, 1.5, dp_rank=1),), hosts=2, seed=3)
    make_job(spec).write(tmp_path / "job")
    for path in (tmp_path / "job").glob("rank-*"):
        if int(path.name[5:10]) >= 8:
            path.unlink()
    report = analyze(tmp_path / "job")
    lines = report.verdict.text.splitlines()
    assert (report.verdict.cause, report.verdict.gain_s_per_step) == ("none", 0)
    assert lines[1].endswith("for ranks 8–15, not recorded")
    assert lines[5].startswith("action   look at ranks 8–15, or record all ranks")
    page = "".join(html_page([report]))
    assert "perhaps that of ranks 8–15: not recorded, and waited for" in page


@pytest.mark.parametrize("missing", [3, 4, 8, 15])
def test_a_missing_rank_takes_nothing_from_the_gain_of_a_slow_worker_of_another_dp_rank(
    tmp_path: Path, missing: int
) -> None:
    spec = JobSpec(
        dp=4, pp=4, steps=10, noise=0.02, comm_noise=0.05, plants=(WORKER,), seed=3, missing_ranks=(missing,)
    )
    job = make_job(spec)
    job.write(tmp_path)
    (planted,) = job.truth["plants"]
    cause = analyze(tmp_path).causes[0]
    assert (cause.cause, cause.where.dp_rank, cause.where.stage) == ("worker", 1, 1)
    assert cause.gain_s_per_step == pytest.approx(planted["gain_s_per_step"], rel=0.05)


def test_steps_asked_for_are_analysed_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    RecordedJob(make_job(SPECS["1f1b"])).write(tmp_path)
    report = report_of(tmp_path, capsys, "--steps", "2-4")
    assert list(report["slowdown_by_step"]) == ["2", "3", "4"]
    assert "3 of 3 sampled steps, as chosen" in report["verdict"]["text"]


def test_files_directories_and_globs_of_several_nodes_are_one_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = RecordedJob(make_job(SPECS["1f1b"]))
    for path in job.write(tmp_path):
        folder = tmp_path / f"node{int(path.name[5:10]) // 3}"
        folder.mkdir(exist_ok=True)
        path.rename(folder / path.name)
        (folder / "request.json").write_text("{}", encoding="utf-8")
    nodes = [str(tmp_path / "node0"), str(tmp_path / "node1")]
    ways: list[list[str]] = [nodes, [str(tmp_path / "node*")], [str(tmp_path / "node*" / "*")]]
    ways.append([str(path) for path in sorted(tmp_path.glob("node*/*.smon"))])
    for paths in ways:
        assert cli.run(["analyze", *paths, "--quiet"]) == 0
        assert "of 6 GPUs' time is lost" in capsys.readouterr().out
    assert analyze(nodes).verdict.where.rank == analyze(tmp_path / "node*").verdict.where.rank == 3


def test_one_step_of_one_rank_gives_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rank(tmp_path, [TestSpan(kind="forward_compute", start_ns=10, duration_ns=5_000, microbatch=0)])
    report = report_of(tmp_path, capsys)
    assert report["slowdown"] == {"value": 1.0, "low": None, "high": None}
    assert report["job"]["world"] == 1


def test_a_record_is_refused_for_recorded_traces_which_have_theirs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    RecordedJob(make_job(SPECS["dp alone"])).write(tmp_path)
    assert cli.run(["analyze", str(tmp_path), "--meta", "meta.yaml"]) == 2
    assert "meta.yaml: a job's record is for a parquet" in capsys.readouterr().err


def test_what_is_analysed_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, *_ = RecordedJob(make_job(SPECS["dp alone"])).write(tmp_path)
    content = path.read_bytes()
    assert cli.run(["analyze", str(tmp_path), "--json", str(path)]) == 2
    assert "is what is analysed" in capsys.readouterr().err
    assert path.read_bytes() == content


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_directory_gives_a_report_or_one_line(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str], data: st.DataObject
) -> None:
    spec = JobSpec(dp=2, pp=2, microbatches=2, steps=3, noise=0.1, seed=1)
    folder = tmp_path_factory.mktemp("damaged")
    for path in RecordedJob(make_job(spec)).write(folder):
        content = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(0, 3))):
            place = data.draw(st.integers(0, len(content) - 1))
            how = data.draw(st.sampled_from(["flip", "cut", "drop", "grow"]))
            if how == "flip":
                content[place] ^= 1 << data.draw(st.integers(0, 7))
            elif how == "cut":
                del content[place + 1 :]
            elif how == "drop":
                del content[place : place + data.draw(st.integers(1, 40))]
            else:
                content[place:place] = data.draw(st.binary(min_size=1, max_size=20))
            if not content:
                content = bytearray(b"\n")
        path.write_bytes(content)
        if data.draw(st.booleans()) and data.draw(st.booleans()):
            path.unlink()
    code = cli.run(["analyze", str(folder), "--json", "-"])
    out, err = capsys.readouterr()
    assert code in (0, 2, 3), err
    if code == 2:
        assert out == ""
        assert len(err.splitlines()) == 1
    else:
        jsonschema.validate(json.loads(out), json_schema(), cls=jsonschema.Draft202012Validator)


def test_what_slow_loading_and_collections_cost_is_computed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ms = 1_000_000
    names = trace_pb2.Names(communicator=[trace_pb2.Communicator(id=1, name="dp", member_ranks=[0, 1])])
    for rank, loading_ms, collection_ms in ((0, 2, 0), (1, 30, 10)):
        spans, steps = [], []
        for step in range(8):
            at = begin = 100 * step
            for kind, length in (
                ("data_loading", loading_ms),
                ("forward_compute", 10),
                ("gc", collection_ms),
                ("backward_compute", 20),
            ):
                if length:
                    microbatch = 0 if kind.endswith("_compute") else -1
                    times = {"start_ns": at * ms, "duration_ns": length * ms}
                    spans.append(TestSpan(kind=kind, step=step, microbatch=microbatch, **times))
                at += length
            reduction = {"comm_id": 1, "comm_seq": step + 1, "time_source": WAIT_RETURN}
            # Both wait until the slower one is there.
            times = {"start_ns": at * ms, "duration_ns": (begin + 72 - at) * ms}
            spans.append(TestSpan(kind="grads_all_reduce", step=step, **times, **reduction))
            spans.append(TestSpan(kind="optimizer", step=step, start_ns=(begin + 72) * ms, duration_ns=3 * ms))
            steps.append((step, begin * ms, 75 * ms, True, False))
        layout = {"dp_size": 2, "dp_rank": rank}
        packets = [packet(names=names), step_packet(steps)]
        write_rank(tmp_path, spans, rank=rank, world_size=2, layout=layout, packets=packets)
    report = report_of(tmp_path, capsys)
    gains = {cause["cause"]: cause["gain_s_per_step"] for cause in report["causes"]}
    assert report["mean_step_time_s"]["base"] == pytest.approx(0.075)
    # Without any loading the other rank's 2 ms are gone too; without collections loading still makes rank 1 the last.
    assert gains["data_loading"] == pytest.approx(0.030, abs=1e-4)
    assert gains["gc"] == pytest.approx(0.010, abs=1e-4)


@pytest.mark.parametrize("kind", ["data_loading", "gc", "checkpoint_wait"])
def test_a_worker_that_stalls_on_its_host_is_not_said_to_compute_slowly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    ms = 1_000_000
    names = trace_pb2.Names(communicator=[trace_pb2.Communicator(id=1, name="dp", member_ranks=range(4))])
    for rank in range(4):
        spans, steps = [], []
        for step in range(8):
            at = begin = 100 * step
            stall = 32 if rank == 1 else 2
            for name, length in ((kind, stall), ("forward_compute", 10), ("backward_compute", 20)):
                microbatch = 0 if name.endswith("_compute") else -1
                times = {"start_ns": at * ms, "duration_ns": length * ms}
                spans.append(TestSpan(kind=name, step=step, microbatch=microbatch, **times))
                at += length
            reduction = {"comm_id": 1, "comm_seq": step + 1, "time_source": WAIT_RETURN}
            times = {"start_ns": at * ms, "duration_ns": (begin + 64 - at) * ms}
            spans.append(TestSpan(kind="grads_all_reduce", step=step, **times, **reduction))
            spans.append(TestSpan(kind="optimizer", step=step, start_ns=(begin + 64) * ms, duration_ns=3 * ms))
            steps.append((step, begin * ms, 67 * ms, True, False))
        packets = [packet(names=names), step_packet(steps)]
        write_rank(tmp_path, spans, rank=rank, world_size=4, layout={"dp_size": 4, "dp_rank": rank}, packets=packets)
    verdict = report_of(tmp_path, capsys)["verdict"]
    assert verdict["cause"] == ("checkpoint" if kind == "checkpoint_wait" else kind)
    assert (verdict["where"]["rank"], verdict["scope"]) == (1, "worker")
    assert verdict["gain_s_per_step"] == pytest.approx(0.030)
    assert " on rank 1 (dp 1, stage 0)" in verdict["text"]
    assert ": 16.0x as long as elsewhere" in verdict["text"]
    assert "GPU" not in verdict["action"]
    assert "rank 1" in verdict["action"]
