"""Draws from distributions, and their derivatives.

The CUDA kernels return a compact tensor like their first argument
(aten/src/ATen/native/cuda/Distributions.cpp, `_s_binomial_cuda` and its siblings). Of PyTorch's
meta kernels, `_standard_gamma`'s and `poisson`'s keep its strides; the others are missing.
"""

from __future__ import annotations

import torch

aten = torch.ops.aten


def _like_the_first(
    first: torch.Tensor, *_others: torch.Tensor, generator: torch.Generator | None = None
) -> torch.Tensor:
    return torch.empty_like(first, memory_format=torch.contiguous_format)


KERNELS = dict.fromkeys(
    (
        aten.binomial.default,
        aten._sample_dirichlet.default,
        aten._standard_gamma.default,
        aten._standard_gamma_grad.default,
        aten._dirichlet_grad.default,
        aten.poisson.default,
    ),
    _like_the_first,
)
