"""Training that goes on after a process was killed, from a checkpoint in memory that is as old as one step.

export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1  # gloo of torch 2.15 never connects again in the store that torchrun shares
torchrun --nproc-per-node 4 --max-restarts 3 examples/checkpoint.py --kill-rank 2 --kill-step 20
"""

import argparse
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import smon_rt

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--losses", help="rank 0 appends a line of each step to this file: step, loss in hexadecimal")
parser.add_argument("--weights", help="rank 0 writes what was trained there")
parser.add_argument("--kill-rank", type=int, default=-1, help="kills itself, once")
parser.add_argument("--kill-step", type=int, default=-1, help="in this step, before its end")
args = parser.parse_args()

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)
model = torch.nn.Sequential(
    torch.nn.Embedding(100, 64),
    torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
    torch.nn.Linear(64, 100),
)
# DDP puts gradients into other buckets after its first step, and after a restart again: sums in another order, so other
# last bits. It leaves them where they are if it has to look for parameters without a gradient.
model = DistributedDataParallel(model, find_unused_parameters=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
torch.manual_seed(1 + rank)  # of dropout and data, each rank its own

ckpt = smon_rt.checkpoint.attach(model, optimizer, scheduler)
found = ckpt.restore()
if found and rank == 0:
    print(f"goes on with step {found.next_step}, from {found.source}", flush=True)

for k in range(found.next_step if found else 0, args.steps):
    tokens = torch.randint(100, (8, 16))
    loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    optimizer.zero_grad()
    loss.backward()
    if rank == args.kill_rank and k == args.kill_step and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.step()
    scheduler.step()
    ckpt.step(k)
    if rank == 0 and args.losses:
        with Path(args.losses).open("a") as file:
            file.write(f"{k} {loss.item().hex()}\n")
    if rank == 0 and k % 10 == 9:
        print(f"step {k + 1} of {args.steps}: loss {loss.item():.3f}", flush=True)

if rank == 0 and args.weights:
    torch.save(model.module.state_dict(), args.weights)
status = ckpt.status()
if rank == 0:
    print(f"captured {status.captures} steps, skipped {status.skips}; {status.error or 'no error'}", flush=True)
dist.barrier()
ckpt.close(job_is_over=True)
dist.destroy_process_group()
