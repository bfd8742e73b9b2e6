"""Spans as columns of numpy arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class SpanColumns:
    """Spans of one process, a column each; all of one length. Times are ns of the host's CLOCK_MONOTONIC.

    `device_start_ns` and `device_duration_ns` are 0 where `has_device_times` is false. `ring_id` and `ring_index` name
    each span within its process.
    """

    start_ns: npt.NDArray[np.int64]
    duration_ns: npt.NDArray[np.int64]
    device_start_ns: npt.NDArray[np.int64]
    device_duration_ns: npt.NDArray[np.int64]
    has_device_times: npt.NDArray[np.bool_]
    kind: npt.NDArray[np.uint8]
    step: npt.NDArray[np.int64]
    time_source: npt.NDArray[np.uint8]
    flags: npt.NDArray[np.uint16]
    microbatch: npt.NDArray[np.int32]
    chunk: npt.NDArray[np.int32]
    op_index: npt.NDArray[np.int32]
    track_id: npt.NDArray[np.int32]
    name_id: npt.NDArray[np.int32]
    comm_id: npt.NDArray[np.int32]
    comm_seq: npt.NDArray[np.int64]
    peer: npt.NDArray[np.int32]
    payload_bytes: npt.NDArray[np.int64]
    metric_value: npt.NDArray[np.float64]
    ring_id: npt.NDArray[np.int64]
    ring_index: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.start_ns)

    def take(self, rows: Array) -> SpanColumns:
        """The spans at these rows, or where this mask is true."""
        return SpanColumns(**{name: getattr(self, name)[rows] for name in COLUMN_TYPES})

    @staticmethod
    def concatenate(parts: Sequence[SpanColumns]) -> SpanColumns:
        """All parts in order; none makes empty columns."""
        if len(parts) == 1:
            return parts[0]
        return SpanColumns(
            **{
                name: np.concatenate([np.empty(0, kind), *(getattr(part, name) for part in parts)], dtype=kind)
                for name, kind in COLUMN_TYPES.items()
            }
        )


#: The type of each column.
COLUMN_TYPES: dict[str, npt.DTypeLike] = {
    **dict.fromkeys(("start_ns", "duration_ns", "device_start_ns", "device_duration_ns"), np.int64),
    "has_device_times": np.bool_,
    "kind": np.uint8,
    "step": np.int64,
    "time_source": np.uint8,
    "flags": np.uint16,
    **dict.fromkeys(("microbatch", "chunk", "op_index", "track_id", "name_id", "comm_id"), np.int32),
    "comm_seq": np.int64,
    "peer": np.int32,
    "payload_bytes": np.int64,
    "metric_value": np.float64,
    **dict.fromkeys(("ring_id", "ring_index"), np.int64),
}
assert list(COLUMN_TYPES) == [field.name for field in dataclasses.fields(SpanColumns)]
