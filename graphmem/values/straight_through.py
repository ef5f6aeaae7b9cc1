"""What is left when an unknown number is added and taken away again.

A choice that passes a gradient on is known numbers plus an unknown that cancels out, as in
`torch.nn.functional.gumbel_softmax(hard=True)` and in `one_hot + probs - probs.detach()`:

(1) `x - x` is zero, if numbers are finite.
(2) `known + x - x` and `known - x + x` are the known numbers, up to rounding.

Both `x` are the same memory, read in the same way, and nothing has been written there in between.

Not covered: a sum that something else is done to before `x` is taken away; other dtypes than x's.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor

from graphmem import constructors
from graphmem.values.held import Basis, KnownTensor
from graphmem.values.memory import Geometry, geometry_of
from graphmem.values.rules import Rule

aten = torch.ops.aten

_SUMS = 8
"""How many sums are remembered; `x` is taken away soon after it was added."""

_ROUNDED = Rule("x + y - y", "x", "the card rounds the sum")


class _Place(NamedTuple):
    """A tensor's memory, and how the tensor lies in it."""

    memory: weakref.ref[torch.UntypedStorage]
    geometry: Geometry

    def is_of(self, tensor: torch.Tensor) -> bool:
        return self.is_in(tensor.untyped_storage()) and self.geometry == geometry_of(tensor)

    def is_in(self, memory: torch.UntypedStorage) -> bool:
        return self.memory() is memory


class _Sum(NamedTuple):
    """Known numbers and an unknown tensor that was added to them, or taken away."""

    place: _Place
    known: KnownTensor
    unknown: _Place
    func: Any


class StraightThrough:
    """Remembers the last sums of known and unknown tensors."""

    def __init__(self, finite: Rule) -> None:
        """Start without sums; `finite` is the rule that numbers are finite."""
        self._finite = finite
        self._sums: deque[_Sum] = deque(maxlen=_SUMS)

    def note(self, func: Any, result: torch.Tensor, known: KnownTensor, unknown: Any) -> None:
        """Remember a sum of known numbers, which are copied, and an unknown tensor."""
        with torch._C._DisableTorchDispatch():
            copied = known._replace(tensor=known.tensor.to(result.dtype, copy=True))
        self._sums.append(_Sum(_place(result), copied, _place(unknown), func))

    def left(self, func: Any, args: tuple[Any, ...]) -> tuple[Rule, torch.Tensor, Basis] | None:
        """What a sum or difference of two unknown tensors is, if one cancels out."""
        first, second = args
        if func is aten.sub.Tensor and _place(second).is_of(first):
            zeros = constructors.zeros(first.shape, dtype=first.dtype, device="cpu")
            return self._finite, zeros, frozenset()
        orders = [args] if func is aten.sub.Tensor else [args, (second, first)]
        for total, other in orders:
            for each in self._sums:
                if each.func is not func and each.place.is_of(total) and each.unknown.is_of(other):
                    return _ROUNDED, each.known.tensor, each.known.basis
        return None

    def forget_written(self, targets: Iterable[torch.Tensor]) -> None:
        """Forget the sums of tensors that are written into."""
        if self._sums:  # most programs have none
            for target in targets:
                if target.layout is torch.strided:
                    self.forget(target.untyped_storage())

    def forget(self, memory: torch.UntypedStorage) -> None:
        """Forget the sums of some memory."""
        written = [each.place.is_in(memory) or each.unknown.is_in(memory) for each in self._sums]
        if any(written):
            kept = (
                each for each, is_written in zip(self._sums, written, strict=True) if not is_written
            )
            self._sums = deque(kept, maxlen=_SUMS)


def are_summed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> bool:
    """Whether a result is the sum or difference of two tensors on the card of its own shape."""
    if func not in SUMMED or kwargs or len(args) != 2:
        return False
    return all(_is_plain(each) and each.shape == result.shape for each in (*args, result))


def _is_plain(tensor: Any) -> bool:
    """Whether the numbers of a tensor on the card are those in its memory."""
    is_dense = isinstance(tensor, FakeTensor) and tensor.layout is torch.strided
    return is_dense and not tensor.is_conj() and not tensor.is_neg()


SUMMED = frozenset({aten.add.Tensor, aten.sub.Tensor})
"""The operations in which an unknown may cancel out."""


def _place(tensor: torch.Tensor) -> _Place:
    return _Place(weakref.ref(tensor.untyped_storage()), geometry_of(tensor))
