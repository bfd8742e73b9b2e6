"""What NCCL told its profiler plug-in: operations as columns, channels row by row."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from smon_rt._proto import trace_pb2
from smon_rt.trace.columns import running_sums, runs
from smon_rt.trace.spans import Array
from smon_rt.trace.wire import WireError

#: csrc/format/comm_op_decoder.h: more operations no writer puts into a batch, and no reader takes.
MOST_OPS = 1 << 16
_MOST_CHANNELS = 1 << 20
# 73 years of nanoseconds: more is no time of a monotonic clock.
_LARGEST_NS = 1 << 61
_CAPTURED, _ENQUEUED = 1, 2


@dataclass(frozen=True, eq=False)
class CommOpColumns:
    """Operations of NCCL, a column each; all of one length. Times are ns of the host's CLOCK_MONOTONIC.

    `function`, `datatype`, `algorithm` and `protocol` are places in the names of `trace.comm_words`. `communicator` is
    NCCL's, by its number in the process; `comm_id` and `comm_seq` are those of the span that the operation belongs to,
    0 where none was open. `peer`: rank in the communicator, the other one or the root. `enqueue_ns`: from the start on.
    Transfers over the network begin at `first_transfer_ns` and take `transfer_ns`; both are 0 without one. Kernels are
    in ns of the GPU's global timer, and 0 without one.
    """

    number: npt.NDArray[np.int64]
    step: npt.NDArray[np.int64]
    start_ns: npt.NDArray[np.int64]
    enqueue_ns: npt.NDArray[np.int64]
    is_enqueued: npt.NDArray[np.bool_]
    is_captured: npt.NDArray[np.bool_]
    communicator: npt.NDArray[np.int64]
    function: npt.NDArray[np.uint8]
    datatype: npt.NDArray[np.uint8]
    algorithm: npt.NDArray[np.uint8]
    protocol: npt.NDArray[np.uint8]
    channel_count: npt.NDArray[np.uint8]
    peer: npt.NDArray[np.int32]
    payload_bytes: npt.NDArray[np.int64]
    comm_id: npt.NDArray[np.int32]
    comm_seq: npt.NDArray[np.int64]
    library_seq: npt.NDArray[np.int64]
    transfer_count: npt.NDArray[np.int64]
    open_transfer_count: npt.NDArray[np.int64]
    first_transfer_ns: npt.NDArray[np.int64]
    transfer_ns: npt.NDArray[np.int64]
    kernel_count: npt.NDArray[np.int64]
    open_kernel_count: npt.NDArray[np.int64]
    kernel_start_device_ns: npt.NDArray[np.int64]
    kernel_duration_device_ns: npt.NDArray[np.int64]
    slowest_channel: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.number)

    @property
    def is_joined(self) -> Array:
        """Where the operation belongs to a span."""
        return np.asarray(self.comm_seq > 0)

    def take(self, rows: Array) -> CommOpColumns:
        """The operations at these rows, or where this mask is true."""
        return CommOpColumns(**{name: values[rows] for name, values in vars(self).items()})

    @staticmethod
    def concatenate(parts: Sequence[CommOpColumns]) -> CommOpColumns:
        """All parts in order; none makes empty columns."""
        return CommOpColumns(
            **{
                name: np.concatenate([np.empty(0, kind), *(getattr(part, name) for part in parts)], dtype=kind)
                for name, kind in _COLUMN_TYPES.items()
            }
        )


_BYTES = ("function", "datatype", "algorithm", "protocol", "channel_count", "slowest_channel")
_COLUMN_TYPES: dict[str, npt.DTypeLike] = {
    **{field.name: np.int64 for field in dataclasses.fields(CommOpColumns)},
    **dict.fromkeys(_BYTES, np.uint8),
    **dict.fromkeys(("is_enqueued", "is_captured"), np.bool_),
    **dict.fromkeys(("peer", "comm_id"), np.int32),
}


@dataclass(frozen=True, slots=True)
class CommChannel:
    """How far one direction of a channel of one of NCCL's communicators has come, in steps of transfers.

    `moved`: handed to the network, or received from it. `state` is a place in `comm_words.CHANNEL_STATE_NAMES`, entered
    at `state_ns`.
    """

    communicator: int
    nccl_comm: int
    comm_id: int
    channel: int
    is_send: bool
    peer: int
    begun: int
    moved: int
    done: int
    moved_bytes: int
    state: int
    state_ns: int


def decode_comm_ops(batch: trace_pb2.CommOps, first_step: int) -> CommOpColumns:
    """The operations of a batch. Raises WireError if it is not as the schema says."""
    return _Batch(batch, first_step).decode()


class _Batch:
    def __init__(self, batch: trace_pb2.CommOps, first_step: int) -> None:
        self._batch = batch
        self._first_step = first_step
        self._shape = np.array(batch.shape, np.int64)
        self._count = len(self._shape)
        if self._count > MOST_OPS:
            raise WireError(f"{self._count} operations of NCCL in a packet")
        self._entries = max(1, *(len(getattr(batch, name)) for name in _SHAPED))
        if int(self._shape.max(initial=0)) >= self._entries:
            raise WireError("column shape refers to a shape that is not there")

    def decode(self) -> CommOpColumns:
        found = {name: self._shaped(name) for name in _PLAIN}
        found["peer"] = self._shaped("peer", default=-1)
        found["number"] = np.cumsum(self._shaped("number_gap") + 1) - 1 + _int64([self._batch.first_number])[0]
        found["step"] = np.cumsum(self._shaped("step")) + self._first_step & 0xFFFF_FFFF
        flags = self._shaped("flags")
        found["is_captured"], found["is_enqueued"] = flags & _CAPTURED != 0, flags & _ENQUEUED != 0
        self._undo_sequences(found)
        found["start_ns"] = np.cumsum(self._per_op("start_ns"))
        found["enqueue_ns"] = self._per_op("enqueue_ns")
        moved, ran = found["transfer_count"] > 0, found["kernel_count"] > 0
        found["first_transfer_ns"] = self._of_some("first_transfer_ns", moved)
        found["first_transfer_ns"][moved] += found["start_ns"][moved]
        found["transfer_ns"] = self._of_some("transfer_ns", moved)
        found["kernel_start_device_ns"] = self._of_some("kernel_start_device_ns", ran)
        found["kernel_start_device_ns"][ran] = np.cumsum(found["kernel_start_device_ns"][ran])
        found["kernel_duration_device_ns"] = self._of_some("kernel_duration_device_ns", ran)
        found["slowest_channel"] = self._of_some("slowest_channel", ran)
        return _checked(found)

    def _values(self, name: str) -> Array:
        return _int64(getattr(self._batch, name))

    def _shaped(self, name: str, default: int = 0) -> Array:
        values = self._values(name)
        if len(values) <= 1:
            return np.full(self._count, values[0] if len(values) else default, np.int64)
        if len(values) != self._entries:
            raise WireError(f"column {name} has {len(values)} entries for {self._entries} shapes")
        return np.asarray(values[self._shape])

    def _per_op(self, name: str) -> Array:
        values = self._values(name)
        if len(values) != self._count:
            raise WireError(f"column {name} has {len(values)} values for {self._count}")
        return values

    def _of_some(self, name: str, rows: Array) -> Array:
        """A column with values for these operations only, 0 for the others."""
        values, wanted = self._values(name), int(np.count_nonzero(rows))
        if len(values) != wanted:
            raise WireError(f"column {name} has {len(values)} values for {wanted}")
        result = np.zeros(self._count, np.int64)
        result[rows] = values
        return result

    def _undo_sequences(self, found: dict[str, Array]) -> None:
        """Differences to the last operation of the same communicator, function and peer."""
        keys = (found["peer"], found["function"], found["communicator"])
        order = np.lexsort(keys)
        alike = runs(*(key[order] for key in keys))
        for name in ("comm_seq", "library_seq"):
            values = np.empty(self._count, np.int64)
            values[order] = running_sums(self._shaped(name)[order], *alike)
            found[name] = values


#: Shaped columns without differences whose default is 0.
_PLAIN = (
    *("communicator", "function", "datatype", "algorithm", "protocol", "channel_count", "payload_bytes", "comm_id"),
    *("transfer_count", "open_transfer_count", "kernel_count", "open_kernel_count"),
)
_SHAPED = (*_PLAIN, "peer", "number_gap", "step", "flags", "comm_seq", "library_seq")


def _int64(values: Any) -> Array:
    """What does not fit into 63 bits becomes negative, and is refused by `_checked` where it may not be."""
    try:
        return np.array(values, np.int64)
    except OverflowError:
        return np.array(values, np.uint64).view(np.int64)


def _checked(found: dict[str, Array]) -> CommOpColumns:
    for name, values in found.items():
        kind = np.dtype(_COLUMN_TYPES[name])
        if kind == np.bool_:
            continue
        limits = np.iinfo(kind)
        least, most = int(values.min(initial=0)), int(values.max(initial=0))
        if name.endswith("_ns"):
            floor, ceiling = (-_LARGEST_NS if name in _ABOUT_ZERO else 0), _LARGEST_NS
        elif name == "library_seq":
            continue  # NCCL's own: anything
        else:
            floor, ceiling = (-1 << 31 if name == "peer" else 0), min(limits.max, 1 << 62)
        if least < floor or most > ceiling:
            raise WireError(f"column {name} holds {least if least < floor else most}")
    return CommOpColumns(**{name: found[name].astype(kind) for name, kind in _COLUMN_TYPES.items()})


_ABOUT_ZERO = ("start_ns", "first_transfer_ns")


def decode_comm_channels(message: trace_pb2.CommChannels) -> list[CommChannel]:
    """A row a direction of a channel. Raises WireError if it is not as the schema says."""
    count = len(message.communicator)
    if count > _MOST_CHANNELS:
        raise WireError(f"{count} channels in a packet")
    columns = []
    for field in dataclasses.fields(CommChannel):
        values = list(getattr(message, field.name))
        if len(values) not in (0, 1, count):
            raise WireError(f"column {field.name} has {len(values)} values for {count} channels")
        columns.append(values if len(values) == count else (values or [0]) * count)
    names = [field.name for field in dataclasses.fields(CommChannel)]
    rows = (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))
    return [CommChannel(**row | {"is_send": bool(row["is_send"])}) for row in rows]
