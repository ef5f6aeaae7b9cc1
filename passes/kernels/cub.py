"""Temporary storage of CUB's radix sorts, as compiled into PyTorch's wheels.

CCCL 3.0.1 (torch 2.11 to 2.13, CUDA 13.0), cub/device/dispatch/dispatch_radix_sort.cuh; its tuning
is that of CCCL 2.7 (CUDA 12.8). The formula is in docs/sources.md, "Embeddings, indexing and
sorting". The recording cs336med_train_ctx1024 shows one size, fixtures/cuda/operators.jsonl.gz all
those of compute capability 9.0 with values of 8 bytes, and of keys alone; zoo_cpmant (in
fixtures/cuda/zoo.tar.xz) one of 4 bytes with 4 bytes.

Not covered: keys below four bytes before compute capability 9.0, which CUB sorts differently.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from graphmem.gpus import Gpu

from .layout import ceil_div

_RADIX_BITS = 8
_BINS = 1 << _RADIX_BITS
_ALIGNMENT = 256
_PORTION = 1 << 28
_SINGLE_TILE_THREADS = 256
_SINGLE_TILE_ITEMS = 19  # for four bytes

# Items of a tile by bytes of key and value, with 64-bit offsets, on cards before compute capability
# 9.0 and from it on (`Policy800::OnesweepPolicy`, `Policy900::OnesweepPolicy`).
_TILES: Mapping[tuple[int, int], tuple[int | None, int]] = MappingProxyType(
    {
        (8, 8): (3840, 4608),
        (8, 4): (3840, 5760),
        (4, 8): (3072, 5376),
        (4, 4): (6528, 6528),
        (2, 8): (None, 5632),
        (1, 8): (None, 3456),
        (8, 0): (3840, 5760),
        (4, 0): (8064, 7296),
        (2, 0): (None, 9728),
        (1, 0): (None, 9728),
    }
)

_TILE_OF_FLOATS = 6912
"""That of float32 keys alone (`FLOAT_KEYS`), from compute capability 9.0 on."""

SORT_NOTE = "CUB's policy for keys of this size is not known"


def sort_pairs_bytes(
    count: int, key_bytes: int, value_bytes: int, bits: int, gpu: Gpu, *, of_floats: bool = False
) -> int | None:
    """Temporary storage of `DeviceRadixSort::SortPairs`; None if it is not known.

    Args:
        count: how many pairs.
        key_bytes: bytes of one key.
        value_bytes: bytes of one value; 0 for `SortKeys`.
        bits: how many bits of the key are compared.
        gpu: the card.
        of_floats: the keys are float32.
    """
    single = _SINGLE_TILE_THREADS * (_SINGLE_TILE_ITEMS * 4 // max(4, key_bytes, value_bytes))
    if count <= single:
        return 1
    tiles = _TILES.get((key_bytes, value_bytes))
    if tiles is None:
        return None
    is_new = gpu.compute_capability >= (9, 0)
    tile = _TILE_OF_FLOATS if is_new and of_floats and not value_bytes else tiles[is_new]
    if tile is None:
        return None
    passes = ceil_div(bits, _RADIX_BITS)
    portion = _PORTION // tile * tile
    portions = ceil_div(count, portion)
    parts = [
        portions * passes * _BINS * 8,
        ceil_div(min(count, portion), tile) * _BINS * 4,
        count * key_bytes * (passes > 1),
        count * value_bytes * (passes > 1),
        portions * passes * 4,
    ]
    return sum(ceil_div(part, _ALIGNMENT) * _ALIGNMENT for part in parts) + _ALIGNMENT - 1


def segmented_sort_pairs_bytes(count: int, key_bytes: int, value_bytes: int) -> int:
    """Temporary storage of `DeviceSegmentedRadixSort::SortPairs`: second buffers of both.

    `DispatchSegmentedRadixSort::InvokePasses` and `AliasTemporaries`; Liger's rows of sparsemax
    (fixtures/cases/liger_sparsemax.toml) show three sizes.

    Args:
        count: how many pairs.
        key_bytes: bytes of one key.
        value_bytes: bytes of one value.
    """
    parts = (count * key_bytes, count * value_bytes)
    return sum(ceil_div(part, _ALIGNMENT) * _ALIGNMENT for part in parts) + _ALIGNMENT - 1


def key_bits(largest: int) -> int:
    """`get_num_bits` (aten/src/ATen/cuda/cub.cuh): bits of the largest key, at least 1."""
    return max(1, largest.bit_length())
