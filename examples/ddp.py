"""Data parallel training with DistributedDataParallel; one line starts recording.

torchrun --nproc-per-node 2 examples/ddp.py && smon analyze traces
"""

import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import smon_rt

parser = argparse.ArgumentParser()
parser.add_argument("--dir", default="traces")
parser.add_argument("--steps", type=int, default=60)
args = parser.parse_args()

torch.set_num_threads(1)
dist.init_process_group("gloo")
smon_rt.start(args.dir)  # the one line

torch.manual_seed(0)
inputs = torch.randn(args.steps * 16 * dist.get_world_size(), 64)
data = TensorDataset(inputs, inputs.sum(1, keepdim=True).sign())
loader = DataLoader(data, batch_size=16, sampler=DistributedSampler(data))
model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.GELU(), torch.nn.Linear(512, 1))
model = DistributedDataParallel(model, bucket_cap_mb=0.1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step, (x, y) in enumerate(loader):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    if step % 10 == 9 and dist.get_rank() == 0:
        print(f"step {step + 1} of {args.steps}: loss {loss.item():.3f}", flush=True)
dist.destroy_process_group()
