"""The slices into which cuDNN cuts a weight's gradient on Hopper cards, as measured.

The kernels (`cask_plugin`, `xmma_wgrad`) compute tiles of the gradient, each number a sum over all
positions of the result. Tiles are 128 by 128, with a side of 64 where there are no more channels.
If there are fewer tiles than multiprocessors, the sum is cut into enough slices to keep all of them
busy: nine tiles of a 3x3 weight of 64 or 128 channels into 14 slices on 132 multiprocessors. Each
slice has separate float32 sums; in 16 bits one of them is the result's.

Recorded in resnet18, resnet50, unet (float32): 14 slices for weights of 64 and 128 channels, 7 for
256 to 128, 3 for 256, because sums of fewer than 2^13 positions are cut into slices of at least
2^11. For 512 to 512, the last 12 of 144 tiles are cut: into 7 if 1,568 positions are summed, 2 if
784 are. In 16 bits, 13 slices if input or result has 64 channels; with 128 and more, 2 and 4 slices
of 2^13 positions or more. 7x7 stems have tiles of 256 columns: 66 slices in 16 bits where 58 to 61
were recorded; in float32 slices of 2^10 positions, 98 to 392 where 115 to 331 were recorded. Other
first layers have few slices, and none are counted.
"""

from __future__ import annotations

from dataclasses import dataclass

_FLOAT32 = 4
_TILE = 128
_FEWEST = 64
_FEW_CHANNELS = 8
_STEM = 7 * 7
_LONG_SUM = {2: 1 << 14, 4: 1 << 13}
_LONGEST_SUM = 1 << 16
_LONG_SLICE = 1 << 13
_SLICE = 1 << 11
_SHORT_SLICE = 1 << 10
_SHORTEST_SLICE = 1 << 8
_COUNTER_BYTES = 4
_MORE_COUNTERS = 7
_OF_COUNTERS = 131


@dataclass(frozen=True)
class WeightGradient:
    """The gradient of a weight as a product of matrices.

    Attributes:
        results: channels of the result.
        channels: channels of the input.
        positions: of the kernel, such as 9 of 3x3.
        sums: how many numbers each sum adds up: images times positions of the result.
        item_bytes: bytes of one number.
    """

    results: int
    channels: int
    positions: int
    sums: int
    item_bytes: int

    def partial_bytes(self, multiprocessors: int) -> int:
        """Bytes of the sums of all slices, and of their counters."""
        if self._tiles > multiprocessors:
            return self._last_bytes(multiprocessors)
        slices = self._slices(multiprocessors)
        if slices < 2:
            return 0
        rows = max(self.results, _FEWEST)
        is_full = slices == multiprocessors // self._tiles
        own = slices - (is_full and self.item_bytes < _FLOAT32)
        sums = own * rows * self.channels * self.positions * _FLOAT32
        return sums + _counters(self._tiles * slices)

    def _last_bytes(self, multiprocessors: int) -> int:
        """The last tiles, which no longer fill the card, are the only ones cut."""
        last = self._tiles % multiprocessors
        if self.item_bytes < _FLOAT32 or not last:
            return 0
        slices = min(multiprocessors // last, self.sums // _SHORTEST_SLICE)
        if slices < 2:
            return 0
        return last * slices * _TILE * _TILE * _FLOAT32 + _counters(last * slices)

    def _slices(self, multiprocessors: int) -> int:
        most = multiprocessors // self._tiles
        if self.channels <= _FEW_CHANNELS:
            return self._slices_of_stem(most)
        is_wide = min(self.results, self.channels) > _FEWEST
        if self.item_bytes < _FLOAT32 and is_wide:
            return min(most, self.sums // _LONG_SLICE)
        if self.sums >= _LONG_SUM[self.item_bytes]:
            return most
        return min(most, self.sums // _SLICE) if self.item_bytes == _FLOAT32 else 0

    def _slices_of_stem(self, most: int) -> int:
        if self.positions < _STEM or self.sums < _LONGEST_SUM:
            return 0
        return most if self.item_bytes < _FLOAT32 else self.sums // _SHORT_SLICE

    @property
    def _tiles(self) -> int:
        rows = -(-self.results // _side(self.results))
        if self.channels <= _FEW_CHANNELS:
            return rows * -(-self.channels * self.positions // (2 * _TILE))
        return rows * -(-self.channels * self.positions // _side(self.channels))


def _counters(slices: int) -> int:
    """Bytes of one counter for each slice of a tile, and of those that cuDNN adds."""
    return _COUNTER_BYTES * (slices + _MORE_COUNTERS) + _OF_COUNTERS


def _side(channels: int) -> int:
    return _FEWEST if channels <= _FEWEST else _TILE
