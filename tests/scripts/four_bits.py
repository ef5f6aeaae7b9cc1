"""Quantise a layer to 4 bits, train two after it with 8-bit states, print what each took."""

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

for kind in bnb.optim.AdamW8bit, bnb.optim.PagedAdamW8bit:
    head = nn.Linear(4096, 1024, bias=False, device="cuda", dtype=torch.bfloat16)
    optimizer = kind(head.parameters())
    head(layer(torch.ones(8, 1024, device="cuda", dtype=torch.bfloat16))).sum().backward()
    before = allocated()
    optimizer.step()
    print("states", allocated() - before)
