"""Says in the header of a trace whether NCCL tells what it does (`hook.nccl.profiler`), and why not."""

from __future__ import annotations

import sys
from typing import Any

from smon_rt import _nccl_plugin
from smon_rt._backend import native
from smon_rt.integrations import state

__all__ = ["forget", "started", "step_begun", "stopping", "uses_nccl", "why_not"]

KEY = "hook.nccl.profiler"

#: Why NCCL was not asked when its kernels run, where the job wants to know (`start(nccl_detail=True)`).
KERNELS_KEY = "hook.nccl.kernel_times"

#: How the library begins to say that the job does not.
NOT_WANTED = "not asked for"

#: The first that has a version of the interface that we speak.
OLDEST_VERSION = (2, 27, 3)

#: By this step, counted from the first of a recording, a job that uses NCCL has made a communicator.
LATEST_STEP = 2


class _State:
    recording = 0
    steps = 0
    said: str | None = None


def started() -> None:
    """A recording begins: its first steps are looked at."""
    if step_begun not in state.on_step_begun:
        state.on_step_begun.append(step_begun)


def forget() -> None:
    """Looks at no step any more."""
    if step_begun in state.on_step_begun:
        state.on_step_begun.remove(step_begun)


def step_begun(_step: int) -> None:
    """Looks at the third step of each recording whether NCCL has come to its plug-in."""
    if _State.recording != state.switch.recording:
        _State.recording = state.switch.recording
        _State.steps = 0
        _State.said = None
    if _State.steps <= LATEST_STEP:
        _State.steps += 1
        if _State.steps > LATEST_STEP:
            forget()
            _say()
            _say_kernels()


def stopping() -> None:
    """Looks again at its end, unless it has."""
    if _State.recording == state.switch.recording and _State.said != "":
        _say()


def _say() -> None:
    torch = sys.modules.get("torch")
    if not uses_nccl(torch):
        return
    reason = why_not(int(native.status()["nccl_communicators"]), _nccl_plugin.reason(), version_of(torch))
    if reason != _State.said:
        _State.said = reason
        native.set_fact(KEY, reason[:200])


def _say_kernels() -> None:
    """What is known of it in time for a job that is killed; the library says it at the end."""
    refusal = str(native.status()["nccl_detail_refusal"])
    if not refusal.startswith(NOT_WANTED):
        native.set_fact(KERNELS_KEY, refusal)


def uses_nccl(torch: Any) -> bool:
    """Whether the job's default process group has NCCL for tensors on GPUs."""
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return False
    return "nccl" in str(distributed.get_backend_config()).lower()  # as "cpu:gloo,cuda:nccl"


def version_of(torch: Any) -> tuple[int, ...]:
    """NCCL's, as torch has it; () if it does not say."""
    try:
        return tuple(int(part) for part in torch.cuda.nccl.version()[:3])
    except Exception:  # built without
        return ()


def why_not(communicators: int, not_named: str, version: tuple[int, ...]) -> str:
    """Why NCCL tells us nothing; "" if it does.

    Example:
        >>> why_not(2, "", (2, 30, 7))
        ''
        >>> why_not(0, "", (2, 21, 5))
        'NCCL 2.21.5 has no such plug-ins: they come with 2.27.3'
    """
    if communicators > 0:
        return ""
    if not_named:
        return not_named
    if version and version < OLDEST_VERSION:
        had, needed = (".".join(map(str, numbers)) for numbers in (version, OLDEST_VERSION))
        return f"NCCL {had} has no such plug-ins: they come with {needed}"
    return "NCCL never came to its plug-in: it had looked for one before smon_rt was imported, or could not load ours"
