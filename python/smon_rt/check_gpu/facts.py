"""What this machine has. Asked in processes of their own: a broken driver may hang or crash whoever asks."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from smon_rt import __version__
from smon_rt.check_gpu.model import Need

__all__ = ["Facts", "ask_driver", "ask_recorder", "ask_torch"]

DRIVER_LIBRARY = "libcuda.so.1"
#: The first whose profiler plug-in we are.
NCCL_WITH_PLUGIN = (2, 27, 3)


@dataclass(frozen=True)
class Facts:
    """What is here. A reason is "" where there is nothing to explain."""

    no_recorder: str = ""
    no_gpu: str = ""
    driver_version: int = 0
    """As the driver counts: 13000 is 13.0."""
    devices: tuple[str, ...] = ()
    no_torch: str = ""
    torch: Mapping[str, Any] = field(default_factory=dict)
    nccl_version: tuple[int, ...] = ()

    def missing(self, need: Need) -> str:
        """Why this machine cannot serve a need, "" if it can."""
        if need is Need.RECORDER:
            return self.no_recorder
        if need is Need.GPU:
            return self.no_gpu
        if need is Need.TORCH:
            return self.no_torch
        if self.nccl_version < NCCL_WITH_PLUGIN:
            had = ".".join(map(str, self.nccl_version)) or "none"
            return f"NCCL has such plug-ins from {'.'.join(map(str, NCCL_WITH_PLUGIN))} on; here: {had}"
        return ""

    def to_json(self) -> dict[str, Any]:
        """Plain values, with the machine's name and versions."""
        return {
            "smon_rt": __version__,
            "python": platform.python_version(),
            "host": platform.node(),
            "kernel": platform.release(),
            "cpu_count": os.cpu_count(),
            **asdict(self),
        }


def ask_recorder() -> dict[str, Any]:
    """Whether spans can be recorded at all."""
    from smon_rt._backend import IS_NATIVE, native

    return {"reason": "" if IS_NATIVE else native.last_error() or "smon_rt was installed without its recorder"}


def ask_driver(library_name: str = DRIVER_LIBRARY) -> dict[str, Any]:
    """Version and devices of the GPU's driver; "reason" says why there is none."""
    try:
        driver = ctypes.CDLL(library_name)
    except OSError:
        return {"reason": f"no GPU: {library_name} is not here, which the GPU's driver brings"}
    if code := driver.cuInit(0):
        return {"reason": f"no GPU: the driver cannot begin (cuInit gives {code})"}
    version, count = ctypes.c_int(), ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(version))
    if code := driver.cuDeviceGetCount(ctypes.byref(count)):
        return {"reason": f"no GPU: the driver cannot count devices (cuDeviceGetCount gives {code})"}
    if not count.value:
        return {"reason": "no GPU: the driver sees none", "driver_version": version.value}
    names = []
    for ordinal in range(count.value):
        device, name = ctypes.c_int(), ctypes.create_string_buffer(256)
        driver.cuDeviceGet(ctypes.byref(device), ordinal)
        driver.cuDeviceGetName(name, len(name), device)
        names.append(name.value.decode("utf-8", "replace"))
    return {"reason": "", "driver_version": version.value, "devices": names}


def ask_torch() -> dict[str, Any]:
    """Versions of torch and of what it brings; "reason" says why it cannot compute on the GPU."""
    try:
        import torch as imported
    except ImportError as error:
        return {"reason": f"torch is not here: {error}"}
    torch: Any = imported
    facts: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda}
    if not torch.cuda.is_available():
        return {"reason": f"torch {torch.__version__} sees no GPU: install one with CUDA", **facts}
    facts["capability"] = list(torch.cuda.get_device_capability(0))
    if torch.distributed.is_available() and torch.distributed.is_nccl_available():
        facts["nccl"] = list(torch.cuda.nccl.version())
    return {"reason": "", **facts}
