"""megatron_pretrain.py with one planted fault, for `smon analyze` to name.

    torchrun --nproc-per-node 4 examples/megatron_faults.py --fault slow_rank --pp 2 --steps 30 --dir traces
    smon analyze traces

Faults: slow_rank, slow_stage, long_sequences, slow_tp_rank (with --tp 2), none. Each layer waits for a known time
(--layer-ms forward, twice that backward) beside its real compute, since processes that share a few cores make each
other slow at random; what is slow waits longer. Tensors, autograd, communication, optimizer and schedule are real.
"""

import functools
import os
import random
import time

import megatron_pretrain as pretrain
import torch
from megatron.core import parallel_state
from megatron.core.transformer.transformer_layer import TransformerLayer

SLOW_FACTOR, SLOW_RANK, SLOW_STAGE = 1.8, 2, 1
FAULTS = {
    "slow_rank": f"rank {SLOW_RANK} takes {SLOW_FACTOR} times as long for each layer",
    "slow_stage": f"all ranks of stage {SLOW_STAGE} take {SLOW_FACTOR} times as long for each layer",
    "long_sequences": "microbatches take 0.6 to 3 times as long as a typical one, the same on all stages",
    "slow_tp_rank": f"rank {SLOW_RANK} takes {SLOW_FACTOR} times as long as the others of its tensor parallel group",
    "none": "nothing",
}


class Wait(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        time.sleep(seconds)
        return x.clone()  # Megatron frees what a stage has sent, and refuses that of a view

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(2 * ctx.seconds)
        return gradient, None


def plant(fault, layer_ms, chunks):
    """Makes every layer of this rank's chunks wait."""
    is_slow = {
        "slow_rank": torch.distributed.get_rank() == SLOW_RANK,
        "slow_tp_rank": torch.distributed.get_rank() == SLOW_RANK,
        "slow_stage": parallel_state.get_pipeline_model_parallel_rank() == SLOW_STAGE,
    }.get(fault, False)
    seconds = [layer_ms / 1000 * (SLOW_FACTOR if is_slow else 1)]

    def after_layer(layer, inputs, outputs):
        hidden, *rest = outputs
        return Wait.apply(hidden, seconds[0]), *rest

    for chunk in chunks:
        for module in chunk.modules():
            if isinstance(module, TransformerLayer):
                module.register_forward_hook(after_layer)
        if fault == "long_sequences":
            chunk.register_forward_pre_hook(drawn_anew(seconds, layer_ms / 1000))


def drawn_anew(seconds, layer_s):
    """The stages of a pipeline draw the same lengths in the same order, microbatch by microbatch."""
    draw = random.Random(parallel_state.get_data_parallel_rank())

    def before_forward(*_):
        seconds[0] = layer_s * min(max(draw.lognormvariate(0, 0.6), 0.6), 3)

    return before_forward


def main():
    parser = pretrain.make_parser()
    parser.add_argument("--fault", choices=FAULTS, required=True)
    parser.add_argument("--layer-ms", type=float, default=20.0)
    args = parser.parse_args()
    if os.environ.get("RANK") == "0":
        print(f"planted: {FAULTS[args.fault]}")
        print(f"a layer's compute is stretched by a timed wait: {args.layer_ms:g} ms forward, twice that backward")
    pretrain.main(args, functools.partial(plant, args.fault, args.layer_ms))


if __name__ == "__main__":
    main()
