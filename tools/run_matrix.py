"""Tries other compilers, Pythons and torches than ours, for use before a release, and prints a dated table.

    python tools/run_matrix.py [CELL …] [--folder build/matrix]

A cell is a compiler (`g++-13`), which builds and runs the C++ tests; a Python (`3.12`, `3.13t`: free-threaded), which
gets an environment with a wheel built for it and runs the recorder's tests; or a torch (`torch-2.6.0`), which under our
own Python runs those of torch. Pythons are looked for on PATH and under ~/.pyenv/versions. What is not installed is
said. Exits with 1 if a cell failed. Takes some minutes a cell.
"""

from __future__ import annotations

import argparse
import datetime
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMPILERS = ("g++-11", "g++-13", "g++-14", "clang++-14", "clang++-16", "clang++-19")
#: Ours is what everything else is tested with.
PYTHONS = ("3.10", "3.12", "3.13", "3.13t", "3.14", "3.14t")
#: The last whose process groups take no hooks is between this and 2.15.
TORCHES = ("torch-2.6.0",)
TOOLS = ("pytest>=8", "hypothesis>=6.100", "setuptools>=68", "wheel", "pybind11>=2.13", "cmake>=3.24", "ninja")
RECORDER_TESTS = ("test_recording_*.py", "test_trace_*.py", "test_gc_*.py", "test_info.py", "test_closing_line.py")
TORCH_TESTS = ("test_torch_*.py", "test_integrations.py", "test_pipelining_hooks.py")
COMMAND_LIMIT_S = 3600


@dataclass(frozen=True)
class Cell:
    """What runs it, None if that is not installed, and how: commands one after the other, by what they do."""

    name: str
    program: str | None
    version: str
    commands: dict[str, list[str]]


def find_cell(name: str, folder: Path) -> Cell:
    if name in COMPILERS:
        return compiler_cell(name, folder / name)
    if name.startswith("torch-"):
        return python_cell(name, sys.executable, folder / name, (name.replace("-", "==", 1),), TORCH_TESTS)
    return python_cell(name, find_python(name), folder / name, (), RECORDER_TESTS)


def compiler_cell(name: str, build: Path) -> Cell:
    settings = [f"-DCMAKE_CXX_COMPILER={name}", "-DSMON_RT_BUILD_PYTHON=OFF"]
    commands = {
        "configuring": ["cmake", "--preset", "release", "-B", str(build), *settings],
        "building": ["cmake", "--build", str(build)],
        "testing": ["ctest", "--test-dir", str(build), "--output-on-failure", "--no-tests=error"],
    }
    program = shutil.which(name)
    return Cell(name, program, run([program, "-dumpfullversion"]) if program else "", commands)


def python_cell(
    name: str, program: str | None, environment: Path, requirements: tuple[str, ...], patterns: tuple[str, ...]
) -> Cell:
    python = str(environment / "bin" / "python")
    tests = [str(path) for pattern in patterns for path in sorted((ROOT / "tests" / "python").glob(pattern))]
    # The newest that come built: some are half in Rust by now, and their last ones not built for every Python.
    install = [python, "-m", "pip", "install", "-q", "--prefer-binary"]
    protoc = f"SMON_RT_PROTOC_PYTHON={sys.executable}"  # its tools are not built for every Python either
    commands = {
        "making the environment": [str(program), "-m", "venv", "--clear", str(environment)],
        "installing tools": [*install, *TOOLS, *requirements],
        # The installed package is tested: the checkout's python/ folder is on no path.
        "building and installing": ["env", protoc, *install, "--no-build-isolation", str(ROOT)],
        "testing": [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
    }
    return Cell(name, program, ask(program, "sys.version.split()[0]") if program else "", commands)


def find_python(version: str) -> str | None:
    """An interpreter of this version; one on PATH may be a shim with none behind it, so it is asked."""
    installed = Path.home().glob(f".pyenv/versions/{version.rstrip('t')}.*/bin/python{version}")
    for candidate in (shutil.which(f"python{version}"), *map(str, sorted(installed))):
        if candidate is not None and (found := ask(candidate, "sys.executable")):
            return found
    return None


def ask(python: str, expression: str) -> str:
    """What an interpreter says; empty if it does not run."""
    return run([python, "-c", f"import sys; print({expression})"])


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def run_cell(cell: Cell) -> tuple[bool, str]:
    """Whether it passed (or could not be run), and the table's words for it."""
    if cell.program is None:
        return True, "not run: not on this machine"
    output = ""
    for what, command in cell.commands.items():
        try:
            done = subprocess.run(command, cwd=ROOT, timeout=COMMAND_LIMIT_S, capture_output=True, text=True)
        except subprocess.TimeoutExpired:
            return False, f"FAILED: {what} took longer than {COMMAND_LIMIT_S} s"
        output = done.stdout.strip()
        if done.returncode != 0:
            print(output[-8000:], done.stderr[-8000:], sep="\n", file=sys.stderr)
            return False, f"FAILED while {what}: {last_line(output or done.stderr)}"
    return True, last_line(output)


def last_line(text: str) -> str:
    """The line that sums up: the last that counts what passed, else the last."""
    lines = text.strip().splitlines() or [""]
    return next((line for line in reversed(lines) if " passed" in line), lines[-1]).strip("= ")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", nargs="*", metavar="CELL", default=[*COMPILERS, *PYTHONS, *TORCHES])
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "matrix")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    print("| date | cell | version | result |\n|---|---|---|---|", flush=True)
    has_failed = False
    for name in options.cells:
        cell = find_cell(name, options.folder)
        is_good, words = run_cell(cell)
        has_failed |= not is_good
        print(f"| {datetime.date.today()} | {name} | {cell.version or '–'} | {words} |", flush=True)
    return 1 if has_failed else 0


if __name__ == "__main__":
    sys.exit(main())
