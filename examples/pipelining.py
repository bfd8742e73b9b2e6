"""A small transformer in a pipeline of torch.distributed.pipelining, data parallel across pipelines.

    torchrun --nproc-per-node 4 examples/pipelining.py --dir traces && smon analyze traces

A layer takes a wait of known length (--layer-ms) beside its real compute, since processes that share a few cores make
each other slow at random; tensors, autograd, communication and schedule are real. --slow-rank makes one worker slow.
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class
from torch.nn.parallel import DistributedDataParallel

import smon_rt

VOCABULARY, WIDTH, LENGTH, BATCH = 64, 64, 32, 8


class Wait(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        time.sleep(seconds)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(2 * ctx.seconds)
        return gradient, None


class Part(torch.nn.Module):
    def __init__(self, stage, stage_count, layer_count, layer_s):
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH) if stage == 0 else torch.nn.Identity()
        layer = torch.nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True)
        self.layers, self.layer_s = torch.nn.TransformerEncoder(layer, layer_count).layers, layer_s
        self.head = torch.nn.Linear(WIDTH, VOCABULARY) if stage == stage_count - 1 else None

    def forward(self, x):
        x = self.embedding(x)
        for layer in self.layers:
            x = Wait.apply(layer(x), self.layer_s)
        return x if self.head is None else self.head(x).transpose(1, 2)


DEFAULTS = {"dir": "traces", "schedule": "1F1B", "pp": 2, "layers": 4, "microbatches": 4, "steps": 60}
parser = argparse.ArgumentParser()
for name, default in (DEFAULTS | {"layer-ms": 4.0, "slow-rank": -1, "slow-factor": 1.6}).items():
    parser.add_argument(f"--{name}", type=type(default), default=default)


def batches(dp_rank, count):
    random = torch.Generator().manual_seed(dp_rank)
    for _ in range(count):
        yield (torch.randint(VOCABULARY, (BATCH, 1), generator=random) + torch.arange(LENGTH + 1)) % VOCABULARY


def train(args, plant=lambda parts, steps: steps):
    """`plant` gets this rank's parts of the model and its batches, one a step: examples/faults.py makes them slow."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size() // args.pp, args.pp), mesh_dim_names=("dp", "pp"))
    smon_rt.start(args.dir, sample_ratio=1.0)  # the one line

    kind, pp_rank, dp_rank = get_schedule_class(args.schedule), mesh.get_local_rank("pp"), mesh.get_local_rank("dp")
    layer_s = args.layer_ms / 1000 * (args.slow_factor if dist.get_rank() == args.slow_rank else 1)
    count, parts, stages = args.pp * (2 if issubclass(kind, PipelineScheduleMulti) else 1), [], []
    for index in range(pp_rank, count, args.pp):
        parts.append(Part(index, count, args.layers // count, layer_s))
        unused = args.schedule != "1F1B"
        part = DistributedDataParallel(parts[-1], device_mesh=mesh["dp"], find_unused_parameters=unused)
        stages.append(PipelineStage(part, index, count, torch.device("cpu"), group=mesh.get_group("pp")))
    loss_fn = torch.nn.functional.cross_entropy
    schedule = kind(stages if count > args.pp else stages[0], args.microbatches, loss_fn=loss_fn)
    optimizer = torch.optim.Adam([p for stage in stages for p in stage.submod.parameters()], lr=3e-3)
    for step, tokens in enumerate(plant(parts, batches(dp_rank, args.steps))):
        losses = []
        optimizer.zero_grad()
        schedule.step(*[tokens[:, :-1]] * (pp_rank == 0), target=tokens[:, 1:], losses=losses)
        optimizer.step()
        if losses and dp_rank == 0 and step % 10 == 9:
            print(f"step {step + 1} of {args.steps}: loss {torch.stack(losses).mean():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    train(parser.parse_args())
