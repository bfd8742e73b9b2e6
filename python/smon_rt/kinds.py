"""Kinds of spans by name: those of csrc/format/kind.h, in its order."""

from __future__ import annotations

from typing import Literal, get_args

KindName = Literal[
    "step",
    "forward_compute",
    "backward_compute",
    "forward_backward_combined",
    "forward_send",
    "forward_recv",
    "backward_send",
    "backward_recv",
    "params_all_gather",
    "grads_reduce_scatter",
    "grads_all_reduce",
    "layernorm_grads_all_reduce",
    "embedding_grads_all_reduce",
    "separate_grads_all_reduce",
    "collective",
    "optimizer_clip_main_grad",
    "optimizer",
    "data_loading",
    "gc",
    "checkpoint_snapshot",
    "checkpoint_wait",
    "eval",
    "startup",
    "metric",
    "user",
]

#: Names of kinds, by their number.
KIND_NAMES: tuple[str, ...] = get_args(KindName)

#: Messages between stages, by the name under which reports merge both ends.
MERGED_MESSAGE_KINDS: dict[str, tuple[KindName, KindName]] = {
    "forward_pp_comm": ("forward_send", "forward_recv"),
    "backward_pp_comm": ("backward_send", "backward_recv"),
}
MESSAGE_KINDS: tuple[KindName, ...] = tuple(kind for ends in MERGED_MESSAGE_KINDS.values() for kind in ends)
#: Collectives over the dp ranks of a stage.
DP_COLLECTIVE_KINDS: tuple[KindName, ...] = (
    "params_all_gather",
    "grads_reduce_scatter",
    "grads_all_reduce",
    "separate_grads_all_reduce",
)
#: All that ranks do together, but for messages between stages.
COLLECTIVE_KINDS: tuple[KindName, ...] = (
    *DP_COLLECTIVE_KINDS,
    "layernorm_grads_all_reduce",
    "embedding_grads_all_reduce",
    "optimizer_clip_main_grad",
    "collective",
)
