"""The copies that cuDNN makes for a convolution on Hopper cards, as measured.

cuDNN chooses the plan (aten/src/ATen/native/cudnn/Conv_v8.cpp). 950 convolutions were profiled on
an H100 (torch 2.11.0, cuDNN 9.19.0), and the steps of fixtures/cuda/steps recorded; the kernels'
names show what a workspace holds:

  (1) tensor-core kernels want NHWC (`..._nhwckrsc_nhwc_...`): `nchwToNhwcKernel` copies input and
      weight, `nhwcToNchwKernel` the result, each into or out of the workspace; a weight of 1x1 is
      the same in both. A copy adds 16 bytes. With channels last nothing is copied.
  (2) 16-bit kernels want multiples of 8 channels: copies are padded, and with channels last copies
      are made only if the channels are not such a multiple. In float32, gradients pad fewer than 4
      channels to 4, except in a stem, which has positions beyond the edge.
  (3) small products take kernels that read NCHW (`implicit_convolve_sgemm`,
      `wgrad2d_grouped_direct_kernel`, `..._nchwkcrs_nchw_...`): no copies. So do, in float32, first
      layers, except results of 7x7 ones and gradients of weights of more than 4x4 or 3 channels,
      and strided 1x1 layers with fewer than 128 input channels. In 16 bits, results of first layers
      of at most 3 channels need none if 3x3, nor with channels last if strided and at most 4x4.
  (4) 1x1 convolutions are matrix products (`nvjet`, `cutlass`): no copies; the gradient of the
      weight is a float32 matrix for each image, then a sum, and one matrix if an image is a single
      position. Large ones follow (1) instead if there are many weights for each number of an image:
      for a weight half as many in 16 bits, so that the copies are smaller than the sums, and twice
      as many in float32; for results and gradients of inputs two or three times as many, if one
      channel of an image is no multiple of 16 bytes, the unit that tensor cores load.
  (5) float32 kernels that write NCHW themselves (`..._nhwckrsc_nchw_...`) compute 3x3 results of
      fewer than 2^28 multiplications or, if no more than 64 channels come and go, of at most 2^14
      positions; and those of at most 64 channels into 128 and more: no copy of the result.
  (6) 131 bytes more are taken by the gradient of the input of a strided convolution and, in 16
      bits, of a first layer of at most 3x3; and by results and gradients of inputs that have more
      than two tiles of 128 by 128 for each multiprocessor.
  (7) the gradient of a weight is summed in slices (`convolution_slices.py`).
  (8) that of a depthwise one with channels last in 16 bits is summed in eight parts of each image,
      in float32, its channels padded to a multiple of 32; not if at most 2^9 positions are summed.
  (9) that of a 1x1 one with channels last in 16 bits, of at most 2^18 weights, is summed in float32
      in slices of 1,280 positions or more, as many as keep the multiprocessors busy with tiles of
      128 by 128, and 272 bytes; not if there are fewer than 5,000 positions.

The bounds of clauses (3) to (6), (8) and (9) separate most of the measured cases, not all: they
were searched for in one half of 23,867 calls on an H200 (fixtures/cuda/convolutions.txt.xz), and
kept if they are right about as often in the other half.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

from .convolution_slices import WeightGradient
from .layout import item_bytes

_COPIED = 16
_OF_TABLES = 131
_OF_PATCHES = 128
_FEW_CHANNELS = 8
_ALIGNED_CHANNELS = 8
_FLOAT32 = 4
_LOADED_BYTES = 16
_NARROW = 64
_FEW_MULTIPLICATIONS = 1 << 28
_FEW_POSITIONS = 1 << 14
_ALIGNED_NUMBERS = 4
_STEM = 7
_SMALL_KERNEL = 3
_PATCH = 4
_OF_IMAGES = 4
_TILE = 128
_TILES_OF_EACH = 2
_WARP = 32
_PARTS = 8
_SHORT_SUM = 1 << 9
_FEWEST_SLICED = 5000
_MOST_SLICED = 1 << 18
_SLICE = 1280
_OF_SLICES = 272


class ConvolutionProduct(enum.Enum):
    """Which of a convolution's three results is computed."""

    RESULT = enum.auto()
    INPUT_GRADIENT = enum.auto()
    WEIGHT_GRADIENT = enum.auto()


_LEAST_CHANNELS = {ConvolutionProduct.RESULT: 1 << 7, ConvolutionProduct.INPUT_GRADIENT: 1 << 8}
_LEAST_MULTIPLICATIONS = {
    (2, ConvolutionProduct.RESULT): 1 << 20,
    (2, ConvolutionProduct.INPUT_GRADIENT): 1 << 12,
    (2, ConvolutionProduct.WEIGHT_GRADIENT): 1 << 25,
    (4, ConvolutionProduct.RESULT): 1 << 24,
    (4, ConvolutionProduct.INPUT_GRADIENT): 1 << 27,
    (4, ConvolutionProduct.WEIGHT_GRADIENT): 1 << 26,
}
_LEAST_OF_FEW_CHANNELS = {
    (2, ConvolutionProduct.RESULT): 1 << 28,
    (2, ConvolutionProduct.INPUT_GRADIENT): 1 << 12,
    (2, ConvolutionProduct.WEIGHT_GRADIENT): 1 << 25,
    (4, ConvolutionProduct.RESULT): 1 << 28,
    (4, ConvolutionProduct.INPUT_GRADIENT): math.inf,
    (4, ConvolutionProduct.WEIGHT_GRADIENT): 1 << 28,
}
"""By bytes of a number and product: the number of multiplications from which copies are made."""
_TRANSPOSED = {
    (2, ConvolutionProduct.RESULT): (2, 1 << 25),
    (2, ConvolutionProduct.INPUT_GRADIENT): (3, 1 << 25),
    (2, ConvolutionProduct.WEIGHT_GRADIENT): (0.5, 1 << 28),
    (4, ConvolutionProduct.RESULT): (3, 1 << 30),
    (4, ConvolutionProduct.INPUT_GRADIENT): (3, 1 << 30),
    (4, ConvolutionProduct.WEIGHT_GRADIENT): (2, 1 << 28),
}
"""For 1x1 convolutions, clause (4): how many weights there are at least for each number of an
image of input and result, and how many multiplications."""


@dataclass(frozen=True)
class ConvolutionPlan:
    """The shapes and layout of a convolution, from which its workspaces follow.

    Attributes:
        source: sizes of the input, (batch, channels, ...).
        weight: sizes of the weight, (results, channels of a group, ...).
        result: sizes of the result, (batch, results, ...).
        stride, padding, dilation: in each dimension of space.
        groups: of channels.
        is_channels_last: the layout of all three.
        dtype: of all three.
        multiprocessors: how many the card has.
    """

    source: Sequence[int]
    weight: Sequence[int]
    result: Sequence[int]
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    groups: int
    is_channels_last: bool
    dtype: str
    multiprocessors: int

    def workspace_bytes(self, product: ConvolutionProduct) -> int:
        """The known part of the workspace."""
        is_of_groups = self.groups > 1 and product is ConvolutionProduct.WEIGHT_GRADIENT
        if self._is_depthwise:
            return self._depthwise_sums() if is_of_groups else 0
        if is_of_groups and self.item_bytes < _FLOAT32:
            return 0
        if self._is_matrix_product and not self._is_transposed_first(product):
            return self._sums(product)
        copies = self._copies(product) if self._is_copied(product) else 0
        has_tables = self._has_tables(product) and (copies or self.is_channels_last)
        fixed = (_COPIED if copies else 0) + (_OF_TABLES if has_tables else 0)
        if copies and product is ConvolutionProduct.WEIGHT_GRADIENT and self._is_of_patches:
            fixed += _OF_PATCHES
        return copies + fixed + self._partial(product)

    @property
    def item_bytes(self) -> int:
        """Bytes of one number."""
        return item_bytes(self.dtype)

    @property
    def is_strided(self) -> bool:
        """Whether it skips positions."""
        return max(self.stride) > 1

    @property
    def is_padded(self) -> bool:
        """Whether it has positions beyond the edge."""
        return max(self.padding) > 0

    @property
    def _is_depthwise(self) -> bool:
        return self.groups == self.source[1] > 1

    @property
    def _is_matrix_product(self) -> bool:
        is_plain = not self.is_strided and not self.is_padded and self.groups == 1
        return self._is_one_by_one and is_plain

    def _depthwise_sums(self) -> int:
        """Clause (8)."""
        batch, results, *space = self.result
        is_short = batch * math.prod(space) <= _SHORT_SUM
        if not self.is_channels_last or self.item_bytes == _FLOAT32 or is_short:
            return 0
        channels = -(-results // _WARP) * _WARP
        return _PARTS * batch * channels * math.prod(self.weight[2:]) * _FLOAT32

    def _sums(self, product: ConvolutionProduct) -> int:
        if product is not ConvolutionProduct.WEIGHT_GRADIENT:
            return 0
        if math.prod(self.source[2:]) == 1:  # one matrix, in either layout
            return 0
        if self.is_channels_last:
            return self._sliced_sums()
        return self.source[0] * math.prod(self.weight) * _FLOAT32

    def _sliced_sums(self) -> int:
        """Clause (9)."""
        results, channels = self.weight[:2]
        positions = self.source[0] * math.prod(self.source[2:])
        is_few = positions < _FEWEST_SLICED or results * channels > _MOST_SLICED
        if self.item_bytes == _FLOAT32 or is_few:
            return 0
        tiles = -(-results // _TILE) * -(-channels // _TILE)
        slices = min(positions // _SLICE, self.multiprocessors // tiles)
        return slices * results * channels * _FLOAT32 + _OF_SLICES if slices > 1 else 0

    def _is_transposed_first(self, product: ConvolutionProduct) -> bool:
        """Clause (4)."""
        image = math.prod(self.source[2:])
        is_of_weight = product is ConvolutionProduct.WEIGHT_GRADIENT
        is_aligned = image * self.item_bytes % _LOADED_BYTES == 0
        if self.is_channels_last or (is_aligned and not is_of_weight):
            return False
        channels, results = self.source[1], self.result[1]
        share, least = _TRANSPOSED[self.item_bytes, product]
        is_deep = channels * results > share * image * (channels + results)
        return is_deep and self._multiplications >= least

    def _partial(self, product: ConvolutionProduct) -> int:
        """Clause (7)."""
        if product is not ConvolutionProduct.WEIGHT_GRADIENT or not self._is_copied(product):
            return 0
        batch, results, *space = self.result
        aligned = self._aligned(product)
        gradient = WeightGradient(
            results,
            -(-self.source[1] // aligned) * aligned,
            math.prod(self.weight[2:]),
            batch * math.prod(space),
            self.item_bytes,
        )
        return gradient.partial_bytes(self.multiprocessors)

    @property
    def _is_of_patches(self) -> bool:
        is_few = self.source[1] < _ALIGNED_NUMBERS and self.is_strided
        return is_few and not self.is_padded and self.item_bytes == _FLOAT32

    @property
    def _is_one_by_one(self) -> bool:
        return math.prod(self.weight[2:]) == 1

    @property
    def _multiplications(self) -> int:
        return math.prod(self.result) * math.prod(self.weight[1:])

    def _has_tables(self, product: ConvolutionProduct) -> bool:
        """Clause (6)."""
        if product is ConvolutionProduct.WEIGHT_GRADIENT:
            return False
        is_of_input = product is ConvolutionProduct.INPUT_GRADIENT
        is_few = self.source[1] < _FEW_CHANNELS
        if is_few:
            return is_of_input and self._is_small_first_layer
        if is_of_input and self.is_strided:
            is_small = self._multiplications < 1 << 28
            return not is_small or (self.item_bytes == _FLOAT32 and self.is_channels_last)
        numbers = math.prod(self.source if is_of_input else self.result)
        return numbers > _TILES_OF_EACH * self.multiprocessors * _TILE**2

    @property
    def _is_small_first_layer(self) -> bool:
        is_image = self.item_bytes < _FLOAT32 and len(self.weight) == _OF_IMAGES
        is_small = is_image and max(self.weight[2:]) <= _SMALL_KERNEL
        return is_small and (self.is_strided or self._multiplications >= 1 << 26)

    def _is_copied(self, product: ConvolutionProduct) -> bool:
        is_few = self.source[1] < _FEW_CHANNELS
        if is_few and self.item_bytes == _FLOAT32 and self.is_channels_last:
            return self._multiplications >= 1 << 28
        if self._reads_planes(product) or self._reads_pixels(product):
            return False
        least = _LEAST_OF_FEW_CHANNELS if is_few else _LEAST_MULTIPLICATIONS
        return self._multiplications >= least[self.item_bytes, product]

    def _reads_planes(self, product: ConvolutionProduct) -> bool:
        """Clause (3), for large convolutions."""
        if self.item_bytes < _FLOAT32 or self.is_channels_last:
            return False
        channels = self.source[1]
        if self._is_one_by_one and product is not ConvolutionProduct.WEIGHT_GRADIENT:
            return channels < _LEAST_CHANNELS[product]
        if channels >= _FEW_CHANNELS or product is ConvolutionProduct.INPUT_GRADIENT:
            return False
        if product is ConvolutionProduct.WEIGHT_GRADIENT:
            is_image = len(self.weight) == _OF_IMAGES and channels < _ALIGNED_NUMBERS
            return is_image and max(self.weight[2:]) <= _PATCH
        return max(self.weight[2:]) != _STEM

    def _reads_pixels(self, product: ConvolutionProduct) -> bool:
        """Clause (3), for the results of first layers in 16 bits."""
        is_image = len(self.weight) == _OF_IMAGES and self.source[1] < _ALIGNED_NUMBERS
        if product is not ConvolutionProduct.RESULT or self.item_bytes == _FLOAT32 or not is_image:
            return False
        kernel = max(self.weight[2:])
        if self.is_channels_last:
            return self.is_strided and kernel <= _PATCH
        return kernel <= _SMALL_KERNEL

    def _writes_planes(self, product: ConvolutionProduct) -> bool:
        """Clause (5)."""
        is_result = product is ConvolutionProduct.RESULT and self.item_bytes == _FLOAT32
        is_result = is_result and self.groups == 1
        is_3x3 = set(self.weight[2:]) == {3}
        is_wider = self.source[1] <= _NARROW and self.result[1] >= 2 * _NARROW
        fewer, more = sorted((self.source[1], self.result[1]))
        positions = math.prod(self.result) // self.result[1]
        is_small = self._multiplications < _FEW_MULTIPLICATIONS
        is_small = is_small or (more <= _NARROW and positions <= _FEW_POSITIONS)
        return is_result and is_3x3 and fewer >= _ALIGNED_NUMBERS and (is_wider or is_small)

    def _copies(self, product: ConvolutionProduct) -> int:
        is_last = self.is_channels_last
        of_source = not is_last or self._is_uneven(self.source)
        of_result = not is_last or self._is_uneven(self.result)
        of_result = of_result and not (not is_last and self._writes_planes(product))
        of_weight = of_source or of_result
        if (
            is_last
            and self.source[1] < _FEW_CHANNELS
            and product is ConvolutionProduct.INPUT_GRADIENT
        ):
            of_result = of_result or self.item_bytes == _FLOAT32
        if not is_last and self._is_one_by_one:
            of_weight = self._is_uneven(self.source) or self._is_uneven(self.result)
        copied = [
            *([self.source] if of_source else []),
            *([self.weight] if of_weight else []),
            *([self.result] if of_result else []),
        ]
        return self.item_bytes * sum(self._numbers(shape, product) for shape in copied)

    def _is_uneven(self, shape: Sequence[int]) -> bool:
        if self.item_bytes == _FLOAT32:
            return shape[1] < _ALIGNED_CHANNELS
        return shape[1] % _ALIGNED_CHANNELS != 0

    def _numbers(self, shape: Sequence[int], product: ConvolutionProduct) -> int:
        """Clause (2)."""
        batch, channels, *space = shape
        aligned = self._aligned(product)
        channels = -(-channels // aligned) * aligned
        if shape is self.weight:
            batch = -(-batch // aligned) * aligned
        return batch * channels * math.prod(space)

    def _aligned(self, product: ConvolutionProduct) -> int:
        if self.groups > 1:
            return 1
        if self.item_bytes < _FLOAT32:
            return _ALIGNED_CHANNELS
        is_first = self.is_padded and self.source[1] < _ALIGNED_NUMBERS
        has_few = min(self.source[1], self.result[1]) < _ALIGNED_NUMBERS
        is_padded = has_few and not is_first and product is not ConvolutionProduct.RESULT
        return _ALIGNED_NUMBERS if is_padded and not self.is_channels_last else 1
