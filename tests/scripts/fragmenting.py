"""Leaves 2 MiB in each of 40 segments of 20 MiB."""

import torch

MIB = 1 << 20
kept = []
passing = []
for _ in range(40):
    passing.append(torch.empty(18 * MIB, dtype=torch.uint8, device="cuda"))
    kept.append(torch.empty(2 * MIB, dtype=torch.uint8, device="cuda"))
passing.clear()
torch.cuda.empty_cache()
print(torch.cuda.memory_allocated() // MIB, torch.cuda.memory_reserved() // MIB)
