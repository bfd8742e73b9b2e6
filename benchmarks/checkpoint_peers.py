"""Other checkpoints beside ours, each saving and loading the same tensors: those that are installed.

Each is called as its documentation says for a state of CPU tensors in one process. What none of them is asked for here:
copies on other machines.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import shutil
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

Tensors = dict[str, Any]


class Peer(ABC):
    """One way to keep a state. `save` returns when training may go on; `finish` when the state is kept."""

    name: str

    @abstractmethod
    def __init__(self, folder: Path) -> None:
        """`folder` is this one's own, and may not exist yet."""

    @abstractmethod
    def save(self, tensors: Tensors, step: int) -> None: ...

    @abstractmethod
    def finish(self) -> None: ...

    @abstractmethod
    def load(self, tensors: Tensors) -> None:
        """Brings the newest state back into these tensors."""

    def close(self) -> None:  # noqa: B027 - most have nothing to close
        pass


class TorchAsyncSave(Peer):
    """`torch.distributed.checkpoint.async_save` into a folder."""

    name = "torch.distributed.checkpoint.async_save"

    def __init__(self, folder: Path) -> None:
        self._dcp = importlib.import_module("torch.distributed.checkpoint")
        self._folder = folder
        self._future: Any = None
        self._step = -1

    def save(self, tensors: Tensors, step: int) -> None:
        self.finish()
        shutil.rmtree(self._folder / str(self._step), ignore_errors=True)
        self._step = step
        self._future = self._dcp.async_save(tensors, checkpoint_id=str(self._folder / str(step)))

    def finish(self) -> None:
        if self._future is not None:
            self._future.result()
            self._future = None

    def load(self, tensors: Tensors) -> None:
        self._dcp.load(tensors, checkpoint_id=str(self._folder / str(self._step)))


class LmResiliency(Peer):
    """`InMemoryCheckpointManager.save_tensors` of lm-resiliency: two buffers in the trainer's own memory."""

    name = "lm-resiliency, in the trainer's memory"

    def __init__(self, folder: Path) -> None:
        module = importlib.import_module("lm_resiliency.checkpointing")
        config = module.InMemoryCkptConfig(
            interval=1, disk_flush_interval=0, disk_folder=str(folder), run_id="benchmark", pin_memory=False
        )
        self._manager = module.InMemoryCheckpointManager(config)

    def save(self, tensors: Tensors, step: int) -> None:
        self._manager.save_tensors([*tensors.values()], step)

    def finish(self) -> None:
        self._manager.maybe_wait()

    def load(self, tensors: Tensors) -> None:
        loaded = self._manager.load_tensors()
        if loaded is None:
            raise RuntimeError("nothing to load")
        for tensor, source in zip(tensors.values(), loaded[0], strict=True):
            tensor.copy_(source)

    def close(self) -> None:
        self._manager.close()


_PEERS: tuple[tuple[type[Peer], str, str], ...] = (
    (TorchAsyncSave, "torch", "torch.distributed.checkpoint"),
    (LmResiliency, "lm-resiliency", "lm_resiliency.checkpointing"),
)


def installed_peers() -> tuple[list[type[Peer]], list[str]]:
    """The kinds of peers that can be imported here, and a line about each of the others."""
    kinds, missing = [], []
    for kind, package, module in _PEERS:
        reason = _why_not(package, module)
        if reason:
            missing.append(f"{kind.name}: not measured ({reason})")
        else:
            kinds.append(kind)
    return kinds, missing


def _why_not(package: str, module: str) -> str:
    try:
        importlib.import_module(module)
        importlib.metadata.version(package)
    except Exception as error:  # another library: whatever keeps it from running here is the reason to print
        return f"{type(error).__name__}: {str(error)[:200]}"
    return ""


def timed(call: Any, *arguments: Any) -> float:
    """Seconds of one call."""
    began = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - began
