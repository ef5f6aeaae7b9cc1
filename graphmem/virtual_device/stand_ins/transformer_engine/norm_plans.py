"""Workspaces of the norm kernels (common/normalization/rtc_dispatch.cpp, common.h).

(1) A width in the table of tuned kernels has its own kernel, another one the next wider general
    kernel; a row wider than a kernel's is shared by several blocks.
(2) A tuned kernel launches as many blocks as run at once; a general one no more than it has rows
    for. Several blocks of a row take a barrier and room for their sums.
(3) In the backward pass each column of blocks sums its own gradient of the weight in float32, and
    a LayerNorm of the bias.

How many blocks of a kernel run at once on a multiprocessor depends on its registers, which are
known once the kernel is compiled at run time (`norm_blocks`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from graphmem.virtual_device.stand_ins.transformer_engine.norm_blocks import TABLES

_FLOAT_BYTES = 4
_PAIR_BYTES = 2 * _FLOAT_BYTES
_ALIGNMENT = 16
_LETTERS = 36
_ARCHITECTURES = (80, 89, 90, 100, 120)
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class _Kernel:
    """A row of the table.

    Attributes:
        width: the elements of a row that it takes.
        blocks_of_row: blocks that share a row, in a tuned kernel.
        rows: rows of a block.
        at_once: how many blocks run at once on a multiprocessor.
    """

    width: int
    blocks_of_row: int
    rows: int
    at_once: int


def workspace_bytes(
    kind: str, stage: str, data: torch.Tensor, processors: int, architecture: int
) -> int:
    """The bytes of a workspace.

    Args:
        kind: `layernorm` or `rmsnorm`.
        stage: `fwd` or `bwd`.
        data: the input.
        processors: multiprocessors that may be used.
        architecture: the card's, as 90 for an H100.
    """
    width = data.shape[-1]
    rows = data.numel() // width
    plan = _plan(kind, stage, data.dtype, architecture, width)
    kernel, is_tuned = plan
    if is_tuned:
        across = kernel.blocks_of_row
        columns = processors * kernel.at_once // across
    else:
        across = -(-width // kernel.width)
        columns = min(-(-rows // kernel.rows), processors * kernel.at_once // max(across, 1))
    sums = barrier = 0
    if across > 1:
        pair = _PAIR_BYTES if is_tuned or stage == "bwd" else _FLOAT_BYTES
        sums = columns * kernel.rows * across * pair * 2
        barrier = 2 * columns * _FLOAT_BYTES
    gradients = columns * width * _FLOAT_BYTES if stage == "bwd" else 0
    parts = 2 if kind == "layernorm" else 1
    return _aligned(sums) + _aligned(barrier) + parts * _aligned(gradients) or 1


def _plan(
    kind: str, stage: str, dtype: torch.dtype, architecture: int, width: int
) -> tuple[_Kernel, bool]:
    """Clause (1): `TeNormalizationRegistry::getKernel`."""
    for kernel in _kernels(kind, stage, "tuned", dtype, architecture):
        if kernel.width == width:
            return kernel, True
    general = list(_kernels(kind, stage, "general", dtype, architecture))
    return next((each for each in general if each.width >= width), general[-1]), False


def _kernels(
    kind: str, stage: str, launch: str, dtype: torch.dtype, architecture: int
) -> Iterator[_Kernel]:
    """The kernels, by width; an architecture without a column is taken as the one before it."""
    older = [each for each in _ARCHITECTURES if each <= architecture]
    column = _ARCHITECTURES.index(older[-1]) if older else 0
    for line in TABLES[kind, stage, launch].splitlines():
        width, *words = line.split()
        plan, counts = words[_DTYPES.index(dtype)].split(":")
        blocks_of_row, rows = (int(each) for each in plan.split("x"))
        yield _Kernel(int(width), blocks_of_row, rows, int(counts[column], _LETTERS))


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
