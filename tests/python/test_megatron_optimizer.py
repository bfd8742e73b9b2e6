"""Reductions, gathers, the optimizer, data and recomputation, in real Megatron jobs of four processes.

How often each is recorded in a step, in each layout; and that nothing of it changes what is trained.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from smon_rt.kinds import KIND_NAMES, KindName
from smon_rt.trace import RankTrace
from smon_rt.trace.kinds import FLAGS
from tests.python.example_jobs import rows
from tests.python.megatron_jobs import (
    LAYOUTS,
    MICROBATCHES,
    RARE,
    RARE_STEPS,
    STEPS,
    CaseResult,
    layouts,
    needs_megatron,
)

__all__ = ["layouts"]

pytestmark = [needs_megatron, pytest.mark.slow]

KINDS: tuple[KindName, ...] = (
    "params_all_gather",
    "grads_reduce_scatter",
    "grads_all_reduce",
    "layernorm_grads_all_reduce",
    "embedding_grads_all_reduce",
    "optimizer_clip_main_grad",
    "optimizer",
    "data_loading",
)


@pytest.fixture(params=list(LAYOUTS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def case(layouts: dict[str, CaseResult], name: str) -> CaseResult:
    return layouts[name]


def expected(case: CaseResult, rank: int, trace: RankTrace) -> dict[str, int]:
    """What Megatron does in a step: each group of buckets is reduced once a pass, and gathered once a step."""
    settings = case.case.settings
    groups, passes = case.answers[rank]["bucket_groups"], settings.get("passes", 1)
    optimizer, layout = settings.get("optimizer", "distributed"), trace.identity.layout
    is_sharded = optimizer == "distributed"
    ends = {0, layout.pp_size - 1}  # of the pipeline: they read the batch, and hold the embeddings
    is_end = layout.stage in ends
    chunks_with_data = 2 if len(ends) == 1 and layout.vpp_size > 1 else 1
    loads = is_end and layout.tp_rank == 0
    is_tied = settings.get("tie_embeddings", False) and layout.pp_size > 1
    found = {
        "params_all_gather": groups if is_sharded else 0,
        "grads_reduce_scatter": groups * passes if is_sharded else 0,
        "grads_all_reduce": 0 if is_sharded else groups * passes,
        "layernorm_grads_all_reduce": 1 if case.case.name == "qk_layernorm" else 0,
        "embedding_grads_all_reduce": passes if is_tied and is_end else 0,
        "optimizer_clip_main_grad": 0 if optimizer == "torch" else 1,
        "optimizer": 1,
        "data_loading": MICROBATCHES * passes * chunks_with_data if loads else 0,
    }
    return {kind: count for kind, count in found.items() if count}


def steps_of(trace: RankTrace) -> list[int]:
    """Steps that were recorded, by the optimizers in them."""
    return sorted({int(trace.spans.step[row]) for row in rows(trace, "optimizer")})


def counted(trace: RankTrace, step: int) -> dict[str, int]:
    return dict(Counter(KIND_NAMES[trace.spans.kind[row]] for row in rows(trace, *KINDS, step=step)))


def test_each_step_has_the_operations_that_its_layout_needs(case: CaseResult) -> None:
    for rank, trace in enumerate(case.traces()):
        steps = steps_of(trace)
        assert len(steps) == STEPS
        # The first as well: its reductions begin where the gradients are finalized, in a job that overlaps them.
        assert [counted(trace, step) for step in steps] == [expected(case, rank, trace)] * STEPS, (rank, steps)


@pytest.mark.parametrize("rare", list(RARE))
def test_each_step_has_what_rare_options_need(layouts: dict[str, CaseResult], rare: str) -> None:
    for rank, trace in enumerate(layouts[rare].traces()):
        assert [counted(trace, step) for step in steps_of(trace)] == [expected(layouts[rare], rank, trace)] * RARE_STEPS


def test_what_is_trained_is_bitwise_the_same(layouts: dict[str, CaseResult], name: str) -> None:
    plain, recorded = layouts[f"plain {name}"], layouts[name]
    assert recorded.losses == plain.losses
    assert recorded.grad_norms == plain.grad_norms
    assert {len(norms) for norms in plain.grad_norms} == {STEPS}
    assert max(len(losses) for losses in plain.losses) == STEPS


def ends(trace: RankTrace, chosen: np.ndarray) -> np.ndarray:
    return np.asarray(trace.spans.start_ns[chosen] + trace.spans.duration_ns[chosen])


def test_reductions_overlap_the_last_backward_from_the_second_step_on(layouts: dict[str, CaseResult]) -> None:
    for trace in layouts["1f1b_overlaps"].traces():
        for place, step in enumerate(steps_of(trace)):
            reductions = rows(trace, "grads_reduce_scatter", step=step)
            last_backward = ends(trace, rows(trace, "backward_compute", step=step))[-1]
            begin_in_backward = trace.spans.start_ns[reductions] < last_backward
            assert begin_in_backward.all() if place else not begin_in_backward.any()
            # The wait for them is their end.
            assert (ends(trace, reductions) > last_backward).all()


def test_overlapped_gathers_are_the_first_forwards_and_others_come_after_the_optimizer(
    layouts: dict[str, CaseResult],
) -> None:
    for trace in layouts["1f1b_overlaps"].traces():
        for step in steps_of(trace):
            gathers = rows(trace, "params_all_gather", step=step)
            second_forward = rows(trace, "forward_compute", step=step)[1]
            assert (ends(trace, gathers) < trace.spans.start_ns[second_forward]).all()
    for trace in layouts["tp2_pp2"].traces():
        for step in steps_of(trace):
            (optimizer_end,) = ends(trace, rows(trace, "optimizer", step=step))
            assert (trace.spans.start_ns[rows(trace, "params_all_gather", step=step)] >= optimizer_end).all()


def test_the_norm_is_inside_the_optimizer_and_its_all_reduce_inside_of_it(case: CaseResult) -> None:
    if case.case.settings.get("optimizer") == "torch":
        return
    for trace in case.traces():
        spans = trace.spans
        for step in steps_of(trace):
            found = (rows(trace, kind, step=step) for kind in ("optimizer", "optimizer_clip_main_grad"))
            (optimizer,), (norm,) = found
            assert spans.start_ns[optimizer] < spans.start_ns[norm]
            assert ends(trace, norm) < ends(trace, optimizer)
            collectives = rows(trace, "collective", step=step)
            inside = collectives[spans.start_ns[collectives] > spans.start_ns[norm]]
            (all_reduce,) = inside[ends(trace, inside) < ends(trace, norm)]
            assert spans.payload_bytes[all_reduce] == 4


def test_a_forward_that_is_recomputed_belongs_to_its_backward(layouts: dict[str, CaseResult]) -> None:
    for trace in layouts["tp2_recompute"].traces():
        assert not (trace.spans.flags & FLAGS["recomputed"]).any()
        for step in steps_of(trace):
            forwards, backwards = (rows(trace, kind, step=step) for kind in ("forward_compute", "backward_compute"))
            assert (len(forwards), len(backwards)) == (MICROBATCHES, MICROBATCHES)
            collectives = trace.spans.start_ns[rows(trace, "collective", step=step)]
            inside = [
                int(((collectives > trace.spans.start_ns[row]) & (collectives < ends(trace, row))).sum())
                for row in (forwards[-1], backwards[-1])
            ]
            # All layers' again, and those of the backward itself.
            assert inside[1] > inside[0] > 0, inside
