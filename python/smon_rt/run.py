"""Runs a script as Python would, and records it: `python -m smon_rt.run [--dir D] [--sample-ratio R] script.py …`.

    torchrun --nproc-per-node 8 -m smon_rt.run --dir traces train.py --lr 3e-4
    torchrun --nproc-per-node 8 -m smon_rt.run -m package.train

The script is `__main__`, with its own sys.argv and sys.path, exit code and tracebacks; processes that it starts itself
are not recorded. torch is not loaded before the script does: hooks wait for it. Without torchrun there is one process,
and `smon run script.py` is the same.
"""

from __future__ import annotations

import argparse
import builtins
import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any, NoReturn

DEFAULT_DIR = "traces"
EXIT_BAD_INPUT = 2
_OURS = (__file__, "<frozen runpy>", "<frozen importlib._bootstrap>")


def parse(arguments: list[str]) -> argparse.Namespace:
    """Our options, up to the script or module; what follows is its own.

    Example:
        >>> options = parse(["--dir", "d", "train.py", "--dir", "its own"])
        >>> options.dir, options.is_module, options.target, options.arguments
        ('d', False, 'train.py', ['--dir', 'its own'])
    """
    parser = argparse.ArgumentParser(prog="smon run", description="Record a script without touching it.")
    parser.add_argument("--dir", help=f"where traces go (SMON_RT_TRACE_DIR, else {DEFAULT_DIR})")
    parser.add_argument("--sample-ratio", type=float, help="share of steps whose spans are recorded, 0 to 1")
    parser.add_argument(
        "--nccl-detail",
        action="store_const",
        const=True,
        help="ask NCCL when its kernels run, in sampled steps (costs bandwidth)",
    )
    parser.add_argument(
        "--verdict-within", type=float, metavar="S", help="wait at most so many seconds at the end for the verdict (10)"
    )
    parser.add_argument("-m", dest="is_module", action="store_true", help="the target is a module, as python -m")
    parser.add_argument("target", metavar="script.py", help="what to run, followed by its own arguments")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main() -> None:
    """Records and runs what the command line names."""
    options = parse(sys.argv[1:])
    code, module = _find_module(options.target) if options.is_module else _find_script(options.target)
    sys.argv = [module.__file__ if options.is_module and module.__file__ else options.target, *options.arguments]
    _start(options)
    sys.modules["__main__"] = module
    try:
        exec(code, vars(module))
    except SystemExit:
        raise
    except BaseException:
        _show_only_the_script()
        raise


def _start(options: argparse.Namespace) -> None:
    """Starts recording, or says why not: only options that mean nothing keep the job from running."""
    import smon_rt
    from smon_rt import _closing

    trace_dir = options.dir or os.environ.get("SMON_RT_TRACE_DIR") or DEFAULT_DIR
    try:
        smon_rt.start(trace_dir, sample_ratio=options.sample_ratio, nccl_detail=options.nccl_detail)
    except smon_rt.RecordingError as error:
        _refuse(str(error))
    _closing.wait_for_verdict(options.verdict_within)


def _find_script(path: str) -> tuple[CodeType, ModuleType]:
    """What `python path` runs: a file, or a folder or zip file with a __main__.py in it."""
    is_archive = Path(path).is_dir() or path.endswith((".zip", ".pyz", ".egg"))
    _replace_first_path(path if is_archive else str(Path(path).resolve().parent))
    if is_archive:
        spec = importlib.machinery.PathFinder.find_spec("__main__", [path])
        if spec is None:
            _refuse(f"can't find '__main__' module in '{path}'")
        return _code_of(spec), _new_main(spec, spec.origin)
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        _refuse(f"can't open file '{path}': {error.strerror}")
    file = str(Path(path).absolute())
    try:
        code = compile(source, file, "exec", dont_inherit=True)
    except SyntaxError:
        _show_only_the_script()
        raise
    module = _new_main(None, file)
    module.__loader__ = importlib.machinery.SourceFileLoader("__main__", file)
    return code, module


def _find_module(name: str) -> tuple[CodeType, ModuleType]:
    """What `python -m name` runs: a module, or the __main__ of a package."""
    _replace_first_path(str(Path.cwd()))
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            name = f"{name}.__main__"
            spec = importlib.util.find_spec(name)
    except (ModuleNotFoundError, ValueError):
        spec = None
    except BaseException:
        _show_only_the_script()
        raise
    if spec is None:
        _refuse(f"No module named {name}", exit_code=1)
    return _code_of(spec), _new_main(spec, spec.origin)


def _code_of(spec: importlib.machinery.ModuleSpec) -> CodeType:
    get_code = getattr(spec.loader, "get_code", None)
    code = get_code(spec.name) if get_code is not None else None
    if code is None:
        _refuse(f"there is no code of {spec.name} to run")
    assert isinstance(code, CodeType)
    return code


def _new_main(spec: importlib.machinery.ModuleSpec | None, file: str | None) -> ModuleType:
    """A `__main__` as Python makes it: ours stays what it is, and holds nothing of the script's."""
    module = ModuleType("__main__")
    attributes: dict[str, Any] = {"__builtins__": builtins, "__cached__": None, "__spec__": spec, "__package__": None}
    if spec is not None:
        attributes |= {"__package__": spec.parent, "__loader__": spec.loader, "__cached__": spec.cached}
    vars(module).update(attributes)
    module.__file__ = file
    return module


def _replace_first_path(folder: str) -> None:
    """Where the script finds its neighbours; what Python put there for `-m smon_rt.run` is the current folder."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = folder


def _show_only_the_script() -> None:
    """Lets whichever hook shows the exception that ends the process start at the script's own frames.

    The exception goes its ordinary way, which decides over the exit code, so the frames are left out when it is shown.
    """
    show = sys.excepthook

    def show_script(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        while traceback is not None and traceback.tb_frame.f_code.co_filename in _OURS:
            traceback = traceback.tb_next
        show(kind, error.with_traceback(traceback), traceback)

    sys.excepthook = show_script


def _refuse(message: str, exit_code: int = EXIT_BAD_INPUT) -> NoReturn:
    print(f"smon run: {message}", file=sys.stderr)
    raise SystemExit(exit_code)


if __name__ == "__main__":
    main()
