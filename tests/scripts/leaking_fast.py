"""Keeps each output with its graph, and runs out of memory in its third or fourth iteration."""

import sys

import torch
from torch import nn


def main(rows):
    model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)]).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    history = []
    for i in range(10):
        x = torch.randn(rows, 1024, device="cuda")
        output = model(x)
        optimizer.zero_grad()
        output.square().mean().backward(retain_graph=True)
        optimizer.step()
        history.append(output)
        del output
        print(i)


main(int(sys.argv[1]))
