"""Planned garbage collection in Megatron jobs of four real processes, and beside Megatron's own."""

from __future__ import annotations

import pytest

from smon_rt.gc.schedule import YOUNG
from smon_rt.trace.garbage import collections
from tests.python.megatron_jobs import CaseResult, layouts, needs_megatron

__all__ = ["layouts"]  # the fixture
pytestmark = [pytest.mark.slow, needs_megatron]


def test_one_line_plans_and_changes_no_loss(layouts: dict[str, CaseResult]) -> None:
    result, bare = layouts["planned_gc"], layouts["plain 1f1b_overlaps"]
    assert result.losses == bare.losses
    assert any(result.losses)
    for trace, answer in zip(result.traces(), result.answers, strict=True):
        found = [(each.step, each.origin, each.generation) for each in collections(trace) if each.step >= 1]
        assert found == [(1, "planned", 2), (2, "planned", YOUNG), (4, "planned", 2)], trace.rank
        assert trace.identity.environment["gc_plan_counts"] == "planned 3, unplanned 0, guard 0, late 0"
        assert [words[:12] for words in answer["conflicts"]] == ["objects were"], "as by whoever forked the ranks"


def test_manual_gc_of_megatron_is_left_alone(layouts: dict[str, CaseResult]) -> None:
    result = layouts["manual_gc"]
    assert result.losses == layouts["plain 1f1b_overlaps"].losses
    for trace, answer in zip(result.traces(), result.answers, strict=True):
        assert (answer["state"], answer["planned"]) == ("left to others", 0)
        assert answer["conflicts"] == ["Megatron's --manual-gc (interval 2) plans collections already: left to it"]
        assert not answer["is_enabled"], "as Megatron left it"
        found = [(each.step, each.origin, each.generation) for each in collections(trace) if each.step >= 1]
        assert found == [(1, "", 2), (3, "", 2)], trace.rank
        assert trace.identity.environment["gc_plan"] == "left to others"
