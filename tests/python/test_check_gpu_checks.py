"""The checks of `smon check-gpu` that need a GPU: how they judge, and they themselves on stand-ins."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from smon_rt._interleaved import Added, StepTimes
from smon_rt._proto import trace_pb2
from smon_rt.bench import Measurement
from smon_rt.check_gpu import (
    clock_bound,
    contract,
    copies,
    endings,
    event_cost,
    graph_capture,
    loader,
    nccl_pair,
    overlap,
    plugin,
    training,
)
from smon_rt.check_gpu.clock_bound import Truth
from smon_rt.check_gpu.job import EXIT_CODE, SPANS
from smon_rt.check_gpu.model import NotHere
from smon_rt.check_gpu.nccl_rank import COLLECTIVES
from smon_rt.trace import read_file
from smon_rt.trace.kinds import FLAGS, TIME_SOURCE_NAMES
from smon_rt.trace.rank_trace import RankTrace
from tests.python.recording_process import RecordedJob, finish, job
from tests.python.smon_files import TestSpan, packet, write_rank
from tests.python.torch_jobs import TorchJob, needs_hooks, nursery, torch_job

__all__ = ["job", "nursery", "torch_job"]

ROOT = Path(__file__).resolve().parent.parent.parent
PYTHON_PATH = f"{ROOT}:{ROOT / 'python'}"
GPU_EVENT = TIME_SOURCE_NAMES.index("gpu_event")


def on_gpu(kind: str, start_ns: int, device_start_ns: int, **more: Any) -> TestSpan:
    """10 µs on the host and 5 µs on the GPU."""
    return TestSpan(kind, 0, start_ns, 10_000, device_start_ns, 5_000, GPU_EVENT, **more)


def trace_of(folder: Path, spans: list[TestSpan], *bounds_ns: int) -> RankTrace:
    """With a clock map for each second."""
    maps = [
        packet(
            clock_map=trace_pb2.ClockMap(
                window_start_ns=number * 10**9,
                window_end_ns=(number + 1) * 10**9,
                bound_ns=bound_ns,
                device_clock="event",
            )
        )
        for number, bound_ns in enumerate(bounds_ns)
    ]
    folder.mkdir(exist_ok=True)
    return read_file(write_rank(folder, spans, packets=maps))


def test_a_span_that_costs_more_or_has_no_times_of_the_gpu_is_a_miss() -> None:
    host_ns = [200] * 99 + [90_000]  # what the machine did to one of them is not its cost
    assert event_cost.finding_of([4_000] * 100, host_ns, 1.0).is_met
    assert not event_cost.finding_of([10_300] * 100, host_ns, 1.0).is_met
    assert not event_cost.finding_of([4_000] * 100, host_ns, 0.98).is_met


def test_each_overlap_must_be_kept_where_there_is_one() -> None:
    good, lost, none = ({"overlap": a, "recorded_overlap": b} for a, b in ((0.9, 0.88), (0.9, 0.8), (0.1, 0.0)))
    assert overlap.finding_of({1: good, 8: good, 32: none}).is_met
    assert overlap.finding_of({1: lost, 8: good}).words == "kept with 1: 89 %, 8: 98 %"
    assert not overlap.finding_of({1: lost, 8: good}).is_met
    with pytest.raises(NotHere, match="nothing overlaps on this GPU"):
        overlap.finding_of({1: none})


def test_captured_spans_say_so_and_have_no_event(tmp_path: Path) -> None:
    captured = [
        TestSpan("backward_compute", 0, 1000 * k, 10, flags=FLAGS["in_capture"]) for k in range(graph_capture.GRAPHS)
    ]
    replayed = [on_gpu("eval", 1000 * k, 1000 * k) for k in range(graph_capture.GRAPHS)]
    good = trace_of(tmp_path / "good", captured + replayed)
    assert graph_capture.finding_of(good, []).is_met
    assert not graph_capture.finding_of(good, [3]).is_met
    with_event = on_gpu("backward_compute", 0, 0, flags=FLAGS["in_capture"])
    for number, wrong in enumerate((with_event, replace(captured[0], flags=0))):
        spans = [wrong, *captured[1:], *replayed]
        assert not graph_capture.finding_of(trace_of(tmp_path / str(number), spans), []).is_met
    blind = [replace(span, time_source=0) for span in replayed]
    assert not graph_capture.finding_of(trace_of(tmp_path / "blind", captured + blind), []).is_met


def test_times_of_the_gpu_must_be_right_within_a_bound_that_is_small_enough(tmp_path: Path) -> None:
    starts_ns = [k * 10**6 for k in range(1500)]
    spans = [on_gpu("forward_compute", start_ns, start_ns + 3_000) for start_ns in starts_ns]
    truths = [Truth(start_ns + 4_000, start_ns + 6_000) for start_ns in starts_ns]
    found = clock_bound.finding_of(trace_of(tmp_path / "good", spans, 200_000, 40_000), truths)
    assert found.is_met
    assert found.words == "bound 200 µs at first, 40 at last; 100.0 % of 1500 spans right within it"
    for name, bounds_ns in {"early": (301_000, 40_000), "late": (200_000, 51_000), "none": ()}.items():
        assert not clock_bound.finding_of(trace_of(tmp_path / name, spans, *bounds_ns), truths).is_met
    # Two of 1,500 are off by more than the bound of their second allows.
    off = [replace(span, device_start_ns=span.start_ns + 60_000) for span in spans]
    trace = trace_of(tmp_path / "off", spans[:1400] + off[1400:1402] + spans[1402:], 200_000, 40_000)
    found = clock_bound.finding_of(trace, truths)
    assert not found.is_met
    assert found.figures["worst_miss_ns"] == 60_000 - 40_000 - 6_000
    blind = [replace(span, time_source=0) for span in spans]
    assert not clock_bound.finding_of(trace_of(tmp_path / "blind", blind, 200_000, 40_000), truths).is_met


def test_a_bracket_holds_what_it_brackets() -> None:
    offset_ns = 77_000_000
    readings = [(t, t + wait - offset_ns, t + 2 * wait) for t, wait in ((10_000, 9_000), (50_000, 4_000))]
    truth = clock_bound.bracket(60_000 - offset_ns, readings)
    assert truth.earliest_ns <= 60_000 <= truth.latest_ns
    assert truth.latest_ns - truth.earliest_ns == 2 * 4_000 + 2 * 1_000


def test_both_ranks_must_end_well_and_be_told_the_same() -> None:
    rank = nccl_pair.Recorded([(1, 14, number) for number in range(COLLECTIVES)], COLLECTIVES + 1, COLLECTIVES, 7, 7)
    answer = {
        "is_right": True,
        "nccl_communicators": 1,
        "nccl_ops": COLLECTIVES + 1,
        "nccl_joined_ops": COLLECTIVES + 1,
        "nccl_foreign_handles": 0,
        "nccl_stale_handles": 0,
    }
    good: tuple[Any, ...] = ([0, 0], [answer, answer], [rank, rank])
    assert nccl_pair.finding_of(*good).is_met
    for words, bad in {
        "exit codes 0, -6": ([0, -6], good[1], good[2]),
        "wrong results": ([0, 0], [answer, answer | {"is_right": False}], good[2]),
        "did not use the plug-in": ([0, 0], [answer, answer | {"nccl_communicators": 0}], good[2]),
        "operations told of": ([0, 0], [answer, answer | {"nccl_ops": 3, "nccl_joined_ops": 3}], good[2]),
        "belong to no span": ([0, 0], [answer, answer | {"nccl_joined_ops": 40}], good[2]),
        "1 handles": ([0, 0], [answer, answer | {"nccl_stale_handles": 1}], good[2]),
        "not record the same": ([0, 0], good[1], [rank, replace(rank, collectives=rank.collectives[1:])]),
        "47 operations in a trace of 48": ([0, 0], good[1], [rank, replace(rank, ops=COLLECTIVES - 1)]),
        "moved nothing over the sockets": ([0, 0], good[1], [replace(rank, received_steps=0), rank]),
        "wrong results, or none": ([1, 1], [{}, {}], []),
    }.items():
        found = nccl_pair.finding_of(*bad)
        assert not found.is_met
        assert words in found.words


def test_a_driver_that_is_not_taken_or_not_said_to_be_missing_is_a_miss() -> None:
    line = "smon_rt: info: no CUDA driver: not here; spans have host times only"
    assert loader.finding_of(False, [line], 0, SPANS).is_met
    assert loader.finding_of(True, [], 0, SPANS).is_met
    assert not loader.finding_of(False, [], 0, SPANS).is_met
    assert not loader.finding_of(False, [line, line], 0, SPANS).is_met
    assert "is not taken" in loader.finding_of(True, [line], 0, SPANS).words
    assert not loader.finding_of(True, [], 0, SPANS - 1).is_met
    assert not loader.finding_of(True, [], 1, SPANS).is_met


class PlantedPlugin:
    """A plug-in in Python, with one fault or none."""

    def __init__(self, fault: str = "") -> None:
        self.fault = fault
        self.started: list[tuple[int, int]] = []
        self.callbacks = (
            plugin._INIT_5(self.init),
            plugin._START(self.start),
            plugin._ONE(lambda handle: 1 if self.fault == "stop" and handle else 0),
            plugin._STATE(lambda _handle, _state, _arguments: 0),
            plugin._ONE(lambda _context: 0),
        )
        self.table = plugin._Table5(b"planted", *self.callbacks)

    def init(self, context: Any, identity: int, mask: Any, *_who: Any) -> int:
        assert identity == 0x1234
        mask[0] = plugin._COLL | plugin._PROXY_OP
        context[0] = None if self.fault == "context" else 1
        return 0

    def start(self, _context: int, handle: Any, event: int) -> int:
        described = ctypes.cast(event, ctypes.POINTER(plugin._Event)).contents
        self.started.append((described.type, described.part.coll.count))
        if self.fault != "handle":
            handle[0] = len(self.started)
        return 0


def test_a_plugin_that_fails_nccl_is_found() -> None:
    good = PlantedPlugin()
    driven = plugin.drive_table(good.table, 5)
    assert (driven.name, driven.faults) == ("planted", [])
    assert good.started[0] == (plugin._COLL, 1 << 20)
    assert [kind for kind, _ in good.started].count(plugin._PROXY_OP) == plugin.OPS  # and what it did not ask for: none
    assert len(good.started) == 2 * plugin.OPS + 2
    for fault, words in {
        "stop": "stop gives 1",
        "context": "init gives no context",
        "handle": "startEvent writes no handle",
    }.items():
        assert plugin.drive_table(PlantedPlugin(fault).table, 5).faults == [words]
    assert "undefined symbol: ncclProfiler_v3" in plugin.drive(plugin.LIBRARY, 3).faults[0]


def test_a_step_is_a_miss_only_where_it_surely_costs_more() -> None:
    times = StepTimes(100, 0.02, 0.03)
    nothing = Added(0.0, -0.001, 0.001)

    def found(unsampled: Added, sampled: Added, dropped_spans: int = 0) -> bool:
        measured = Measurement(times, times, times, unsampled, sampled, nothing, 9.0, dropped_spans, 10)
        return training.finding_of(measured).is_met

    assert found(nothing, Added(0.02, 0.004, 0.04))
    assert not found(nothing, Added(0.006, 0.0051, 0.007))
    assert not found(Added(0.002, 0.0011, 0.003), nothing)
    assert not found(nothing, nothing, dropped_spans=1)


_STAND_IN = """
import json
import subprocess
import sys
from smon_rt.check_gpu import event_cost, gpu_work, graph_capture, overlap
from tests.python.cuda_stand_in import Gpu

def on(gpu, check, function):
    check.cuda_torch = lambda: gpu.torch
    return function()

gpu_work._NOTICED_WITHIN_S = 0.01
event_cost._BLOCKS = graph_capture.GRAPHS = 4
waits = Gpu(is_serial=lambda: smon_rt.current() != 0)  # as behind the event of an open span
cost = on(Gpu(), event_cost, event_cost.run)
right = on(Gpu(), graph_capture, graph_capture.run)
broken = on(Gpu(breaks_captures=True), graph_capture, graph_capture.run)
print(json.dumps({
    "cost": cost.figures, "is_cost_met": cost.is_met,
    "right": right.figures, "broken": broken.figures,
    "overlaps": on(Gpu(), overlap, overlap.measure), "waits": on(waits, overlap, overlap.measure),
}))
"""

#: On the project's fake driver, in which the recorder takes real events; its clock and its timer are the host's.
_WITH_DRIVER = """
import ctypes, json, sys, time
from types import SimpleNamespace
from smon_rt.check_gpu import clock_bound, event_cost, graph_capture
from tests.python.cuda_stand_in import Gpu

def read_timer(out, _index):
    out.value = time.monotonic_ns() - 7_000_000_000

sys.modules["smon_rt.check_gpu.globaltimer"] = SimpleNamespace(read_timer=read_timer)
torch = Gpu(driver=ctypes.CDLL("libcuda.so.1")).torch
event_cost._BLOCKS = graph_capture.GRAPHS = 4
clock_bound.STEPS, clock_bound.STEP_S = 4, 0.25
for check in (event_cost, graph_capture, clock_bound):
    check.cuda_torch = lambda: torch
    found = check.run()
    print(json.dumps([found.is_met, found.words, found.figures]))
"""
_FAKE_DRIVER = ROOT / "build" / "release" / "fake_driver"
needs_fake_driver = pytest.mark.skipif(
    not (_FAKE_DRIVER / "libcuda.so.1").exists(), reason=f"{_FAKE_DRIVER} is not built: cmake --build --preset release"
)


def test_the_checks_run_on_a_stand_in_for_torch(job: RecordedJob) -> None:
    """Without a driver: spans are there, and their times of the GPU are missing, which is a miss."""
    found = json.loads(job.run(_STAND_IN, PYTHONPATH=PYTHON_PATH).stdout)
    assert not found["is_cost_met"]
    assert found["cost"]["on_device_ratio"] == 0.0
    assert found["cost"]["gpu_span_us"] > 0
    assert found["right"]["wrong"] == []
    assert found["right"]["captured_spans"] == 4
    assert found["broken"]["wrong"] == [0, 1, 2, 3]
    assert found["overlaps"]["overlap"] == pytest.approx(1.0)
    assert overlap.finding_of({8: found["overlaps"]}).is_met
    assert found["waits"]["overlap"] == pytest.approx(1.0)
    assert not overlap.finding_of({1: found["waits"]}).is_met


@needs_fake_driver
def test_with_a_driver_spans_have_times_of_the_gpu_and_captures_are_left_alone(job: RecordedJob) -> None:
    output = job.run(_WITH_DRIVER, LD_LIBRARY_PATH=str(_FAKE_DRIVER), FAKE_CUDA_CONTEXT="1", PYTHONPATH=PYTHON_PATH)
    cost, graphs, clock = (json.loads(line) for line in output.stdout.splitlines())
    assert cost[2]["on_device_ratio"] >= event_cost.LEAST_ON_DEVICE_RATIO, cost
    assert graphs[0], graphs
    assert graphs[2]["flagged_spans"] == graphs[2]["captured_spans"] == 4
    assert (clock[2]["spans"], clock[2]["with_device_times"], clock[2]["right_ratio"]) == (20, 20, 1.0), clock


_JOB_ON_GPU = """
import ctypes
from smon_rt.check_gpu import job
from tests.python.cuda_stand_in import Gpu

job.cuda_torch = lambda: Gpu(driver=ctypes.CDLL("libcuda.so.1")).torch
sys.argv = ["job", DIR, os.environ["HOW"], "gpu"]
job.main()
"""


@needs_fake_driver
@pytest.mark.parametrize(("how", "exit_code", "state"), [("exit", EXIT_CODE, "closed"), ("killed", -9, "killed")])
def test_a_job_on_a_gpu_ends_as_it_should(job: RecordedJob, how: str, exit_code: int, state: str) -> None:
    child = job.begin(
        _JOB_ON_GPU, LD_LIBRARY_PATH=str(_FAKE_DRIVER), FAKE_CUDA_CONTEXT="1", PYTHONPATH=PYTHON_PATH, HOW=how
    )
    finish(child, exit_code)
    found = endings.recorded_figures(job.folder, "gpu")
    assert found["state"] == state
    assert endings.is_whole(found), found


@needs_fake_driver
def test_the_contract_holds_on_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program that users have, as `smon check-gpu` runs it where there is a GPU."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(_FAKE_DRIVER))
    found = contract.run_cuda()
    assert found.is_met, found.words
    assert found.words.endswith("checks hold (cuda, cuda_copier)")
    monkeypatch.setenv("LD_LIBRARY_PATH", "")
    with pytest.raises(NotHere, match="no CUDA driver"):
        contract.run_cuda()


@needs_fake_driver
def test_copies_are_measured_on_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake copies at once: nothing is torn, without a gate neither, which is not taken for a success."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(_FAKE_DRIVER))
    figures = copies.measure(4 << 20)
    assert figures["torn_rounds"] == 20
    assert figures["torn_count"] == figures["torn_without_gate_count"] == 0
    assert min(figures.values()) >= 0
    assert figures["copier_bytes_per_s"] > 0
    assert not copies.finding_of(figures).is_met
    with pytest.raises(NotHere, match='"12" is no number of bytes'):
        copies.measure(12)
    monkeypatch.setenv("LD_LIBRARY_PATH", "")
    with pytest.raises(NotHere, match="no CUDA driver"):
        copies.measure(4 << 20)


GOOD_COPIES = {
    "plain_copy_bytes_per_s": 5e10,
    "copier_bytes_per_s": 4.9e10,
    "begin_us": 30.0,
    "gate_us": 9.0,
    "work_alone_s": 0.02,
    "work_beside_copies_s": 0.0202,
    "torn_count": 0.0,
    "torn_without_gate_count": 20.0,
    "torn_rounds": 20.0,
}


@pytest.mark.parametrize(
    "worse",
    [
        {"copier_bytes_per_s": 4.4e10},
        {"begin_us": 250.0},
        {"gate_us": 250.0},
        {"work_beside_copies_s": 0.0225},
        {"torn_count": 1.0},
        {"torn_without_gate_count": 0.0},
    ],
)
def test_copies_are_missed_by_any_figure(worse: dict[str, float]) -> None:
    assert copies.finding_of(GOOD_COPIES).is_met
    assert not copies.finding_of({**GOOD_COPIES, **worse}).is_met


@needs_hooks
def test_the_ranks_and_the_training_step_do_what_they_should_on_cpus(torch_job: TorchJob) -> None:
    torch_job.run(
        "start()",
        """
        init()
        from types import SimpleNamespace
        from smon_rt.check_gpu import nccl_rank, training
        assert nccl_rank.work(torch, RANK, device="cpu", number_count=64)
        if RANK == 0:
            names = ("nn", "optim", "randn", "autocast", "bfloat16")
            cuda = SimpleNamespace(synchronize=lambda: None)
            stand_in = SimpleNamespace(cuda=cuda, **{name: getattr(torch, name) for name in names})
            step = training.make_step(stand_in, device="cpu", width=16, tokens=2)
            before = smon_rt.status().steps
            step()
            assert smon_rt.status().steps == before + 1
        smon_rt.stop()
        """,
        ranks=2,
    )
    first, second = nccl_pair.recorded(torch_job.folder)
    assert first == second
    assert len(first.collectives) == COLLECTIVES
    assert (first.ops, first.sent_steps) == (0, 0)  # gloo's


def test_the_kernel_that_reads_the_timer_compiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """For a GPU that need not be here, with the assembler that triton brings."""
    triton = pytest.importorskip("triton", reason="triton is not installed: it comes with torch for CUDA")
    compiler, backends = pytest.importorskip("triton.compiler"), pytest.importorskip("triton.backends.compiler")
    from smon_rt.check_gpu.globaltimer import store_timer

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # which of the two is all the same: silences a warning
    source = compiler.ASTSource(fn=store_timer, signature={"out": "*i64"}, constexprs={})
    text = triton.compile(source, target=backends.GPUTarget("cuda", 90, 32)).asm["ptx"]
    assert "%globaltimer" in text
    assert "st.global" in text


def test_a_rank_that_fails_ends_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_pair, "_GRACE_S", 0.0)
    programs = ("import time; time.sleep(600)", "raise SystemExit(3)")
    ranks = [subprocess.Popen([sys.executable, "-c", program]) for program in programs]
    assert nccl_pair._end_together(ranks) == [-9, 3]
