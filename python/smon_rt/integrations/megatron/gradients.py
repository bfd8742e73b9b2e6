"""What the collectives of Megatron's data parallelism are for: hooks of process groups see them, this says their kind.

- `_ParamAndGradBucketGroup.start_grad_sync` issues the reduction of a group of buckets, whoever calls it: a backward
  hook inside the last backward, on the autograd engine's thread where there is a GPU; `finish_grad_sync`, in the first
  step and without overlap. grads_reduce_scatter or grads_all_reduce, as issued; with several instances of the
  distributed optimizer both.
- `start_param_sync` issues the gather of parameters. The pre-hook of each module calls `finish_param_sync`, a hundred
  times a step, which mostly finds nothing to wait for: the one that waits is seen by `Work.wait`.
- The functions that `finalize_model_grads` calls are found by it when it runs, so it does not matter who holds a
  reference to it.

What is issued anywhere else stays a `collective`: the count of tokens, the norms of MoE routers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from smon_rt.integrations.megatron import optimizer
from smon_rt.integrations.patches import Method, Patches
from smon_rt.integrations.state import failed, switch
from smon_rt.integrations.torch.collectives import override
from smon_rt.kinds import KIND_NAMES, KindName

__all__ = ["PARTS"]

_BUFFERS = "megatron.core.distributed.param_and_grad_buffer"
_FINALIZE = "megatron.core.distributed.finalize_model_grads"
_RANDOM = "megatron.core.tensor_parallel.random"
_ALL_REDUCES = ("ALLREDUCE", "ALLREDUCE_COALESCED")


def _all_reduces(kind: KindName) -> dict[str, int]:
    return dict.fromkeys(_ALL_REDUCES, KIND_NAMES.index(kind))


# A reduce-scatter that sums in float32 is an all-to-all, and a sum on each rank.
_SCATTERS = ("REDUCE_SCATTER", "REDUCE_SCATTER_BASE", "REDUCE_SCATTER_TENSOR_COALESCED", "ALLTOALL_BASE")
_REDUCTIONS = _all_reduces("grads_all_reduce") | dict.fromkeys(_SCATTERS, KIND_NAMES.index("grads_reduce_scatter"))
_GATHERS = dict.fromkeys(
    ("ALLGATHER", "ALLGATHER_BASE", "ALLGATHER_COALESCED", "ALLGATHER_INTO_TENSOR_COALESCED"),
    KIND_NAMES.index("params_all_gather"),
)
_LAYERNORM = _all_reduces("layernorm_grads_all_reduce")
_EMBEDDING = _all_reduces("embedding_grads_all_reduce")
_NO_GRADIENTS: dict[str, int] = {}
#: Functions of finalize_model_grads that reduce gradients, by the names that versions gave them.
_FINALIZING: tuple[tuple[tuple[str, ...], dict[str, int]], ...] = (
    (("_allreduce_non_tensor_model_parallel_grads", "_allreduce_layernorm_grads"), _LAYERNORM),
    (("_allreduce_word_embedding_grads", "_allreduce_embedding_grads"), _EMBEDDING),
    (("_allreduce_position_embedding_grads",), _EMBEDDING),
    (("_allreduce_conditional_embedding_grads",), _EMBEDDING),
)


def _wrap_buckets(patches: Patches) -> list[str]:
    group = sys.modules[_BUFFERS]._ParamAndGradBucketGroup
    return [
        patches.wrap(group, "start_grad_sync", ("self",), _issuing(_REDUCTIONS)),
        patches.wrap(group, "start_param_sync", ("self", "force_sync"), _gathering),
    ]


def _wrap_finalize(patches: Patches) -> list[str]:
    module = sys.modules[_FINALIZE]
    problems = []
    for names, kinds in _FINALIZING:
        name = next((name for name in names if name in vars(module)), names[0])
        problems.append(patches.wrap(module, name, ("model", "config"), _issuing(kinds)))
    return problems


def _wrap_recompute(patches: Patches) -> list[str]:
    owner = sys.modules[_RANDOM].CheckpointWithoutOutput
    return [patches.wrap(owner, "_recompute", ("self",), _issuing(_NO_GRADIENTS))]


def _issuing(kinds: dict[str, int]) -> Callable[[Method], Method]:
    """Operations that a function issues have these kinds, by their names; others are collectives."""

    def make(original: Method) -> Method:
        def issue(*args: Any, **kwargs: Any) -> Any:
            if not switch.is_on:
                return original(*args, **kwargs)
            with override(kinds):
                return original(*args, **kwargs)

        return issue

    return make


def _gathering(original: Method) -> Method:
    def start_param_sync(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not switch.is_on:
            return original(self, *args, **kwargs)
        try:
            is_forced = args[0] if args else kwargs.get("force_sync", False)
            if is_forced or not self.ddp_config.overlap_param_gather:
                optimizer.parameters_are_ready()
        except Exception as error:
            failed("megatron.params", error)
        with override(_GATHERS):
            return original(self, *args, **kwargs)

    return start_param_sync


PARTS: dict[str, tuple[str, Callable[[Patches], list[str]]]] = {
    "gradients": (_BUFFERS, _wrap_buckets),
    "finalize": (_FINALIZE, _wrap_finalize),
    "recompute": (_RANDOM, _wrap_recompute),
}
