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
    """As `end`, for a span that ended at `ticks` (0, or a time to come: now), as that source of smon_rt.trace.kinds saw
    (0 host, 4 wait_return), with these further bits of span_flag. TypeError for anything but ints: integrations call
    it."""

def ticks() -> int:
    """The clock of spans, now."""

def find_open(kinds: int, /) -> int:
    """Token of this thread's innermost open span of some kinds (a bit each, by their numbers), 0 if none."""

# For the hooks of integrations alone: they raise TypeError for arguments of another type.

def make_collective_hooks(
    group: object, rank: int, members: list[int], /
) -> tuple[Callable[[Any], None], Callable[[Any], None]]:
    """The hooks before and after an operation of a process group. `group.register()` is asked for the communicator's
    number at the first operation of each recording; `members` are global ranks."""

def why_no_hook_functions(register_pre_hook: object, /) -> str:
    """Why torch cannot have hooks that are functions of C++, "" if it can: its pybind11 is not ours. Never raises."""

def make_hook_functions(before: Callable[[Any], None], /) -> tuple[Callable[[Any], None], Callable[[Any], None]] | None:
    """The same two hooks, as functions of C++ that torch takes the addresses of; `before` is the first of
    `make_collective_hooks` (TypeError: it is something else). None: too many groups have them. Not for others to call:
    they take arguments of torch alone."""

def learn_torch(
    operations: dict[int, tuple[bool, bool, int]],
    op_id: Callable[[Any], int],
    name: Callable[[Any], Any],
    name_value: Callable[[Any], int],
    input_tensors: Callable[[Any], list[Any]],
    output_tensors: Callable[[Any], list[Any]],
    root: Callable[[Any], int],
    post_op_id: Callable[[Any], int],
    post_async_op: Callable[[Any], bool],
    work: Callable[[Any], Any],
    graph_task: Callable[[], int] | None,
    are_gradients: Callable[[list[Any]], bool],
    reduction_began: Callable[[], None],
    end_with_future: Callable[[int, Any], None],
    failed: Callable[[Exception], None],
    /,
) -> None:
    """What hooks need. operations: number in HookOpName → is it a transfer, a send, and the kind it has when it reduces
    gradients (0: it cannot). The others read attributes of the hooks' arguments, and do what happens seldom."""

def know_layout() -> None:
    """This torch is of a version whose layout in memory is known: once attributes have said the same often enough, what
    an unsampled transfer needs is read there. Never called, nothing is."""

def learn_files(origins: dict[str, int], engine_file: str, function_file: str, /) -> None:
    """Paths of files → who issues an operation whose caller is in there, as in integrations/torch/gradients.py."""

def act_on_collectives(recording: int, /) -> None:
    """Hooks act from here on, in the recording of this number; 0: they do not."""

def exchange_kinds(kinds: bytes | None, /) -> bytes | None:
    """Kinds that this thread's operations have, a byte for each number of HookOpName. Returns those of before."""

def raises_later(function: Callable[..., Any], /) -> Callable[..., Any]:
    """Calls it. What it raises, as a signal's handler may, is raised in the main thread once Python goes on."""

def recorded_wait(original: Callable[..., Any], /) -> Any:
    """What `Work.wait` becomes."""

def begin_operation(
    kind: int, microbatch: int, chunk: int, comm_id: int, peer: int, payload_bytes: int, flags: int, /
) -> int:
    """Begins the span of an operation. 0: it has none of its own, since someone has opened one around it."""

def issue_operation(token: int, origin: int, address: int, is_on_cpu: bool, work: Any, /) -> None:
    """It has been issued: the span ends with the wait for this work, or now if there is none."""

def abort_operation(token: int, /) -> None: ...
def end_awaited(key: int, flags: int, /) -> None:
    """The operation of this key, which `end_with_future` got, is done."""

def end_awaited_at(tensor: Any, /) -> None:
    """The functional collective whose result this is has been waited for."""

def has_addresses() -> bool:
    """Whether any functional collective is awaited."""

def end_reductions() -> None:
    """The backward pass has returned: what the reducer issued is done."""

def end_all_operations() -> None:
    """So do all of them."""

def expect_transfer(tensor: Any, kind: int, microbatch: int, chunk: int, payload_bytes: int = -1, /) -> None:
    """What the next send or receive of this tensor is. Where its payload is said, and Python waits for it, the hooks
    need nothing of Python in a sampled step either."""

def take_transfer(tensor: Any, is_send: bool, /) -> tuple[int, int, int] | None:
    """That, once: kind, microbatch, chunk."""

def clear_transfers() -> None: ...
def set_forward(token: int, /) -> None:
    """This thread's forward that awaits its backward; 0: none."""

def forward() -> int: ...
def forward_returned() -> None:
    """Its module has returned, now."""

def end_forward() -> None:
    """Ends it now."""

def close_forward(flags: int, /) -> None:
    """Ends it where its module returned, unless that still runs."""

def set_inside_model(is_inside: bool, /) -> None: ...
def is_inside_model() -> bool:
    """Whether an outermost model's call runs on this thread."""

def await_backward_end(token: int, /) -> None:
    """A backward has begun: the engine may have computed all of it before it ends."""

def backward_computed() -> None:
    """The autograd engine has computed all; what it waits for now is somebody's collectives."""

def take_backward_end() -> int:
    """When that was, in ticks, once; 0: nobody has noticed."""

def recorded_stage_method(what: str, original: Callable[..., Any], number: int, /) -> Callable[..., Any]:
    """What a method of a pipeline's stage becomes: its forward, the loss after it, a backward (number 1: the part for
    the weights), or what gives the operations to issue (number: their kind). Of a schedule: its step, and the startup
    before its first one."""

def learn_schedules(
    say_layout: Callable[[Any], bool], run_eval: Callable[..., Any], run_startup: Callable[..., Any], /
) -> None:
    """What Python does of schedules: says the layout of one that is met first in a recording, and returns whether its
    stages go round the ranks; calls a forward-only step, or the startup: `run_eval(original, *args, **kwargs)`."""

def learn_passes(is_compiling: Callable[[], bool], graph_task: Callable[[], int] | None, /) -> None:
    """What a backward of a plain model asks of torch."""

def recorded_backward(original: Callable[..., Any], /) -> Callable[..., Any]:
    """What `torch.autograd.backward` becomes: a span, unless it runs inside of one."""

def recorded_next(original: Callable[..., Any], /) -> Callable[..., Any]:
    """What the `__next__` of a DataLoader's iterator becomes. A call that finds no batch is marked aborted."""

def learn_optimizers(
    begin_unless_explicit: Callable[[], None],
    optimizer_stepped: Callable[[Any], None],
    on_optimizer_step: list[Callable[[], None]],
    tell_step: Callable[[], None],
    close_step: Callable[[Any], None],
    /,
) -> None:
    """What Python does at steps of optimizers: begins the first step of a loop that says none; is told of an optimizer,
    seldom more than once; calls the hooks, if there are any; closes a step of such a loop."""

def before_optimizer(optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any], /) -> None:
    """torch calls it before any optimizer's step."""

def after_optimizer(optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any], /) -> None:
    """torch calls it after the step of an optimizer that returned."""

def interrupt_optimizer() -> None:
    """Something else begins, in the closure of an optimizer's step if there is one: the optimizer waits for it."""

def go_on_with_optimizer() -> None:
    """That has ended: what is left of the optimizer's step is the optimizer's."""

@final
class HookState:
    """What hooks look at in each step: of the process, in C++ and one line of memory. Each value stands for itself."""

    is_on: bool
    """Hooks act."""
    is_stepped_by_script: bool
    """The script says its steps itself."""
    is_stepped_by_framework: bool
    """A framework's own loop says them: torch's optimizers then end none."""
    is_counting_steps: bool
    """Nobody does, and hooks have begun to."""
    must_discover: bool
    """The job is to be asked where this process is, before its next step."""
    is_looking_for_models: bool
    """Outermost modules are being found."""
    is_end_awaited: bool
    """The engine will say when this backward pass has computed all."""
    must_look: bool
    """A backward pass has ended, and no optimizer has stepped since: a reduction may be one of gradients."""
    recording: int
    """Counts the recordings of this process: numbers of communicators are those of one."""
    models: int
    """Of the current step: calls of outermost models, recorded or not."""
    forwards: int
    backwards: int
    step: int
    """The step that has begun last, recorded or not; -1: none."""
    ended_steps: int
    backward_passes: int
    """How many have ended."""

#: The only one.
switch: HookState

def learn_failed(failed: Callable[[str, Exception], None], /) -> None:
    """Who is told which hook of ours raised what."""

def learn_steps(
    prepare: Callable[[], None],
    on_step_begun: list[Callable[[int], None]],
    tell_begun: Callable[[int], None],
    on_step_end: list[Callable[[], None]],
    tell_end: Callable[[], None],
    /,
) -> None:
    """What Python does at steps: before a script's first one; once one has begun, with its number, if any hook is in
    the list; at its end, likewise, or if outermost models are looked for or should be."""

def step_begun(number: SupportsIndex | None, /) -> None:
    """Tells whoever acts by the step's number; None: counted."""

def end_step() -> None:
    """The step ends, and with it what hooks still hold of it: operations of the one before that nobody waited for end
    where they had been issued."""

@final
class step:  # noqa: N801
    """The step that spans belong to from here on; without a number it is counted.

    Every step's wall time is recorded, and, where the step is sampled, its spans.

    Example:
        >>> import smon_rt
        >>> for k in range(3):
        ...     with smon_rt.step(k), smon_rt.span("forward_compute", microbatch=0):
        ...         pass
    """

    def __init__(self, k: SupportsIndex | None = None) -> None: ...
    def __enter__(self) -> step: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...

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
    nccl_detail: int,
) -> int:
    """smon_start; negative numbers, 0 bytes and None mean the environment's value, or the default."""

def stop() -> int: ...
def pause() -> None: ...
def resume() -> None: ...
def capture_begin() -> None: ...
def capture_end() -> None: ...
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
def set_stream_waits(comm_id: int) -> None:
    """Waits for ops of this communicator make a stream of the GPU wait, and return at once."""

def request_sampling(first_step: int, step_count: int) -> int: ...
def status() -> dict[str, Any]: ...
def version() -> str: ...
def set_misuse_handler(handler: Callable[[str, bool], object]) -> None: ...

@final
class TensorAddresses:
    """Where the tensors of a checkpoint lie, and whether all are still where they were found.

    Args:
        entries: (dict, key, tensor, its local tensor or None, its range or -1): `dict[key] is tensor` now.
        sizes: (container, its length now).
        addresses: of each range.
    """

    def __init__(
        self,
        entries: list[tuple[dict[Any, Any], Any, Any, Any, int]],
        sizes: list[tuple[Any, int]],
        addresses: list[int],
    ) -> None: ...
    def is_unchanged(self) -> bool: ...
    def set(self, range_index: int, address: int) -> None: ...
    def addresses(self) -> list[int]: ...

@final
class Checkpoint:
    """The C interface of checkpoints, call by call; where a call returns a result, `last_error` says why it is not OK.

    Labels are (incarnation, step); ranges (offset, bytes, address, device, is_volatile).
    """

    def open(self, options: dict[str, Any]) -> tuple[int, int]: ...
    def close(self, job_is_over: bool) -> None: ...
    def fence(self, incarnation: int) -> int: ...
    def list(self) -> tuple[int, list[tuple[tuple[int, int], int, bool, bool, int, str, str, str]]]: ...
    def pin(self, label: tuple[int, int], kept: Sequence[tuple[int, int]]) -> int: ...
    def fetch(self, label: tuple[int, int], tier: int) -> tuple[int, memoryview | None]: ...
    def release(self) -> None: ...
    def go_on(self, incarnation: int, next_step: int) -> int: ...
    def reject(self, label: tuple[int, int], reason: str) -> int: ...
    def set_layout(self, header: bytes, ranges: Sequence[tuple[int, int, int, int, bool]]) -> int: ...
    def capture(self, step: int, addresses: TensorAddresses, stream: int) -> int: ...
    def before_update(self, stream: int) -> None: ...
    def status(self) -> dict[str, Any]: ...
