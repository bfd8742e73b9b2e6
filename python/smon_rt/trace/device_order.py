"""When a device got to what the host had launched, on the host's line of time.

The host launches ahead: a span's host times say when its work was handed over, times of the device, which the recorder
has put on the host's clock, when it ran. Where only an end is known, or nothing, the order of the stream says when the
device can have begun at the earliest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from smon_rt.trace.kinds import HOST_TIME_SOURCES, RECVS, SENDS, TIME_SOURCE_NAMES
from smon_rt.trace.partners import COMMUNICATION
from smon_rt.trace.spans import Array, SpanColumns

WAIT_EVENT = TIME_SOURCE_NAMES.index("wait_event")
_NEVER = np.int64(1) << 61


@dataclass(frozen=True)
class DeviceOrder:
    """What one rank launched on its device, each part sorted by a time of the host, with the latest time so far.

    `launched`: computes by launch, starts on the device. `returned`: computes by the launch's end, ends on the device.
    `awaited`: communication that the stream waits for, by the wait's return, ends as the stream sees them.
    """

    launched: tuple[Array, Array]
    returned: tuple[Array, Array]
    awaited: tuple[Array, Array]

    @staticmethod
    def of(spans: SpanColumns) -> DeviceOrder | None:
        """Of one rank; None where no compute has times of the device."""
        is_work = is_device_work(spans.time_source, spans.kind)
        if not is_work.any():
            return None
        is_wait = spans.time_source == WAIT_EVENT
        returned_ns = spans.start_ns + spans.duration_ns
        ended_ns = spans.device_start_ns + spans.device_duration_ns
        return DeviceOrder(
            _latest_so_far(spans.start_ns[is_work], spans.device_start_ns[is_work]),
            _latest_so_far(returned_ns[is_work], ended_ns[is_work]),
            _latest_so_far(returned_ns[is_wait], ended_ns[is_wait]),
        )

    def reached_ns(self, time_ns: Array) -> Array:
        """When the device got to what the host launched at these times, at the earliest.

        Not before the launch, the end of what was launched or waited for by then, or the start of what was being
        launched.
        """
        # A wait is not behind itself.
        host_ns, latest_ns = self.awaited
        waited_ns = latest_ns[np.searchsorted(host_ns, time_ns, side="left")]
        return np.asarray(np.maximum(self.computed_ns(time_ns), waited_ns))

    def computed_ns(self, time_ns: Array) -> Array:
        """The same, but for what the stream waited for before."""
        found_ns = time_ns
        for host_ns, latest_ns in (self.launched, self.returned):
            found_ns = np.maximum(found_ns, latest_ns[np.searchsorted(host_ns, time_ns, side="right")])
        return np.asarray(found_ns)


def is_device_work(time_source: Array, kind: Array) -> Array:
    """True for what a device computed, by its own times."""
    return np.isin(time_source, HOST_TIME_SOURCES, invert=True) & np.isin(kind, COMMUNICATION, invert=True)


def is_on_device(spans: SpanColumns) -> Array:
    """True for one rank's communication that its device carries out.

    Where its own times do not say so: messages of a rank of which some have times of the device, and collectives of a
    communicator of which some have. A rank may have others, on its host, beside them.
    """
    is_communication = np.isin(spans.kind, COMMUNICATION)
    is_message = np.isin(spans.kind, (*SENDS, *RECVS))
    known = is_communication & spans.has_device_times
    of_messages = is_message & bool((known & is_message).any())
    return np.asarray(is_communication & (of_messages | np.isin(spans.comm_id, spans.comm_id[known])))


def _latest_so_far(host_ns: Array, device_ns: Array) -> tuple[Array, Array]:
    """Host times, sorted, and the latest of the first n device times, for n from 0 on."""
    order = np.argsort(host_ns, kind="stable")
    return host_ns[order], np.concatenate([[-_NEVER], np.maximum.accumulate(device_ns[order])])
