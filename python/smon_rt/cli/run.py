"""`smon run`: record a script without touching it."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import click


@click.command(
    "run",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []},
)
@click.argument("arguments", metavar="[OPTIONS] script.py ...", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> NoReturn:
    """Record a script without touching it."""
    # The script gets a process of its own, with this one's number: neither signal handlers nor streams nor modules of
    # the command line are in it.
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "smon_rt.run", *arguments])
