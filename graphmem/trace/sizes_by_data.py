"""Operations whose results have sizes that depend on data.

If the deciding values are known, or assumed by a rule, they are used. Otherwise

(1) a mask selects all elements, or the fraction given by `--assume`, spread evenly;
(2) so does `nms` with boxes and `unique` with distinct values (`distinct_values`);
(3) `bincount` fills `minlength` bins;
(4) `repeat_interleave` repeats each element once, unless `output_size` is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
)

from graphmem import constructors
from graphmem.trace.distinct_values import DISTINCT, counts_always, most, room
from graphmem.trace.formulas_by_data import SELECTS_NOTHING
from graphmem.trace.operands import tensors_of
from graphmem.trace.packed_rows import PackedRowsMode
from graphmem.values.limits import is_carried
from graphmem.values.rules import MOST_SELECTED, selected_of
from graphmem.virtual_device.notes import NOTHING
from graphmem.virtual_device.operand_checks import check_operands

aten = torch.ops.aten

_SIZED_BY_DATA = (
    aten.nonzero.default,
    aten.masked_select.default,
    aten._unique2.default,
    aten.unique_dim.default,
    aten.unique_consecutive.default,
    aten.bincount.default,
    aten.repeat_interleave.Tensor,
)


class SizesByDataMode(PackedRowsMode):
    """A trace that continues where data decide the size of a result."""

    def __init__(self, *watchers: Any) -> None:
        super().__init__(*watchers)
        self._bounded: dict[Any, Callable[..., Any]] = {
            aten.nonzero.default: self._nonzero,
            aten.masked_select.default: self._masked_select,
            aten._unique2.default: self._unique,
            aten.unique_consecutive.default: self._unique,
            aten.bincount.default: self._bincount,
            aten.repeat_interleave.Tensor: self._repeat,
        }
        self._handlers |= dict.fromkeys(_SIZED_BY_DATA, self._sized_by_data)
        self._handlers[aten.masked_scatter_backward.default] = self._scattered_gradient

    def _sized_by_data(
        self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run an operation whose result's size depends on its operands' values."""
        if self._stays_real(func, args, kwargs):
            return self._run_real(func, args, kwargs)
        if kwargs.get("output_size") is not None:
            return self._run(func, types, args, kwargs)
        result = self._by_values(func, args, kwargs)
        if result is not None:
            return result
        bounded = self._bounded.get(func)
        if bounded is None:
            return self._run(func, types, args, kwargs)
        return bounded(func, args, kwargs)

    def _by_values(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The fake result of an operation on known operands; None if they are not known."""
        computed = self.reads.known.compute(func, args, kwargs)
        if computed is None:
            return None
        real, basis = computed
        like = next(each for each in tensors_of(args) if isinstance(each, FakeTensor))
        tick = self._recorder.begin_op()
        several = isinstance(real, (tuple, list))
        values = list(real) if several else [real]
        if func in DISTINCT:
            made = self._distinct_values(func, args[0], [each.shape for each in values])
        else:
            made = [self._new_empty(each.shape, like, each.dtype) for each in values]
        result = tuple(made) if several else made[0]
        self.reads.use(basis)
        self._record(func, args, kwargs, result, tick)
        for tensor, value in zip(made, values, strict=True):
            if value.numel() and is_carried(value.dtype, value.numel()):
                self.reads.known.note(tensor, value, basis)
        return result

    def _dynamic(self, error: Exception, func: Any, args: Any, kwargs: Any) -> Any:
        """Use known values where PyTorch's own fake rules fail."""
        if not isinstance(error, (DynamicOutputShapeException, DataDependentOutputException)):
            return None
        return self._by_values(func, args, kwargs)

    def _nonzero(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        tensor = args[0]
        shape = self._count_true(tensor), tensor.dim()
        found = self._new_empty(shape, tensor, torch.int64)
        self._record_made(func, args, kwargs, found)
        if not self.is_host_counted:
            self._recorder.host.pinned.lend()
        self._assume_selected(found, tensor.shape, shape[0])
        return found

    def _nms(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """`torchvision.ops.nms`: the indices of the boxes that are kept."""
        boxes = args[0]
        many = boxes.shape[0]
        count = self.reads.count("how many boxes nms keeps", many)
        kept = self._new_empty((count,), boxes, torch.int64)
        self._record_made(func, args, kwargs, kept)
        self._assume_selected(kept[:, None], (many,), count)
        return kept

    def follow_nms(self) -> None:
        """Handle `nms`, once the program has loaded torchvision's operators.

        A torchvision that lacks its compiled library, as one built for another torch, has none.
        """
        nms = getattr(torch.ops.torchvision, "nms", None)
        if nms is not None:
            self._bounded[nms.default] = self._nms
            self._handlers[nms.default] = self._sized_by_data

    def _masked_select(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        check_operands(func, args)
        tensor, mask = args
        if not isinstance(tensor, FakeTensor):  # a host tensor with a mask on the card
            tensor = mask
        shape = torch.broadcast_shapes(args[0].shape, mask.shape)
        count = self._count_true(mask.expand(shape), math.prod(shape))
        return self._record_made(
            func, args, kwargs, self._new_empty((count,), tensor, args[0].dtype)
        )

    def _scattered_gradient(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """`masked_scatter_backward` (aten/src/ATen/native/TensorAdvancedIndexing.cpp).

        It is composed of `masked_select` and `view`; between them zeros, if more was given than the
        mask took. An unknown mask takes all.
        """
        grad, mask, shape = args
        if self._stays_real(func, args, kwargs):
            return self._run_real(func, args, kwargs)
        if self.reads.known.of(mask) is not None:
            return self._run_in_parts(func, types, args, kwargs)
        selected = self._new_empty((math.prod(shape),), grad, grad.dtype)
        self._record_made(aten.masked_select.default, (grad, mask), {}, selected)
        with self:
            return selected.view(shape)

    def _unique(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """The distinct values, the inverse and the counts."""
        tensor = args[0]
        if self._argument(func, args, kwargs, "dim") is not None:
            return self._run(func, (), args, kwargs)
        count = self.reads.count("how many distinct values there are", most(tensor))
        inverse = tensor.shape if self._argument(func, args, kwargs, "return_inverse") else (0,)
        counts = (count,) if self._argument(func, args, kwargs, "return_counts") else (0,)
        made = tuple(self._distinct_values(func, tensor, [(count,), inverse, counts]))
        return self._record_made(func, args, kwargs, made)

    def _distinct_values(
        self, func: Any, tensor: FakeTensor, shapes: Sequence[Sequence[int]]
    ) -> list[FakeTensor]:
        """The distinct values, the inverse and the counts, with these shapes."""
        values, inverse, counts = shapes
        many = room(func, tensor)
        if counts_always(func, tensor):
            counts = values
        return [
            self._shrunk(many, values, tensor, tensor.dtype),
            self._new_empty(inverse, tensor, torch.int64),
            self._shrunk(many if math.prod(counts) else None, counts, tensor, torch.int64),
        ]

    def _shrunk(
        self, many: int | None, shape: Sequence[int], like: FakeTensor, dtype: torch.dtype
    ) -> FakeTensor:
        """A tensor that had `many` elements before `resize_`, which keeps the storage."""
        if many is None:
            return self._new_empty(shape, like, dtype)
        with torch._C._DisableTorchDispatch():
            memory = constructors.empty(many, dtype=dtype, device="meta").resize_(shape)
        return FakeTensor(self._fake_mode, memory, like.fake_device)

    def _bincount(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """One bin for each value up to the largest, but at least `minlength`."""
        tensor = args[0]
        bins = max(1, self._argument(func, args, kwargs, "minlength"))
        weights = self._argument(func, args, kwargs, "weights")
        dtype = torch.int64 if weights is None else torch.float64
        if weights is not None and weights.dtype == torch.float32:
            dtype = torch.float32
        self._recorder.assume(
            "how many bins bincount fills",
            f"{bins:,}, which is minlength",
            "the largest value depends on data",
            self._location.place(),
        )
        return self._record_made(func, args, kwargs, self._new_empty((bins,), tensor, dtype))

    def _repeat(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """The elements repeated: the size is the sum of the repetitions."""
        tensor = args[0]
        self._recorder.assume(
            "how often repeat_interleave repeats",
            "once each",
            "the numbers depend on data; output_size= says their sum",
            self._location.place(),
        )
        made = self._new_empty(tensor.shape, tensor, tensor.dtype)
        return self._record_made(func, args, kwargs, made)

    def _positions(self, mask: torch.Tensor, like: FakeTensor) -> list[torch.Tensor]:
        """The positions that a mask selects, by dimension, known or assumed."""
        count = self._count_true(mask)
        found = self._new_empty((mask.dim(), count), like, torch.int64)
        if isinstance(mask, FakeTensor) and mask.fake_device.type != "cpu":
            self._record_made(aten.nonzero.default, (mask,), {}, found)
            self._recorder.host.pinned.lend()
        made = list(found.unbind(0))
        computed = self.reads.known.compute(aten.nonzero.default, (mask,), {})
        if computed is not None:
            self.reads.known.note(found, computed[0].t(), computed[1])
        else:
            self._assume_selected(found.t(), mask.shape, count)
        return made

    def _assume_selected(self, found: torch.Tensor, shape: Sequence[int], count: int) -> None:
        """Assume which `count` elements a mask of this shape selects, a row for each."""
        if 0 < found.numel() <= MOST_SELECTED:
            self.reads.known.assume(found, *selected_of(shape, count))

    def _count_true(self, mask: torch.Tensor, numel: int | None = None) -> int:
        """How many elements a mask selects."""
        if getattr(mask, SELECTS_NOTHING, NOTHING).value:
            return 0
        known = self.reads.known.of(mask)
        if known is None:
            many = mask.numel() if numel is None else numel
            return self.reads.count("how many elements a mask selects", many)
        self.reads.use(known.basis)
        return _count(known.tensor)

    def _argument(self, func: Any, args: tuple[Any, ...], kwargs: Any, name: str) -> Any:
        for position, argument in enumerate(func._schema.arguments):
            if argument.name == name:
                given = args[position] if position < len(args) else argument.default_value
                return kwargs.get(name, given)
        return None


def _count(mask: torch.Tensor) -> int:
    """How many elements are nonzero; an expanded dimension is counted once and multiplied."""
    times = 1
    with torch._C._DisableTorchDispatch():
        for dim in range(mask.dim() - 1, -1, -1):
            if mask.shape[dim] and not mask.stride(dim):
                times *= mask.shape[dim]
                mask = mask.select(dim, 0)
        return times * int(torch.count_nonzero(mask))
