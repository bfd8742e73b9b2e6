"""Names of the numbers in a span: kinds, time sources, flags. Those of csrc/format/kind.h and span.h."""

from __future__ import annotations

from smon_rt.kinds import KIND_NAMES as KIND_NAMES  # re-exported

KIND_NUMBERS = {name: number for number, name in enumerate(KIND_NAMES)}
METRIC = KIND_NUMBERS["metric"]
SENDS = (KIND_NUMBERS["forward_send"], KIND_NUMBERS["backward_send"])
RECVS = (KIND_NUMBERS["forward_recv"], KIND_NUMBERS["backward_recv"])

TIME_SOURCE_NAMES = ("host", "gpu_event", "wait_event", "nccl_globaltimer", "wait_return")
#: Time sources of spans that have no times of the device.
HOST_TIME_SOURCES = (0, 4)

FLAG_NAMES = (
    "aborted",
    "in_capture",
    "forward_only",
    "recomputed",
    "fallback_hook",
    "warmup",
    "other_thread",
    "step_counted",
    "saturated",
    "not_waited",
)
FLAGS = {name: 1 << bit for bit, name in enumerate(FLAG_NAMES)}

CLOCK_SOURCE_NAMES = ("unknown", "tsc", "cntvct", "clock_gettime")
PHASE_NAMES = ("starting", "training", "eval", "checkpoint", "stopping")


def name_of(number: int, names: tuple[str, ...], what: str) -> str:
    """The name of a number, or `<what>_<number>` for one of a later version."""
    return names[number] if 0 <= number < len(names) else f"{what}_{number}"


def kind_name(number: int) -> str:
    """The one spelling of a kind."""
    return name_of(number, KIND_NAMES, "kind")


def flag_names(flags: int) -> list[str]:
    """The names of the bits that are set."""
    known = [name for bit, name in enumerate(FLAG_NAMES) if flags >> bit & 1]
    rest = flags >> len(FLAG_NAMES) << len(FLAG_NAMES)
    return [*known, f"flags_{rest:#x}"] if rest else known
