"""Queries, keys and values as (batch, heads, sequence, width), for every attention operator.

`_scaled_dot_product_*` take this layout; the operators that those call, `_flash_attention_*` and
`_efficient_attention_*`, take (batch, sequence, heads, width), which is what every kernel uses
(aten/src/ATen/native/transformers/cuda/attention.cu).
"""

from __future__ import annotations

from graphmem.graph import TensorOut

from .call import Call, UnknownOperandError
from .layout import is_contiguous


def operand(call: Call, name: str) -> TensorOut:
    """A tensor argument of four dimensions, heads before the sequence.

    Raises:
        UnknownOperandError: its sizes are not known, or sequences of several lengths are packed.
    """
    tensor = call.tensor(name)
    if len(tensor.shape) != 4:
        raise UnknownOperandError(name)
    return tensor if call.name.startswith("aten._scaled_dot_product") else _transposed(tensor)


def is_sequence_first(tensor: TensorOut) -> bool:
    """Whether (batch, heads, sequence, width) is contiguous as (batch, sequence, heads, width)."""
    return is_contiguous(_transposed(tensor))


def _transposed(tensor: TensorOut) -> TensorOut:
    batch, one, other, width = zip(tensor.shape, tensor.stride, strict=True)
    shape, stride = zip(batch, other, one, width, strict=True)
    return TensorOut(shape, tensor.dtype, None, stride)
