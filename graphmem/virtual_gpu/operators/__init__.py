"""CUDA operators that PyTorch has no meta kernel for, or one that asks for data; a family a file.

A family has `KERNELS`, which make an operator's results from fake tensors, and some have
`implement`, which registers what a card's build does in place of a composite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch

from graphmem.virtual_gpu.operators import (
    columns,
    ctc,
    fractional_pools,
    grid_samples,
    grouped_products,
    linear_algebra,
    margin_losses,
    recurrent_cells,
)

_FAMILIES = (
    columns,
    ctc,
    fractional_pools,
    grid_samples,
    grouped_products,
    linear_algebra,
    margin_losses,
    recurrent_cells,
)

KERNELS: Mapping[Any, Callable[..., Any]] = dict(
    chain.from_iterable(family.KERNELS.items() for family in _FAMILIES)
)
"""By operator; each takes the operator's arguments and makes its results."""


@contextmanager
def card_composites() -> Iterator[None]:
    """Take the way of a card through composites that ask for the device, while it is open."""
    library = torch.library.Library("aten", "IMPL")
    try:
        ctc.implement(library)
        yield
    finally:
        library._destroy()
