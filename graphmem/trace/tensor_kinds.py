"""Tensor subclasses that PyTorch defines in Python: stand-ins for some, errors for others.

(1) `CausalBias` (torch/nn/attention/bias.py) is an empty host tensor that stands for a mask.
(2) Jagged tensors (torch/nested/_internal/nested_tensor.py) hold rows, and offsets at which each
piece begins. The size of their ragged dimension is a unique number for each tensor of offsets
(`get_tensor_symint`). Here it is unique for each place in memory, since autograd unpacks a
different tensor than it packed (`saved_tensors`).
(3) Strided nested tensors, which C++ makes, are rejected.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.nested
from torch._subclasses.fake_tensor import FakeTensor
from torch.nested._internal import nested_tensor as jagged
from torch.nested._internal.nested_int import NestedIntNode
from torch.nn.attention.bias import CausalBias

from graphmem import constructors
from graphmem.trace.location import Location
from graphmem.trace.messages import NestedLayoutError
from graphmem.trace.recorder import Recorder
from graphmem.trace.refused_operators import at
from graphmem.virtual_device.patching import Replacement

_NESTED = ("nested_tensor", "as_nested_tensor", "narrow")
_numbers = itertools.count(1 << 32)  # PyTorch counts from 0


def replacements(location: Location, recorder: Recorder) -> list[Replacement]:
    """The attributes to replace."""
    return [
        (CausalBias, "__new__", staticmethod(_empty_bias)),
        (jagged, "get_tensor_symint", _ragged_size(recorder)),
        # If made during the trace, it would belong to this trace.
        (jagged, "_dummy_instance", jagged._nt_view_dummy()),
        *((torch.nested, name, _unless_strided(name, location)) for name in _NESTED),
    ]


def _ragged_size(recorder: Recorder) -> Callable[..., torch.SymInt]:
    """Clause (2)."""
    of_host: Callable[..., torch.SymInt] = jagged.get_tensor_symint
    known: dict[tuple[Any, ...], int] = {}

    def size(offsets: torch.Tensor, *, coeff: int = 1) -> torch.SymInt:
        storage = recorder.storage_of(offsets) if isinstance(offsets, FakeTensor) else None
        if storage is None:
            return of_host(offsets, coeff=coeff)
        place = storage.id, offsets.storage_offset(), *offsets.shape, *offsets.stride()
        number = known.setdefault(place, next(_numbers))
        return torch.SymInt(NestedIntNode(number, coeff))

    return size


def _unless_strided(name: str, location: Location) -> Callable[..., Any]:
    make = getattr(torch.nested, name)

    def nested(*args: Any, **options: Any) -> Any:
        source = args[0] if args else None
        if options.get("layout") is torch.jagged or isinstance(source, jagged.NestedTensor):
            return make(*args, **options)
        raise NestedLayoutError(at(location.place()))

    return nested


def _empty_bias(kind: type[CausalBias], *sizes: Any) -> Any:
    with torch._C._DisableTorchDispatch():
        return torch.Tensor._make_subclass(kind, constructors.zeros(0, device="cpu"))
