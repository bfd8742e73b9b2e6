"""A job to be ended: `python -m smon_rt.check_gpu.job DIR exit|killed|stop host|gpu`.

It records `SPANS` spans in so many steps and ends inside a further one: by exit code `EXIT_CODE` without `stop`, by
SIGKILL, or, to be compared with, as it should.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable

import smon_rt
from smon_rt.check_gpu.gpu_work import GPU_KIND, cuda_torch, let_notice, square_product

__all__ = ["EXIT_CODE", "SPANS", "STEPS"]

STEPS, MICROBATCHES = 20, 4
SPANS = STEPS * MICROBATCHES
EXIT_CODE = 7
#: Spans stay in memory for a second or so; those of a killed job that are still there have host times only.
_WRITTEN_WITHIN_S = 2.0


def main() -> None:
    folder, how, where = sys.argv[1:]
    smon_rt.start(folder, sample_ratio=1.0, warmup_steps=0, integrations="none", strict=True)
    work: Callable[[], None] = lambda: None  # noqa: E731
    if where == "gpu":
        torch = cuda_torch()
        work = square_product(torch)
        let_notice(torch)
    for _ in range(STEPS):
        with smon_rt.step():
            for microbatch in range(MICROBATCHES):
                with smon_rt.span(GPU_KIND, microbatch=microbatch):
                    work()
    if where == "gpu":
        let_notice(torch)
        time.sleep(_WRITTEN_WITHIN_S)
    if how == "stop":
        smon_rt.stop()
        return
    with contextlib.ExitStack() as stack:
        stack.enter_context(smon_rt.step())
        stack.enter_context(smon_rt.span("backward_compute", microbatch=0))
        work()
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        sys.exit(EXIT_CODE)


if __name__ == "__main__":
    main()
