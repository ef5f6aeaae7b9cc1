"""PyTorch's constructors of tensors as they are when graphmem is imported.

A program may replace those of `torch`, so that what it builds is on a card: nanotron's
`init_on_device_and_dtype`, DeepSpeed's `zero.Init`. What graphmem makes for itself is not.
"""

from __future__ import annotations

import torch

arange = torch.arange
empty = torch.empty
full = torch.full
ones = torch.ones
tensor = torch.tensor
zeros = torch.zeros
