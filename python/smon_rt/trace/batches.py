"""Decodes the span batches of a trace file, as proto/smon_rt/v1/trace.proto describes them.

Many batches are decoded at once, whatever their size: a trace of small batches must not cost a Python loop over each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from smon_rt._proto import trace_pb2
from smon_rt.trace.columns import firsts, running_sums, runs
from smon_rt.trace.kinds import HOST_TIME_SOURCES, METRIC
from smon_rt.trace.spans import COLUMN_TYPES, Array, SpanColumns
from smon_rt.trace.wire import DELIMITED, VARINT, WireError, decode_varints, fields, unzigzag

#: More spans than this no writer puts into a batch, and no reader takes.
MOST_SPANS = 1 << 20

_COUNT, _RING, _INDEX, _START, _DURATION, _DEVICE_START, _DEVICE_DURATION = range(1, 8)
_METRIC_VALUE, _SHAPE = 21, 22
_LOW_32_BITS = np.int64(0xFFFF_FFFF)


@dataclass(frozen=True, slots=True)
class _Shaped:
    """A column with an entry for each shape, where the batch has shapes, else for each span."""

    name: str
    is_signed: bool = False
    default: int = 0


# What is absent means a default; of a delta column, the difference that gives it (microbatch: 0 after -1).
_SHAPED: dict[int, _Shaped] = {
    8: _Shaped("kind"),
    9: _Shaped("step", is_signed=True),
    10: _Shaped("time_source"),
    11: _Shaped("flags"),
    12: _Shaped("microbatch", is_signed=True),
    13: _Shaped("chunk", is_signed=True, default=-1),
    14: _Shaped("op_index", is_signed=True),
    15: _Shaped("track_id"),
    16: _Shaped("name_id"),
    17: _Shaped("comm_id"),
    18: _Shaped("comm_seq", is_signed=True),
    19: _Shaped("peer", is_signed=True, default=-1),
    20: _Shaped("payload_bytes"),
}
_COLUMN_FIELDS = frozenset({_START, _DURATION, _DEVICE_START, _DEVICE_DURATION, *_SHAPED, _METRIC_VALUE, _SHAPE})
_MICROBATCH, _OP_INDEX, _COMM_SEQ = 12, 14, 18


@dataclass(slots=True)
class RawBatch:
    """A SpanBatch whose columns are not decoded yet."""

    span_count: int
    ring_id: int
    first_index: int
    first_step: int
    columns: dict[int, bytes]


class _NotPackedError(Exception):
    pass


def parse_batch(data: bytes, first_step: int) -> RawBatch:
    """Takes a SpanBatch apart. Raises WireError, or protobuf's DecodeError."""
    try:
        batch = _parse_packed(data)
    except _NotPackedError:
        # Legal, though nobody writes it: protobuf itself packs the columns. It would keep what it does not know, such
        # as a column of a wrong type.
        message = trace_pb2.SpanBatch.FromString(data)
        message.DiscardUnknownFields()
        batch = _parse_packed(message.SerializeToString())
    batch.first_step = first_step
    # Starts and durations have a byte a span: no batch can claim more spans than it has bytes.
    for number, name in ((_START, "starts"), (_DURATION, "durations")):
        if batch.span_count > len(batch.columns.get(number, b"")):
            raise WireError(f"{batch.span_count} spans lack {name}")
    if batch.span_count > MOST_SPANS:
        raise WireError(f"{batch.span_count} spans in a batch")
    if batch.first_index + batch.span_count >= 1 << 62:
        raise WireError(f"the index {batch.first_index} of a ring is too large")
    return batch


def _parse_packed(data: bytes) -> RawBatch:
    batch = RawBatch(0, 0, 0, 0, {})
    for number, wire_type, value, start, end in fields(data):
        if number <= _INDEX:
            if wire_type != VARINT:
                raise WireError(f"field {number} of the spans has wire type {wire_type}")
            if number == _COUNT:
                batch.span_count = value & 0xFFFF_FFFF
            elif number == _RING:
                batch.ring_id = value & 0xFFFF_FFFF
            else:
                batch.first_index = value
        elif number in _COLUMN_FIELDS:
            if wire_type != DELIMITED or number in batch.columns:
                raise _NotPackedError
            if end > start:
                batch.columns[number] = data[start:end]
    return batch


def decode_batches(batches: Sequence[RawBatch]) -> SpanColumns:
    """The spans of some batches, in order. Raises WireError if any is not as the schema says."""
    return _Decoder(batches).decode()


class _Decoder:
    """Decodes some batches laid end to end."""

    def __init__(self, batches: Sequence[RawBatch]) -> None:
        self._batches = batches
        self._counts = np.array([batch.span_count for batch in batches], np.int64)
        self._total = int(self._counts.sum())
        self._firsts = firsts(self._counts)
        self._batch = np.repeat(np.arange(len(batches)), self._counts)

    def decode(self) -> SpanColumns:
        found: dict[str, Array] = {}
        entry, is_shaped = self._entries()
        deltas = {number: self._shaped(number, entry, is_shaped) for number in _SHAPED}
        for number, column in _SHAPED.items():
            if number not in (9, _MICROBATCH, _OP_INDEX, _COMM_SEQ):
                found[column.name] = _checked(column.name, deltas[number])
        duration = self._per_span(_DURATION, "duration_ns", is_signed=False)
        ends = running_sums(self._per_span(_START, "start_ns") + duration, self._firsts, self._counts)
        found["start_ns"], found["duration_ns"] = ends - duration, duration
        first_step = np.array([batch.first_step for batch in self._batches], np.int64)
        steps = running_sums(deltas[9], self._firsts, self._counts) + first_step[self._batch]
        found["step"] = steps & _LOW_32_BITS
        self._undo_by_kind(found, deltas)
        found["comm_seq"] = self._sequences(found, deltas[_COMM_SEQ])
        found["metric_value"] = self._metrics(found["kind"])
        self._device_times(found)
        found["ring_id"] = np.array([batch.ring_id for batch in self._batches], np.int64)[self._batch]
        first_index = np.array([batch.first_index for batch in self._batches], np.int64)
        found["ring_index"] = first_index[self._batch] + self._inner()
        return SpanColumns(**{name: found[name].astype(kind, copy=False) for name, kind in COLUMN_TYPES.items()})

    def _inner(self) -> Array:
        """The place of each span within its batch."""
        return np.asarray(np.arange(self._total) - self._firsts[self._batch])

    def _values(self, number: int, name: str, *, is_signed: bool) -> tuple[Array, Array]:
        """The values of a column, batch after batch, and how many each batch has."""
        parts = [batch.columns.get(number, b"") for batch in self._batches]
        data = np.frombuffer(b"".join(parts), np.uint8)
        borders = np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)))
        if data.size == 0:
            return np.empty(0, np.int64), np.zeros(len(parts), np.int64)
        if (data[borders[borders > 0] - 1] >= 0x80).any():
            raise WireError(f"column {name} is cut")
        raw, ends = decode_varints(data)
        counts = np.diff(np.searchsorted(ends, borders, side="right"), prepend=0)
        return (unzigzag(raw) if is_signed else raw.view(np.int64)), counts

    def _per_span(self, number: int, name: str, *, is_signed: bool = True) -> Array:
        values, counts = self._values(number, name, is_signed=is_signed)
        _demand(name, counts, self._counts)
        return values

    def _entries(self) -> tuple[Array, Array]:
        """Which entry of the shaped columns each span has, and which batches have shapes."""
        values, counts = self._values(_SHAPE, "shape", is_signed=False)
        is_shaped = counts > 0
        _demand("shape", counts[is_shaped], self._counts[is_shaped])
        entry = self._inner()
        if is_shaped.any():
            if values.min() < 0:
                raise WireError("column shape holds a number out of range")
            entry[is_shaped[self._batch]] = values
        return entry, is_shaped

    def _shaped(self, number: int, entry: Array, is_shaped: Array) -> Array:
        """A shaped column, one value a span; differences are left as they are."""
        column = _SHAPED[number]
        values, counts = self._values(number, column.name, is_signed=column.is_signed)
        if values.size == 0:
            return np.full(self._total, column.default, np.int64)
        _demand(column.name, counts, self._counts, is_shaped | (counts <= 1))
        # Slot 0 is the default, for batches without the column.
        table = np.concatenate([np.array([column.default], np.int64), values])
        first = np.where(counts > 0, firsts(counts) + 1, 0)
        within = np.where((counts > 1)[self._batch], entry, 0)
        if (within >= np.maximum(counts, 1)[self._batch]).any():
            raise WireError(f"column {column.name} has fewer entries than there are shapes")
        return np.asarray(table[first[self._batch] + within])

    def _undo_by_kind(self, found: dict[str, Array], deltas: dict[int, Array]) -> None:
        """microbatch and op_index: differences to the last span of the kind in the same step and batch, else to -1."""
        key = self._batch * 256 + found["kind"]
        if len(self._batches) <= 256:
            key = key.astype(np.uint16)  # which numpy sorts by radix
        order = np.argsort(key, kind="stable")
        of_kind = runs(key[order], found["step"][order])
        # Absent is absent for every span, whatever the differences would say.
        for number, absent in ((_MICROBATCH, -1), (_OP_INDEX, 0)):
            name = _SHAPED[number].name
            values = np.empty(self._total, np.int64)
            values[order] = running_sums(deltas[number][order], *of_kind) - 1
            values = (values + (1 << 31) & _LOW_32_BITS) - (1 << 31)
            is_absent = np.array([number not in batch.columns for batch in self._batches], np.bool_)
            found[name] = _checked(name, np.where(is_absent[self._batch], absent, values))

    def _sequences(self, found: dict[str, Array], deltas: Array) -> Array:
        """comm_seq: differences to the last span of the batch with the same kind, communicator and peer, else to 0."""
        values: Array = deltas.copy()
        rows = np.flatnonzero(found["comm_id"])
        if rows.size:
            keys = (found["peer"][rows], found["comm_id"][rows], found["kind"][rows], self._batch[rows])
            order = np.lexsort(keys)
            alike = runs(*(key[order] for key in keys))
            values[rows[order]] = running_sums(deltas[rows[order]], *alike)
        return values

    def _metrics(self, kind: Array) -> npt.NDArray[np.float64]:
        """metric_value: one value for each metric of a batch, or one for all of them."""
        result = np.zeros(self._total, np.float64)
        parts = [batch.columns.get(_METRIC_VALUE, b"") for batch in self._batches]
        if not any(parts):
            return result
        sizes = np.fromiter(map(len, parts), np.int64, len(parts))
        if (sizes % 8).any():
            raise WireError("column metric_value is cut")
        counts = sizes // 8
        rows = np.flatnonzero(kind == METRIC)
        wanted = np.bincount(self._batch[rows], minlength=len(parts))
        _demand("metric_value", counts, wanted, counts <= 1)
        table = np.concatenate([np.zeros(1), np.frombuffer(b"".join(parts), "<f8")])
        first = np.where(counts > 0, firsts(counts) + 1, 0)
        of = self._batch[rows]
        within = np.where(counts[of] > 1, np.arange(rows.size) - firsts(wanted)[of], 0)
        result[rows] = table[first[of] + within]
        return result

    def _device_times(self, found: dict[str, Array]) -> None:
        """Device starts: differences to the device end before; the first to the span's own start."""
        has_times = ~np.isin(found["time_source"], HOST_TIME_SOURCES)
        gaps, counts = self._values(_DEVICE_START, "device_start_ns", is_signed=True)
        durations, duration_counts = self._values(_DEVICE_DURATION, "device_duration_ns", is_signed=False)
        rows = np.flatnonzero(has_times)
        wanted = np.bincount(self._batch[rows], minlength=len(self._batches))
        _demand("device_start_ns", counts, wanted)
        _demand("device_duration_ns", duration_counts, wanted)
        found["has_device_times"] = has_times
        found["device_start_ns"] = np.zeros(self._total, np.int64)
        found["device_duration_ns"] = np.zeros(self._total, np.int64)
        if rows.size == 0:
            return
        first = firsts(wanted)
        gaps = gaps.copy()
        own = first[wanted > 0]
        gaps[own] += found["start_ns"][rows[own]]
        ends = running_sums(gaps + durations, first, wanted)
        found["device_start_ns"][rows] = ends - durations
        found["device_duration_ns"][rows] = durations


def _demand(name: str, counts: Array, wanted: Array, spared: Array | None = None) -> None:
    wrong = counts != wanted
    if spared is not None:
        wrong &= ~spared
    if wrong.any():
        bad = int(np.argmax(wrong))
        raise WireError(f"column {name} has {counts[bad]} values for {wanted[bad]}")


def _checked(name: str, values: Array) -> Array:
    """The values, if they fit the type of their column."""
    limits = np.iinfo(np.dtype(COLUMN_TYPES[name]))
    least, most = int(values.min(initial=0)), int(values.max(initial=0))
    # A 64-bit column of unsigned numbers shows what is too large as negative.
    floor = 0 if name == "payload_bytes" else limits.min
    if least < floor or most > limits.max:
        raise WireError(f"column {name} holds {least if least < floor else most}")
    return values
