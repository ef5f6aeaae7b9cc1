"""Tensor subclasses that PyTorch defines in Python: stand-ins for some, errors for others.

(1) `CausalBias` (torch/nn/attention/bias.py) is an empty host tensor that stands for a mask.
(2) Jagged tensors (torch/nested/_internal/nested_tensor.py) hold rows, and offsets at which each
piece begins. The size of their ragged dimension is a unique number for each tensor of offsets
(`get_tensor_symint`). Here it is unique for each place in memory, since autograd unpacks a
different tensor than it packed (`saved_tensors`). Offsets that move keep their number, in a
registry or, if they are fake, in a memo (`to_copy_default`, torch/nested/_internal/ops.py), so
those on the card, which are fake, and those on the host, which are real, have it in both.
Beside them are the lengths of the longest and the shortest piece, as the sizes of empty host
tensors (`_store_val_in_tensor`). Dynamo takes a tensor's parts to be all real or all fake
(`is_fake`, torch/_subclasses/fake_tensor.py), so on the card these are fake as well.
(3) Strided nested tensors, which C++ makes, are rejected.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.nested
from torch._subclasses.fake_tensor import FakeTensor
from torch.nested._internal import nested_tensor as jagged
from torch.nn.attention.bias import CausalBias

from graphmem import constructors
from graphmem.trace.location import Location
from graphmem.trace.messages import NestedLayoutError
from graphmem.trace.recorder import Recorder
from graphmem.trace.refused_operators import at
from graphmem.virtual_device.fake_mode import nested_int
from graphmem.virtual_device.patching import Replacement

_NESTED = ("nested_tensor", "as_nested_tensor", "narrow")
_LENGTHS = ("min_seqlen", "max_seqlen")
_numbers = itertools.count(1 << 32)  # PyTorch counts from 0


def replacements(location: Location, recorder: Recorder) -> list[Replacement]:
    """The attributes to replace."""
    return [
        (CausalBias, "__new__", staticmethod(_empty_bias)),
        (jagged, "get_tensor_symint", _ragged_size(recorder)),
        # If made during the trace, it would belong to this trace.
        (jagged, "_dummy_instance", jagged._nt_view_dummy()),
        (jagged.NestedTensor, "__init__", _with_lengths_like_rows(jagged.NestedTensor.__init__)),
        *((jagged.NestedTensor, f"_{name}_tensor", _length_like_rows(name)) for name in _LENGTHS),
        *((torch.nested, name, _unless_strided(name, location)) for name in _NESTED),
    ]


def _ragged_size(recorder: Recorder) -> Callable[..., torch.SymInt]:
    """Clause (2)."""
    of_host: Callable[..., torch.SymInt] = jagged.get_tensor_symint
    known: dict[tuple[Any, ...], torch.SymInt] = {}

    def size(offsets: Any, *, coeff: int = 1) -> torch.SymInt:
        is_fake = isinstance(offsets, FakeTensor)
        storage = recorder.storage_of(offsets) if is_fake else None
        if storage is not None:
            place = storage.id, offsets.storage_offset(), *offsets.shape, *offsets.stride()
            moved = offsets.nested_int_memo
            made = nested_int(next(_numbers)) if moved is None else moved
            found = jagged._tensor_symint_registry[offsets] = known.setdefault(place, made)
            return found * coeff
        found = of_host(offsets, coeff=coeff)
        if type(offsets) is torch.Tensor:
            vars(offsets)["nested_int_memo"] = jagged._tensor_symint_registry[offsets]
        return found

    return size


def _with_lengths_like_rows(init: Callable[..., None]) -> Callable[..., None]:
    """Clause (2), of lengths that are known when a jagged tensor is made."""

    @functools.wraps(init)
    def make(
        self: Any, values: torch.Tensor, *args: Any, _metadata_cache: Any = None, **options: Any
    ) -> None:
        lengths = {name: _like(values, each) for name, each in (_metadata_cache or {}).items()}
        init(self, values, *args, _metadata_cache=lengths, **options)

    return make


def _length_like_rows(name: str) -> property:
    """Clause (2), of a length that is computed when something asks for it."""

    def keep(self: Any, length: torch.Tensor | None) -> None:
        self._metadata_cache[name] = _like(self._values, length)

    return property(getattr(jagged.NestedTensor, f"_{name}_tensor").fget, keep)


def _like(values: torch.Tensor, length: torch.Tensor | None) -> torch.Tensor | None:
    if length is None or isinstance(length, FakeTensor) or not isinstance(values, FakeTensor):
        return length
    return values.fake_mode.from_tensor(length)


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
