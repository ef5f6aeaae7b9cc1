"""Parts of a tensor, quantised each by itself (`split_quantize` of csrc/extensions/cast.cpp).

Parts scaled in blocks share a buffer for their rows and one for their columns: their data, each
from a multiple of 256 bytes on, then their scales from multiples of 16, and room to align it
(`bulk_allocate_mxfp8_tensors`, `bulk_allocate_fp8_blockwise_tensors`, `bulk_allocate`). Others are
allocated one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import torch

from graphmem.virtual_device.stand_ins.transformer_engine.quantizers import (
    BLOCKS_OF_32,
    BLOCKS_OF_128,
    USES,
    create,
    fill,
    kind_of,
    python_tensor,
    sizes_in_blocks,
)

_DATA_ALIGNMENT, _SCALE_ALIGNMENT = 256, 16
Shape = tuple[int, ...]
Size = tuple[Shape, torch.dtype]


def split_quantize(
    tensor: Any, split_sections: Any, quantizer_list: Any, disable_bulk_allocation: bool = False
) -> list[Any]:
    """Split a tensor by rows, and quantise the parts."""
    data = tensor.contiguous()
    shapes = [(rows, *data.shape[1:]) for rows in split_sections]
    kinds = {kind_of(each) for each in quantizer_list}
    in_one = len(kinds) == 1 and kinds <= {BLOCKS_OF_32, BLOCKS_OF_128}
    if in_one and not disable_bulk_allocation:
        made = _in_one_buffer(quantizer_list, shapes, data.dtype)
    else:
        pairs = zip(quantizer_list, shapes, strict=True)
        made = [create(quantizer, shape, data.dtype) for quantizer, shape in pairs]
    for quantizer in quantizer_list:
        fill(quantizer)
    return made


def _in_one_buffer(
    quantizers: Sequence[Any], shapes: Sequence[Shape], dtype: torch.dtype
) -> list[Any]:
    """The uses of the first quantizer are those of all."""
    made: list[dict[str, Any]] = [{} for _ in shapes]
    for use in USES:
        names = (f"{use}_data", f"{use}_scale_inv")
        views: list[torch.Tensor | None] = [None] * (2 * len(shapes))
        if getattr(quantizers[0], f"{use}_usage"):
            pairs = zip(quantizers, shapes, strict=True)
            sizes = [sizes_in_blocks(quantizer, shape, use) for quantizer, shape in pairs]
            views = list(_views([size for size, _ in sizes], [scales for _, scales in sizes]))
        halves = zip(made, views[: len(shapes)], views[len(shapes) :], strict=True)
        for parts, data, scales in halves:
            parts.update(zip(names, (data, scales), strict=True))
    everything = zip(quantizers, shapes, made, strict=True)
    return [python_tensor(each, shape, dtype, "cuda", parts) for each, shape, parts in everything]


def _views(data: Sequence[Size], scales: Sequence[Size]) -> Iterator[torch.Tensor]:
    """`bulk_allocate`."""
    end, begins = 0, []
    for alignment, sizes in ((_DATA_ALIGNMENT, data), (_SCALE_ALIGNMENT, scales)):
        for shape, dtype in sizes:
            begins.append(-(-end // alignment) * alignment)
            end = begins[-1] + prod(shape) * dtype.itemsize
    buffer = torch.empty(end + _DATA_ALIGNMENT, dtype=torch.uint8, device="cuda")
    for begin, (shape, dtype) in zip(begins, (*data, *scales), strict=True):
        nbytes = prod(shape) * dtype.itemsize
        yield buffer[begin : begin + nbytes].view(dtype).view(shape)
