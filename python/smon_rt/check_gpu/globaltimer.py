"""A kernel that reads the GPU's global timer. Imported by the check that needs it: triton comes with torch for CUDA."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

__all__ = ["read_timer"]


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _store_timer(out: Any) -> None:
    tl.store(out, tl.extra.cuda.globaltimer())


def read_timer(out: Any, index: int) -> None:
    """Enqueues a kernel on the current stream that puts the timer, in ns, into `out[index]` (int64, on the GPU)."""
    _store_timer[(1,)](out[index:])
