"""Quantise a layer to 4 bits, train a layer after it with paged states, print what each took."""

import sys

import bitsandbytes as bnb
import torch
from torch import nn

allocated = torch.cuda.memory_allocated
layer = bnb.nn.Linear4bit(
    1024,
    4096,
    bias=False,
    compute_dtype=torch.bfloat16,
    quant_type="nf4",
    compress_statistics=False,
)
kept = layer.weight
layer.cuda()
print("weight", allocated(), type(kept).__name__, kept is layer.weight, kept.quant_type)

head = nn.Linear(4096, 1024, bias=False, device="cuda", dtype=torch.bfloat16)
kinds = {"paged": bnb.optim.PagedAdamW8bit, "plain": bnb.optim.AdamW8bit}
optimizer = kinds[sys.argv[1]](head.parameters())
head(layer(torch.ones(8, 1024, device="cuda", dtype=torch.bfloat16))).sum().backward()
before = allocated()
optimizer.step()
print("states", allocated() - before)
