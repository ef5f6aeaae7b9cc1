"""Tensors inside `torch.func` transforms: wrappers, one for each level, around the tensor itself.

Autograd of a level works on that level's wrappers (aten/src/ATen/functorch/TensorWrapper.h,
BatchedTensorImpl.h), so it saves and passes on wrappers; the memory belongs to the innermost
tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._functorch import eager_transforms, vmap

from graphmem.virtual_device.patching import Replacement

_functorch: Any = torch._C._functorch


def innermost(tensor: torch.Tensor) -> torch.Tensor:
    """The innermost tensor, which has the memory."""
    while type(tensor) is torch.Tensor and _functorch.is_functorch_wrapped_tensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return tensor


def is_of_transform(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a transform's wrapper, also that of `autograd.grad`'s batched gradients.

    Those are `kTensorSubclassLike` (aten/src/ATen/TensorSubclassLikeUtils.h).
    """
    kinds = (_functorch.is_functorch_wrapped_tensor, _functorch.is_legacy_batchedtensor)
    return any(is_kind(tensor) for is_kind in kinds)


def rewrapped(wrapper: torch.Tensor) -> torch.Tensor:
    """The same tensor in a new wrapper of its level, without the node that made it.

    Autograd saves the results of a node without that node (`Variable::tensor_data`).
    """
    if wrapper.grad_fn is None or not _functorch.is_gradtrackingtensor(wrapper):
        return wrapper
    level = _functorch.maybe_get_level(wrapper)
    with torch._C._DisableFuncTorch():
        again: torch.Tensor = _functorch._wrap_for_grad(_functorch.get_unwrapped(wrapper), level)
    return again


class TransformLevels:
    """Counts the levels that are open."""

    def __init__(self) -> None:
        self._open = 0

    def __bool__(self) -> bool:
        return self._open > 0

    def replacements(self) -> list[Replacement]:
        """Counting versions of the functions that begin and end a level."""
        modules: dict[Any, tuple[str, ...]] = {vmap: ("vmap",), eager_transforms: ("grad", "jvp")}
        return [
            (module, name, self._counting(getattr(module, name), change))
            for module, kinds in modules.items()
            for kind in kinds
            for name, change in (
                (f"_{kind}_increment_nesting", 1),
                (f"_{kind}_decrement_nesting", -1),
            )
        ]

    def _counting(self, function: Callable[..., int], change: int) -> Callable[..., int]:
        def counted(*args: Any) -> int:
            self._open += change
            return function(*args)

        return counted
