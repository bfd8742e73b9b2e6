"""Stands in for `smon_rt._runtime` where it cannot be loaded: takes every call and does nothing.

The calls mean what _runtime.pyi says of a process in which recording was never started.
"""

from __future__ import annotations

import operator
from typing import Any, Literal

from smon_rt.kinds import KIND_NAMES as KIND_NAMES

OK, DISABLED, ALREADY_STARTED, NOT_STARTED, INVALID_ARGUMENT, UNAVAILABLE, TIMED_OUT = range(7)

#: Why `smon_rt._runtime` is not there; set by `_backend`.
reason = ""


def calls() -> list[str]:
    """Names of what `smon_rt._runtime` must have."""
    ours = [name for name, value in globals().items() if getattr(value, "__module__", "") == __name__]
    return [name for name in ours if name != "calls"]


class span:  # noqa: N801, the name of the real one
    """A context manager that records nothing."""

    __slots__ = ()
    token = 0

    def __init__(self, kind: Any, **_ids: Any) -> None:
        pass

    def __enter__(self) -> span:
        return self

    def __exit__(self, *_exception: object) -> Literal[False]:
        return False


def begin(*_arguments: Any, **_ids: Any) -> int:
    return 0


def end(_token: Any) -> None:
    pass


abort = end


def annotate(*_arguments: Any, **_ids: Any) -> None:
    pass


def raises_later(function: Any) -> Any:
    return function


def current() -> int:
    return 0


def end_at(_token: Any, _ticks: Any, _time_source: Any, _flags: Any) -> None:
    pass


def ticks() -> int:
    return 0


def find_open(_kinds: Any) -> int:
    return 0


def act_on_collectives(_recording: Any) -> None:
    pass


close_forward = act_on_collectives


def end_reductions() -> None:
    pass


end_all_operations = clear_transfers = interrupt_optimizer = go_on_with_optimizer = end_reductions


def learn_files(*_files: Any) -> None:
    pass


expect_transfer = learn_optimizers = learn_schedules = learn_passes = learn_files


def take_transfer(_tensor: Any, _is_send: Any) -> None:
    return None


def exchange_kinds(_kinds: Any) -> None:
    return None


def is_sampled() -> bool:
    return False


def step_begin(_step: Any = None) -> None:
    pass


def step_end() -> None:
    pass


class HookState:
    """What hooks look at: see the stub."""

    is_on = is_stepped_by_script = is_stepped_by_framework = is_counting_steps = must_discover = False
    is_looking_for_models = is_end_awaited = must_look = False
    recording = models = forwards = backwards = ended_steps = backward_passes = 0
    step = -1


switch = HookState()
_learned: list[Any] = []


def learn_failed(_failed: Any) -> None:
    pass


def learn_steps(*learned: Any) -> None:
    _learned[:] = learned


def step_begun(number: Any) -> None:
    try:
        switch.step = operator.index(number)
    except TypeError:
        switch.step += 1
    if _learned and _learned[1]:
        _learned[2](switch.step)


def end_step() -> None:
    if _learned and _learned[3]:
        _learned[4]()


class step:  # noqa: N801, the name of the real one
    """Nothing is recorded, but plans of garbage collection go by it."""

    __slots__ = ("_number",)

    def __init__(self, k: Any = None) -> None:
        self._number = k

    def __enter__(self) -> step:
        switch.is_stepped_by_script = True
        step_begun(self._number)
        return self

    def __exit__(self, *_exception: object) -> None:
        end_step()


def has_stepped() -> bool:
    return True


def metric(_name: Any, _value: Any) -> None:
    pass


def start(**_config: Any) -> int:
    return UNAVAILABLE


def stop() -> int:
    return NOT_STARTED


def pause() -> None:
    pass


capture_begin = capture_end = pause


resume = pause


def last_error() -> str:
    return reason


def set_layout(**_layout: Any) -> int:
    return OK


def set_fact(_key: str, _value: str) -> int:
    return OK


def name_id(_name: str) -> int:
    return 0


def register_track(_device: int, _stream: int) -> int:
    return 0


def register_communicator(_name: str, _dimension: str, _member_ranks: Any) -> int:
    return 0


def set_stream_waits(_comm_id: int) -> None:
    return None


def request_sampling(_first_step: int, _step_count: int) -> int:
    return NOT_STARTED


def status() -> dict[str, Any]:
    flags: dict[str, Any] = {"is_started": False, "is_paused": False, "step": -1}
    texts = {"dropped_by_kind": {}, "file_path": "", "file_error": reason, "nccl_detail_refusal": reason}
    return flags | dict.fromkeys(_COUNTERS, 0) | texts


_COUNTERS = (
    *("recorded_spans", "written_spans", "dropped_spans", "foreign_tokens", "stale_tokens", "threads_without_ring"),
    *("sampled_steps", "steps", "file_bytes", "drain_cpu_ns", "uncounted_sequences", "unwritten_spans"),
    *("reclaimed_spans", "saturated_steps", "misused_calls"),
    *("nccl_communicators", "nccl_ops", "nccl_joined_ops", "nccl_foreign_handles", "nccl_stale_handles"),
    *("nccl_lost_ends", "nccl_rejected_times", "nccl_untracked", "nccl_kernel_ops"),
)


def version() -> str:
    return ""


def set_misuse_handler(_handler: Any) -> None:
    pass
