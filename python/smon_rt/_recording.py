"""Recording, as a training script sees it; `smon_rt` itself offers these names and loads this at the first use.

Nothing here raises once the first step has begun, unless `start(strict=True)` asked for it: what cannot be recorded is
left out, counted, and said once.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import operator
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, cast

from smon_rt import _closing
from smon_rt import integrations as _integrations
from smon_rt._backend import IS_NATIVE, native, say
from smon_rt._layout import Layout, discover, torch_distributed
from smon_rt._status import Status as Status  # re-exported
from smon_rt._status import status as status
from smon_rt.environment import LogLevel
from smon_rt.errors import RecordingError, words_of
from smon_rt.integrations import state as hooks
from smon_rt.kinds import KIND_NAMES, KindName

begin = native.begin
end = native.end
abort = native.abort
annotate = native.annotate
current = native.current
is_sampled = native.is_sampled
metric = native.metric
span = native.span
step = native.step
attach = _integrations.attach
detach = _integrations.detach

_P = ParamSpec("_P")
_R = TypeVar("_R")
_MAX_MISUSES_SAID = 20
_LONGEST_MESSAGE = 200  # characters of what a script may have made up


class _State:
    """What this module remembers between calls."""

    is_strict = False
    is_layout_given = False
    is_capture_assumed = False
    said: frozenset[str] = frozenset()
    layout = Layout()


def start(
    trace_dir: str | os.PathLike[str] | None = None,
    *,
    sample_ratio: float | None = None,
    run_id: str | None = None,
    attempt: int | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    local_rank: int | None = None,
    warmup_steps: int | None = None,
    always_steps: int | None = None,
    max_file_bytes: int | None = None,
    nccl_detail: bool | None = None,
    integrations: str | Sequence[str] = "auto",
    strict: bool = False,
) -> bool:
    """Starts recording in this process, and returns whether it does.

    What keeps it from recording (SMON_RT_DISABLE, a live process of the same rank and attempt) is said in one line on
    stderr, and the job goes on. So is a directory that cannot be written; spans then stay in memory, for `smon info`.

    Args:
        trace_dir: where the file rank-<rank>.<run>-<attempt>.smon goes; SMON_RT_TRACE_DIR if not given, else nowhere.
        sample_ratio: share of steps whose spans are recorded, 0 to 1; SMON_RT_SAMPLE_RATIO, else 0.1.
        run_id: same for all ranks and attempts; SMON_RT_RUN_ID, TORCHELASTIC_RUN_ID, else "run".
        attempt: restarts of the job so far; TORCHELASTIC_RESTART_COUNT, else the first that has no file yet.
        rank, world_size, local_rank: of torch.distributed if it is set up, else RANK, WORLD_SIZE, LOCAL_RANK.
        warmup_steps: first steps that the analysis leaves out; SMON_RT_WARMUP_STEPS, else 3.
        always_steps: steps after them that are recorded whatever the ratio; 20.
        max_file_bytes: a file beyond it is closed and the next begun; 1 GiB.
        nccl_detail: asks NCCL when its kernels run, in sampled steps, where its version bears that (docs/gpu.md; the
            header of the trace says if not): it costs bandwidth. SMON_RT_NCCL_DETAIL, else False.
        integrations: what records by itself: "auto" (all), "none", some of torch, pipelining, megatron, gc.
        strict: raise where a job should rather go on: in tests.

    Raises:
        RecordingError: an argument is out of its range, or no integration; with `strict`, recording cannot start.

    Example:
        >>> import smon_rt
        >>> smon_rt.start("traces", sample_ratio=1.0)  # doctest: +SKIP
        True
    """
    ratio = _ratio(sample_ratio)
    numbers = {
        "attempt": _in_range("attempt", attempt, 0),
        "local_rank": _in_range("local_rank", local_rank, 0),
        "warmup_steps": _in_range("warmup_steps", warmup_steps, 0),
        "always_steps": _in_range("always_steps", always_steps, 0),
        "max_file_bytes": _in_range("max_file_bytes", max_file_bytes, 1, 2**63 - 1, default=0),
    }
    numbers["nccl_detail"] = _choice("nccl_detail", nccl_detail)
    _integrations.check("start", integrations)
    if rank is None and world_size is None and (distributed := torch_distributed()) is not None:
        rank, world_size = distributed.get_rank(), distributed.get_world_size()
    result = native.start(
        trace_dir=_text("trace_dir", trace_dir),
        run_id=_text("run_id", run_id),
        rank=_in_range("rank", rank, 0),
        world_size=_in_range("world_size", world_size, 1),
        sample_ratio=ratio,
        **numbers,
    )
    if result == native.OK:
        return _started(strict, integrations)
    return _refused(result, strict)


def _started(strict: bool, chosen: str | Sequence[str]) -> bool:
    _State.is_strict = strict
    hooks.switch.must_discover = True
    _closing.arm()
    if strict and (problem := native.status()["file_error"]):
        native.stop()
        raise RecordingError(problem)
    if _State.is_layout_given:
        _apply_layout(_State.layout)
    elif _State.layout != Layout():  # found in a recording before: this one finds its own
        _apply_layout(Layout())
    try:
        _integrations.attach(chosen)
        _integrations.started()
    except Exception as error:
        say(LogLevel.WARNING, f"nothing records by itself: {words_of(error)}")
    _assume_captures("torch" not in _integrations.attached())
    return True


def _assume_captures(is_unseen: bool) -> None:
    """Who does not see when a stream is captured into a graph must take it for one: NCCL is not asked for details."""
    if is_unseen and not _State.is_capture_assumed:
        native.capture_begin()
    elif not is_unseen and _State.is_capture_assumed:
        native.capture_end()
    _State.is_capture_assumed = is_unseen


def _refused(result: int, strict: bool) -> bool:
    problem = native.last_error()
    if result == native.DISABLED:
        say(LogLevel.WARNING, problem)
        return False
    if strict or result == native.INVALID_ARGUMENT:
        raise RecordingError(problem)
    if result == native.ALREADY_STARTED:
        say(LogLevel.WARNING, f"start: {problem}; the first start holds")
        return True
    if not IS_NATIVE:  # the library says why itself
        say(LogLevel.WARNING, problem)
    return False


def _in_range(name: str, value: float | None, least: int, most: int = 2**31 - 1, default: int = -1) -> int:
    """A whole number, whoever's type it is."""
    with contextlib.suppress(TypeError):
        if value is None or least <= operator.index(value) <= most:  # type: ignore[arg-type]
            return default if value is None else operator.index(value)  # type: ignore[arg-type]
    raise RecordingError(f"start: {name} is {value!r:.80}, expected a whole number from {least} to {most}")


def _ratio(value: float | None) -> float:
    with contextlib.suppress(TypeError, ValueError):
        if value is None or 0 <= value <= 1:
            return -1.0 if value is None else float(value)
    raise RecordingError(f"start: sample_ratio is {value!r:.80}, expected 0 to 1")


def _choice(name: str, value: bool | None) -> int:
    if value is None or value in (True, False):
        return -1 if value is None else int(value)
    raise RecordingError(f"start: {name} is {value!r:.80}, expected True or False")


def _text(name: str, value: str | os.PathLike[str] | None) -> str | None:
    """A run's name, or a directory: what the library and the file system take."""
    with contextlib.suppress(TypeError, UnicodeError):
        text = value if value is None or name == "run_id" else os.fsdecode(value)
        if text is None or (isinstance(text, str) and "\0" not in str(text.encode(), "utf-8")):
            return text
    raise RecordingError(f"start: {name} is {value!r:.200}, expected a text in UTF-8, without NUL")


def stop(*, closing_line: bool = True, verdict_within_s: float | None = None) -> bool:
    """Writes what is left and closes the file, within about a second. Returns whether all of it is written.

    An exit of the process does the same. Recording can be started again. Rank 0 says in one line on stderr what was
    recorded, what it cost, and the verdict, or how to get it where the files of some ranks are elsewhere or large.

    Args:
        closing_line: False, or SMON_RT_LOG at error or off, leaves that line out.
        verdict_within_s: rank 0 waits this long, at most, for the verdict: another process, of low priority, analyses
            the directory. 0 waits for nothing and names the command; None: as SMON_RT_VERDICT_WITHIN_S says, else 10.
    """
    _integrations.stopping()
    result = native.stop()
    if result == native.TIMED_OUT:  # what else went wrong the library says when it does
        say(LogLevel.WARNING, f"stop: {native.last_error()}")
    if closing_line and result != native.NOT_STARTED:
        _closing.say_closing_line(verdict_within_s)
    return result == native.OK


def _discover_layout() -> None:
    """Asks the frameworks of the job where this process is. At the first step, since jobs set that up late."""
    if not hooks.switch.must_discover:
        return
    hooks.switch.must_discover = False
    try:
        found = discover()
        if found.layout is not None:
            found_layout(found.layout)
        for key, value in found.facts.items():
            native.set_fact(key, value)
    except Exception as error:
        say(LogLevel.WARNING, f"the coordinates of this process are not known: {words_of(error)}")


def set_layout(layout: Layout) -> None:
    """Says where in the job this process is: it holds against what torch.distributed or Megatron say."""
    _State.is_layout_given = True
    _apply_layout(layout)


def found_layout(layout: Layout) -> None:
    """As `set_layout`, by an integration: what the script says holds against it."""
    if not _State.is_layout_given:
        _apply_layout(layout)


def _apply_layout(layout: Layout) -> None:
    try:
        native.set_layout(**{name: getattr(layout, name) for name in Layout.__dataclass_fields__})
    except (TypeError, OverflowError, AttributeError):
        problem = f"set_layout: a layout has whole numbers and a schedule's name, not {layout!r:.200}"
        if _State.is_strict or not native.has_stepped():
            raise RecordingError(problem) from None
        say(LogLevel.WARNING, problem)
    else:
        _State.layout = layout


def known_layout() -> Layout:
    """What is known so far of where this process is."""
    return _State.layout


def wrap(kind: KindName | int, **ids: Any) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Decorates a function so that each of its calls is a span; of an async function, from call to result.

    Args:
        kind: name or number.
        ids: as of `span`.

    Raises:
        RecordingError: there is no such kind, or the function is a generator, whose calls end before its work begins.

    Example:
        >>> import smon_rt
        >>> @smon_rt.wrap("data_loading")
        ... def next_batch(loader):
        ...     return next(loader)
        >>> next_batch(iter([7]))
        7
    """
    number = _kind_number(kind)

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            name = getattr(function, "__qualname__", function)
            raise RecordingError(f"wrap: {name} is a generator: put `with smon_rt.span(…)` around its work instead")
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def recorded_coroutine(*args: _P.args, **kwargs: _P.kwargs) -> Any:
                with span(number, **ids):
                    return await function(*args, **kwargs)

            return cast("Callable[_P, _R]", recorded_coroutine)

        @functools.wraps(function)
        def recorded(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            with span(number, **ids):
                return function(*args, **kwargs)

        return recorded

    return decorate


def _kind_number(kind: str | int) -> int:
    if isinstance(kind, str) and kind in KIND_NAMES:
        return KIND_NAMES.index(kind)
    if isinstance(kind, int) and 0 <= kind < len(KIND_NAMES):
        return kind
    raise RecordingError(_with_hint(f"wrap: there is no kind {kind!r}"))


def pause() -> None:
    """Recording off until `resume`; meanwhile everything is as cheap as before `start`."""
    native.pause()


def resume() -> None:
    """Recording on again, from the next step."""
    native.resume()


def request_sampling(steps: int, first_step: int | None = None) -> bool:
    """Records every one of `steps` coming steps on all ranks that hear of it in time, through the trace directory.

    `first_step` must not have begun; without it the window begins soon. Returns whether this process will. Raises
    RecordingError when there is no such window: 1 to 10,000 steps.
    """
    try:
        result = native.request_sampling(-1 if first_step is None else first_step, steps)
    except (TypeError, OverflowError):
        result, problem = native.INVALID_ARGUMENT, f"no window of {steps!r} steps from {first_step!r}"
    else:
        problem = native.last_error()
    if result == native.OK:
        return True
    if result == native.INVALID_ARGUMENT and (_State.is_strict or not native.has_stepped()):
        raise RecordingError(problem)
    say(LogLevel.WARNING, f"request_sampling: {problem}")
    return False


def _with_hint(message: str) -> str:
    """Adds the kind that was meant, if one is near."""
    found = re.search(r"there is no kind '(.*)'$", message)
    near = difflib.get_close_matches(found[1], KIND_NAMES, n=1) if found else []
    return f"{message}: did you mean '{near[0]}'?" if near else f"{message}; smon_rt.KIND_NAMES lists them"


def _on_misuse(message: str, is_definition: bool) -> None:
    """Called by the runtime. Raises while the job is being set up, later only if asked to: then it says it once."""
    is_raised = _State.is_strict or (is_definition and not native.has_stepped())
    # First, since a mistake in a step comes again and again. No lock, which a forked child would inherit locked: two
    # threads may say a thing twice.
    if not is_raised and (message in _State.said or len(_State.said) >= _MAX_MISUSES_SAID):
        return
    _State.said |= {message}
    words = message if len(message) <= _LONGEST_MESSAGE else message[:_LONGEST_MESSAGE] + "…"
    if "there is no kind" in message:
        words = _with_hint(words)
    if is_raised:
        raise RecordingError(words)
    say(LogLevel.WARNING, f"{words} (said once)")


native.set_misuse_handler(_on_misuse)
hooks.on_step_begin.append(_discover_layout)
