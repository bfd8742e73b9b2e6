"""The colours of the worker heat maps: white at no slowdown to dark red at 1.5, as in the paper's Fig. 14."""

from __future__ import annotations

SLOWDOWN_RANGE = (1.0, 1.5)
#: ColorBrewer's nine-step sequential red.
REDS = ("#fff5f0", "#fee0d2", "#fcbba1", "#fc9272", "#fb6a4a", "#ef3b2c", "#cb181d", "#a50f15", "#67000d")
_UNKNOWN_COLOR = "#dddddd"
_DARK_FROM = 0.55


def color_scale() -> list[list[float | str]]:
    """The colours as position and colour, from 0 to 1."""
    return [[index / (len(REDS) - 1), color] for index, color in enumerate(REDS)]


def cell_colors(slowdown: float | None) -> tuple[str, str]:
    """Background and text colour of a cell; grey for a value that is not a number."""
    if slowdown is None:
        return _UNKNOWN_COLOR, "#000000"
    low, high = SLOWDOWN_RANGE
    position = min(1.0, max(0.0, (slowdown - low) / (high - low)))
    return REDS[round(position * (len(REDS) - 1))], "#ffffff" if position > _DARK_FROM else "#000000"
