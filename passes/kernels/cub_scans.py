"""Temporary storage of CUB's scans, and of selections, runs and scans by key, built on them.

CCCL 3.0.1, which CUDA 13.0 ships: every block of a scan leaves a state for its tile, plus 32 of
padding (cub/agent/single_pass_scan_operators.cuh, `ScanTileState`). `tile_state_allocation_size`
rounds these up to 256 bytes and adds 255, and the dispatch does both once more (`AliasTemporaries`,
cub/util_temporary_storage.cuh). The items of a tile come from the policies in
cub/device/dispatch/tuning/, for the types with which PyTorch calls them
(aten/src/ATen/cuda/cub.cuh). fixtures/cuda/operators.jsonl.gz has recorded sizes of all of them on
compute capability 9.0.

Not covered: cards before compute capability 8.0, and CUB of CUDA 12, whose tile states are smaller.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from types import MappingProxyType

from graphmem.gpus import MAX_THREADS_PER_MULTIPROCESSOR, Gpu
from graphmem.kernel_program import Scratch
from graphmem.torch_releases.differences import CUB_IS_OF_CUDA_13

from .call import Call
from .layout import ceil_div, item_bytes

_ALIGNMENT = 256
_PADDING = 32  # `TILE_STATUS_PADDING`, a warp
_LARGEST_SCAN = 1 << 30  # `max_cub_size` (aten/src/ATen/cuda/cub.cuh)
_STATUS_BYTES = 4
_PAIR_BYTES = 16  # of `ReduceByKeyScanTileState`: a value and a number
# ATen's own classes, which CUB cannot pack into one word with a status.
_WRAPPED = frozenset({"float16", "bfloat16", "complex32", "complex64", "complex128"})
_WORD_BYTES: Mapping[int, int] = MappingProxyType({1: 4, 2: 4, 4: 8, 8: 16})

Tiles = tuple[int, int, int, int]
"""Items of a tile from compute capability 8.0, 8.6, 9.0 and 10.0 on."""
_CAPABILITIES = ((8, 0), (8, 6), (9, 0), (10, 0))

# `scan::policy_hub`, for an operation that CUB does not know, such as `std::plus`.
_SCAN: Mapping[int, int] = MappingProxyType({1: 3840, 2: 3840, 4: 1920, 8: 896, 16: 384})
# The same, for `cuda::std::plus` from int32 to int64.
_SUM_OF_INT32: Tiles = (3840, 1920, 3072, 3072)
# `select::policy_hub`, for int64 with flags; without flags, by bytes of an item.
_FLAGGED: Tiles = (2304, 640, 4224, 3520)
_UNIQUE: Mapping[int, Tiles] = MappingProxyType(
    {
        8: (1920, 640, 4224, 4224),
        4: (4608, 1280, 6528, 5760),
        2: (8064, 1280, 5632, 5632),
        1: (19_840, 1280, 5632, 8448),
    }
)
_UNIQUE_WRAPPED: Tiles = (1280, 1280, 1280, 1280)
# `unique_by_key::policy_hub`, by bytes of a key, with values of int32.
_UNIQUE_BY_KEY: Mapping[int, Tiles] = MappingProxyType(
    {8: (1792, 320, 4480, 3840), 4: (2816, 704, 7168, 7168)}
)
# `scan_by_key::policy_hub`, by the bytes of a key, which are also those of a value.
_SCAN_BY_KEY: Mapping[int, Tiles] = MappingProxyType(
    {8: (2240, 2304, 2464, 5888), 4: (3840, 2304, 4032, 4480)}
)
_RUNS = 768  # `rle::encode::policy_hub`, with lengths of int64

_REDUCE_TILE_BYTES = 256 * 16 * 4  # `reduce::policy_hub`, `Policy600`
_REDUCE_THREADS = 256
_REDUCE_SUBSCRIPTION = 5  # `subscription_factor`

SMALL_NOTE = (
    "really tens of KiB, known for CUDA 13 (torch 2.11 and later) on compute capability 8.0 and "
    "later"
)


def scan(call: Call, count: int, dtype: str) -> Scratch:
    """`DeviceScan`, for an operation that CUB does not know."""
    tile = _SCAN[item_bytes(dtype)]
    tiles = ceil_div(min(count, _LARGEST_SCAN), tile)
    return _storage(call, "scan", _states(tiles, dtype))


def sum_of_int32(call: Call, count: int) -> Scratch:
    """`inclusive_sum_truncating` from int32 to int64."""
    tile = _of_card(_SUM_OF_INT32, call.runtime.gpu)
    return _storage(call, "scan", tile and _states(ceil_div(count, tile), "int32"))


def selection(call: Call, count: int) -> Scratch:
    """`DeviceSelect::Flagged` of numbered elements."""
    return _selection(call, count, _FLAGGED)


def unique(call: Call, count: int, dtype: str) -> Scratch:
    """`DeviceSelect::Unique`."""
    return _selection(
        call, count, _UNIQUE_WRAPPED if dtype in _WRAPPED else _UNIQUE[item_bytes(dtype)]
    )


def unique_by_key(call: Call, count: int, key_bytes: int) -> Scratch:
    """`DeviceSelect::UniqueByKey`, with positions as values and offsets of 64 bits."""
    tile = _of_card(_UNIQUE_BY_KEY[key_bytes], call.runtime.gpu)
    return _storage(call, "unique", tile and _states(ceil_div(count, tile), "int64"))


def runs(call: Call, count: int) -> Scratch:
    """`DeviceRunLengthEncode::Encode`."""
    return _storage(call, "run lengths", _with_slack(_pairs(ceil_div(count, _RUNS))))


def scan_by_key(call: Call, count: int, key_bytes: int) -> Scratch:
    """`DeviceScan::InclusiveScanByKey`: also stores the last key of each previous tile."""
    tile = _of_card(_SCAN_BY_KEY[key_bytes], call.runtime.gpu)
    tiles = tile and ceil_div(count, tile)
    nbytes = tiles and _with_slack(_pairs(tiles) + _aligned(key_bytes * (tiles + 1)))
    return _storage(call, "scan by key", nbytes)


def reduction(call: Call, count: int, accumulator_bytes: int = 4) -> Scratch:
    """`DeviceReduce`: a partial result for each block of a grid that fills the card five times."""
    gpu = call.runtime.gpu
    threads = MAX_THREADS_PER_MULTIPROCESSOR.get(gpu.compute_capability)
    if count <= _REDUCE_TILE_BYTES // accumulator_bytes:
        return _storage(call, "reduction", 1)
    blocks = threads and threads // _REDUCE_THREADS * gpu.multiprocessors * _REDUCE_SUBSCRIPTION
    nbytes = blocks and _with_slack(_aligned(blocks * accumulator_bytes))
    return _storage(call, "reduction", nbytes)


def _selection(call: Call, count: int, tiles: Tiles) -> Scratch:
    """`DispatchSelectIf`, whose partitions have offsets of 32 bits."""
    tile = _of_card(tiles, call.runtime.gpu)
    return _storage(call, "selection", tile and _states(ceil_div(count, tile), "int32"))


def _states(tiles: int, dtype: str) -> int:
    """Bytes of the tiles' states: in one word with a status, or separate, for tile and prefix."""
    states, size = tiles + _PADDING, item_bytes(dtype)
    if dtype in _WRAPPED:
        nbytes = _aligned(states * _STATUS_BYTES) + 2 * _aligned(states * size)
    else:
        nbytes = _aligned(states * _WORD_BYTES[size])
    return _with_slack(_aligned(_with_slack(nbytes)))


def _pairs(tiles: int) -> int:
    return _aligned((tiles + _PADDING) * _PAIR_BYTES)


def _of_card(tiles: Tiles, gpu: Gpu) -> int | None:
    column = bisect_right(_CAPABILITIES, gpu.compute_capability) - 1
    return tiles[column] if column >= 0 else None


def _storage(call: Call, what: str, nbytes: int | None) -> Scratch:
    what = f"storage of CUB's {what}"
    is_known = CUB_IS_OF_CUDA_13.holds_in(call.runtime.release) and bool(nbytes)
    if not is_known or call.runtime.gpu.compute_capability < _CAPABILITIES[0]:
        call.leave_out(f"temporary {what}", "0 bytes", SMALL_NOTE)
        return Scratch(what, 0)
    return Scratch(what, nbytes or 0)


def _with_slack(nbytes: int) -> int:
    return nbytes + _ALIGNMENT - 1


def _aligned(nbytes: int) -> int:
    return ceil_div(nbytes, _ALIGNMENT) * _ALIGNMENT
