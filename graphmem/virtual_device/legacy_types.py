"""`torch.cuda.FloatTensor` and its kin: tensor types that predate `device=`.

A CPU build has the names but refuses to instantiate them
(`torch/csrc/tensor/python_tensor.cpp`). Here they make tensors of the virtual GPU by the rules of
`legacy_tensor_ctor` (torch/csrc/utils/tensor_new.cpp): from sizes, or from data. `Tensor.type` of
such a type, or of its name, moves and casts at once, and returns the tensor itself if it has that
type already (`THPVariable_type`, tools/autograd/templates/python_variable_methods.cpp: it calls
`dispatch_to` without a copy; it initialises CUDA in C, where a CPU build has none).

`torch.set_default_tensor_type` of one is a default dtype and a default device (`CardByDefault`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._device import DeviceContext

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
    set_default: Any = torch._C._set_default_tensor_type
    return [
        *types,
        (torch.Tensor, "type", _typed_by(torch.Tensor.type)),
        (torch._C, "_set_default_tensor_type", _default_by(set_default)),
    ]


def _default_by(original: Callable[[Any], None]) -> Callable[[Any], None]:
    """`py_set_default_tensor_type` (torch/csrc/tensor/python_tensor.cpp), the card's types too."""

    @functools.wraps(original)
    def set_default(wanted: Any) -> None:
        if not isinstance(wanted, _LegacyType):
            original(wanted)
            CardByDefault.leave()
            return
        if not wanted.dtype.is_floating_point:
            raise TypeError("only floating-point types are supported as the default type")
        torch.set_default_dtype(wanted.dtype)
        CardByDefault.begin()

    return set_default


class CardByDefault(DeviceContext):
    """What a default type of the card means to functions that make tensors without `device=`.

    A tensor that is copied stays where it is (`internal_new_from_data`, `asarray`: its own device
    comes before the default), and `torch.Tensor(…)` makes one on the card as well, except of a
    tensor (`legacy_tensor_generic_ctor_new`; all in torch/csrc/utils/tensor_new.cpp).
    """

    @classmethod
    def begin(cls) -> None:
        """Begin, or go on."""
        if not isinstance(_default(), cls):
            torch.set_default_device(None)
            context = cls("cuda")
            context.__enter__()
            torch._GLOBAL_DEVICE_CONTEXT.device_context = context

    @classmethod
    def leave(cls) -> None:
        """End, if it began."""
        if isinstance(_default(), cls):
            torch.set_default_device(None)

    def __enter__(self) -> Any:
        super().__enter__()  # type: ignore[no-untyped-call]
        new = torch.Tensor.__new__

        def on_the_card(kind: Any, *args: Any, **kwargs: Any) -> Any:
            made = new(kind, *args, **kwargs)
            is_copy = bool(args) and isinstance(args[0], torch.Tensor)
            is_free = kind is torch.Tensor and not is_copy and kwargs.get("device") is None
            return made.to("cuda") if is_free else made

        torch.Tensor.__new__ = on_the_card  # type: ignore[method-assign, assignment]

    def __exit__(self, *error: object) -> None:
        del torch.Tensor.__new__
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function in _COPIES and args and isinstance(args[0], torch.Tensor):
            return function(*args, **(kwargs or {}))
        return super().__torch_function__(function, types, args, kwargs)  # type: ignore[no-untyped-call]


_COPIES = (torch.tensor, torch.as_tensor, torch.asarray)


def _default() -> Any:
    return getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)


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
