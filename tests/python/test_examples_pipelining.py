"""examples/pipelining.py: what four real processes record is what their schedule says."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the examples need torch")

from smon_rt.kinds import KIND_NAMES
from smon_rt.trace import RankTrace
from tests.python.example_jobs import (
    EXAMPLES,
    check_messages_pair,
    check_steps_add_up,
    counts,
    ids,
    rows,
    run_jobs,
    traces_in,
)

pytestmark = pytest.mark.slow
STEPS, MICROBATCHES, PP = 5, 4, 2
#: Schedule → its name in the trace, stages a rank has, reductions a stage has: one bucket and, with all schedules but
#: the first, DDP's map of unused parameters. In a split backward it reduces the job's first stage only.
SCHEDULES = {
    "1F1B": ("1f1b", 1, 1),
    "GPipe": ("gpipe", 1, 2),
    "Interleaved1F1B": ("interleaved_1f1b", 2, 2),
    "InterleavedZeroBubble": ("interleaved_zero_bubble", 2, 2),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces of a short run of each schedule."""
    folder = tmp_path_factory.mktemp("pipelining")
    script = str(EXAMPLES / "pipelining.py")
    run_jobs(
        [
            {
                "script": script,
                "arguments": [f"--dir={folder / name}", f"--schedule={name}", f"--steps={STEPS}", "--layer-ms=2"],
                "ranks": 4,
            }
            for name in SCHEDULES
        ]
    )
    return folder


@pytest.fixture(params=list(SCHEDULES))
def schedule(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def traces(folder: Path, schedule: str) -> list[RankTrace]:
    return traces_in(folder / schedule)


def test_every_rank_knows_its_place(traces: list[RankTrace], schedule: str) -> None:
    name, chunks, _ = SCHEDULES[schedule]
    for trace in traces:
        layout = trace.identity.layout
        assert (layout.dp_size, layout.pp_size, layout.vpp_size, layout.tp_size) == (2, PP, chunks, 1)
        assert (layout.dp_rank, layout.stage) == divmod(trace.rank, PP)
        assert (layout.schedule, layout.microbatch_count) == (name, MICROBATCHES)
        assert {hook.name: hook.reason for hook in trace.identity.hooks}["pipelining"] == ""


def test_spans_of_a_step_are_those_of_the_schedule(traces: list[RankTrace], schedule: str) -> None:
    _, chunks, reductions = SCHEDULES[schedule]
    backwards = 2 if "ZeroBubble" in schedule else 1
    for trace in traces:
        stages = range(trace.identity.layout.stage, PP * chunks, PP)
        computes = MICROBATCHES * chunks
        upwards = MICROBATCHES * sum(stage < PP * chunks - 1 for stage in stages)
        downwards = MICROBATCHES * sum(stage > 0 for stage in stages)
        expected = {
            "backward_compute": computes * backwards,
            "backward_recv": upwards,
            "backward_send": downwards,
            "forward_compute": computes,
            "forward_recv": downwards,
            "forward_send": upwards,
            "grads_all_reduce": reductions * (sum(stage == 0 for stage in stages) if backwards == 2 else chunks),
            "optimizer": 1,
            "step": 1,
        }
        for step in range(1, STEPS):
            found = counts(trace, step)
            assert found == {kind: count for kind, count in expected.items() if count}, f"rank {trace.rank} step {step}"


def test_each_microbatch_of_each_chunk_is_there_once(traces: list[RankTrace], schedule: str) -> None:
    chunks = SCHEDULES[schedule][1]
    every = sorted((microbatch, chunk) for microbatch in range(MICROBATCHES) for chunk in range(chunks))
    for trace in traces:
        for step in range(STEPS):
            assert sorted(ids(trace, "forward_compute", step)) == every
            backwards = ids(trace, "backward_compute", step)
            if "ZeroBubble" not in schedule:
                assert sorted(backwards) == every
                continue
            chosen = rows(trace, "backward_compute", step=step)
            names = [trace.names[number] for number in trace.spans.name_id[chosen].tolist()]
            for name in ("backward_input", "backward_weight"):
                assert sorted(pair for pair, own in zip(backwards, names, strict=True) if own == name) == every
            first = [backwards.index(pair) for pair in every]
            assert {names[row] for row in first} == {"backward_input"}


def test_every_receive_pairs_with_its_send(traces: list[RankTrace], schedule: str) -> None:
    links = PP * SCHEDULES[schedule][1] - 1
    assert check_messages_pair(traces) == 2 * 2 * links * MICROBATCHES * STEPS


def test_a_receive_comes_before_its_compute_and_a_send_after(traces: list[RankTrace]) -> None:
    for trace in traces:
        spans = trace.spans
        ends = spans.start_ns + spans.duration_ns
        first: dict[tuple[str, int, int, int], int] = {}  # of a split backward, the part for the inputs
        for kind in ("forward", "backward"):
            for row in rows(trace, f"{kind}_compute").tolist():
                first.setdefault(_place(trace, kind, row), row)
            for row in rows(trace, f"{kind}_recv").tolist():
                assert ends[row] <= spans.start_ns[first[_place(trace, kind, row)]]
            for row in rows(trace, f"{kind}_send").tolist():
                compute = first[_place(trace, kind, row)]
                # The last stage's forward ends with its loss, which nothing is sent after.
                assert ends[compute] <= spans.start_ns[row]


def test_spans_and_gaps_make_the_step(traces: list[RankTrace]) -> None:
    for trace in traces:
        check_steps_add_up(trace)


def test_the_setup_of_the_first_step_is_no_microbatch(traces: list[RankTrace]) -> None:
    for trace in traces:
        (startup,) = rows(trace, "startup").tolist()
        spans = trace.spans
        start, end = spans.start_ns[startup], spans.start_ns[startup] + spans.duration_ns[startup]
        inside = (spans.start_ns > start) & (spans.start_ns < end)
        assert {KIND_NAMES[kind] for kind in spans.kind[inside].tolist()} == {"collective"}
        assert spans.step[startup] == 0


def _place(trace: RankTrace, direction: str, row: int) -> tuple[str, int, int, int]:
    spans = trace.spans
    return direction, int(spans.step[row]), int(spans.microbatch[row]), int(spans.chunk[row])
