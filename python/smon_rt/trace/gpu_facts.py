"""Which GPUs a rank used, and whose times of theirs died with its process."""

from __future__ import annotations

import numpy as np

from smon_rt.trace.kinds import FLAGS, KIND_NUMBERS
from smon_rt.trace.rank_trace import RankTrace

#: What has an event at each end where there is a GPU (csrc/record/gpu_spans.h, kGpuKinds).
GPU_KINDS = tuple(
    KIND_NUMBERS[name]
    for name in (
        *("forward_compute", "backward_compute", "forward_backward_combined"),
        *("eval", "optimizer", "optimizer_clip_main_grad"),
    )
)


def gpu_uuids(trace: RankTrace) -> list[str]:
    """The GPUs of a rank, its own first: a process may use several."""
    named = (trace.identity.gpu_uuid, *(clock.gpu_uuid for clock in trace.clock_maps))
    return list(dict.fromkeys(uuid for uuid in named if uuid))


def lost_with_its_process(trace: RankTrace) -> int:
    """How many of a killed rank's last spans have the host's times only, though its GPU ran them.

    They were in the process's memory, and the events that had their times died with it.
    """
    spans = trace.spans
    # What had not ended has no times of a GPU anyway.
    rows = np.flatnonzero(np.isin(spans.kind, GPU_KINDS) & (spans.flags & FLAGS["aborted"] == 0))
    timed = spans.has_device_times[rows]
    if not timed.any():
        return 0
    started_ns = spans.start_ns[rows]
    return int(np.count_nonzero(~timed & (started_ns > started_ns[timed].max())))
