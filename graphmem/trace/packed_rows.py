"""`nn.TransformerEncoder` in evaluation with a padding mask, which leaves the padding out.

It makes a nested tensor of the sequences (torch/nn/modules/transformer.py), which has the rows of
all of them in one buffer, runs its layers on that, and pads the result. A virtual card has no
nested tensors that C++ makes, so the buffer stands for one, as a batch of a single sequence: its
layers are then those of `virtual_device/encoder_layers.py`, whose results have the same bytes,
since each operation of a layer has one result for each row.

  (1) `_nested_tensor_from_mask_left_aligned` and `_nested_tensor_from_mask` count a mask's rows on
      the card (aten/src/ATen/native/nested/NestedTensorMath.cpp); these operations run here. How
      many rows there are is known if the mask is; otherwise all are assumed to be, the bound.
  (2) `to_padded_tensor` takes the memory of the padded result.

The indices that kernels of nested tensors keep on the card are left out: five numbers of 4 bytes
for each sequence at most, while such a kernel runs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from graphmem.trace.sparse_tensors import SparseMode

aten = torch.ops.aten

_INDICES = (
    "indices of a nested tensor",
    "0 bytes",
    "at most 20 bytes for each sequence and kernel",
)


class PackedRowsMode(SparseMode):
    """A trace of encoders that leave padding out."""

    def __init__(self, *watchers: Any) -> None:
        super().__init__(*watchers)
        self._packed: set[int] = set()
        if self._recorder.device.type == "cuda":
            self._handlers |= {
                aten._nested_tensor_from_mask_left_aligned.default: self._is_left_aligned,
                aten._nested_tensor_from_mask.default: self._pack,
                aten.to_padded_tensor.default: self._pad,
            }

    def _is_left_aligned(self, func: Any, types: Any, args: Any, kwargs: dict[str, Any]) -> bool:
        _, mask = args
        if not isinstance(mask, FakeTensor):
            return self._run(func, types, args, kwargs)  # type: ignore[no-any-return]
        known = self.reads.known.of(mask)
        with self:
            self._lengths(mask)
        if known is None:
            self._recorder.assume(
                "a padding mask",
                "padding is at the end",
                "it depends on data",
                self._location.place(),
            )
            return True
        self.reads.use(known.basis)
        with torch._C._DisableTorchDispatch():
            return bool((known.tensor == known.tensor.cummin(1).values).all())

    def _pack(self, func: Any, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        padded, mask, *_ = args
        if not isinstance(padded, FakeTensor) or padded.dim() != 3:
            return self._run(func, types, args, kwargs)
        rows = self._rows(mask)
        with self:
            lengths = self._lengths(mask).reshape(-1, 1)
            torch.cat([lengths, torch.full_like(lengths, padded.shape[-1])], 1)
            del lengths
            packed = padded.new_empty(1, rows, padded.shape[-1])
        self._packed.add(rows)
        self._recorder.assume(*_INDICES, self._location.place())
        return packed

    def _pad(self, func: Any, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        packed, _, size = (*args, None)[:3]
        is_packed = packed.dim() == 3 and packed.shape[0] == 1 and packed.shape[1] in self._packed
        if size is None or not is_packed:
            return self._run(func, types, args, kwargs)
        with self:
            return packed.new_empty(size)

    def _rows(self, mask: torch.Tensor) -> int:
        known = self.reads.known.of(mask)
        if known is None:
            return self.reads.count("how many elements of a padding mask are true", mask.numel())
        self.reads.use(known.basis)
        with torch._C._DisableTorchDispatch():
            return int(known.tensor.sum())

    @staticmethod
    def _lengths(mask: torch.Tensor) -> torch.Tensor:
        """What (1) computes of a mask, operation by operation."""
        padded = torch.cat([mask, torch.zeros_like(mask[:, :1])], 1)
        first = padded.to(torch.int32).argmin(1)
        lengths = mask.cumsum(1).select(1, mask.shape[1] - 1)
        del padded
        first.to(lengths.dtype)
        return lengths
