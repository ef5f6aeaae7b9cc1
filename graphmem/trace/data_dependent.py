"""What operations return that ask for data which a trace does not have.

What a real run would read off the device is assumed, and listed; where the way of the program hangs
on it, the trace is refused:

(1) one number is 0; a truth value is refused, because the program branches on it;
(2) a mask selects all elements, or the fraction that `TrainingStep.assume` says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch._subclasses.fake_tensor import FakeTensor

from graphmem.errors import InputError
from graphmem.trace.dispatch import at
from graphmem.trace.sparse_tensors import SparseMode
from graphmem.virtual_gpu.operators.lengths import lengths_on_host

aten = torch.ops.aten


class DataDependentMode(SparseMode):
    """A trace that goes on without data where that is honest."""

    def __init__(self, *watchers: Any) -> None:
        super().__init__(*watchers)
        self._nonzero_fraction = 1.0
        self._special |= {
            aten._local_scalar_dense.default: self._read_scalar,
            aten.nonzero.default: self._nonzero,
            aten.index.Tensor: self._index,
            aten.equal.default: self._equal,
            aten._pack_padded_sequence.default: self._pack_padded,
        }

    def assume(self, values: Mapping[str, float]) -> None:
        """Take over what `TrainingStep.assume` says.

        Raises:
            InputError: an unknown name, or a fraction outside of 0 to 1.
        """
        for name, value in values.items():
            if name != "nonzero" or not 0 <= value <= 1:
                raise InputError(
                    f"cannot assume {name}={value}", hint="the only assumption is nonzero=0..1"
                )
            self._nonzero_fraction = float(value)

    def _read_scalar(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        tensor = args[0]
        if not isinstance(tensor, FakeTensor):
            return func(*args, **kwargs)
        return self._scalar(tensor)

    def _scalar(self, tensor: FakeTensor) -> Any:
        """What a program reads of a tensor without data that has one element."""
        if tensor.dtype == torch.bool:
            self._refuse_branch()
        zero = torch.zeros((), dtype=tensor.dtype, device="cpu").item()
        self._recorder.assume(
            "a value read off the device",
            str(zero),
            "no arithmetic is done on fake tensors",
            self._location.source(),
        )
        return zero

    def _equal(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        if not self._stays_real(func, args, kwargs):
            self._refuse_branch()
        return func(*args, **kwargs)

    def _refuse_branch(self) -> NoReturn:
        where = at(self._location.source())
        raise InputError(
            f"the step branches on the value of a tensor{where}: only a real run knows which way",
            hint="decide it from sizes or settings, or give build() an argument that does",
        )

    def _nonzero(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        tensor = args[0]
        if not isinstance(tensor, FakeTensor):
            return func(*args, **kwargs)
        shape = self._count_nonzero(tensor.numel()), tensor.dim()
        return self._record_made(func, args, kwargs, self._new_empty(shape, tensor, torch.int64))

    def _index(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Indexing by a mask selects as many elements as `nonzero` is assumed to find."""
        tensor, indices = args
        if not any(_is_fake_mask(index) for index in indices):
            return self._run(func, types, args, kwargs)
        positions: list[Any] = []
        for index in indices:
            if _is_fake_mask(index):
                shape = (self._count_nonzero(index.numel()),)
                positions += [
                    self._new_empty(shape, index, torch.int64) for _ in range(index.dim())
                ]
            else:
                positions.append(index)
        return self._run(func, types, (tensor, positions), kwargs)

    def _pack_padded(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """A packed sequence has a row for each step of each; the lengths are real, on the CPU."""
        padded, lengths, batch_first = args
        if not isinstance(padded, FakeTensor):
            return self._run(func, types, args, kwargs)
        longest = padded.shape[1 if batch_first else 0]
        on_host = lengths_on_host(lengths, longest, "the lengths of packed sequences", self)
        lengths = torch.tensor(on_host, dtype=torch.int64, device="cpu")
        steps = torch.arange(int(lengths[0]))
        batch_sizes = (lengths[:, None] > steps).sum(0)
        shape = int(lengths.sum()), *padded.shape[2:]
        data = self._new_empty(shape, padded, padded.dtype)
        return self._record_made(func, args, kwargs, (data, batch_sizes))

    def lengths_of(self, tensor: FakeTensor, bound: int, what: str) -> Sequence[int]:
        """Lengths of sequences that are on the device: the bound of each."""
        self._recorder.assume(
            what, f"{bound} each (the bound)", "they are on the device", self._location.source()
        )
        return [bound] * tensor.numel()

    def _count_nonzero(self, numel: int) -> int:
        return self._count("how many elements a mask selects", numel)

    def _count(self, what: str, numel: int) -> int:
        """How many of `numel` elements are in a result whose size depends on data."""
        fraction = self._fraction()
        bound = "the bound" if fraction == 1.0 else f"at most {numel:,}"
        self._recorder.assume(
            what,
            f"{fraction:g} of them ({bound})",
            "the route depends on data",
            self._location.source(),
        )
        return round(fraction * numel)

    def _fraction(self) -> float:
        """The share of elements in results whose size depends on data."""
        return self._nonzero_fraction


def _is_fake_mask(index: Any) -> bool:
    return isinstance(index, FakeTensor) and index.dtype in (torch.bool, torch.uint8)
