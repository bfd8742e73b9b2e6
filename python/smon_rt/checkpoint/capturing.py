"""One capture after another: keeps the layout, notices when it no longer holds, and hands ranges to the native part."""

from __future__ import annotations

import sys
from collections.abc import Callable

from smon_rt.checkpoint.calls import Addresses, Calls
from smon_rt.checkpoint.layout import CaptureLayout
from smon_rt.checkpoint.state import TrainingState
from smon_rt.checkpoint.tensors import local_of

#: (dict, key, tensor, its local tensor where it is a DTensor, its range or None); (container, its length); ranges.
AddressTable = Callable[..., Addresses]


class Capturer:
    """Captures a state again and again.

    Threading: the training thread's.
    Cost: as long as tensors stay where they are, one look at each in C, and encoding of the values beside them. When
    one moved, a walk through the whole state.
    """

    def __init__(self, state: TrainingState, calls: Calls, make_table: AddressTable) -> None:
        self._state = state
        self._calls = calls
        self._make_table = make_table
        self._layout: CaptureLayout | None = None
        self._table: Addresses | None = None
        self._header = b""
        #: How often the state was walked through, and how often the agent was told of a new layout.
        self.walks = self.layouts = 0

    def capture(self, step: int) -> int:
        """Begins a capture; what `Calls.capture` says.

        Raises:
            CheckpointError: a tensor came that cannot be captured.
        """
        layout, table = self._layout, self._table
        if layout is None or table is None or not table.is_unchanged():
            layout, table = self._walk(step)
        else:
            packed, loose = self._state.encode(step, layout.found)
            addresses = layout.fill_loose(packed, loose)
            if addresses is None:
                layout, table = self._walk(step, max(layout.capacity, 0))
            else:
                for at, address in enumerate(addresses, layout.loose_start):
                    table.set(at, address)
        layout.fill_staged()
        return self._calls.capture(step, table, current_stream())

    def make_room(self) -> None:
        """Has the agent make room for the state as it is, so that the first step is captured already.

        Raises:
            CheckpointError: it has none now; it is asked again later.
        """
        self._walk(0)

    def forget(self) -> None:
        """The next capture walks through everything again."""
        self._layout = self._table = None

    def _walk(self, step: int, capacity: int = 0) -> tuple[CaptureLayout, Addresses]:
        self.walks += 1
        capacity = capacity if self._layout is None else max(capacity, self._layout.capacity)
        self.forget()
        layout = CaptureLayout(self._state, step, capacity)
        entries = []
        for place, slot in layout.slots:
            local = local_of(place.tensor)
            own_local = None if local is place.tensor else local
            entries.append((place.container, place.key, place.tensor, own_local, -1 if slot is None else slot))
        table = self._make_table(entries, layout.found.sizes, [one.address for one in layout.ranges])
        signature = layout.header + repr([(one.device, one.is_volatile) for one in layout.ranges]).encode()
        if signature != self._header:
            self._calls.set_layout(layout.header, layout.ranges)
            self._header = signature
            self.layouts += 1
        self._layout, self._table = layout, table
        return layout, table


def current_stream() -> int:
    """The stream that this thread launches into, 0 without a GPU: asking must not make the process use one."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return 0
    return int(cuda.current_stream().cuda_stream)
