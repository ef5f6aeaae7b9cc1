"""`torch.cuda.FloatTensor` and its kin: tensor types that predate `device=`.

A CPU build has the names but refuses to instantiate them
(`torch/csrc/tensor/python_tensor.cpp`). Here they make tensors of the virtual GPU by the rules of
`legacy_tensor_ctor` (torch/csrc/utils/tensor_new.cpp): from sizes, or from data.
"""

from __future__ import annotations

from typing import Any

import torch

from graphmem.virtual_device.patching import Replacement

_DTYPES = {
    "BFloat16Tensor": torch.bfloat16,
    "BoolTensor": torch.bool,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "DoubleTensor": torch.float64,
    "FloatTensor": torch.float32,
    "HalfTensor": torch.float16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "ShortTensor": torch.int16,
}


def legacy_type_replacements() -> list[Replacement]:
    """List the types to replace."""
    return [
        (torch.cuda, name, _LegacyType(name, (), {"dtype": dtype}))
        for name, dtype in _DTYPES.items()
    ]


class _LegacyType(type):
    dtype: torch.dtype

    def __call__(cls, *args: Any) -> torch.Tensor:
        if len(args) == 1 and not isinstance(args[0], (int, torch.Size)):
            return torch.tensor(args[0], dtype=cls.dtype, device="cuda")
        return torch.empty(*(args or (0,)), dtype=cls.dtype, device="cuda")

    def __instancecheck__(cls, instance: Any) -> bool:
        return (
            isinstance(instance, torch.Tensor)
            and instance.dtype == cls.dtype
            and instance.device.type == "cuda"
        )
