"""What a report needs to know besides the trace."""

from __future__ import annotations

from dataclasses import dataclass

_LARGEST_PRICE = 1e9
_LONGEST_CURRENCY_COUNT = 12


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """What the user says of a report.

    `gpu_hour_price` in `currency`: what the loss is priced at. `steps_chosen`: the user asked for some steps only.
    `layers`: how many each stage has, where the user says so.
    Raises ValueError where they cannot be printed as a price.
    """

    gpu_hour_price: float = 2.0
    currency: str = "USD"
    steps_chosen: bool = False
    layers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        # A cost is this times GPU-hours: it must stay finite, and short enough for its line.
        if not 0 <= self.gpu_hour_price <= _LARGEST_PRICE:
            raise ValueError(f"a GPU-hour's price must be from 0 to {_LARGEST_PRICE:g}, not {self.gpu_hour_price!r}")
        if not (1 <= len(self.currency) <= _LONGEST_CURRENCY_COUNT and self.currency.isprintable()):
            raise ValueError(f"a currency must be 1 to {_LONGEST_CURRENCY_COUNT} letters, not {self.currency!r}")
