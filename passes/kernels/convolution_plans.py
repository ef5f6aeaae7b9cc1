"""Which copies cuDNN makes for a convolution on Hopper cards, measured.

The plan is cuDNN's choice (aten/src/ATen/native/cudnn/Conv_v8.cpp). 950 convolutions were profiled
on an H100 (torch 2.11.0, cuDNN 9.19.0); the names of the kernels tell what a workspace holds:

  (1) tensor-core kernels want NHWC (`..._nhwckrsc_nhwc_...`): `nchwToNhwcKernel` copies input and
      weight, `nhwcToNchwKernel` the result, each into or out of the workspace; a weight of 1x1 is
      the same in both. 16 bytes more where there is a copy. With channels last nothing is copied.
  (2) 16-bit kernels want multiples of 8 channels: copies are padded, and with channels last they
      are made where channels are no such multiple.
  (3) small products take kernels that read NCHW (`implicit_convolve_sgemm`,
      `wgrad2d_grouped_direct_kernel`, `..._nchwkcrs_nchw_...`), and so do 1x1 convolutions, which
      are matrix products (`nvjet`, `cutlass`): no copies. Their gradient of the weight is a
      float32 matrix for each image, then a sum.
  (4) the gradient of the input of a strided convolution has 131 bytes besides.

Not known: partial sums of the gradient of a weight, so many float32 weights as cuDNN has slices;
kernels that read NHWC and write NCHW (`..._nhwckrsc_nchw_...`, float32), which spare the result's
copy.
Bounds of clause (3) are powers of two between what was measured to take one kind and the other.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

_COPIED = 16
_OF_STRIDES = 131
_FEW_CHANNELS = 8
_ALIGNED_CHANNELS = 8
_FLOAT32 = 4


class Product(enum.Enum):
    """What of a convolution is computed."""

    RESULT = enum.auto()
    INPUT_GRADIENT = enum.auto()
    WEIGHT_GRADIENT = enum.auto()


_LEAST_MULTIPLICATIONS = {
    (2, Product.RESULT): 1 << 20,
    (2, Product.INPUT_GRADIENT): 1 << 12,
    (2, Product.WEIGHT_GRADIENT): 1 << 25,
    (4, Product.RESULT): 1 << 24,
    (4, Product.INPUT_GRADIENT): 1 << 27,
    (4, Product.WEIGHT_GRADIENT): 1 << 26,
}
_LEAST_OF_FEW_CHANNELS = {
    (2, Product.RESULT): 1 << 28,
    (2, Product.INPUT_GRADIENT): 1 << 12,
    (2, Product.WEIGHT_GRADIENT): 1 << 25,
    (4, Product.RESULT): 1 << 28,
    (4, Product.INPUT_GRADIENT): math.inf,
    (4, Product.WEIGHT_GRADIENT): 1 << 28,
}
"""By bytes of a number and product, the multiplications from which copies are made."""


@dataclass(frozen=True)
class Plan:
    """A convolution whose result is to be computed, or one of its gradients.

    Attributes:
        source: sizes of the input, (batch, channels, ...).
        weight: sizes of the weight, (results, channels of a group, ...).
        result: sizes of the result, (batch, results, ...).
        is_strided: whether it passes over positions.
        is_padded: whether it has positions beyond the edge.
        groups: of channels.
        is_channels_last: how all three lie.
        item_bytes: of one number.
    """

    source: Sequence[int]
    weight: Sequence[int]
    result: Sequence[int]
    is_strided: bool
    is_padded: bool
    groups: int
    is_channels_last: bool
    item_bytes: int

    def workspace_bytes(self, product: Product) -> int:
        """What is known of the workspace."""
        is_of_groups = self.groups > 1 and product is Product.WEIGHT_GRADIENT
        if self._is_depthwise or (is_of_groups and self.item_bytes < _FLOAT32):
            return 0
        if self._is_matrix_product:
            return self._sums(product)
        copies = self._copies(product) if self._is_copied(product) else 0
        of_strides = product is Product.INPUT_GRADIENT and self._has_stride_tables
        if not copies and not self.is_channels_last:
            of_strides = False
        return copies + (_COPIED if copies else 0) + (_OF_STRIDES if of_strides else 0)

    @property
    def _is_depthwise(self) -> bool:
        return self.groups == self.source[1] > 1

    @property
    def _is_matrix_product(self) -> bool:
        is_plain = not self.is_strided and not self.is_padded and self.groups == 1
        return self._is_one_by_one and is_plain

    def _sums(self, product: Product) -> int:
        if product is not Product.WEIGHT_GRADIENT or self.is_channels_last:
            return 0
        return self.source[0] * math.prod(self.weight) * _FLOAT32

    @property
    def _is_one_by_one(self) -> bool:
        return math.prod(self.weight[2:]) == 1

    @property
    def _multiplications(self) -> int:
        return math.prod(self.result) * math.prod(self.weight[1:])

    @property
    def _has_stride_tables(self) -> bool:
        if self.source[1] < _FEW_CHANNELS:
            return False
        is_small = self._multiplications < 1 << 28
        if self.item_bytes == _FLOAT32 and self.is_channels_last:
            return self.is_strided
        return self.is_strided and not is_small

    def _is_copied(self, product: Product) -> bool:
        is_few = self.source[1] < _FEW_CHANNELS
        if is_few and self.item_bytes == _FLOAT32 and self.is_channels_last:
            return self._multiplications >= 1 << 28
        least = _LEAST_OF_FEW_CHANNELS if is_few else _LEAST_MULTIPLICATIONS
        return self._multiplications >= least[self.item_bytes, product]

    def _copies(self, product: Product) -> int:
        is_last = self.is_channels_last
        of_source = not is_last or self._is_uneven(self.source)
        of_result = not is_last or self._is_uneven(self.result)
        of_weight = of_source or of_result
        if is_last and self.source[1] < _FEW_CHANNELS and product is Product.INPUT_GRADIENT:
            of_result = of_result or self.item_bytes == _FLOAT32
        if not is_last and self._is_one_by_one:
            of_weight = self._is_uneven(self.source) or self._is_uneven(self.result)
        copied = [
            *([self.source] if of_source else []),
            *([self.weight] if of_weight else []),
            *([self.result] if of_result else []),
        ]
        return self.item_bytes * sum(map(self._numbers, copied))

    def _is_uneven(self, shape: Sequence[int]) -> bool:
        if self.item_bytes == _FLOAT32:
            return shape[1] < _ALIGNED_CHANNELS
        return shape[1] % _ALIGNED_CHANNELS != 0

    def _numbers(self, shape: Sequence[int]) -> int:
        """Clause (2)."""
        batch, channels, *space = shape
        if self.item_bytes < _FLOAT32 and self.groups == 1:
            channels = _up(channels)
            batch = _up(batch) if shape is self.weight else batch
        return batch * channels * math.prod(space)


def _up(channels: int) -> int:
    return -(-channels // _ALIGNED_CHANNELS) * _ALIGNED_CHANNELS
