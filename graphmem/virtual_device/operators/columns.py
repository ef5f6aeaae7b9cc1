"""`im2col` and `col2im`, the operators of `nn.Unfold` and `nn.Fold`.

Both make a result as large as their input and then resize it, which frees nothing
(aten/src/ATen/native/cuda/Im2Col.cu, Col2Im.cu; native/Im2Col.cpp, Col2Im.cpp): the result of
`col2im` keeps as many elements as its columns had.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

aten = torch.ops.aten


def _im2col(
    tensor: torch.Tensor,
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> torch.Tensor:
    *batch, channels, height, width = tensor.shape
    counts = (
        (size + 2 * around - apart * (kernel - 1) - 1) // step + 1
        for size, kernel, apart, around, step in zip(
            (height, width), kernel_size, dilation, padding, stride, strict=True
        )
    )
    return _resized(tensor, (*batch, channels * math.prod(kernel_size), math.prod(counts)))


def _col2im(
    columns: torch.Tensor, output_size: Sequence[int], kernel_size: Sequence[int], *rest: object
) -> torch.Tensor:
    *batch, rows, _ = columns.shape
    return _resized(columns, (*batch, rows // math.prod(kernel_size), *output_size))


def _resized(like: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    elements = math.prod(shape)
    return like.new_empty(max(elements, like.numel()))[:elements].view(shape)


KERNELS = {aten.im2col.default: _im2col, aten.col2im.default: _col2im}
