"""A kernel that reads the GPU's global timer. Imported by the check that needs it: triton comes with torch for CUDA."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

__all__ = ["read_timer", "store_timer"]


# Without types: triton reads them as part of the kernel.
@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def store_timer(out):  # type: ignore[no-untyped-def]
    tl.store(out, tl.extra.cuda.globaltimer())


def read_timer(out: Any, index: int) -> None:
    """Enqueues a kernel on the current stream that puts the timer, in ns, into `out[index]` (int64, on the GPU)."""
    store_timer[(1,)](out[index:])
