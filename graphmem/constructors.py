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

_OWN = {
    "arange": arange,
    "empty": empty,
    "full": full,
    "ones": ones,
    "tensor": tensor,
    "zeros": zeros,
}


@contextmanager
def restored() -> Iterator[None]:
    """Let `torch` have its own constructors while the context is open.

    graphmem's replacements, which wrap them, may stay.
    """
    present = {name: getattr(torch, name) for name in _OWN}
    foreign = {
        name: made
        for name, made in present.items()
        if getattr(made, "__wrapped__", made) is not _OWN[name]
    }
    for name in foreign:
        setattr(torch, name, _OWN[name])
    try:
        yield
    finally:
        for name, made in foreign.items():
            setattr(torch, name, made)
