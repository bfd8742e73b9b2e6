"""Work on a GPU, by torch, and spans around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from smon_rt.check_gpu.model import NotHere

__all__ = ["cuda_torch", "gpu_span", "square_product"]


def cuda_torch() -> Any:
    """torch, with a context on the first GPU. NotHere without either."""
    try:
        import torch
    except ImportError as error:
        raise NotHere(f"torch is not here: {error}") from error
    if not torch.cuda.is_available():
        raise NotHere(f"torch {torch.__version__} sees no GPU")
    torch.zeros(1, device="cuda")
    return torch


def gpu_span(kind: Any, **ids: Any) -> Any:
    """A span with times of the GPU."""
    import smon_rt

    return smon_rt.span(kind, **ids)


def square_product(size: int = 1024) -> Callable[[], None]:
    """Something to compute: the product of a matrix with itself, enqueued on the current stream."""
    torch = cuda_torch()
    matrix = torch.randn(size, size, device="cuda")
    out = torch.empty_like(matrix)

    def work() -> None:
        torch.mm(matrix, matrix, out=out)

    return work
