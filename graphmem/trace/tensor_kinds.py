"""Kinds of tensors that PyTorch makes in Python: what a mode cannot wrap, and what is refused.

(1) `CausalBias` (torch/nn/attention/bias.py) is an empty tensor of the host that stands for a mask.
(2) Nested tensors, strided or jagged, are refused by name.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
import torch.nested
from torch.nn.attention.bias import CausalBias

from graphmem.errors import InputError
from graphmem.trace.dispatch import at
from graphmem.trace.location import Location
from graphmem.virtual_gpu.patching import Replacement

_NESTED = ("nested_tensor", "as_nested_tensor", "nested_tensor_from_jagged", "narrow")


def replacements(location: Location) -> list[Replacement]:
    """The attributes to replace."""

    def refuse(*args: Any, **options: Any) -> NoReturn:
        raise InputError(
            f"nested tensors cannot be followed{at(location.place())}",
            hint="pad the sequences, or pack them into one row and attend with "
            "torch.nn.functional.scaled_dot_product_attention and a mask",
        )

    return [
        (CausalBias, "__new__", staticmethod(_empty_bias)),
        *((torch.nested, name, refuse) for name in _NESTED),
    ]


def _empty_bias(kind: type[CausalBias], *sizes: Any) -> Any:
    with torch._C._DisableTorchDispatch():
        return torch.Tensor._make_subclass(kind, torch.zeros(0, device="cpu"))
