"""Whether Inductor pads a product of unaligned matrices, which it finds out by timing both.

`tools/record_padding.py` had it time 135 products on an H200 (fixtures/cuda/padding.jsonl.gz): the
last layer of language models, whose vocabulary is no multiple of 8, and its two gradients. What it
chose follows from rates that its times show to within a third:

- in 16 bits 100 Tflop/s if a row begins at odd multiples of two bytes, 220 at those of four,
  600 if rows are padded;
- 6 ps for each element of an operand that is not contiguous and must be copied to be padded, 1 ps
  for one that is; for one that the graph computes anyway Inductor counts no copy
  (`should_exclude_padding_time`, torch/_inductor/fx_passes/pad_mm.py);
- in 32 bits without TF32 padding never helps.

A padded product must be a tenth faster (`is_padded_faster`). Where the times that these rates give
are too close, or a product is smaller than those measured, nothing is said.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

_RATES = {1: 100e12, 2: 220e12}  # by the largest power of two that divides a row's elements
_PADDED_RATE = 600e12
_COPIED, _COPIED_IN_ORDER = 6e-12, 1e-12
_LEAST_OPERATIONS = 3.9e10
_SURE = 1.25  # of the ratio that decides, either way
_NEEDED = 1.1
_ALIGNED, _HALF_BYTES = 8, 2


@dataclass(frozen=True)
class ProductOperand:
    """A matrix of a product.

    Attributes:
        shape, stride: in elements; of a dynamic size, the number that was seen.
        is_computed: whether the compiled graph computes it.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    is_computed: bool

    @property
    def copying(self) -> float:
        """Seconds to copy it in order to pad it."""
        if self.is_computed or all(size % _ALIGNED == 0 for size in self.shape):
            return 0.0
        is_in_order = self.stride[-1] == 1
        return math.prod(self.shape) * (_COPIED_IN_ORDER if is_in_order else _COPIED)


@dataclass(frozen=True)
class Product:
    """A matrix product that might be padded."""

    left: ProductOperand
    right: ProductOperand
    dtype: torch.dtype


def product_of(pad_mm: Any, match: Any, left: torch.Tensor, right: torch.Tensor) -> Product:
    """What Inductor asks about."""

    def operand(tensor: torch.Tensor, name: str) -> ProductOperand:
        shape, stride = tuple(map(_number, tensor.shape)), tuple(map(_number, tensor.stride()))
        return ProductOperand(shape, stride, pad_mm.should_exclude_padding_time(match, name))

    return Product(operand(left, "mat1"), operand(right, "mat2"), left.dtype)


def _number(size: Any) -> int:
    """A size without a guard on it."""
    return size if isinstance(size, int) else int(size.node.hint)


def is_faster_padded(product: Product) -> bool | None:
    """Whether a card of compute capability 9 pads it; None if that was not measured."""
    left, right = product.left, product.right
    if len(left.shape) != 2 or torch.cuda.get_device_capability()[0] != 9:
        return None
    columns = right.shape[1]
    operations = 2 * math.prod(left.shape) * columns
    if operations < _LEAST_OPERATIONS:
        return None
    if product.dtype == torch.float32:
        return None if torch.backends.cuda.matmul.allow_tf32 else False
    rows = (max(left.stride), max(right.stride), columns)
    rate = _RATES.get(min(row & -row for row in rows))
    if product.dtype.itemsize != _HALF_BYTES or rate is None:
        return None
    padded = operations / _PADDED_RATE + left.copying + right.copying
    ratio = operations / rate / padded
    is_close = _NEEDED / _SURE < ratio < _NEEDED * _SURE
    return None if is_close else ratio > _NEEDED
