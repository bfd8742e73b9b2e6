"""The guard: a rank whose memory comes near its limit collects at once, alone."""

from __future__ import annotations

from smon_rt._memory import available_bytes
from smon_rt.environment import whole_number

__all__ = ["Guard"]

#: Of what the machine can still give to each of its processes when the plan begins.
_AVAILABLE_RATIO = 0.5
#: After a collection that gave back little the next one waits for so much more growth.
_NEXT_RATIO = 0.02


class Guard:
    """Watches RssAnon against a limit.

    It fires before the limit: where one more step, as large as the largest since the last collection, would go beyond.

    Args:
        limit_bytes: RssAnon that must not be reached; None: what is there at first, and half of what the machine (or
            the container) can still give to each of the job's processes on it. Without that either there is no limit.
    """

    def __init__(self, limit_bytes: int | None) -> None:
        self.limit_bytes = limit_bytes
        self._last_bytes = 0
        self._largest_growth = 0
        self._not_below = 0

    def set_out(self, memory_bytes: int) -> None:
        """The plan begins, at this RssAnon."""
        self._last_bytes = memory_bytes
        if self.limit_bytes is not None:
            return
        available = available_bytes()
        if available is not None and memory_bytes:
            sharers = max(whole_number("LOCAL_WORLD_SIZE", 1), 1)
            self.limit_bytes = memory_bytes + int(available * _AVAILABLE_RATIO / sharers)

    def must_collect(self, memory_bytes: int) -> bool:
        """Once a step: whether this one must."""
        growth, self._last_bytes = memory_bytes - self._last_bytes, memory_bytes
        self._largest_growth = max(self._largest_growth, growth)
        if self.limit_bytes is None or not memory_bytes:
            return False
        return memory_bytes + self._largest_growth >= self.limit_bytes and memory_bytes >= self._not_below

    def collected(self, before_bytes: int, after_bytes: int) -> bool:
        """It did. Returns whether that has helped."""
        self._last_bytes = after_bytes
        self._largest_growth = 0
        least = int(_NEXT_RATIO * max(self.limit_bytes or 0, after_bytes))  # a limit may be far below what is there
        has_helped = before_bytes - after_bytes > least
        self._not_below = 0 if has_helped else after_bytes + least
        return has_helped

    def headroom_bytes(self, memory_bytes: int) -> float:
        """Up to the limit."""
        return float("inf") if self.limit_bytes is None else max(float(self.limit_bytes - memory_bytes), 0.0)
