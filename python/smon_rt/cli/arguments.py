"""What several commands take alike: paths and ranges of steps."""

from __future__ import annotations

import re

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
