"""Fully sharded data parallel training (FSDP2), nothing of smon_rt in it.

torchrun --nproc-per-node 2 -m smon_rt.run --dir traces examples/fsdp2.py && smon analyze traces
"""

import argparse

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

WIDTH, LAYERS, BATCH = 128, 3, 16
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
args = parser.parse_args()

torch.set_num_threads(1)
dist.init_process_group("gloo")
mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
torch.manual_seed(0)
layers = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU()) for _ in range(LAYERS)]
model = torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 1))
for layer in layers:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
batches = torch.Generator().manual_seed(dist.get_rank())
for step in range(args.steps):
    x = torch.randn(BATCH, WIDTH, generator=batches)
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True).sign())
    loss.backward()
    optimizer.step()
    if step % 10 == 9 and dist.get_rank() == 0:
        print(f"step {step + 1} of {args.steps}: loss {loss.item():.3f}", flush=True)
dist.destroy_process_group()
