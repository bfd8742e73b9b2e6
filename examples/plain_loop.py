"""One process, an ordinary training loop, nothing of smon_rt in it.

smon run --dir traces examples/plain_loop.py && smon info traces
"""

import argparse

import torch
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
args = parser.parse_args()

torch.manual_seed(0)
inputs = torch.randn(args.steps * 16, 64)
loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True).sign()), batch_size=16)
model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.GELU(), torch.nn.Linear(512, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step, (x, y) in enumerate(loader):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    if step % 10 == 9:
        print(f"step {step + 1} of {args.steps}: loss {loss.item():.3f}", flush=True)
