"""Gradients of tensors whose data moves to another device.

`tensor.data = other` keeps the gradient, wherever it is (`VariableHooks::set_data`), whereas here
the tensor swaps its contents with another one, which cannot hold it: the setter of `grad` compares
devices. FSDP1 with CPU offload moves a parameter back between its gradient's computation and use.
Nor can the fake tensor that PyTorch makes of such a tensor on the host, as an operand, hold it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses import meta_utils

from graphmem.caller.tensors import ATTRIBUTES
from graphmem.virtual_device.patching import Replacement

_KEPT = "graphmem gradient"
_grad: Any = torch.Tensor.grad
_grad_to_describe: Any = meta_utils.safe_grad


def replacements() -> list[Replacement]:
    """List the attributes to replace: `grad` by itself, so that it is put back after `keep`."""
    return [(torch.Tensor, "grad", _grad), (meta_utils, "safe_grad", _describe)]


def keep(tensor: torch.Tensor, gradient: torch.Tensor | None) -> None:
    """Let a tensor have the gradient that it had before its contents were swapped."""
    if gradient is not None:
        ATTRIBUTES.__get__(tensor)[_KEPT] = gradient
        torch.Tensor.grad = property(_read, _write, _delete)  # type: ignore[assignment]


def _describe(tensor: Any) -> Any:
    return None if _KEPT in ATTRIBUTES.__get__(tensor) else _grad_to_describe(tensor)


def _read(tensor: torch.Tensor) -> Any:
    kept = ATTRIBUTES.__get__(tensor).get(_KEPT)
    return _grad.__get__(tensor) if kept is None else kept


def _write(tensor: torch.Tensor, gradient: torch.Tensor | None) -> None:
    ATTRIBUTES.__get__(tensor).pop(_KEPT, None)
    _grad.__set__(tensor, gradient)


def _delete(tensor: torch.Tensor) -> None:
    _write(tensor, None)
