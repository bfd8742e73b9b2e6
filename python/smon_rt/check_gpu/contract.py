"""The contracts of GpuTimer and GpuCopier, held by the program that comes with the package: fakes everywhere, CUDA's
where a GPU is.

That the fakes and CUDA's hold the same contract is what makes tests on the fakes say something about a GPU.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import smon_rt
from smon_rt.check_gpu.model import Finding, NotHere

__all__ = ["finding_of", "run_cuda", "run_fakes"]

PROGRAM = Path(smon_rt.__file__).parent / "bin" / "smon_contract"
_NO_SUCH_TIMER = 2


def run_fakes() -> Finding:
    """The timer of a machine without a GPU, and the one that tests use."""
    return finding_of([_outcomes("null"), _outcomes("fake")])


def run_cuda() -> Finding:
    """CUDA's timer and copier, on the first GPU."""
    return finding_of([_outcomes("cuda"), _outcomes("cuda_copier")])


def _outcomes(timer: str) -> dict[str, Any]:
    """What the program says of one timer."""
    if not PROGRAM.exists():
        raise NotHere(f"{PROGRAM.name} is not in this installation: build the project, or install its wheel")
    done = subprocess.run([str(PROGRAM), timer], check=False, capture_output=True, text=True)
    if done.returncode == _NO_SUCH_TIMER:
        raise NotHere(done.stderr.strip())
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{PROGRAM.name} {timer}: exit code {done.returncode}: {done.stderr.strip()[-300:]}")
    return dict(json.loads(done.stdout))


def finding_of(outcomes: list[dict[str, Any]]) -> Finding:
    """All must hold; what does not is said.

    Example:
        >>> finding_of([{"timer": "fake", "checks": [{"name": "Full", "findings": ["no end"]}]}]).words
        '1 of 1 checks broken: fake Full: no end'
    """
    checks = [(one["timer"], check) for one in outcomes for check in one["checks"]]
    broken = [
        f"{timer} {check['name']}: {'; '.join(check['findings'])}" for timer, check in checks if check["findings"]
    ]
    figures = {"check_count": len(checks), "broken": broken}
    if broken:
        return Finding(False, f"{len(broken)} of {len(checks)} checks broken: {' | '.join(broken)}", figures)
    names = ", ".join(one["timer"] for one in outcomes)
    return Finding(bool(checks), f"{len(checks)} checks hold ({names})", figures)
