"""quanto's kernels for CUDA, which it compiles when one is first called.

`optimum/quanto/library/extensions/cuda` of optimum-quanto 0.2.7 registers PyTorch operators whose
Python calls these compiled functions. Each allocates its result:
  (1) `unpack` (unpack.cu): numbers of 2 or 4 bits, a byte each;
  (2) `gptq_marlin_repack` and `fp8_marlin_gemm` (marlin/gptq_marlin_repack.cu, fp8_marlin.cu);
  (3) `awq_v2_gemm_f16i4` and `awq_v2_gemv_f16i4` (awq/v2); the former also a counter of 4 bytes for
      each tile (`KERNEL_LAUNCH_CODE` of gemm_cuda.cu);
  (4) `marlin_gemm_f16i4` writes into its argument (marlin/marlin_cuda.cpp).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from graphmem.virtual_device.libraries.imports import executed_by, run_own_code

_EXTENSION = "optimum.quanto.library.extensions.cuda"
_TILE = 16  # `gptq_marlin::tile_size`
_AWQ_INTERLEAVE = 4  # rows of an AWQ weight that are stored together (`output_shape` of awq/v2)
_AWQ_TILES = ((64, 16), (128, 32))  # up to how many rows of a result a tile has how many
_AWQ_TILE = 64
_AWQ_WIDTH = 128


@contextmanager
def standing_in() -> Iterator[None]:
    """Let quanto call its kernels without a compiler."""
    with executed_by(_EXTENSION, _load):
        yield


def _load(module: ModuleType) -> None:
    run_own_code(module)
    extension: Any = module
    extension.ext._lib = SimpleNamespace(
        unpack=_unpack,
        gptq_marlin_repack=_repack,
        fp8_marlin_gemm=_fp8_product,
        awq_v2_gemm_f16i4=_awq_product,
        awq_v2_gemv_f16i4=_awq_result,
        marlin_gemm_f16i4=lambda *operands: None,
    )


def _unpack(packed: torch.Tensor, bits: int) -> torch.Tensor:
    return packed.new_empty((packed.shape[0] * 8 // bits, *packed.shape[1:]))


def _repack(
    weight: torch.Tensor, perm: torch.Tensor, size_k: int, size_n: int, num_bits: int
) -> torch.Tensor:
    return weight.new_empty((size_k // _TILE, size_n * _TILE * num_bits // 32))


def _fp8_product(
    left: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    workspace: torch.Tensor,
    num_bits: int,
    size_m: int,
    size_n: int,
    size_k: int,
) -> torch.Tensor:
    return left.new_empty((size_m, size_n))


def _awq_product(left: torch.Tensor, weight: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
    made = _awq_result(left, weight)
    columns, rows = made.shape[-1], made.numel() // made.shape[-1]
    height = next((size for most, size in _AWQ_TILES if rows <= most), _AWQ_TILE)
    tiles = (rows + height - 1) // height * (columns + _AWQ_WIDTH - 1) // _AWQ_WIDTH
    left.new_empty(tiles, dtype=torch.int32)
    return made


def _awq_result(left: torch.Tensor, weight: torch.Tensor, *rest: Any) -> torch.Tensor:
    return left.new_empty((*left.shape[:-1], weight.shape[0] * _AWQ_INTERLEAVE))
