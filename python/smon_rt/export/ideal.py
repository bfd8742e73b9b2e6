"""The ops of workers as timelines: those of a parquet as recorded, and those of any trace as they would be without
stragglers. The latter is the replay from which `ideal` step times come, each step put where the recorded one begins.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from smon_rt.analysis.engine import ideal_columns
from smon_rt.export.timeline import Argument, Lane, RankTimeline, Slice, split_into_lanes
from smon_rt.kinds import KIND_NAMES
from smon_rt.trace.kinds import KIND_NUMBERS
from smon_rt.trace.spans import Array

if TYPE_CHECKING:
    from smon_rt.analysis.importer import Trace

_TYPES = {"step": "int64", "start_ns": "int64", "end_ns": "int64", "kind": "uint8"}
_COLUMNS = ("step", "dp_rank", "stage", "kind", "seq_id", "chunk", "microbatch", "start_ns", "end_ns")
#: Tracks of a worker, by the kinds on them: messages and collectives run beside the computes.
_TRACKS = {
    "forward send": ("forward_send",),
    "forward recv": ("forward_recv",),
    "backward send": ("backward_send",),
    "backward recv": ("backward_recv",),
    "collectives": (
        *("params_all_gather", "grads_reduce_scatter", "grads_all_reduce", "layernorm_grads_all_reduce"),
        *("embedding_grads_all_reduce", "separate_grads_all_reduce", "collective"),
    ),
}
_STEPS, _COMPUTE = "steps", "computes and host"
_TRACK_ORDER = {name: order for order, name in enumerate((_STEPS, _COMPUTE, *_TRACKS))}


@dataclass(frozen=True, eq=False)
class OpTable:
    """Ops of a job, a column each; times are ns on the axis of what is exported."""

    step: Array
    dp_rank: Array
    stage: Array
    kind: Array
    seq_id: Array
    chunk: Array
    microbatch: Array
    start_ns: Array
    end_ns: Array

    def __len__(self) -> int:
        return len(self.step)

    def take(self, rows: Array) -> OpTable:
        """The ops of some rows."""
        return OpTable(*(getattr(self, name)[rows] for name in _COLUMNS))

    def shifted(self, offset_ns: int | Array) -> OpTable:
        """The ops so much later."""
        return dataclasses.replace(self, start_ns=self.start_ns + offset_ns, end_ns=self.end_ns + offset_ns)

    def by_worker(self) -> dict[tuple[int, int], OpTable]:
        """The ops of each (dp rank, stage)."""
        pair = self.dp_rank.astype(np.int64) << 32 | self.stage
        order = np.argsort(pair, kind="stable")
        borders = np.flatnonzero(np.diff(pair[order])) + 1
        parts = [self.take(rows) for rows in np.split(order, borders) if len(rows)]
        return {(int(part.dp_rank[0]), int(part.stage[0])): part for part in parts}


def recorded_ops(trace: Trace) -> OpTable:
    """The ops of a trace as recorded."""
    ops = {name: trace.ops[name].to_numpy() for name in (*_COLUMNS[:-1], "duration_ns")}
    end_ns = ops["start_ns"] + ops.pop("duration_ns")
    return OpTable(**ops, end_ns=end_ns).shifted(_origin_ns(trace))


def ideal_ops(trace: Trace) -> OpTable:
    """When the ops would run without stragglers. Each step begins when its first worker began the recorded one.

    Raises TraceError for ops that cannot be analysed.
    """
    columns = ideal_columns(trace)
    table = OpTable(*(_values(columns[name], _TYPES.get(name, "int32")) for name in _COLUMNS))
    # Where clocks of hosts disagree a usual transfer may take less than no time.
    table = dataclasses.replace(table, end_ns=np.maximum(table.start_ns, table.end_ns))
    return table.shifted(_origin_ns(trace) + _step_starts(trace, table.step))


def _values(column: bytes, type_name: str) -> Array:
    values: Array = np.frombuffer(column, type_name)
    return values


def _origin_ns(trace: Trace) -> int:
    return 0 if trace.recording is None else trace.recording.origin_ns


def _step_starts(trace: Trace, step: Array) -> Array:
    """When the step of each row began, in ns from the trace's origin."""
    name = "step_start_ns" if "step_start_ns" in trace.ops.schema.names else "start_ns"
    steps, inverse = np.unique(trace.ops["step"].to_numpy(), return_inverse=True)
    first_ns = np.full(len(steps), np.iinfo(np.int64).max)
    np.minimum.at(first_ns, inverse, trace.ops[name].to_numpy())
    found: Array = first_ns[np.searchsorted(steps, step)]
    return found


def ranks_of_workers(trace: Trace) -> dict[tuple[int, int], int]:
    """The lowest recorded rank of each (dp rank, stage)."""
    ops = trace.ops
    place = ops["dp_rank"].to_numpy().astype(np.int64) << 32 | ops["stage"].to_numpy()
    places, first, inverse = np.unique(place, return_index=True, return_inverse=True)
    lowest = np.full(len(first), np.iinfo(np.int64).max)
    np.minimum.at(lowest, inverse, ops["rank"].to_numpy())
    return {
        (value >> 32, value & 0xFFFF_FFFF): rank for value, rank in zip(places.tolist(), lowest.tolist(), strict=True)
    }


def op_timeline(ops: OpTable, rank: int, title: str, *, process: int, order: int) -> RankTimeline:
    """The ops of one worker as tracks: its steps, its computes with what the host does, messages, collectives."""
    lanes = list(_step_lanes(ops))
    track_of = np.full(len(KIND_NAMES), _TRACK_ORDER[_COMPUTE])
    for name, kinds in _TRACKS.items():
        track_of[[KIND_NUMBERS[kind] for kind in kinds]] = _TRACK_ORDER[name]
    tracks = track_of[ops.kind]
    for name, number in _TRACK_ORDER.items():
        rows = np.flatnonzero(tracks == number)
        split = split_into_lanes(ops.start_ns[rows], ops.end_ns[rows], rows)
        lanes += [Lane(name, number, _slices(ops, lane)) for lane in split]
    names = ["step", *(KIND_NAMES[kind] for kind in np.unique(ops.kind).tolist())]
    return RankTimeline(rank, title, names, lanes, [], process, order)


def _step_lanes(ops: OpTable) -> Iterator[Lane]:
    steps, inverse = np.unique(ops.step, return_inverse=True)
    start_ns, end_ns = np.full(len(steps), np.iinfo(np.int64).max), np.full(len(steps), np.iinfo(np.int64).min)
    np.minimum.at(start_ns, inverse, ops.start_ns)
    np.maximum.at(end_ns, inverse, ops.end_ns)
    for lane in split_into_lanes(start_ns, end_ns, np.arange(len(steps))):
        pieces = [Slice(start, end, "step", [("step", int(steps[row]))], 0, False) for row, start, end in lane]
        yield Lane(_STEPS, _TRACK_ORDER[_STEPS], iter(pieces))


def _slices(ops: OpTable, lane: list[tuple[int, int, int]]) -> Iterator[Slice]:
    for row, start_ns, end_ns in lane:
        arguments: list[Argument] = [("step", int(ops.step[row]))]
        if ops.microbatch[row] >= 0:
            arguments.append(("microbatch", int(ops.microbatch[row])))
        if ops.chunk[row] >= 0:
            arguments.append(("chunk", int(ops.chunk[row])))
        arguments.append(("op_index", int(ops.seq_id[row])))
        yield Slice(start_ns, end_ns, KIND_NAMES[int(ops.kind[row])], arguments, 0, False)
