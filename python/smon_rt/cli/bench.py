"""`smon bench`: what recording costs a step of one's own."""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import json
import math
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import click

from smon_rt.errors import SmonError, words_of

if TYPE_CHECKING:
    from smon_rt.bench import Measurement

_MODULE = "smon_bench_step"


def _above_zero(_context: click.Context, _parameter: click.Parameter, value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise click.BadParameter("must be a number above zero")
    return value


@click.command("bench", short_help="Say what recording adds to a training step of your own.")
@click.argument("step_file", metavar="STEP.py")
@click.option(
    "--seconds",
    type=float,
    default=20.0,
    show_default=True,
    callback=_above_zero,
    help="How long to measure, about; at least six rounds are done.",
)
@click.option("--dir", "trace_dir", metavar="D", help="Where traces go meanwhile; a temporary directory otherwise.")
@click.option("--json", "json_path", metavar="FILE", help="Write the figures as JSON; - is stdout.")
def command(step_file: str, seconds: float, trace_dir: str | None, json_path: str | None) -> None:
    """Say what recording adds to a training step of your own.

    STEP.py defines step(), which does one training step, and may define setup(), which is called once before. Steps
    without any recording, unsampled and sampled ones take turns. What an arm adds is a share of a bare step, with the
    interval in which it lies with 95 %.
    """
    from smon_rt.bench import measure
    from smon_rt.report.output_file import refuse_unwritable, write_text

    to_stdout = json_path == "-"
    if json_path is not None and not to_stdout:
        if Path(json_path).resolve() == Path(step_file).resolve():
            raise SmonError(
                f"{json_path}: the JSON would be written over the step: choose another place for the output"
            )
        refuse_unwritable(json_path)
    with contextlib.redirect_stdout(sys.stderr) if to_stdout else contextlib.nullcontext():
        module = _loaded(step_file)
        _call(step_file, module, "setup")
        step = _function(step_file, module, "step")
        with _in_one_line(step_file, "step() raised"):
            measured: Measurement = measure(step, seconds=seconds, trace_dir=trace_dir)
    if json_path is not None:
        write_text(json_path, json.dumps(measured.to_json(), indent=2) + "\n")
    click.echo(str(measured), file=sys.stderr if to_stdout else sys.stdout)


def _loaded(path: str) -> ModuleType:
    """The file as a module, which finds its neighbours as a script does."""
    file = Path(path)
    if not file.is_file():
        raise SmonError(f"{path}: {'is no file' if file.exists() else 'no such file'}: give a file that defines step()")
    loader = importlib.machinery.SourceFileLoader(_MODULE, str(file.resolve()))
    spec = importlib.util.spec_from_loader(_MODULE, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MODULE] = module  # dataclasses and pickle look there
    sys.path.insert(0, str(file.resolve().parent))
    with _in_one_line(path, "cannot be run:"):
        loader.exec_module(module)
    return module


def _function(path: str, module: ModuleType, name: str) -> Callable[[], object]:
    from smon_rt._measured_step import idle_kind

    function: Callable[[], object] | None = getattr(module, name, None)
    if function is None:
        raise SmonError(f"{path}: defines no {name}(): write `def {name}():`, which does one training step")
    if not callable(function):
        raise SmonError(f"{path}: {name} is a {type(function).__name__}, expected a function")
    if kind := idle_kind(function):
        raise SmonError(f"{path}: {name}() is {kind}: it does nothing when called; let it do its work itself")
    return function


def _call(path: str, module: ModuleType, name: str) -> None:
    if hasattr(module, name):
        with _in_one_line(path, f"{name}() raised"):
            _function(path, module, name)()


@contextlib.contextmanager
def _in_one_line(path: str, what: str) -> Iterator[None]:
    """Says where in the file an exception came from; ours go as they are unless the file is why."""
    from smon_rt._measured_step import StepError
    from smon_rt.cli import Ended

    try:
        yield
    except (KeyboardInterrupt, Ended):
        raise
    except BaseException as error:
        line = _line(path, error)
        if isinstance(error, SmonError):
            if not line and not isinstance(error, StepError):
                raise
            raise SmonError(f"{path}{line}: {error}") from error
        raise SmonError(f"{path}{line}: {what} {words_of(error)}") from error


def _line(path: str, error: BaseException) -> str:
    """The innermost line of the file that the exception came through, as `:12`."""
    file = str(Path(path).resolve())
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    if isinstance(error, SyntaxError) and error.filename == file:
        lines.append(error.lineno)
    return f":{lines[-1]}" if lines else ""
