"""The layout of an arena's memory as numpy's types: csrc/format/in_flight.h and span.h, field by field."""

from __future__ import annotations

import numpy as np

MAGIC = b"smonshm1"
_LOSS_KINDS = 32
# Of the first arenas: what was added to the header since is at its end, and 0 in theirs.
FIRST_HEADER_BYTES = 1160

SPAN = np.dtype(
    [
        *((name, "<i8") for name in ("start", "end", "device_start", "device_end")),
        *(("step", "<u4"), ("kind", "u1"), ("time_source", "u1"), ("flags", "<u2")),
        *(("microbatch", "<i2"), ("chunk", "<i2"), ("op_index", "<u2"), ("track_id", "<u2")),
        *(("name_or_comm_id", "<u2"), ("payload_high", "<u2"), ("payload_low", "<u4")),
        *(("comm_seq", "<u4"), ("peer", "<i4")),
    ]
)
SLOT = np.dtype([("state", "<u4"), ("sequence", "<u4"), ("is_recorded", "<u4"), ("unused", "<u4"), ("span", SPAN)])
_CLOCK = np.dtype(
    [
        ("sequence", "<u4"),
        ("source", "<u4"),
        *((name, "<i8") for name in ("ticks", "monotonic_ns", "realtime_ns")),
        ("ns_per_tick", "<f8"),
    ]
)
_LOSSES = np.dtype(
    [
        ("dropped_by_kind", "<u8", (_LOSS_KINDS,)),
        *((name, "<u8") for name in ("foreign_tokens", "stale_tokens", "threads_without_ring")),
        *((name, "<u8") for name in ("unwritten_spans", "late_requests", "uncounted_sequences")),
    ]
)
HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("arena_bytes", "<u8"),
        *((name, "<u4") for name in ("header_bytes", "span_bytes", "slot_bytes", "thread_record_bytes")),
        *((name, "<u4") for name in ("thread_record_count", "comm_record_bytes", "comm_record_count", "is_complete")),
        *((name, "<u8") for name in ("thread_records_offset", "comm_records_offset")),
        *(("pid", "<i4"), ("rank", "<i4"), ("world_size", "<i4"), ("attempt", "<u4")),
        *(
            ("process_start_ticks", "<u8"),
            ("run_id", "S64"),
            ("host", "S64"),
            ("boot_id", "S40"),
            ("trace_file", "S512"),
        ),
        ("clock", _CLOCK),
        *((name, "<i8") for name in ("drain_beat_ns", "watchdog_beat_ns", "reporter_beat_ns")),
        *(("step", "<i8"), ("step_start_ticks", "<i8"), ("is_sampled", "<u4"), ("phase", "<u4")),
        ("finished_steps", "<u8"),
        ("losses", _LOSSES),
        *(("step_log_offset", "<u8"), ("step_log_capacity", "<u4"), ("step_ticks_bytes", "<u4")),
        *(("step_write_index", "<u8"), ("step_read_index", "<u8")),
    ]
)
STEP = np.dtype(
    [
        ("step", "<u4"),
        *((name, "u1") for name in ("is_sampled", "is_warmup", "is_counted", "unused")),
        *(("start", "<i8"), ("end", "<i8")),
    ]
)
THREAD = np.dtype(
    {
        "names": [
            *("state", "thread_id", "name", "ring_id", "ring_capacity", "ring_offset", "slots_offset", "slot_count"),
            *("write_index", "read_index"),
        ],
        "formats": ["<u4", "<i4", "S16", "<u4", "<u4", "<u8", "<u8", "<u4", "<u8", "<u8"],
        "offsets": [0, 4, 8, 24, 28, 32, 40, 48, 64, 128],
        "itemsize": 192,
    }
)
SLOT_STATE_MASK, SLOT_OPEN = 3, 1
