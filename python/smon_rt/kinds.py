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
