"""Derivatives whose formula depends on data, in the form that a tensor with data takes.

PyTorch checks whether a tensor is fake or subclass-like and then takes a formula without data
(torch/csrc/autograd/FunctionsManual.cpp, `prod_backward`, `masked_fill_backward`;
aten/src/ATen/native/ReduceOps.cpp, `cumprod_backward`). A tensor with data is searched for zeros
first; if there are none, as among weights and activations, the formula is a quotient. That formula
runs here, operation by operation, and the report lists it as assumed (passes/unmodelled.py). That
of `matrix_exp` writes blocks into zeros (`differential_analytic_matrix_function`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from graphmem.trace.python_functions import name_of
from graphmem.virtual_device.notes import Note

Gradients = list[Any]
Formula = Callable[[Any, torch.Tensor, set[int]], Gradients]

SELECTS_NOTHING = "_graphmem_selects_nothing"
"""The attribute of a mask that is assumed to select nothing."""


def formula_by_data(node: Any) -> Formula | None:
    """The function that replaces a node's formula, if any."""
    return _FORMULAS.get(name_of(node))


def _prod(node: Any, grad: torch.Tensor, wanted: set[int]) -> Gradients:
    factors = node._saved_self.to(grad.dtype)
    if not factors.dim():
        return [grad]
    _find_none(factors == 0)
    return [grad * (node._saved_result / factors).conj()]


def _find_none(mask: torch.Tensor) -> None:
    setattr(mask, SELECTS_NOTHING, Note(True))
    mask.nonzero()


def _prod_of_dimension(node: Any, grad: torch.Tensor, wanted: set[int]) -> Gradients:
    factors, result = node._saved_self.to(grad.dtype), node._saved_result
    if not factors.dim():
        return [grad]
    dim = _signed(node._saved_dim) % factors.dim()
    if not node._saved_keepdim:
        grad, result = grad.unsqueeze(dim), result.unsqueeze(dim)
    is_zero = factors == 0
    zeros = is_zero.sum(dim, keepdim=True)
    zeros.sum()
    found = grad * (result / factors).conj()
    del zeros, is_zero
    return [found]


def _cumprod(node: Any, grad: torch.Tensor, wanted: set[int]) -> Gradients:
    factors, result = node._saved_self, node._saved_result
    grad = grad.to(factors.dtype)
    if factors.numel() <= 1:
        return [grad]
    dim = _signed(node._saved_dim) % factors.dim()
    if factors.shape[dim] == 1:
        return [grad]
    weighted = result.conj() * grad
    is_zero = factors == 0
    is_zero.any()
    sums = _cumsum_from_the_end(weighted, dim)
    found = sums.div(factors.conj())
    del sums, is_zero, weighted
    return [found]


def _cumsum_from_the_end(weighted: torch.Tensor, dim: int) -> torch.Tensor:
    """`reversed_cumsum`: C++ frees temporaries at the end of the expression, last first."""
    flipped = weighted.flip(dim)
    summed = flipped.cumsum(dim)
    sums = summed.flip(dim)
    del summed, flipped
    return sums


def _masked_fill(node: Any, grad: torch.Tensor, wanted: set[int]) -> Gradients:
    mask = node._saved_mask
    of_self = grad.masked_fill(mask, 0) if 0 in wanted else None
    of_value = grad.masked_select(mask).sum() if 1 in wanted else None
    return [of_self, of_value]


def _matrix_exponential(node: Any, grad: torch.Tensor, wanted: set[int]) -> Gradients:
    matrix = node._saved_self.mT.conj()
    size = matrix.shape[-1]
    blocks = grad.new_zeros((*matrix.shape[:-2], 2 * size, 2 * size))
    blocks[..., :size, :size].copy_(matrix)
    blocks[..., size:, size:].copy_(matrix)
    blocks[..., :size, size:].copy_(grad)
    return [torch.linalg.matrix_exp(blocks)[..., :size, size:]]


def _signed(number: int) -> int:
    """The signed value of an `int64_t` whose bits a node exposes as unsigned."""
    return number - (1 << 64) if number >> 63 else number


_FORMULAS: dict[str, Formula] = {
    "ProdBackward0": _prod,
    "ProdBackward1": _prod_of_dimension,
    "CumprodBackward0": _cumprod,
    "MaskedFillBackward1": _masked_fill,
    "LinalgMatrixExpBackward0": _matrix_exponential,
}
