"""The what-if engine (C++). Arrays are plain lists; times are seconds unless a name says otherwise."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from smon_rt.analysis.raw import RawResult

class _ArrowBatch(Protocol):
    def __arrow_c_array__(self, requested_schema: Any = None) -> tuple[Any, Any]: ...

#: Names of kinds, by their number in the column `kind`.
KIND_NAMES: tuple[str, ...]

class AnalysisError(ValueError):
    """The ops cannot be analysed: one line that names the op."""

def analyze(
    batch: _ArrowBatch,
    meta: Mapping[str, int],
    progress: Callable[[int, int], None] | None = None,
) -> RawResult:
    """Builds the dependency graph of a trace and replays it.

    Args:
        batch: one row per op, without nulls: dp_rank, stage, rank int32; step int64; kind uint8; start_ns, duration_ns
            int64; seq_id, chunk, global_chunk, microbatch int32 (-1: does not apply). Read in place.
        meta: dp_size (distinct dp_rank values), pp_size, tp_size, cp_size, vpp_size, world_size.
        progress: called as each replay begins, with its number from 1 and their count; an exception ends the analysis.

    Raises:
        AnalysisError: an op is missing, out of range, without a partner, or part of a circle.
    """

def bootstrap_mean(values: Sequence[float], steps: Sequence[int]) -> tuple[float, float] | None:
    """95 % interval of the mean of a per-step series, by blocks of neighbouring steps; None for a single step."""
