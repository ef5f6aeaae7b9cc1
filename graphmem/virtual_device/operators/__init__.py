"""CUDA operators whose meta kernel is missing or needs data, one file per family.

A family has `KERNELS`, which make an operator's results from fake tensors, and sometimes
`implement`, which registers what a CUDA build does in place of a composite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch

from graphmem.virtual_device.operators import (
    columns,
    ctc,
    distributions,
    fractional_pools,
    grid_samples,
    grouped_products,
    linear_algebra,
    margin_losses,
    products_in_dtype,
    recurrent_cells,
    semi_structured,
    shifts,
    synchronized_norms,
)

_FAMILIES = (
    columns,
    ctc,
    distributions,
    fractional_pools,
    grid_samples,
    grouped_products,
    linear_algebra,
    margin_losses,
    products_in_dtype,
    recurrent_cells,
    semi_structured,
    shifts,
    synchronized_norms,
)

KERNELS: Mapping[Any, Callable[..., Any]] = dict(
    chain.from_iterable(family.KERNELS.items() for family in _FAMILIES)
)
"""By operator, a function that takes its arguments and returns its results."""


@contextmanager
def card_composites() -> Iterator[None]:
    """Take a card's branch in composites that check for the device, while the context is open."""
    library = torch.library.Library("aten", "IMPL")
    try:
        ctc.implement(library)
        yield
    finally:
        library._destroy()
