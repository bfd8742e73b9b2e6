"""Every environment variable that smon_rt reads, parsed here and nowhere else.

The table in the README is made from `VARIABLES`, by `markdown_table()`. `import smon_rt` loads this: keep it cheap.
"""

from __future__ import annotations

import os
from enum import IntEnum
from typing import NamedTuple


class LogLevel(IntEnum):
    """How much is said on stderr; each level includes the ones before it."""

    OFF = -1
    ERROR = 0
    WARNING = 1
    INFO = 2
    DEBUG = 3


class Variable(NamedTuple):
    """One environment variable: its name, the value meant when it is unset, and what it does."""

    name: str
    default: str
    effect: str


#: What NCCL loads as its profiler plug-in: ours, unless it is set already.
NCCL_PROFILER_PLUGIN = "NCCL_PROFILER_PLUGIN"
#: Process, device and inode of the library that was named to NCCL: by it a copy, loaded beside, knows to stay inert.
NCCL_INSTANCE = "SMON_RT_NCCL_INSTANCE"

#: Another plug-in behind ours: 1, or the name of one, which `import smon_rt` puts there for 1.
NCCL_CHAIN = "SMON_RT_NCCL_CHAIN"
#: NCCL's own: which network plug-ins it loads.
NCCL_NET_PLUGIN = "NCCL_NET_PLUGIN"

# The recorder reads its own in csrc/api/environment.cc.
VARIABLES: tuple[Variable, ...] = (
    Variable(
        "SMON_RT_TRACE_DIR", "none", "where traces go if `start()` names no directory; without either there is no file"
    ),
    Variable(
        "SMON_RT_SAMPLE_RATIO",
        "0.1",
        "share of steps whose spans are recorded, 0 to 1, once the first 20 after the warm-up are",
    ),
    Variable(
        "SMON_RT_NCCL_DETAIL",
        "0",
        "1 asks NCCL when its kernels run, in sampled steps, where its version bears that; it costs bandwidth",
    ),
    Variable("SMON_RT_WARMUP_STEPS", "3", "first steps of a process, which the analysis leaves out"),
    Variable("SMON_RT_RUN_ID", "TORCHELASTIC_RUN_ID, else run", "names the run: the same for all ranks and attempts"),
    Variable("SMON_RT_DISABLE", "0", "1 makes everything inert: nothing is recorded, no thread runs, no file is made"),
    Variable(
        "SMON_RT_LOG",
        "warning",
        "how much is said on stderr: off, error, warning, info or debug; debug adds tracebacks of unexpected errors",
    ),
    Variable(
        "SMON_RT_VERDICT_WITHIN_S",
        "10",
        "how long rank 0 waits at the end for the verdict of a small job, to print it; 0: it names the command",
    ),
    Variable(
        NCCL_PROFILER_PLUGIN,
        "our library's path",
        "NCCL's profiler plug-in, set by `import smon_rt`; another one, or `none`, stays: NCCL then tells us nothing",
    ),
    Variable(
        NCCL_CHAIN,
        "0",
        "1 has NCCL load ours although the job has another profiler plug-in, which ours then calls; or the name of one",
    ),
    Variable(
        "SMON_RT_AGENT_DIR",
        "XDG_RUNTIME_DIR, else /tmp",
        "where the checkpoint agent of a node has its folder; not on a file system that other nodes see",
    ),
    Variable(
        "SMON_RT_NODE", "none", "tells checkpoint agents apart where one machine plays several nodes, as in tests"
    ),
    Variable("RANK, WORLD_SIZE, LOCAL_RANK", "0, 1, 0", "of this process, as torchrun sets them"),
    Variable(
        "LOCAL_WORLD_SIZE", "1", "processes of the job on this machine, which share its memory (`smon_rt.gc.plan`)"
    ),
    Variable(
        "TORCHELASTIC_RESTART_COUNT",
        "first without a file",
        "the attempt: how often torchrun has started the job again",
    ),
)


_VERDICT_WITHIN_S = 10.0


def log_level() -> LogLevel:
    """The level of SMON_RT_LOG; an unknown word means the default, since a typo must not stop a job."""
    word = os.environ.get("SMON_RT_LOG", "").strip().upper()
    return LogLevel.__members__.get(word, LogLevel.WARNING)


def agent_base() -> str:
    """Below which folder agents have theirs, as the C interface finds it where a job names none."""
    return os.environ.get("SMON_RT_AGENT_DIR") or os.environ.get("XDG_RUNTIME_DIR") or "/tmp"


def verdict_within_s() -> float:
    """Seconds of SMON_RT_VERDICT_WITHIN_S; what is no number from 0 on means the default, as with SMON_RT_LOG."""
    try:
        limit_s = float(os.environ.get("SMON_RT_VERDICT_WITHIN_S", ""))
    except ValueError:
        return _VERDICT_WITHIN_S
    return limit_s if 0 <= limit_s < float("inf") else _VERDICT_WITHIN_S


def is_disabled() -> bool:
    """Whether SMON_RT_DISABLE makes everything inert: any value but 0, false, no and off, as the recorder reads it."""
    return os.environ.get("SMON_RT_DISABLE", "").strip().lower() not in ("", "0", "false", "no", "off")


def nccl_profiler_plugin() -> str | None:
    """What NCCL will load as its profiler plug-in; None where it is not told."""
    return os.environ.get(NCCL_PROFILER_PLUGIN) or None


def nccl_chain() -> str | None:
    """What the job wants behind our plug-in: "1", whatever NCCL would load, or a name; None: nothing."""
    word = os.environ.get(NCCL_CHAIN, "").strip()
    return None if word.lower() in ("", "0", "false", "no", "off") else word


def nccl_net_plugins() -> list[str]:
    """The network plug-ins that NCCL will look for."""
    named = os.environ.get(NCCL_NET_PLUGIN, "").split(",")
    return [name for name in map(str.strip, named) if name]


def library_folders() -> list[str]:
    """Where the loader looks first, by LD_LIBRARY_PATH."""
    return [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]


def whole_number(name: str, default: int) -> int:
    """RANK, WORLD_SIZE or LOCAL_WORLD_SIZE, as torchrun sets them."""
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        return default


def _as_code(names: str) -> str:
    return ", ".join(f"`{name}`" for name in names.split(", "))


def markdown_table() -> str:
    """The table for the README."""
    rows = [f"| {_as_code(v.name)} | {v.default} | {v.effect} |" for v in VARIABLES]
    return "\n".join(["| variable | default | effect |", "|---|---|---|", *rows])
