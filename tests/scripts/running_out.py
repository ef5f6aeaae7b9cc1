"""Halves its batch until it fits, then requests too much."""

import torch
from torch import nn

GIB = 1 << 30


def step(model: nn.Module, batch: int) -> None:
    hidden = torch.randn(batch, 4096, device="cuda")
    model(hidden).sum().backward()


model = nn.Sequential(nn.Linear(4096, 4096), nn.GELU(), nn.Linear(4096, 4096)).cuda()
batch = 1 << 20
while True:
    try:
        step(model, batch)
        break
    except torch.cuda.OutOfMemoryError:
        print("no room for", batch, torch.cuda.memory_stats()["num_ooms"])
        before = torch.cuda.memory_allocated()
    print("left over:", torch.cuda.memory_allocated() < before)
    batch //= 2
print("room for", batch)
model.zero_grad()
hoard = [torch.empty(30 * GIB, dtype=torch.uint8, device="cuda")]
hoard.append(torch.empty(60 * GIB, dtype=torch.uint8, device="cuda"))
