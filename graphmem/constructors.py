"""PyTorch's constructors of tensors as they are when graphmem is imported.

A program may replace those of `torch`, so that what it builds is on a card: nanotron's
`init_on_device_and_dtype`, DeepSpeed's `zero.Init`. What graphmem makes for itself is not, nor what
PyTorch's meta kernels make, which a card has in C++.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

arange = torch.arange
empty = torch.empty
full = torch.full
ones = torch.ones
tensor = torch.tensor
zeros = torch.zeros

_OWN = {each.__name__: each for each in (arange, empty, full, ones, tensor, zeros)}


@contextmanager
def restored() -> Iterator[None]:
    """Let `torch` have its own constructors while the context is open.

    graphmem's replacements, which wrap them, may stay.
    """
    foreign = {
        name: made
        for name, own in _OWN.items()
        if getattr(made := getattr(torch, name), "__wrapped__", made) is not own
    }
    for name in foreign:
        setattr(torch, name, _OWN[name])
    try:
        yield
    finally:
        for name, made in foreign.items():
            setattr(torch, name, made)
