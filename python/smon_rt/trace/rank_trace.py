"""What was recorded by one process: the contents of its trace files, and of its memory if it was killed."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from smon_rt._proto import trace_pb2
from smon_rt.trace.comm_ops import CommChannel, CommOpColumns
from smon_rt.trace.packets import Damage
from smon_rt.trace.spans import SpanColumns

if TYPE_CHECKING:
    from smon_rt.trace.arena import ArenaView


#: csrc/record/drain.h: the ring of spans that were open at the end of recording.
OPEN_SPANS_RING = 0xFFFF_FFFF


@dataclass(frozen=True, eq=False)
class StepColumns:
    """Every step that the process finished, sampled or not, in the order of the file. Times are CLOCK_MONOTONIC ns."""

    step: npt.NDArray[np.int64]
    start_ns: npt.NDArray[np.int64]
    duration_ns: npt.NDArray[np.int64]
    is_sampled: npt.NDArray[np.bool_]
    is_warmup: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.step)


@dataclass(frozen=True, eq=False)
class ClockColumns:
    """Readings of the host's clocks, taken together within `width_ns`."""

    ticks: npt.NDArray[np.int64]
    monotonic_ns: npt.NDArray[np.int64]
    realtime_ns: npt.NDArray[np.int64]
    width_ns: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ticks)


@dataclass(eq=False)
class RankTrace:
    """All that one process recorded in one attempt of a run.

    The messages are those of proto/smon_rt/v1/trace.proto. `end_reason` is None for a file that `stop()` did not close:
    its process was killed or still runs. `leftover` is there where it was killed, and a later start on its node put
    what its memory still held into the file. `missing_span_count` are spans that the rings took but no file holds.
    `comm_ops`, `comm_counts` and `comm_channels` are what NCCL told its profiler plug-in, operations in the order of
    their numbers.
    """

    files: list[str]
    identity: trace_pb2.Identity
    spans: SpanColumns
    steps: StepColumns
    clocks: ClockColumns
    names: dict[int, str] = field(default_factory=dict)
    tracks: dict[int, trace_pb2.Track] = field(default_factory=dict)
    communicators: dict[int, trace_pb2.Communicator] = field(default_factory=dict)
    losses: trace_pb2.Losses = field(default_factory=trace_pb2.Losses)
    clock_maps: list[trace_pb2.ClockMap] = field(default_factory=list)
    cost: trace_pb2.RecorderCost = field(default_factory=trace_pb2.RecorderCost)
    comm_ops: CommOpColumns = field(default_factory=lambda: CommOpColumns.concatenate([]))
    comm_counts: trace_pb2.CommCounts | None = None  # None: NCCL told nothing
    comm_channels: list[CommChannel] = field(default_factory=list)
    end_reason: str | None = None
    leftover: trace_pb2.Leftover | None = None
    lacks_next_file: bool = False  # the last one was full, and what came after is not here
    is_cut: bool = False
    damage: list[Damage] = field(default_factory=list)
    file_bytes: int = 0
    missing_span_count: int = 0
    repeated_span_count: int = 0  # in the files more than once, and taken once
    repeated_step_count: int = 0
    skipped_span_count: int = 0  # of steps that were not asked for
    ring_ends: dict[int, int] = field(default_factory=dict)  # by ring: up to which index the files hold it
    arena: ArenaView | None = None

    @property
    def rank(self) -> int:
        """Global rank."""
        return self.identity.rank

    @property
    def run_key(self) -> tuple[str, int]:
        """Run id and attempt: what the ranks of one job have in common."""
        return self.identity.run_id, self.identity.attempt

    @property
    def host_key(self) -> tuple[str, str, int]:
        """Processes with the same host, boot and time namespace share CLOCK_MONOTONIC."""
        return self.identity.host, self.identity.boot_id, self.identity.time_namespace

    @cached_property
    def realtime_offset_ns(self) -> int | None:
        """Realtime minus monotonic time: the median of the snapshots, so that a clock that stepped once is outvoted."""
        if len(self.clocks) == 0:
            return None
        differences = np.sort(self.clocks.realtime_ns - self.clocks.monotonic_ns)
        return int(differences[len(differences) // 2])
