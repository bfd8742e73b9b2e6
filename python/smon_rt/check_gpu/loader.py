"""Whether recording finds the GPU's driver, or says in one line that there is none and goes on without."""

from __future__ import annotations

import ctypes
import tempfile
from pathlib import Path

from smon_rt.check_gpu.endings import recorded_figures, run_job
from smon_rt.check_gpu.facts import DRIVER_LIBRARY
from smon_rt.check_gpu.job import SPANS
from smon_rt.check_gpu.model import Finding

__all__ = ["finding_of", "run"]

#: Of the line at level info that says why there are no times of a GPU.
_WITHOUT = "spans have host times only"


def run() -> Finding:
    with tempfile.TemporaryDirectory(prefix="smon-check-") as name:
        ended = run_job(Path(name), "stop", "host", SMON_RT_LOG="info")
        figures = recorded_figures(Path(name), "host")
    lines = [line for line in ended.said.splitlines() if _WITHOUT in line]
    return finding_of(_has_driver(), lines, ended.exit_code, figures["spans"])


def _has_driver() -> bool:
    try:
        ctypes.CDLL(DRIVER_LIBRARY)
    except OSError:
        return False
    return True


def finding_of(has_driver: bool, lines: list[str], exit_code: int | None, span_count: int) -> Finding:
    """One line where there is no driver and none where there is, and a whole recording either way.

    Example:
        >>> finding_of(False, ["smon_rt: info: no CUDA driver; spans have host times only"], 0, SPANS).words
        'no driver, said in 1 line; 80 of 80 spans'
    """
    figures = {"has_driver": has_driver, "lines": lines, "exit_code": exit_code, "spans": span_count}
    is_met = len(lines) == (0 if has_driver else 1) and exit_code == 0 and span_count == SPANS
    said = f"said in {len(lines)} line{'' if len(lines) == 1 else 's'}"
    found = "the driver was found" if has_driver and not lines else f"the driver is here, and is not taken: {lines}"
    return Finding(is_met, f"{found if has_driver else f'no driver, {said}'}; {span_count} of {SPANS} spans", figures)
