"""Operations whose results have sizes, or are answers, that depend on data.

An analysis refuses them, because its figures would hang on them; a run goes on with a bound, or
with what is said below, as an assumption that names the line:

(1) a mask selects all elements, or the fraction that `--assume` says; distinct values are as many;
(2) `bincount` fills `minlength` bins;
(3) `repeat_interleave` repeats each element once, unless `output_size` says more;
(4) `equal` and `allclose` compare on the device, and what comes of it is read as any other value.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from graphmem.trace.data_dependent import DataDependentMode

aten = torch.ops.aten


class SizesFromData(DataDependentMode):
    """A trace that goes on where the shape of a result depends on data."""

    def __init__(self, *watchers: Any) -> None:
        super().__init__(*watchers)
        self._special |= {
            aten.masked_select.default: self._masked_select,
            aten._unique2.default: self._unique,
            aten.bincount.default: self._bincount,
            aten.repeat_interleave.Tensor: self._repeat,
            aten.allclose.default: self._allclose,
        }

    def _masked_select(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        tensor, mask = args
        if not isinstance(tensor, FakeTensor):
            return self._run(func, types, args, kwargs)
        numel = math.prod(torch.broadcast_shapes(tensor.shape, mask.shape))
        shape = (self._count_nonzero(numel),)
        return self._record_made(func, args, kwargs, self._new_empty(shape, tensor, tensor.dtype))

    def _unique(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Distinct values, where each came from, and how often each is there."""
        tensor = args[0]
        if not isinstance(tensor, FakeTensor):
            return self._run(func, types, args, kwargs)
        count = self._count("how many distinct values there are", tensor.numel())
        inverse = tensor.shape if self._wants(func, args, kwargs, "return_inverse") else (0,)
        counts = (count,) if self._wants(func, args, kwargs, "return_counts") else (0,)
        made = (
            self._new_empty((count,), tensor, tensor.dtype),
            self._new_empty(inverse, tensor, torch.int64),
            self._new_empty(counts, tensor, torch.int64),
        )
        return self._record_made(func, args, kwargs, made)

    def _bincount(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """One bin for each value up to the largest, and at least as many as are asked for."""
        tensor = args[0]
        if not isinstance(tensor, FakeTensor):
            return self._run(func, types, args, kwargs)
        bins = max(1, self._argument(func, args, kwargs, "minlength"))
        weights = self._argument(func, args, kwargs, "weights")
        dtype = torch.int64 if weights is None else torch.float64
        if weights is not None and weights.dtype == torch.float32:
            dtype = torch.float32
        self._recorder.assume(
            "how many bins bincount fills",
            f"{bins:,}, which is minlength",
            "the largest value depends on data",
            self._location.source(),
        )
        return self._record_made(func, args, kwargs, self._new_empty((bins,), tensor, dtype))

    def _repeat(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """As many elements as the numbers of repetitions sum to."""
        tensor = args[0]
        if not isinstance(tensor, FakeTensor) or kwargs.get("output_size") is not None:
            return self._run(func, types, args, kwargs)
        self._recorder.assume(
            "how often repeat_interleave repeats",
            "once each",
            "the numbers depend on data; output_size= says their sum",
            self._location.source(),
        )
        made = self._new_empty(tensor.shape, tensor, tensor.dtype)
        return self._record_made(func, args, kwargs, made)

    def _wants(self, func: Any, args: tuple[Any, ...], kwargs: Any, name: str) -> bool:
        return bool(self._argument(func, args, kwargs, name))

    def _argument(self, func: Any, args: tuple[Any, ...], kwargs: Any, name: str) -> Any:
        for position, argument in enumerate(func._schema.arguments):
            if argument.name == name:
                given = args[position] if position < len(args) else argument.default_value
                return kwargs.get(name, given)
        return None

    def _equal(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """`cuda_equal` (aten/src/ATen/native/cuda/Equal.cpp)."""
        if self._stays_real(func, args, kwargs):
            return func(*args, **kwargs)
        tensor, other = args
        if tensor.shape != other.shape:
            return False
        with self:
            return _all_of(aten.eq.Tensor(tensor, other))

    def _allclose(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """`allclose` (aten/src/ATen/native/TensorCompare.cpp)."""
        if self._stays_real(func, args, kwargs):
            return func(*args, **kwargs)
        with self:
            return _all_of(aten.isclose.default(*args, **kwargs))


def _all_of(tensor: torch.Tensor) -> Any:
    return aten._local_scalar_dense.default(aten.all.default(tensor))
