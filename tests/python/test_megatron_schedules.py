"""Computes and messages of Megatron's schedules, in real jobs of four processes: how many, of which microbatch and
chunk, in which order, which receive is of which send, and what the analysis makes of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from smon_rt.analysis import analyze
from smon_rt.kinds import KIND_NAMES, MESSAGE_KINDS
from smon_rt.trace import RankTrace
from smon_rt.trace.kinds import FLAGS
from tests.python.example_jobs import check_messages_pair, check_steps_add_up, ids, rows
from tests.python.megatron_jobs import LAYOUTS, MICROBATCHES, STEPS, CaseResult, layouts, needs_megatron

__all__ = ["layouts"]

pytestmark = [needs_megatron, pytest.mark.slow]

#: Direction, microbatch, chunk.
Compute = tuple[str, int, int]
STEPS_WITH_EVALUATION = [1, 3]  # each second iteration


@pytest.fixture(params=list(LAYOUTS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def case(layouts: dict[str, CaseResult], name: str) -> CaseResult:
    return layouts[name]


def schedule_of(trace: RankTrace) -> list[Compute]:
    """The computes of one pass, in order, as the papers of 1F1B and of interleaved stages have them."""
    layout = trace.identity.layout
    pp, chunks, stage = layout.pp_size, layout.vpp_size, layout.stage
    order = list(_in_turns(pp if chunks > 1 else MICROBATCHES, chunks))
    forwards = [("forward", microbatch, chunk) for microbatch, chunk in order]
    backwards = [("backward", microbatch, chunks - 1 - chunk) for microbatch, chunk in order]
    ahead = pp - stage - 1
    if chunks > 1:
        ahead = 2 * ahead + (chunks - 1) * pp
    ahead = min(ahead, len(order))
    found = forwards[:ahead]
    for forward, backward in zip(forwards[ahead:], backwards, strict=False):
        found += [forward, backward]
    return found + backwards[len(order) - ahead :]


def _in_turns(group: int, chunks: int) -> Iterator[tuple[int, int]]:
    for first in range(0, MICROBATCHES, group):
        for chunk in range(chunks):
            for microbatch in range(first, first + group):
                yield microbatch, chunk


def passes_of(case: CaseResult) -> int:
    return int(case.case.settings.get("passes", 1))


def computes(trace: RankTrace, step: int) -> list[Compute]:
    spans = trace.spans
    chosen = rows(trace, "forward_compute", "backward_compute", step=step)
    kinds = [KIND_NAMES[number].removesuffix("_compute") for number in spans.kind[chosen].tolist()]
    return list(zip(kinds, spans.microbatch[chosen].tolist(), spans.chunk[chosen].tolist(), strict=True))


def test_computes_come_in_the_schedules_order_with_its_ids(case: CaseResult) -> None:
    for trace in case.traces():
        one = schedule_of(trace)
        expected = [
            (kind, microbatch + MICROBATCHES * number, chunk)
            for number in range(passes_of(case))
            for kind, microbatch, chunk in one
        ]
        for step in range(STEPS):
            assert computes(trace, step) == expected, (trace.rank, step)


def test_each_stage_sends_and_receives_what_its_neighbours_compute(case: CaseResult) -> None:
    for trace in case.traces():
        layout = trace.identity.layout
        every = [(microbatch, chunk) for microbatch, chunk in _in_turns(MICROBATCHES, layout.vpp_size)]
        last = (layout.vpp_size, layout.pp_size)
        expected = {
            "forward_send": [each for each in every if (each[1] + 1, layout.stage + 1) != last],
            "forward_recv": [each for each in every if (each[1], layout.stage) != (0, 0)],
        }
        expected["backward_send"], expected["backward_recv"] = expected["forward_recv"], expected["forward_send"]
        for step in range(STEPS):
            for kind, pairs in expected.items():
                wanted = [(mb + MICROBATCHES * n, chunk) for n in range(passes_of(case)) for mb, chunk in pairs]
                assert sorted(ids(trace, kind, step)) == sorted(wanted), (trace.rank, step, kind)


def test_every_receive_pairs_with_its_send(case: CaseResult) -> None:
    traces = case.traces()
    layout = traces[0].identity.layout
    pipelines = len(traces) // layout.pp_size
    links = layout.pp_size * layout.vpp_size - 1 if layout.pp_size > 1 else 0
    expected = 2 * links * MICROBATCHES * passes_of(case) * STEPS * pipelines
    assert check_messages_pair(traces) == expected


def test_a_receive_is_over_before_its_compute_and_a_send_begins_after(case: CaseResult) -> None:
    for trace in case.traces():
        spans = trace.spans
        ends = spans.start_ns + spans.duration_ns
        place = {
            (KIND_NAMES[spans.kind[row]], int(spans.step[row]), int(spans.microbatch[row]), int(spans.chunk[row])): row
            for row in rows(trace, "forward_compute", "backward_compute").tolist()
        }
        for kind in MESSAGE_KINDS:
            direction, what = kind.split("_")
            for row in rows(trace, kind).tolist():
                key = f"{direction}_compute", int(spans.step[row]), int(spans.microbatch[row]), int(spans.chunk[row])
                compute = place[key]
                if what == "recv":
                    assert ends[row] <= spans.start_ns[compute], key
                else:
                    assert ends[compute] <= spans.start_ns[row], key


def test_messages_end_with_the_wait_for_them(case: CaseResult) -> None:
    """With overlap the schedule waits for a send no later than for its next one, and for the last one never."""
    for trace in case.traces():
        unwaited = Counter(
            (KIND_NAMES[trace.spans.kind[row]], int(trace.spans.step[row]))
            for row in rows(trace, *MESSAGE_KINDS)
            if trace.spans.flags[row] & FLAGS["not_waited"]
        )
        assert set(unwaited.values()) <= {1}
        assert {kind for kind, _ in unwaited} <= ({"forward_send"} if case.case.settings.get("overlap_p2p") else set())


def test_spans_and_gaps_make_the_step(case: CaseResult) -> None:
    for trace in case.traces():
        check_steps_add_up(trace)


def test_steps_are_iterations_and_the_header_says_how_they_are_numbered(case: CaseResult) -> None:
    for trace in case.traces():
        assert trace.steps.step.tolist() == list(range(STEPS))
        reasons = {hook.name: hook.reason for hook in trace.identity.hooks if hook.name.startswith("megatron")}
        assert reasons.pop("megatron.iteration").startswith("counted from 0")
        assert reasons["megatron.schedules"] == reasons["megatron.p2p"] == ""
        assert {name: reason for name, reason in reasons.items() if "not there" in reason or "expected" in reason} == {}


def test_the_layout_is_that_of_parallel_state(case: CaseResult) -> None:
    settings = case.case.settings
    tp, pp, vpp = settings.get("tp", 1), settings.get("pp", 2), settings.get("vpp", 1)
    name = "no_pipelining" if pp == 1 else "interleaved_1f1b" if vpp > 1 else "1f1b"
    dp = 4 // (tp * pp)
    for rank, trace in enumerate(case.traces()):
        layout = trace.identity.layout
        assert (layout.tp_size, layout.pp_size, layout.vpp_size, layout.dp_size, layout.cp_size) == (tp, pp, vpp, dp, 1)
        # Megatron counts ranks of tensor parallelism first, stages last.
        assert (layout.tp_rank, layout.dp_rank, layout.stage) == (rank % tp, rank // tp % dp, rank // tp // dp)
        assert (layout.schedule, layout.microbatch_count) == (name, MICROBATCHES)


def test_groups_have_their_dimension(layouts: dict[str, CaseResult]) -> None:
    found = {
        (communicator.name.split()[0], communicator.dimension)
        for name in ("tp2_pp2", "1f1b_adam_tied", "interleaved_overlap_p2p")
        for trace in layouts[name].traces()
        for communicator in trace.communicators.values()
    }
    assert found >= {
        ("PIPELINE_MODEL_PARALLEL_GROUP", "pp"),
        ("TENSOR_MODEL_PARALLEL_GROUP", "tp"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "dp"),
        ("EMBEDDING_GROUP", ""),
        ("default_pg", "world"),  # half of the messages of two stages that are not batched
    }


def test_an_evaluation_is_one_span_of_its_own(layouts: dict[str, CaseResult]) -> None:
    for trace in layouts["evaluation"].traces():
        spans = trace.spans
        evaluations = rows(trace, "eval")
        assert spans.step[evaluations].tolist() == STEPS_WITH_EVALUATION
        assert (spans.flags[evaluations] & FLAGS["forward_only"] != 0).all()
        for row in evaluations.tolist():
            inside = (spans.start_ns > spans.start_ns[row]) & (
                spans.start_ns < spans.start_ns[row] + spans.duration_ns[row]
            )
            kinds = {KIND_NAMES[number] for number in spans.kind[inside].tolist()}
            assert kinds <= {"collective", "data_loading", "gc", "metric"}, kinds


@pytest.mark.parametrize("name", ["1f1b_overlaps", "interleaved_overlap_p2p", "interleaved_pp4", "dp4_bf16", "tp2_pp2"])
def test_the_analysis_replays_it(layouts: dict[str, CaseResult], name: str) -> None:
    case = layouts[name]
    report = analyze(case.folder)
    assert report.verdict.text
    assert (report.fidelity.coverage.steps, report.fidelity.coverage.ranks) == (1.0, 1.0)
    # Members of tensor parallelism are one worker: its receive is over when all of them have theirs, and its compute
    # begins with the first.
    if case.case.settings.get("tp", 1) == 1:
        assert report.fidelity.early_starts.count == 0
    assert np.isfinite(report.slowdown.value)
