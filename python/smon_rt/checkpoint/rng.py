"""The generators of random numbers that a training process has: torch's, Python's, NumPy's, Megatron's."""

from __future__ import annotations

import random
import struct
import sys
from typing import Any

import torch

#: Words of the Mersenne twister, and where it stands.
_TWISTER = struct.Struct("<625I")


def rng_state() -> dict[str, Any]:
    """All of them, as values that `Encoder` takes."""
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": [version, _TWISTER.pack(*words), gauss],
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state()
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy.random" in sys.modules:
        kind, keys, *rest = numpy.random.get_state()
        state["numpy"] = [kind, keys, *rest]
    tracker = _megatron_tracker()
    if tracker is not None:
        state["megatron"] = tracker.get_states()
    return state


def set_rng_state(state: dict[str, Any]) -> None:
    """Puts back what `rng_state` gave. What this process does not have is left alone."""
    torch.set_rng_state(state["torch"].cpu())
    version, words, gauss = state["python"]
    random.setstate((version, _TWISTER.unpack(words), gauss))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"].cpu())
    if "numpy" in state:
        import numpy as np

        np.random.set_state(tuple(state["numpy"]))
    tracker = _megatron_tracker()
    if tracker is not None and "megatron" in state:
        tracker.set_states(state["megatron"])


def _megatron_tracker() -> Any:
    module = sys.modules.get("megatron.core.tensor_parallel.random")
    tracker = getattr(module, "_CUDA_RNG_STATE_TRACKER", None)
    return tracker if tracker is not None and getattr(tracker, "is_initialized", bool)() else None
