"""The colours of the worker heat maps: white at no slowdown to dark red at 1.5, as in the paper's Fig. 14."""

from __future__ import annotations

from smon_rt.analysis.units import is_finite

SLOWDOWN_RANGE = (1.0, 1.5)
#: ColorBrewer's nine-step sequential red.
REDS = ("#fff5f0", "#fee0d2", "#fcbba1", "#fc9272", "#fb6a4a", "#ef3b2c", "#cb181d", "#a50f15", "#67000d")
_UNKNOWN_COLOR = "#dddddd"
#: From this level on white letters are the readable ones.
_FIRST_DARK_LEVEL = 6


def level_of(slowdown: float | None) -> int | None:
    """The index of a slowdown's colour, 0 to 8; None for a value that is not a number."""
    if slowdown is None or not is_finite(slowdown):
        return None
    low, high = SLOWDOWN_RANGE
    position = min(1.0, max(0.0, (slowdown - low) / (high - low)))
    return round(position * (len(REDS) - 1))


def level_start(level: int) -> float:
    """The smallest slowdown of a level."""
    low, high = SLOWDOWN_RANGE
    return low if level == 0 else low + (level - 0.5) * (high - low) / (len(REDS) - 1)


def cell_colors(slowdown: float | None) -> tuple[str, str]:
    """Background and text colour of a cell; grey for a value that is not a number."""
    level = level_of(slowdown)
    if level is None:
        return _UNKNOWN_COLOR, "#000000"
    return REDS[level], "#ffffff" if level >= _FIRST_DARK_LEVEL else "#000000"
