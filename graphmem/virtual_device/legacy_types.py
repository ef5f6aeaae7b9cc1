"""`torch.cuda.FloatTensor` and its kin: tensor types that predate `device=`.

A CPU build has the names but refuses to instantiate them
(`torch/csrc/tensor/python_tensor.cpp`). Here they make tensors of the virtual GPU by the rules of
`legacy_tensor_ctor` (torch/csrc/utils/tensor_new.cpp): from sizes, or from data. `Tensor.type` of
such a type, or of its name, moves and casts at once, and returns the tensor itself if it has that
type already (`THPVariable_type`, tools/autograd/templates/python_variable_methods.cpp: it calls
`dispatch_to` without a copy; it initialises CUDA in C, where a CPU build has none).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
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
    """List the types to replace, and the method that takes them."""
    types: list[Replacement] = [
        (torch.cuda, name, _LegacyType(name, (), {"dtype": dtype}))
        for name, dtype in _DTYPES.items()
    ]
    return [*types, (torch.Tensor, "type", _typed_by(torch.Tensor.type))]


def _typed_by(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def typed(
        tensor: torch.Tensor, dtype: Any = None, non_blocking: bool = False, **keywords: Any
    ) -> Any:
        wanted = _dtype_on_the_card(dtype)
        if wanted is None:
            return original(tensor, dtype, non_blocking, **keywords)
        on_the_card = tensor.device if tensor.device.type == "cuda" else torch.device("cuda")
        return tensor.to(on_the_card, wanted, non_blocking, **keywords)

    return typed


def _dtype_on_the_card(wanted: Any) -> torch.dtype | None:
    if isinstance(wanted, _LegacyType):
        return wanted.dtype
    if isinstance(wanted, str) and wanted.startswith("torch.cuda."):
        return _DTYPES.get(wanted.removeprefix("torch.cuda."))
    return None


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
