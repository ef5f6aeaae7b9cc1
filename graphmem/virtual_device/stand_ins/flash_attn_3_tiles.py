"""The tiles of FlashAttention 3's backward pass (`mha_bwd` in hopper/flash_api.cpp)."""

from __future__ import annotations

from typing import NamedTuple

_HEAD_WIDTHS = (64, 96, 128, 192, 256)


class Mask(NamedTuple):
    """The kind of mask as a kernel takes it; never both.

    Attributes:
        causal: queries see only earlier keys.
        windowed: queries see only keys near them (`is_local`).
    """

    causal: bool
    windowed: bool


def mask_of(causal: bool, left: int, right: int, queries: int, keys: int) -> Mask:
    """The mask of a call with the window `left` and `right`; -1: unlimited."""
    left = -1 if left >= keys - 1 else left
    right = 0 if causal else -1 if right >= queries - 1 else right
    causal = left < 0 and right == 0
    return Mask(causal, not causal and (left >= 0 or right >= 0))


def rounded_width(width: int) -> int:
    """`round_up_headdim`."""
    return next(each for each in _HEAD_WIDTHS if width <= each)


def tile_of(
    width: int, mask: Mask, is_capped: bool, capability: tuple[int, int]
) -> tuple[int, int]:
    """`kBlockM` and `kBlockN`: queries and keys of a tile.

    Args:
        width: the rounded width of a head.
        mask: the call's mask.
        is_capped: whether scores are soft-capped.
        capability: the card's compute capability.
    """
    if capability >= (9, 0):
        columns = 128 if width <= 128 else 96 if width <= 192 else 80
        return _queries_on_hopper(width, mask, is_capped), columns
    if capability in ((8, 6), (8, 9)):
        return (64 if width <= 192 else 32), 128 if width <= 96 else 96 if width <= 128 else 64
    return (128 if width <= 64 else 64), 128 if width <= 128 else 80 if width <= 192 else 64


def _queries_on_hopper(width: int, mask: Mask, is_capped: bool) -> int:
    if width <= 64:
        return 96 if mask.causal and is_capped else 128
    if 96 < width <= 128:
        return 64 if any(mask) or is_capped else 80
    return 64


def rounded(size: int, block: int) -> int:
    """Round up to a multiple of `block`."""
    return -(-size // block) * block
