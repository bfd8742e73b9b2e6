"""All checks, in the order in which they run: first what needs no GPU."""

from __future__ import annotations

from smon_rt.check_gpu.model import Check, Need

__all__ = ["CHECKS"]

_PACKAGE = "smon_rt.check_gpu"

_ON_GPU = (Need.RECORDER, Need.GPU, Need.TORCH)

CHECKS: tuple[Check, ...] = (
    Check(
        name="contract_fakes",
        needs=(),
        shows="the timers of a machine without a GPU, and of the tests, do what a GPU timer does",
        limit="all checks of the contract hold",
        deadline_s=7,
        function=f"{_PACKAGE}.contract:run_fakes",
    ),
    Check(
        name="loader",
        needs=(Need.RECORDER,),
        shows="recording finds the GPU's driver, or goes on without",
        limit="without a driver one line says so; no span is lost either way",
        deadline_s=8,
        function=f"{_PACKAGE}.loader:run",
    ),
    Check(
        name="nccl_plugin",
        needs=(Need.RECORDER,),
        shows="what NCCL calls in each version of its plug-in, without NCCL",
        limit="v4, v5 and v6 answer every call with success, whatever they are handed",
        deadline_s=7,
        function=f"{_PACKAGE}.plugin:run",
    ),
    Check(
        name="exit",
        needs=(Need.RECORDER,),
        shows="a job that ends without stop()",
        limit="its exit code is its own, its file is closed, no span is lost",
        deadline_s=12,
        function=f"{_PACKAGE}.endings:run_exit",
    ),
    Check(
        name="killed",
        needs=(Need.RECORDER,),
        shows="a job that is killed by SIGKILL",
        limit="no span is lost, and the next start puts the last ones into the file",
        deadline_s=16,
        function=f"{_PACKAGE}.endings:run_killed",
    ),
    Check(
        name="contract_cuda",
        needs=(Need.GPU,),
        shows="the timer and the copier of CUDA do what the ones of the tests do",
        limit="all checks of the contract hold",
        deadline_s=15,
        function=f"{_PACKAGE}.contract:run_cuda",
    ),
    Check(
        name="gpu_copies",
        needs=(Need.GPU,),
        shows="a state of 256 MiB copied to the host beside the job's work, as checkpoints do",
        limit="≥ 90 % of a plain copy's speed, ≤ 200 µs a call, work ≤ 10 % longer, none of 20 snapshots torn",
        deadline_s=15,
        function=f"{_PACKAGE}.copies:run",
    ),
    Check(
        name="event_cost",
        needs=_ON_GPU,
        shows="what a span with times of the GPU costs the thread that records it",
        limit="≤ 10 µs more than a host span, ≥ 99 % have times of the GPU",
        deadline_s=30,
        function=f"{_PACKAGE}.event_cost:run",
    ),
    Check(
        name="overlap",
        needs=_ON_GPU,
        shows="communication beside compute, with CUDA_DEVICE_MAX_CONNECTIONS 1, 8 and 32",
        limit="recording keeps ≥ 95 % of the overlap",
        deadline_s=65,
        function=f"{_PACKAGE}.overlap:run",
    ),
    Check(
        name="graph_capture",
        needs=_ON_GPU,
        shows="graphs captured while events are polled",
        limit="all graphs right, captured spans say so and have no event, ≥ 95 % of the replays have times of the GPU",
        deadline_s=35,
        function=f"{_PACKAGE}.graph_capture:run",
    ),
    Check(
        name="clock_bound",
        needs=_ON_GPU,
        shows="times of the GPU on the host's line, against the GPU's own timer",
        limit="≥ 99.9 % right within their bound, which is ≤ 300 µs at first and ≤ 50 µs after 60 steps of 1 s",
        deadline_s=95,
        function=f"{_PACKAGE}.clock_bound:run",
    ),
    Check(
        name="gpu_exit",
        needs=_ON_GPU,
        shows="a job that ends without stop() while its GPU works",
        limit="its exit code is its own, its file is closed, no span is lost, ≥ 90 % have times of the GPU",
        deadline_s=25,
        function=f"{_PACKAGE}.endings:run_gpu_exit",
    ),
    Check(
        name="gpu_killed",
        needs=_ON_GPU,
        shows="a job that is killed by SIGKILL while its GPU works",
        limit="no span is lost, the next start puts the last ones into the file, ≥ 90 % have times of the GPU",
        deadline_s=35,
        function=f"{_PACKAGE}.endings:run_gpu_killed",
    ),
    Check(
        name="nccl_pair",
        needs=(*_ON_GPU, Need.NCCL),
        shows="NCCL's plug-in, with two ranks on one GPU over sockets",
        limit="right results, all operations told and in the traces, ≥ 99 % of them of spans, channels moved data",
        deadline_s=60,
        function=f"{_PACKAGE}.nccl_pair:run",
    ),
    Check(
        name="training",
        needs=_ON_GPU,
        shows="what recording adds to a step of a small transformer",
        limit="≤ 0.1 % not sampled, ≤ 0.5 % sampled (lower ends of 95 % intervals), no span dropped",
        deadline_s=55,
        function=f"{_PACKAGE}.training:run",
    ),
)
