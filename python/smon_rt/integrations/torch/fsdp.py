"""FSDP2: what its collectives are for, told by which of its functions runs; the hooks see the collectives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from smon_rt.integrations.torch.collectives import override
from smon_rt.kinds import KIND_NAMES

__all__ = ["all_gather", "reduce"]

_PARAMS, _SCATTER, _REDUCE = map(KIND_NAMES.index, ("params_all_gather", "grads_reduce_scatter", "grads_all_reduce"))
_GATHERS = dict.fromkeys(
    ("ALLGATHER", "ALLGATHER_BASE", "ALLGATHER_COALESCED", "ALLGATHER_INTO_TENSOR_COALESCED"), _PARAMS
)
# Between replicas of shards gradients are also all-reduced.
_REDUCTIONS = dict.fromkeys(("REDUCE_SCATTER", "REDUCE_SCATTER_BASE", "REDUCE_SCATTER_TENSOR_COALESCED"), _SCATTER)
_REDUCTIONS |= dict.fromkeys(("ALLREDUCE", "ALLREDUCE_COALESCED"), _REDUCE)


def all_gather(original: Callable[..., Any]) -> Callable[..., Any]:
    """What `foreach_all_gather` becomes."""

    def foreach_all_gather(*args: Any, **kwargs: Any) -> Any:
        with override(_GATHERS):
            return original(*args, **kwargs)

    return foreach_all_gather


def reduce(original: Callable[..., Any]) -> Callable[..., Any]:
    """What `foreach_reduce` becomes."""

    def foreach_reduce(*args: Any, **kwargs: Any) -> Any:
        with override(_REDUCTIONS):
            return original(*args, **kwargs)

    return foreach_reduce
