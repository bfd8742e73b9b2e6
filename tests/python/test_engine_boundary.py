"""What the engine answers to callers that hand it something else than the importer does."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from smon_rt import _analysis
from smon_rt.analysis.importer import Trace, read_trace
from smon_rt.synth import JobSpec, make_job


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    path = tmp_path_factory.mktemp("boundary") / "job.parquet"
    make_job(JobSpec(dp=2, pp=2, microbatches=2, steps=2, noise=0.05)).write(path)
    return read_trace(path)


class Capsules:
    """Offers what a caller of the C data interface may offer."""

    def __init__(self, capsules: Any) -> None:
        self._capsules = capsules

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
        return self._capsules


def test_a_batch_that_was_released_before_is_refused(trace: Trace) -> None:
    capsules = trace.ops.__arrow_c_array__()
    assert _analysis.analyze(Capsules(capsules), trace.recorded_sizes())["dp_size"] == 2
    pa.RecordBatch._import_from_c_capsule(*capsules)
    with pytest.raises(_analysis.AnalysisError, match="was released before"):
        _analysis.analyze(Capsules(capsules), trace.recorded_sizes())


@pytest.mark.parametrize("capsules", [None, (), (1, 2)])
def test_what_is_no_pair_of_capsules_is_refused(trace: Trace, capsules: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        _analysis.analyze(Capsules(capsules), trace.recorded_sizes())


@pytest.mark.parametrize("size", ["2", None, 1 << 40, 2.5])
def test_a_size_that_is_no_integer_is_refused(trace: Trace, size: Any) -> None:
    with pytest.raises(_analysis.AnalysisError, match=r"dp_size must be an integer below 2\^31"):
        _analysis.analyze(trace.ops, {**trace.recorded_sizes(), "dp_size": size})


def test_a_slice_with_nulls_before_it_is_the_same_batch(trace: Trace) -> None:
    columns = [pa.array([None, *column.to_pylist()], column.type).slice(1) for column in trace.ops.columns]
    batch = pa.record_batch(columns, names=trace.ops.schema.names)
    expected = _analysis.analyze(trace.ops, trace.recorded_sizes())
    assert _analysis.analyze(batch, trace.recorded_sizes())["slowdown"] == expected["slowdown"]
