"""What several commands take alike: their options, and what these may be."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import click


def step_range(_context: click.Context, _parameter: click.Parameter, text: str | None) -> range | None:
    """`20-40` or `20` as a range; a range answers `in` without holding every number."""
    if text is None:
        return None
    # 18 digits hold every step, and Python refuses to read some thousand.
    match = re.fullmatch(r"\s*([0-9]{1,18})\s*(?:-\s*([0-9]{1,18})\s*)?", text)
    if match is None:
        raise click.BadParameter(f"{text!r} is no step range: write A-B, e.g. 20-40")
    first, last = match.groups()
    steps = range(int(first), int(last or first) + 1)
    if not steps:
        raise click.BadParameter(f"{text!r} is empty: the first step comes first")
    return steps


def layout_sizes(_context: click.Context, _parameter: click.Parameter, text: str | None) -> dict[str, int] | None:
    """`pp=2,dp=4` as sizes by dimension, in that order."""
    if text is None:
        return None
    sizes: dict[str, int] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*(dp|pp|tp|cp)\s*=\s*([1-9][0-9]{0,6})\s*", part)
        if match is None or match[1] in sizes:
            raise click.BadParameter(f"{text!r} is no layout: write sizes, the outermost first, e.g. pp=2,dp=4,tp=2")
        sizes[match[1]] = int(match[2])
    return sizes


def layer_counts(_context: click.Context, _parameter: click.Parameter, text: str | None) -> list[int] | None:
    """`8,8,8,6` as the layers of each stage."""
    if text is None:
        return None
    if re.fullmatch(r"\s*[1-9][0-9]{0,5}\s*(,\s*[1-9][0-9]{0,5}\s*)*", text) is None:
        raise click.BadParameter(f"{text!r} are no layers: write how many each stage has, e.g. 8,8,8,6")
    return [int(part) for part in text.split(",")]


def run_options(command: click.Command) -> click.Command:
    """`--run` and `--attempt`: another run than the newest one of the directories."""
    command.params += [
        click.Option(["--run", "run_id"], metavar="ID", help="This run; the newest otherwise."),
        click.Option(["--attempt"], metavar="N", type=click.IntRange(0), help="This attempt; the newest otherwise."),
    ]
    return command


def finite(_context: click.Context, _parameter: click.Parameter, value: float | None) -> float | None:
    """A number of zero or more, as a threshold must be."""
    if value is None:
        return None
    if not (math.isfinite(value) and value >= 0):
        raise click.BadParameter("must be a number of zero or more")
    return abs(value)  # -0.0 is a zero


def checked_by(option: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """A callback that lets `ReportOptions`, which knows the limits, look at one value."""

    def check(_context: click.Context, _parameter: click.Parameter, value: Any) -> Any:
        from smon_rt.analysis.report import ReportOptions

        try:
            return getattr(ReportOptions(**{option: value}), option)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return check


meta_option = click.option(
    "--meta", metavar="YAML", help="The job's record, for a parquet; looked for beside it when not given."
)
steps_option = click.option("--steps", metavar="A-B", callback=step_range, help="Only these steps, both ends included.")
layout_option = click.option(
    "--layout",
    metavar="pp=2,dp=4",
    callback=layout_sizes,
    help="Sizes, the outermost dimension first, for recorded ranks that do not say theirs.",
)
fail_above_option = click.option(
    "--fail-above",
    metavar="S",
    type=float,
    callback=finite,
    help="Exit with 1 if a slowdown, or a step over one without what its host is named for, is above S.",
)
price_option = click.option(
    "--gpu-hour-price",
    type=float,
    default=2.0,
    show_default=True,
    callback=checked_by("gpu_hour_price"),
    help="Price of a GPU-hour.",
)
currency_option = click.option(
    "--currency", default="USD", show_default=True, callback=checked_by("currency"), help="Currency of that price."
)
