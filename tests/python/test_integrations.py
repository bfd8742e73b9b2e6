"""What hooks are made of, without any framework: names of dimensions, marks of spans, choices, ends of spans."""

from __future__ import annotations

import doctest
import importlib
from types import ModuleType

import numpy as np
import pytest

import smon_rt
from smon_rt import RecordingError, integrations, kinds
from smon_rt.integrations import dimensions, p2p_labels, patches, state
from smon_rt.trace.kinds import FLAGS, TIME_SOURCE_NAMES
from tests.python.recording_process import START, RecordedJob, job

__all__ = ["job"]


def test_marks_of_spans_are_those_of_the_reader() -> None:
    assert FLAGS["forward_only"] == state.FORWARD_ONLY
    assert FLAGS["fallback_hook"] == state.FALLBACK_HOOK
    assert FLAGS["not_waited"] == state.NOT_WAITED
    assert FLAGS["other_thread"] == state.OTHER_THREAD
    assert TIME_SOURCE_NAMES[state.HOST] == "host"
    assert TIME_SOURCE_NAMES[state.WAIT_RETURN] == "wait_return"
    assert state.mask("forward_compute", "gc") == 1 << 1 | 1 << 18


@pytest.mark.parametrize(
    ("description", "dimension"),
    [
        ("mesh_dp", "dp"),
        ("mesh_dp_shard_cp", "dp"),
        ("mesh_dp_replicate", "dp"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "dp"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "pp"),
        ("mesh_tensor", "tp"),
        ("default_pg", "world"),
        ("undefined", ""),
        ("", ""),
        ("EMBEDDING_GROUP", ""),
        ("DATA_PARALLEL_GROUP_WITH_CP_GLOO", "dp"),
        ("INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP", "dp"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "ep"),
        ("INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP", ""),
    ],
)
def test_groups_say_their_dimension(description: str, dimension: str) -> None:
    assert dimensions.dimension_of(description) == dimension


def test_integrations_are_chosen_by_name() -> None:
    assert integrations.check("start", "auto") == list(integrations.NAMES)
    assert integrations.check("start", "gc") == ["gc"]
    with pytest.raises(RecordingError, match="attach: no integration 'tf'"):
        smon_rt.attach(["gc", "tf"])


def test_each_integration_can_be_attached_twice_and_detached_twice() -> None:
    for _ in range(2):
        smon_rt.attach()
        smon_rt.attach()
        smon_rt.detach()
        smon_rt.detach()


class _Tensor:
    def __init__(self, address: int) -> None:
        self.address = address

    def data_ptr(self) -> int:
        return self.address


def test_labels_are_used_once_and_in_order() -> None:
    tensor, view, other = _Tensor(8), _Tensor(8), _Tensor(16)
    p2p_labels.expect(tensor, "forward_send", 1, 2)
    p2p_labels.expect(tensor, "forward_send", 3)
    p2p_labels.expect(tensor, "backward_recv", 5)
    p2p_labels.expect(tensor, "optimizer", 7)
    assert p2p_labels.take(other, is_send=True) is None
    number = kinds.KIND_NAMES.index
    assert p2p_labels.take(view, is_send=True) == (number("forward_send"), 1, 2)
    assert p2p_labels.take(view, is_send=True) == (number("forward_send"), 3, -1)
    assert p2p_labels.take(view, is_send=True) is None
    assert p2p_labels.take(view, is_send=False) == (number("backward_recv"), 5, -1)
    nothing = _Tensor(0)  # without memory, so by identity
    p2p_labels.expect(nothing, "forward_recv", 1)
    assert p2p_labels.take(_Tensor(0), is_send=False) is None
    assert p2p_labels.take(nothing, is_send=False) is not None
    for address in range(1, 10_000):
        p2p_labels.expect(_Tensor(address), "forward_send")
    assert p2p_labels.take(_Tensor(1), is_send=True) is None
    assert p2p_labels.take(_Tensor(9_999), is_send=True) is not None
    p2p_labels.clear()
    assert p2p_labels.take(_Tensor(9_998), is_send=True) is None


def test_a_span_may_end_in_the_past_and_by_a_wait(job: RecordedJob) -> None:
    job.run(
        START
        + """
        from smon_rt import _runtime as native
        with smon_rt.step(0):
            token = smon_rt.begin("collective")
            issued = native.ticks()
            time.sleep(0.05)
            native.end_at(token, issued, 0, 1 << 9)
            token = smon_rt.begin("collective")
            early = issued  # before it began: it takes no time
            native.end_at(token, early, 4, 0)
            native.end_at(token, 0, 4, 0)  # once
            token = smon_rt.begin("optimizer")
            thread = threading.Thread(target=native.end_at, args=(token, 0, 4, 0))
            thread.start()
            thread.join()
        smon_rt.stop()
        assert smon_rt.status().stale_tokens == 1
        native.end_at(token, 0, 4, 0)
        """
    )
    spans = job.trace().spans
    collective = np.flatnonzero(spans.kind == kinds.KIND_NAMES.index("collective"))
    assert spans.flags[collective].tolist() == [FLAGS["not_waited"], 0]
    assert spans.time_source[collective].tolist() == [0, 4]
    assert spans.duration_ns[collective[0]] < 50_000_000
    assert spans.duration_ns[collective[1]] == 0
    optimizer = np.flatnonzero(spans.kind == kinds.KIND_NAMES.index("optimizer"))
    assert (spans.time_source[optimizer].tolist(), spans.flags[optimizer].tolist()) == ([4], [FLAGS["other_thread"]])


def test_the_innermost_open_span_of_some_kinds_is_found(job: RecordedJob) -> None:
    job.run(
        START
        + """
        from smon_rt import _runtime as native
        from smon_rt.integrations.state import mask
        optimizer, anything = mask("optimizer"), (1 << 25) - 1
        assert native.find_open(anything) == 0
        with smon_rt.step(0):
            first = smon_rt.begin("optimizer")
            with smon_rt.span("user"):
                assert native.find_open(optimizer) == first
                second = smon_rt.begin("optimizer")
                assert native.find_open(optimizer) == second
                smon_rt.end(second)
                assert native.find_open(optimizer) == first
                assert native.find_open(anything) == smon_rt.current()
                assert native.find_open(mask("gc")) == 0
            thread = threading.Thread(target=lambda: seen.append(native.find_open(anything)))
            seen = []
            thread.start()
            thread.join()
            assert seen == [0]
            smon_rt.end(first)
            assert native.find_open(anything) == 0
        smon_rt.stop()
        assert native.find_open(anything) == 0
        """
    )


@pytest.mark.parametrize("module", [integrations, dimensions, patches], ids=lambda module: module.__name__)
def test_the_examples_in_docstrings_run(module: ModuleType) -> None:
    assert doctest.testmod(importlib.import_module(module.__name__)).failed == 0
