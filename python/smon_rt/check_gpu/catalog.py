"""All checks, in the order in which they run: first what needs no GPU."""

from __future__ import annotations

from smon_rt.check_gpu.model import Check, Need

__all__ = ["CHECKS"]

_PACKAGE = "smon_rt.check_gpu"

CHECKS: tuple[Check, ...] = (
    Check(
        name="contract_fakes",
        needs=(),
        shows="the timers of a machine without a GPU, and of the tests, do what a GPU timer does",
        limit="all checks of the contract hold",
        deadline_s=10,
        function=f"{_PACKAGE}.contract:run_fakes",
    ),
    Check(
        name="exit",
        needs=(Need.RECORDER,),
        shows="a job that ends without stop()",
        limit="its exit code is its own, its file is closed, no span is lost",
        deadline_s=25,
        function=f"{_PACKAGE}.endings:run_exit",
    ),
    Check(
        name="killed",
        needs=(Need.RECORDER,),
        shows="a job that is killed by SIGKILL",
        limit="no span is lost, and the next start puts the last ones into the file",
        deadline_s=45,
        function=f"{_PACKAGE}.endings:run_killed",
    ),
    Check(
        name="contract_cuda",
        needs=(Need.GPU,),
        shows="the timer of CUDA does what the ones of the tests do",
        limit="all checks of the contract hold",
        deadline_s=20,
        function=f"{_PACKAGE}.contract:run_cuda",
    ),
)
