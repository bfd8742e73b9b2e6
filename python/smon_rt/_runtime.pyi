"""The recorder (C++), over the C interface of libsmon_rt.so. `smon_rt` offers it in better words.

Hot calls read positional arguments faster than named ones. Kinds are names ("forward_compute") or numbers. Nothing
raises for what it is given, except while a job is being set up (before its first step), or if `start` was strict.
"""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Literal, SupportsIndex, final

from smon_rt.kinds import KindName

#: Names of kinds, by their number.
KIND_NAMES: tuple[str, ...]

# What control calls return.
OK: int
DISABLED: int
ALREADY_STARTED: int
NOT_STARTED: int
INVALID_ARGUMENT: int
UNAVAILABLE: int
TIMED_OUT: int

@final
class span:  # noqa: N801
    """What it encloses becomes a span; an exception that leaves it marks the span aborted.

    An object may be kept and entered again, also by other threads and before it was left. Tasks of one thread that
    take turns inside it (async, generators) each need their own.

    Args:
        kind: name or number.
        microbatch, chunk: of the pipeline, -1 if they do not apply.
        name_id, name: what a span of kind "user" is called; the text is turned into its number once.
        comm_id, comm_seq, peer, payload_bytes: communicator of `register_communicator`, place in its order (0:
            counted), global rank of the other side (-1: none).
        track_id: of `register_track`.
        flags: bits of span_flag in csrc/format/span.h.

    Example:
        >>> import smon_rt
        >>> with smon_rt.span("user", name="tokenize"):
        ...     pass
    """

    def __init__(
        self,
        kind: KindName | SupportsIndex,
        *,
        microbatch: SupportsIndex | None = -1,
        chunk: SupportsIndex | None = -1,
        name_id: SupportsIndex | None = 0,
        comm_id: SupportsIndex | None = 0,
        peer: SupportsIndex | None = -1,
        comm_seq: SupportsIndex | None = 0,
        payload_bytes: SupportsIndex | None = 0,
        track_id: SupportsIndex | None = 0,
        flags: SupportsIndex | None = 0,
        name: str | None = None,
    ) -> None: ...
    @property
    def token(self) -> int:
        """Of the span that is open, 0 if none: for `annotate`."""
    def __enter__(self) -> span: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> Literal[False]: ...

def begin(
    kind: KindName | SupportsIndex,
    microbatch: SupportsIndex | None = -1,
    chunk: SupportsIndex | None = -1,
    name_id: SupportsIndex | None = 0,
    comm_id: SupportsIndex | None = 0,
    peer: SupportsIndex | None = -1,
    comm_seq: SupportsIndex | None = 0,
    payload_bytes: SupportsIndex | None = 0,
    track_id: SupportsIndex | None = 0,
    flags: SupportsIndex | None = 0,
    name: str | None = None,
) -> int:
    """Begins a span of this thread and returns its token; 0 if there is none (not started, or full: counted).

    Arguments are those of `span`. For integrations: the pair costs half of `with`.

    Example:
        >>> import smon_rt
        >>> token = smon_rt.begin("forward_compute", 3)
        >>> smon_rt.end(token)
    """

def end(token: int, /) -> None:
    """Ends a span, on any thread, once. Another end, or a token that nobody gave, is counted and ignored."""

def abort(token: int, /) -> None:
    """As `end`, for a span that an exception left."""

def annotate(
    token: int,
    microbatch: SupportsIndex | None = -1,
    chunk: SupportsIndex | None = -1,
    name_id: SupportsIndex | None = 0,
    comm_id: SupportsIndex | None = 0,
    peer: SupportsIndex | None = -1,
    comm_seq: SupportsIndex | None = 0,
    payload_bytes: SupportsIndex | None = 0,
    track_id: SupportsIndex | None = 0,
    flags: SupportsIndex | None = 0,
    name: str | None = None,
) -> None:
    """Adds what became known after the span began. Only ids that are given change."""

def current() -> int:
    """Token of this thread's innermost open span, 0 if none."""

def end_at(token: int, ticks: int, time_source: int, flags: int, /) -> None:
    """As `end`, for a span that ended at `ticks` (0: now), as that source of smon_rt.trace.kinds saw (0 host, 4
    wait_return), with these further bits of span_flag. TypeError for anything but ints: integrations call it."""

def ticks() -> int:
    """The clock of spans, now."""

def find_open(kinds: int, /) -> int:
    """Token of this thread's innermost open span of some kinds (a bit each, by their numbers), 0 if none."""

def is_sampled() -> bool:
    """Whether the current step's spans are recorded: what is costly to find out can be left out otherwise."""

def metric(name: str, value: float, /) -> None:
    """Records a value at this point in time.

    Example:
        >>> import smon_rt
        >>> smon_rt.metric("loss", 2.5)
    """

def step_begin(step: SupportsIndex | None = None, /) -> None:
    """The step that spans belong to from here on; counted without a number. The one before ends if it has not."""

def step_end() -> None: ...
def has_stepped() -> bool:
    """Whether a step has begun in this process, recorded or not."""

def start(
    *,
    trace_dir: str | None,
    run_id: str | None,
    attempt: int,
    rank: int,
    world_size: int,
    local_rank: int,
    sample_ratio: float,
    warmup_steps: int,
    always_steps: int,
    max_file_bytes: int,
) -> int:
    """smon_start; negative numbers, 0 bytes and None mean the environment's value, or the default."""

def stop() -> int: ...
def pause() -> None: ...
def resume() -> None: ...
def last_error() -> str: ...
def set_layout(
    *,
    dp_rank: int,
    stage: int,
    tp_rank: int,
    cp_rank: int,
    expert_dp_rank: int,
    dp_size: int,
    pp_size: int,
    tp_size: int,
    cp_size: int,
    vpp_size: int,
    microbatch_count: int,
    schedule: str | None,
) -> int: ...
def set_fact(key: str, value: str) -> int: ...
def name_id(name: str) -> int:
    """The number of a name; 0 if nothing is recorded, or its table is full."""

def register_track(device: int, stream: int) -> int: ...
def register_communicator(name: str, dimension: str, member_ranks: Sequence[int]) -> int: ...
def request_sampling(first_step: int, step_count: int) -> int: ...
def status() -> dict[str, Any]: ...
def version() -> str: ...
def set_misuse_handler(handler: Callable[[str, bool], object]) -> None: ...
