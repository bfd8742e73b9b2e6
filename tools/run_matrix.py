"""Tries the other compilers and Pythons that this machine has; for use before a release.

    python tools/run_matrix.py

Each compiler builds and runs the C++ tests; each Python gets the project in an environment of its own and runs the
Python tests; each older torch gets one, too, and runs those of torch. Prints a dated table and exits with 1 if anything
failed. A compiler or Python that is not installed is not in the table.
"""

from __future__ import annotations

import datetime
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMPILERS = ("g++-11", "g++-12", "g++-13", "g++-14", "clang++-14", "clang++-16", "clang++-19")
#: Older ones, by this Python: the last whose process groups take no hooks is between this and 2.15.
TORCHES = ("torch==2.6.0",)
PYTHONS = ("python3.10", "python3.11", "python3.12", "python3.13", "python3.13t", "python3.14", "python3.14t")


def is_installed(name: str) -> bool:
    """Version managers put names on PATH that do not run, so it is tried."""
    return shutil.which(name) is not None and subprocess.run([name, "--version"], capture_output=True).returncode == 0


def run_all(commands: list[list[str]], log: Path) -> bool:
    """Runs commands one after the other until one fails; what they print goes to the log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as out:
        return all(
            subprocess.run(command, cwd=ROOT, stdout=out, stderr=out, check=False).returncode == 0
            for command in commands
        )


def try_compiler(compiler: str, log: Path) -> bool:
    build = str(ROOT / "build" / f"matrix-{compiler}")
    settings = [f"-DCMAKE_CXX_COMPILER={compiler}", "-DSMON_RT_BUILD_PYTHON=OFF"]
    return run_all(
        [
            ["cmake", "--preset", "release", "-B", build, *settings],
            ["cmake", "--build", build],
            ["ctest", "--test-dir", build, "--output-on-failure", "--no-tests=error"],
        ],
        log,
    )


def try_python(python: str, log: Path) -> bool:
    environment = ROOT / "build" / f"matrix-{python}"
    inner = str(environment / "bin" / "python")
    return run_all(
        [
            [python, "-m", "venv", str(environment)],
            [inner, "-m", "pip", "install", "-q", f"{ROOT}[test]"],
            # The installed package is tested: the checkout's python/ folder is on no path.
            [inner, "-m", "pytest", "-q", str(ROOT / "tests" / "python")],
        ],
        log,
    )


def try_torch(requirement: str, log: Path) -> bool:
    environment = ROOT / "build" / f"matrix-{requirement}"
    inner = str(environment / "bin" / "python")
    tests = [str(path) for path in sorted((ROOT / "tests" / "python").glob("test_torch_*.py"))]
    return run_all(
        [
            [sys.executable, "-m", "venv", str(environment)],
            [inner, "-m", "pip", "install", "-q", requirement, f"{ROOT}[test]"],
            [inner, "-m", "pytest", "-q", *tests],
        ],
        log,
    )


def main() -> int:
    rows = []
    for name in (*COMPILERS, *PYTHONS, *TORCHES):
        if name not in TORCHES and not is_installed(name):
            continue
        log = ROOT / "build" / "matrix-logs" / f"{name}.log"
        started = time.monotonic()
        attempt = try_compiler if name in COMPILERS else try_torch if name in TORCHES else try_python
        passed = attempt(name, log)
        rows.append((name, passed, time.monotonic() - started))
        print(f"{name}: {'ok' if passed else f'FAILED, see {log.relative_to(ROOT)}'}", flush=True)
    print(f"\n{datetime.date.today().isoformat()}, {os.uname().machine}\n\n| with | result | s |\n|---|---|---|")
    for name, passed, elapsed_s in rows:
        print(f"| {name} | {'ok' if passed else 'failed'} | {elapsed_s:.0f} |")
    return 0 if rows and all(passed for _, passed, _ in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
