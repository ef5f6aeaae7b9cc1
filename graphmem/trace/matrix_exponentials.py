"""`matrix_exp`: which powers and squarings it takes depends on the norms of its matrices.

`linalg_matrix_exp` (aten/src/ATen/native/LinearAlgebra.cpp) evaluates a Taylor polynomial of
matrices that it has halved until they are small, and squares the result as often. Its code is
repeated here, part by part, for one norm that is assumed of all matrices:
  (1) the polynomial has the highest degree, 18, as in any case for more than one matrix; a single
      matrix of a small norm takes a lower degree, and less memory;
  (2) there is one squaring; another frees what the one before it has made.

What is freed when a C++ function returns, last to first, is held in a list here.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from graphmem import constructors
from graphmem.values.rules import Rule

aten = torch.ops.aten

_SINGLE = (torch.float32, torch.complex64)
_THETA, _THETA_IN_DOUBLE = 3.01, 1.09  # `thetas_float`, `thetas_double`: the highest degree's
_POWERS = 5  # `num_prods` of `compute_T18`

NORM = Rule(
    "the norm of matrix_exp's matrices",
    "the same, for the highest degree and one squaring",
    "it depends on data; a lower degree takes less, many magnitudes in one batch may take more",
)

Assume = Callable[[torch.Tensor, torch.Tensor, Rule], None]


def matrix_exponential(matrices: torch.Tensor, assume: Assume) -> torch.Tensor:
    """`linalg_matrix_exp`; `assume` notes values of a tensor."""
    size = matrices.shape[-1]
    if not matrices.numel():
        return matrices.clone()
    if size == 1:
        return matrices.exp()
    return _of_batch(matrices.view(-1, size, size), assume).view(matrices.shape)


def _of_batch(matrices: torch.Tensor, assume: Assume) -> torch.Tensor:
    """`mexp_impl`: a single matrix is written into a result that is there before."""
    theta = _THETA if matrices.dtype in _SINGLE else _THETA_IN_DOUBLE
    norms = _norms(matrices)
    assume(norms, constructors.full(norms.shape, 1.5 * theta, device="cpu"), NORM)
    if len(matrices) > 1:
        return _scaled_and_squared(matrices, norms, theta)
    result = torch.full_like(matrices, torch.nan, memory_format=torch.contiguous_format)
    chosen = constructors.zeros(1, dtype=torch.int64, device="cpu")
    held = [chosen.to(matrices.device)]
    held += [each.index_select(0, held[0]) for each in (matrices, norms)]
    held.append(_scaled_and_squared(held[1], held[2], theta))
    result.index_put_((chosen,), held[-1])
    _release(held)
    return result


def _norms(matrices: torch.Tensor) -> torch.Tensor:
    """`operator_1_norm`."""
    magnitudes = matrices.abs()
    sums = magnitudes.sum(-2)
    norms = sums.max(-1).values
    del sums
    return norms


def _scaled_and_squared(matrices: torch.Tensor, norms: torch.Tensor, theta: float) -> torch.Tensor:
    """`compute_T18_scale_square`."""
    exponents = _exponents(norms, theta)
    minus = -exponents
    scales = torch.pow(2, minus)
    del minus
    scaled = matrices * scales.view(-1, 1, 1)
    held = [exponents, scales, scaled, _polynomial(scaled)]
    del exponents, scales, scaled
    powers = held[-1]
    ordered, order = torch.sort(held[0], dim=0)
    ordered = ordered.long()
    held += [order, ordered, *_sections(ordered)]
    del ordered
    squared = powers.index_select(0, order)
    into = torch.empty_like(squared)
    squared = torch.matmul(squared, squared, out=into)
    held += [into, torch.cat([squared])]
    del into, squared, powers
    result = held[-1].index_select(0, torch.argsort(order))
    del order
    _release(held)
    return result


def _exponents(norms: torch.Tensor, theta: float) -> torch.Tensor:
    held = [norms / theta]
    held.append(held[-1].log2())
    held.append(held[-1].ceil())
    exponents = held[-1].clamp(min=0)
    _release(held)
    return exponents


def _polynomial(matrices: torch.Tensor) -> torch.Tensor:
    """`compute_T18`; the products are written into the powers' memory."""
    coefficients = constructors.zeros(_POWERS, _POWERS, dtype=matrices.real.dtype, device="cpu")
    held = [coefficients.to(matrices.device)]
    powers = matrices.new_empty((_POWERS, *matrices.shape))
    held.append(powers)
    one = powers.new_ones(1)
    powers[0].copy_(torch.diag_embed(one.expand(matrices.shape[:-1])))
    del one
    powers[1].copy_(matrices)
    for left, right, power in ((1, 1, 2), (1, 2, 3), (3, 3, 4)):
        torch.matmul(powers[left], powers[right], out=powers[power])
    sums = torch.zeros_like(powers)  # `_compute_linear_combination`
    sums[3].add_(torch.matmul(sums[0], sums[4], out=powers[0]))
    sums[1].add_(torch.matmul(sums[2].add_(sums[3]), sums[3], out=powers[0]))
    del powers
    _release(held)
    return sums[1]


def _sections(ordered: torch.Tensor) -> list[torch.Tensor]:
    """What says how many matrices are squared how often, which the host reads."""
    *others, counts = aten.unique_consecutive.default(ordered, True, True)
    del others[0]  # a tuple of C++ frees its first element first
    _release(others)
    sums = counts.cumsum(0)
    edges = sums - 1
    del sums
    chosen = ordered.index_select(0, edges)
    distinct = chosen.clamp(min=0)
    del chosen
    zero = distinct.new_zeros(1)
    times = distinct.diff(prepend=zero)
    del zero
    torch.cat([counts, times])
    return [counts, edges, distinct, times]


def _release(held: list[torch.Tensor]) -> None:
    while held:
        held.pop()
