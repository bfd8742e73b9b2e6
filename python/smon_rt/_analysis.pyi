"""The what-if engine (C++). Arrays are plain lists; times are seconds unless a name says otherwise."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

from smon_rt.analysis.raw import RawAnswer, RawResult

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
    rules: Literal["reference", "ids"] = "reference",
) -> RawResult:
    """Builds the dependency graph of a trace and replays it.

    Args:
        batch: one row per op, without nulls: dp_rank, stage, rank int32; step int64; kind uint8; start_ns, duration_ns
            int64; seq_id, chunk, global_chunk, microbatch int32 (-1: does not apply). For the rules of ids also
            group_id int64: ops of one step with the same id >= 0 communicate with each other (-1: no partner); and,
            where they are known, step_start_ns int64, when the worker began the step (a step then takes what it takes
            its slowest worker), and is_waited uint8, who saw a communication end: 0 nobody, 1 the computing thread, 2
            somebody else; member_excess_ns int64, what of a compute is the lateness of a member of its worker. Read in
            place.
        meta: dp_size (distinct dp_rank values), pp_size, tp_size, cp_size, vpp_size, world_size. For the rules of ids
            also clock_bound_ns, 0 when it is not there: how far clocks of two hosts may be apart. What is off by no
            more is counted neither as an early start nor as a negative transfer.
        progress: called as each replay begins, with its number from 1 and their count, and again within a long one; an
            exception ends the analysis.
        rules: "reference", those of the published analyzer: ops are matched by launch order and times, all lanes are
            alike, an op that is missing anywhere is an error. "ids", our own: ops are matched by microbatch, chunk and
            group_id; a lane may lack ops, a worker all of them (its worker_rank is -1); steps that contradict the
            others are left out and returned as `left_out_steps`.

    Raises:
        AnalysisError: an op is missing (reference), out of range, without a partner (reference), or part of a circle;
            no step agrees with another (ids).
        ValueError: there are no such rules.

    Example:
        >>> raw = _analysis.analyze(batch, {**sizes, "clock_bound_ns": 20_000}, rules="ids")  # doctest: +SKIP
        >>> raw["left_out_steps"]  # doctest: +SKIP
        [{'step': 0, 'reason': 'forward_compute of microbatch 1, chunk 0 on stage 0 runs before …'}]
    """

def what_if(
    batch: _ArrowBatch,
    meta: Mapping[str, int],
    questions: Sequence[Mapping[str, Any]],
    progress: Callable[[int, int], None] | None = None,
    rules: Literal["reference", "ids"] = "reference",
) -> list[RawAnswer]:
    """Replays the job for each question; batch, meta, progress and rules are those of `analyze`.

    What a question does not say stays as recorded; everything that it says holds at once. Its parts:
        ideal_kinds: names of kinds that take their ideal duration.
        scales: (kind, dp_rank, stage, factor) of durations; -1 is every dp rank or stage.
        fixed_workers, fixed_stages: (dp_rank, stage), and stages, that compute as their peers do.
        fixed_members: (dp_rank, stage) whose slow members come when the others do; those of fixed_workers do, too.
        fixed_links: (dp_rank or -1, stage, peer_stage) whose messages are as fast as others; fixed_groups: stages whose
            collectives of dp ranks are.
        removed_work: (gc, data_loading or checkpoint; dp_rank, stage, -1 for all) that takes no time.
        prompt_workers: (dp_rank, stage) whose launch delays become their peers'.
        microbatches: "recorded", "even" (each as long as a usual one) or "rebalanced" (those of a step dealt to the dp
            ranks anew, longest first).
        launch_delays: "recorded", "explained" (only those that work of the host explains) or "none";
            had_launch_delays: false for none in what the answer is compared with.
        dropped_dp_count: so many dp ranks, those that alone take longest, leave the job.
        dp_count: dp ranks of the job, drawn from those that remain; 0 for those.

    Raises:
        AnalysisError: the ops cannot be analysed; a place is outside the job; no dp rank is left; collectives join only
            some dp ranks, so that drawn ones have no place; more dp ranks than can be replayed.
        ValueError, TypeError: a question has a part that there is not, or of another type.

    Example:
        >>> [answer] = _analysis.what_if(batch, sizes, [{"fixed_workers": [(0, 0)]}])  # doctest: +SKIP
        >>> answer["before_s"][0] - answer["after_s"][0]  # doctest: +SKIP
        22.9
    """

def ideal_timeline(
    batch: _ArrowBatch, meta: Mapping[str, int], rules: Literal["reference", "ids"] = "reference"
) -> dict[str, bytes]:
    """When each op would start and end without stragglers; batch, meta and rules are those of `analyze`.

    Columns by name, as bytes of the machine's order: step, start_ns, end_ns int64 (times from the start of the step);
    dp_rank, stage, seq_id, chunk, microbatch int32; kind uint8. One row an op of a worker and step. `seq_id` tells
    apart ops of one worker and step that are equal in all else.

    Raises:
        AnalysisError: the ops cannot be analysed.
        ValueError: there are no such rules.

    Example:
        >>> columns = _analysis.ideal_timeline(batch, sizes)  # doctest: +SKIP
        >>> numpy.frombuffer(columns["end_ns"], numpy.int64).max()  # doctest: +SKIP
        23485000000
    """

def bootstrap_mean(values: Sequence[float], steps: Sequence[int]) -> tuple[float, float] | None:
    """95 % interval of the mean of a per-step series, by blocks of neighbouring steps; None for a single step."""
