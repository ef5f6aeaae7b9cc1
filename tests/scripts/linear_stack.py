"""Prints what a stack of linear layers takes; `frozen` and `relu` are its variants."""

import sys

import torch
from torch import nn

WIDTH, DEPTH, BATCH = 128, 50, 64
frozen, relu = "frozen" in sys.argv, "relu" in sys.argv

layers: list[nn.Module] = []
for _ in range(DEPTH):
    layers.append(nn.Linear(WIDTH, WIDTH, bias=False))
    layers[-1].weight.requires_grad_(not frozen)
    if relu:
        layers.append(nn.ReLU())
model = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), *layers).to(0)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(2):
    before = torch.cuda.memory_allocated()
    loss = model(torch.randn(BATCH, WIDTH).to(0)).sum()
    forward = torch.cuda.memory_allocated() - before
    loss.backward()
    after_backward = torch.cuda.memory_allocated()
    optimizer.step()
    moments = torch.cuda.memory_allocated() - after_backward
    optimizer.zero_grad()
print(forward, moments)
