"""Numbers as people read them, the same in the verdict, the terminal and the page. Never prints nan or inf."""

from __future__ import annotations

import math

UNKNOWN = "unknown"
#: From which size of a duration on a unit is used, how many of it are in a second, and its name.
_UNITS = ((0.9995, 1.0, "s"), (0.9995e-3, 1e3, "ms"), (0.5e-6, 1e6, "µs"))


def is_finite(value: float | None) -> bool:
    """True for a number that can be printed and compared."""
    return value is not None and math.isfinite(value)


def finite_or_none(value: float | None) -> float | None:
    """The value, or None where it is missing, nan or infinite (JSON has neither)."""
    return value if value is not None and math.isfinite(value) else None


def three_digits(value: float) -> str:
    """Three significant digits without an exponent, thousands separated: 17.9, 758, 12,345, 0.0123; 0 below 0.0001."""
    magnitude = abs(value)
    if magnitude >= 99.95:
        return f"{value:,.0f}"
    if magnitude >= 9.995:
        return f"{value:.1f}"
    if magnitude >= 0.9995:
        return f"{value:.2f}"
    return f"{value:.3g}" if magnitude >= 1e-4 else "0"


def hours(value: float) -> str:
    """GPU-hours; a small loss is not called none."""
    return "under 0.001" if 0 < value < 0.001 else three_digits(value)


def seconds(value: float | None) -> str:
    """A duration: 46.6 s, 2.21 s, 184 ms, 12.5 µs."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    factor, unit = next(((f, u) for limit, f, u in _UNITS if abs(value) >= limit), (0.0, "s"))
    return f"{three_digits(value * factor)} {unit}"


def seconds_change(before: float, after: float) -> str:
    """Two durations in the unit of the larger one: `46.6 → 23.5 s`."""
    return _pair(before, after, " → ")


def seconds_range(low: float | None, high: float | None) -> str:
    """An interval in the unit of its larger end, `22.8 to 23.2 s`; `–` where there is none."""
    if low is None or high is None or not math.isfinite(low) or not math.isfinite(high):
        return "–"
    return _pair(low, high, " to ")


def _pair(first: float, second: float, between: str) -> str:
    largest = max(abs(first), abs(second))
    factor, unit = next(((f, u) for limit, f, u in _UNITS if largest >= limit), (1.0, "s"))
    return f"{three_digits(first * factor)}{between}{three_digits(second * factor)} {unit}"


def percent(part: float | None, digits: int = 0) -> str:
    """A ratio in per cent; `nothing` where it rounds to zero."""
    if part is None or not math.isfinite(part):
        return UNKNOWN
    text = f"{part * 100:,.{digits}f}"
    return "nothing" if float(text.replace(",", "")) == 0 else f"{text} %"


def ratio(value: float | None, digits: int = 2) -> str:
    """A slowdown or another ratio; `–` where it is undefined, and no minus before a zero."""
    return f"{round(value, digits) + 0.0:.{digits}f}" if value is not None and math.isfinite(value) else "–"


def counted(count: int, noun: str) -> str:
    """`1 step`, `1,024 workers`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def money(amount: float, currency: str) -> str:
    """An amount with two decimals; dollars get their sign, and a small loss is not called none."""
    under = "under " if 0 < amount < 0.01 else ""
    amount = 0.01 if under else amount
    return f"{under}${amount:,.2f}" if currency == "USD" else f"{under}{amount:,.2f} {currency}"


def price(amount: float, currency: str) -> str:
    """A price per GPU-hour, as short as it can be said."""
    return f"${amount:g}" if currency == "USD" else f"{amount:g} {currency}"


def data_size(count: float | None) -> str:
    """Bytes in powers of 1000: 512 B, 4.10 kB, 2.00 GB; `–` where there are none, or not known."""
    if count is None or not math.isfinite(count) or count <= 0:
        return "–"
    for limit, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= 0.9995 * limit:
            return f"{three_digits(count / limit)} {unit}"
    return f"{three_digits(count)} B"


def bandwidth(bytes_per_s: float | None) -> str:
    """`20.0 GB/s`; `–` where it is not known."""
    size = data_size(bytes_per_s)
    return size if size == "–" else f"{size}/s"
