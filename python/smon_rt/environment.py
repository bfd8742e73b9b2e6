"""Every environment variable that smon_rt reads, parsed here and nowhere else.

The table in the README is made from `VARIABLES` (`python -m smon_rt.environment` prints it).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import IntEnum


class LogLevel(IntEnum):
    """How much is said on stderr; each level includes the ones before it."""

    ERROR = 0
    WARNING = 1
    INFO = 2
    DEBUG = 3


@dataclass(frozen=True)
class Variable:
    """One environment variable: its name, the value meant when it is unset, and what it does."""

    name: str
    default: str
    effect: str


VARIABLES: tuple[Variable, ...] = (
    Variable(
        "SMON_RT_LOG",
        "warning",
        "how much is said on stderr: error, warning, info or debug; debug adds the traceback of an unexpected error",
    ),
)


def log_level() -> LogLevel:
    """The level of SMON_RT_LOG; an unknown word means the default, since a typo must not stop a job."""
    word = os.environ.get("SMON_RT_LOG", "").strip().upper()
    return LogLevel.__members__.get(word, LogLevel.WARNING)


def markdown_table() -> str:
    """The table for the README."""
    rows = [f"| {v.name} | {v.default} | {v.effect} |" for v in VARIABLES]
    return "\n".join(["| variable | default | effect |", "|---|---|---|", *rows])


if __name__ == "__main__":
    print(markdown_table())
