"""Checks that end in every way in which a check can end, for `test_check_gpu.py`; each runs in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NoReturn

from smon_rt.check_gpu import endings
from smon_rt.check_gpu.model import Finding, NotHere


def meets() -> Finding:
    return Finding(True, "3.0 µs a span", {"span_us": 3.0, "worst_us": float("inf")})


def misses() -> Finding:
    print("a line that explains it", flush=True)
    return Finding(False, "9.0 µs a span", {"span_us": 9.0})


def lacks() -> Finding:
    raise NotHere("triton is not here")


def raises() -> Finding:
    raise ZeroDivisionError("division by zero")


def crashes() -> NoReturn:
    print("about to crash", flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)
    raise AssertionError("still here")


def crashes_at_exit() -> Finding:
    import atexit

    atexit.register(os._exit, 3)
    return meets()


def hangs() -> NoReturn:
    """With a child of its own, which must not outlive it either."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(os.environ["CHECK_CHILD_FILE"]).write_text(str(child.pid))
    while True:
        time.sleep(1)


def hangs_in_a_job() -> NoReturn:
    """With a recorded job under way: this module, run as a program."""
    endings._JOB = "tests.python.check_gpu_cases"
    with tempfile.TemporaryDirectory(prefix="smon-check-") as name:
        endings.run_job(Path(name), "hangs", "host")
    raise AssertionError("the job ended")


if __name__ == "__main__":
    Path(os.environ["CHECK_CHILD_FILE"]).write_text(str(os.getpid()))
    while True:
        time.sleep(1)
