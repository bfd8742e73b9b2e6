"""Writes all columns of all spans as csv, one row a span."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from smon_rt._proto import trace_pb2
from smon_rt.trace.kinds import TIME_SOURCE_NAMES, flag_names, kind_name, name_of
from smon_rt.trace.rank_trace import RankTrace
from smon_rt.trace.spans import Array

if TYPE_CHECKING:
    from smon_rt.export.ideal import OpTable

_TEXTS = ("host", "kind", "name", "time_source", "flags", "communicator", "thread_name")
_COLUMNS = (
    *("rank", "dp_rank", "stage", "tp_rank", "cp_rank", "host", "step", "kind", "name", "microbatch", "chunk"),
    *("op_index", "start_ns", "duration_ns", "device_start_ns", "device_duration_ns", "time_source", "flags"),
    *("communicator", "comm_seq", "peer", "payload_bytes", "metric_value", "thread_id", "thread_name", "device"),
    *("stream", "ring_id", "ring_index"),
)
_TYPES = dict.fromkeys(_TEXTS, pa.string()) | {"metric_value": pa.float64(), "stream": pa.uint64()}
SCHEMA = pa.schema([(name, _TYPES.get(name, pa.int64())) for name in _COLUMNS])


#: With an ideal timeline: which of the two a row belongs to.
_TIMELINE = pa.field("timeline", pa.string())


def write_csv(
    traces: Iterable[tuple[RankTrace, int]], output: BinaryIO, ideal: Mapping[int, OpTable] | None = None
) -> None:
    """Writes each rank's spans, with what is to be added to its times. Device times of host spans are empty.

    With `ideal`, the ops that some ranks would have without stragglers, a last column says which timeline a row is of.
    """
    if ideal is None:
        with pa_csv.CSVWriter(output, SCHEMA) as writer:
            for trace, offset_ns in traces:
                writer.write_table(_table(trace, offset_ns))
        return
    with pa_csv.CSVWriter(output, SCHEMA.append(_TIMELINE)) as writer:
        for trace, offset_ns in traces:
            writer.write_table(_of_timeline(_table(trace, offset_ns), "recorded"))
            if trace.rank in ideal:
                writer.write_table(_of_timeline(_op_table(ideal[trace.rank], trace.rank), "ideal"))


def write_ops_csv(
    timelines: Mapping[str, Mapping[tuple[int, int], OpTable]], ranks: Mapping[tuple[int, int], int], output: BinaryIO
) -> None:
    """Writes the ops of workers, timeline by timeline; what a parquet does not say stays empty."""
    with pa_csv.CSVWriter(output, SCHEMA.append(_TIMELINE)) as writer:
        for name, workers in timelines.items():
            for place, ops in workers.items():
                writer.write_table(_of_timeline(_op_table(ops, ranks[place]), name))


def _of_timeline(table: pa.Table, name: str) -> pa.Table:
    return table.append_column(_TIMELINE, pa.repeat(pa.scalar(name, pa.string()), table.num_rows))


def _op_table(ops: OpTable, rank: int) -> pa.Table:
    columns = {
        "rank": np.full(len(ops), rank),
        "dp_rank": ops.dp_rank,
        "stage": ops.stage,
        "step": ops.step,
        "microbatch": ops.microbatch,
        "chunk": ops.chunk,
        "op_index": ops.seq_id,
        "start_ns": ops.start_ns,
        "duration_ns": ops.end_ns - ops.start_ns,
    }
    arrays = {name: pa.array(values, pa.int64()) for name, values in columns.items()}
    arrays["kind"] = _looked_up(ops.kind, kind_name)
    return pa.table(
        [arrays.get(field.name, pa.nulls(len(ops), field.type)) for field in SCHEMA],
        schema=SCHEMA,
    )


def _table(trace: RankTrace, offset_ns: int) -> pa.Table:
    spans, identity = trace.spans, trace.identity
    count = len(spans)
    layout = identity.layout
    fixed = {
        "rank": trace.rank,
        "dp_rank": layout.dp_rank,
        "stage": layout.stage,
        "tp_rank": layout.tp_rank,
        "cp_rank": layout.cp_rank,
        "host": identity.host,
    }
    columns: dict[str, pa.Array] = {
        name: pa.repeat(pa.scalar(value, SCHEMA.field(name).type), count) for name, value in fixed.items()
    }
    for name in ("step", "microbatch", "chunk", "op_index", "duration_ns", "comm_seq", "peer", "payload_bytes"):
        columns[name] = pa.array(getattr(spans, name), pa.int64())
    for name in ("ring_id", "ring_index"):
        columns[name] = pa.array(getattr(spans, name))
    columns["metric_value"] = pa.array(spans.metric_value)
    columns["start_ns"] = pa.array(spans.start_ns + offset_ns)
    no_device = ~spans.has_device_times
    columns["device_start_ns"] = pa.array(spans.device_start_ns + offset_ns, mask=no_device)
    columns["device_duration_ns"] = pa.array(spans.device_duration_ns, mask=no_device)
    columns["kind"] = _looked_up(spans.kind, kind_name)
    columns["time_source"] = _looked_up(
        spans.time_source, lambda source: name_of(source, TIME_SOURCE_NAMES, "time_source")
    )
    columns["flags"] = _looked_up(spans.flags, lambda flags: " ".join(flag_names(flags)))
    columns["name"] = _looked_up(spans.name_id, lambda number: trace.names.get(number, ""))
    communicators = trace.communicators
    columns["communicator"] = _looked_up(
        spans.comm_id,
        lambda number: communicators[number].name or str(number) if number in communicators else str(number or ""),
    )
    nowhere = trace_pb2.Track(device=-1)
    for name in ("thread_id", "thread_name", "device", "stream"):
        columns[name] = _looked_up(
            spans.track_id,
            lambda number, name=name: getattr(trace.tracks.get(number, nowhere), name),  # type: ignore[misc]
            SCHEMA.field(name).type,
        )
    return pa.table([columns[name].cast(SCHEMA.field(name).type) for name in _COLUMNS], schema=SCHEMA)


def _looked_up(numbers: Array, look_up: Callable[[int], str | int], kind: pa.DataType | None = None) -> pa.Array:
    """A value for each number: each distinct one is looked up once."""
    distinct, inverse = np.unique(numbers, return_inverse=True)
    return pa.array([look_up(number) for number in distinct.tolist()], kind or pa.string()).take(pa.array(inverse))
