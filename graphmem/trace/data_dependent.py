"""Operations whose results have sizes, or are answers, that depend on data.

Where the values that decide are known, or assumed by a rule, they decide here as well. Else

(1) a mask selects all elements, or the share that `--assume` says; distinct values are as many;
(2) `bincount` fills `minlength` bins;
(3) `repeat_interleave` repeats each element once, unless `output_size` says more;
(4) `equal` and `allclose` compare on the device, and what comes of it is read as any other value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
)

from graphmem.trace.composites import run_in_parts
from graphmem.trace.dispatch import tensors_of
from graphmem.trace.formulas_by_data import SELECTS_NOTHING
from graphmem.trace.sparse_tensors import SparseMode
from graphmem.values.limits import is_carried
from graphmem.virtual_gpu.notes import NOTHING
from graphmem.virtual_gpu.operators import KERNELS
from graphmem.virtual_gpu.operators.lengths import lengths_on_host

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

_AT_INDICES = frozenset(
    {
        aten.index.Tensor,
        aten.index_put.default,
        aten.index_put_.default,
        aten._index_put_impl_.default,
        aten._unsafe_index_put.default,
    }
)
_WRITES = frozenset({aten.index_put_.default, aten._index_put_impl_.default})


class DataDependentMode(SparseMode):
    """A trace that goes on where a real run would ask for data."""

    def __init__(self, *watchers: Any) -> None:
        super().__init__(*watchers)
        bounded = {
            aten.nonzero.default: self._nonzero,
            aten.masked_select.default: self._masked_select,
            aten._unique2.default: self._unique,
            aten.unique_consecutive.default: self._unique,
            aten.bincount.default: self._bincount,
            aten.repeat_interleave.Tensor: self._repeat,
        }
        self._bounded: dict[Any, Any] = bounded
        self._special |= {
            **dict.fromkeys(_SIZED_BY_DATA, self._sized_by_data),
            aten._local_scalar_dense.default: self._read_scalar,
            aten.equal.default: self._equal,
            aten.allclose.default: self._allclose,
            aten._pack_padded_sequence.default: self._pack_padded,
            aten._ctc_loss.Tensor: self._ctc_loss,
            aten.copy_.default: self._copy,
        }

    # Reading ------------------------------------------------------------------------------------

    def _read_scalar(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        tensor = args[0]
        if not isinstance(tensor, FakeTensor):
            return func(*args, **kwargs)
        return self.reads.scalar(tensor)

    def _run(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func in _AT_INDICES:
            if func in _WRITES and _is_masked_fill(*args):
                return self._run(aten.masked_fill_.Tensor, types, _as_masked_fill(*args), {})
            args = self._at_positions(args)
        result = super()._run(func, types, args, kwargs)
        if func is aten._to_copy.default and isinstance(result, FakeTensor):
            is_read = result.fake_device.type == "cpu" and self._is_answered(args[0], result)
            return self._on_host(result, args[0]) if is_read else result
        return result

    def _is_answered(self, source: torch.Tensor, copy: FakeTensor) -> bool:
        """Whether a copy on the host is to be a real tensor.

        Weights are not, nor what autograd moves, nor what is large and not known.
        """
        if self.is_host_counted or self.node is not None or source.requires_grad:
            return False
        is_small = copy.numel() <= self._real_elements
        return is_small or self.reads.known.of(source) is not None

    def _on_host(self, tensor: torch.Tensor, source: Any) -> torch.Tensor:
        real = self.reads.on_host(tensor, source)
        self._recorder.remember_maker(real, self._recorder.maker_of(tensor))
        return real

    def _copy(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """`copy_`; into a real tensor of the host, it is a read."""
        target, source = args[:2]
        if isinstance(target, FakeTensor) or not isinstance(source, FakeTensor):
            return self._run(func, types, args, kwargs)
        if self.is_host_counted:
            return self._run(func, types, args, kwargs)
        like: Any = self._fake_mode.dispatch(aten.empty_like.default, types, (target,), {})
        assumed = self.reads.on_host(like, source)
        self._record(func, args, kwargs, target, self._recorder.begin_op())
        self._spare(func, args, kwargs)
        target.copy_(assumed)
        return target

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
            return _all_of(run_in_parts(aten.isclose.default, args, kwargs))

    # Sizes --------------------------------------------------------------------------------------

    def _sized_by_data(
        self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A result whose size its operands' values decide."""
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
        """What an operation returns on known operands, without data; None: they are not known."""
        computed = self.reads.known.compute(func, args, kwargs)
        if computed is None:
            return None
        real, basis = computed
        like = next(each for each in tensors_of(args) if isinstance(each, FakeTensor))
        tick = self._recorder.begin_op()
        several = isinstance(real, (tuple, list))
        values = list(real) if several else [real]
        made = [self._new_empty(each.shape, like, each.dtype) for each in values]
        result = tuple(made) if several else made[0]
        self.reads.use(basis)
        self._record(func, args, kwargs, result, tick)
        for tensor, value in zip(made, values, strict=True):
            if value.numel() and is_carried(value.dtype, value.numel()):
                self.reads.known.note(tensor, value, basis)
        return result

    def _dynamic(self, error: Exception, func: Any, args: Any, kwargs: Any) -> Any:
        """Go on by known values where PyTorch's own fake rules cannot."""
        if not isinstance(error, (DynamicOutputShapeException, DataDependentOutputException)):
            return None
        return self._by_values(func, args, kwargs)

    def _nonzero(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        tensor = args[0]
        shape = self._count_true(tensor), tensor.dim()
        return self._record_made(func, args, kwargs, self._new_empty(shape, tensor, torch.int64))

    def _nms(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """`torchvision.ops.nms`: the indices of the boxes that are kept."""
        boxes = args[0]
        shape = (self.reads.count("how many boxes nms keeps", boxes.shape[0]),)
        return self._record_made(func, args, kwargs, self._new_empty(shape, boxes, torch.int64))

    def follow_nms(self) -> None:
        """The program has loaded torchvision's operators."""
        nms = torch.ops.torchvision.nms.default
        self._bounded[nms] = self._nms
        self._special[nms] = self._sized_by_data

    def _masked_select(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        tensor, mask = args
        if not isinstance(tensor, FakeTensor):  # of the host, with a mask of the card's
            tensor = mask
        shape = torch.broadcast_shapes(args[0].shape, mask.shape)
        count = self._count_true(mask.expand(shape), math.prod(shape))
        return self._record_made(
            func, args, kwargs, self._new_empty((count,), tensor, args[0].dtype)
        )

    def _unique(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Distinct values, where each came from, and how often each is there."""
        tensor = args[0]
        if self._argument(func, args, kwargs, "dim") is not None:
            return self._run(func, (), args, kwargs)
        count = self.reads.count("how many distinct values there are", tensor.numel())
        inverse = tensor.shape if self._argument(func, args, kwargs, "return_inverse") else (0,)
        counts = (count,) if self._argument(func, args, kwargs, "return_counts") else (0,)
        made = (
            self._new_empty((count,), tensor, tensor.dtype),
            self._new_empty(inverse, tensor, torch.int64),
            self._new_empty(counts, tensor, torch.int64),
        )
        return self._record_made(func, args, kwargs, made)

    def _bincount(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """One bin for each value up to the largest, and at least as many as are asked for."""
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
        """As many elements as the numbers of repetitions sum to."""
        tensor = args[0]
        self._recorder.assume(
            "how often repeat_interleave repeats",
            "once each",
            "the numbers depend on data; output_size= says their sum",
            self._location.place(),
        )
        made = self._new_empty(tensor.shape, tensor, tensor.dtype)
        return self._record_made(func, args, kwargs, made)

    def _at_positions(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Indices without masks, each of which is replaced by the positions that it selects.

        `expandTensors` (aten/src/ATen/native/IndexingUtils.h) does so by `nonzero`.
        """
        tensor, indices, *rest = args
        is_real = not any(isinstance(each, FakeTensor) for each in tensors_of(args))
        if is_real or not any(map(_is_mask, indices)):
            return args
        positions: list[Any] = []
        for index in indices:
            if _is_mask(index):
                positions += self._positions(index, self._fake_among(index, tensor))
            else:
                positions.append(index)
        return tensor, positions, *rest

    def _positions(self, mask: torch.Tensor, like: FakeTensor) -> list[torch.Tensor]:
        """Where a mask selects, by dimension: as it is known, or assumed."""
        count = self._count_true(mask)
        found = self._new_empty((mask.dim(), count), like, torch.int64)
        if isinstance(mask, FakeTensor) and mask.fake_device.type != "cpu":
            self._record_made(aten.nonzero.default, (mask,), {}, found)
        made = list(found.unbind(0))
        computed = self.reads.known.compute(aten.nonzero.default, (mask,), {})
        if computed is not None:
            real, basis = computed
            for position, values in zip(made, real.unbind(1), strict=True):
                self.reads.known.note(position, values, basis)
        return made

    def _fake_among(self, *tensors: Any) -> FakeTensor:
        """The first that has no data, which says where a result is made."""
        return next(each for each in tensors if isinstance(each, FakeTensor))

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

    def _ctc_loss(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """`ctc_loss_tensor` (native/LossCTC.cpp), which reads the lengths.

        It is the CPU's: a card's has lists (`virtual_gpu/operators/ctc.py`).
        """
        log_probs, targets, _, lengths, *_ = args
        if not isinstance(log_probs, FakeTensor):
            return self._run(func, types, args, kwargs)
        longest = min(targets.shape[-1], log_probs.shape[0])
        on_host = lengths_on_host(lengths, longest, "the lengths of ctc_loss's targets", self)
        made = KERNELS[aten._ctc_loss.default](log_probs, targets, (), on_host)
        return self._record_made(func, args, kwargs, made)

    def lengths_of(self, tensor: FakeTensor, bound: int, what: str) -> Sequence[int]:
        """Lengths of sequences that are on the device: as they are known, or the bound of each."""
        known = self.reads.known.of(tensor)
        if known is not None:
            self.reads.use(known.basis)
            lengths: list[int] = known.tensor.reshape(-1).tolist()
            return lengths
        self._recorder.assume(
            what, f"{bound} each (the bound)", "they are on the device", self._location.place()
        )
        return [bound] * tensor.numel()

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

    def _count(self, what: str, numel: int) -> int:
        """How many of `numel` elements are in a result whose size depends on data."""
        return self.reads.count(what, numel)

    def _argument(self, func: Any, args: tuple[Any, ...], kwargs: Any, name: str) -> Any:
        for position, argument in enumerate(func._schema.arguments):
            if argument.name == name:
                given = args[position] if position < len(args) else argument.default_value
                return kwargs.get(name, given)
        return None


def _count(mask: torch.Tensor) -> int:
    """How many elements are not zero; an expanded dimension is counted once and multiplied."""
    times = 1
    with torch._C._DisableTorchDispatch():
        for dim in range(mask.dim() - 1, -1, -1):
            if mask.shape[dim] and not mask.stride(dim):
                times *= mask.shape[dim]
                mask = mask.select(dim, 0)
        return times * int(torch.count_nonzero(mask))


def _all_of(tensor: torch.Tensor) -> Any:
    return aten._local_scalar_dense.default(aten.all.default(tensor))


def _is_masked_fill(
    tensor: torch.Tensor,
    indices: Sequence[Any],
    value: torch.Tensor,
    accumulate: bool = False,
    *_: Any,
) -> bool:
    """Whether a number of the host is written where one mask says so.

    `canDispatchToMaskedFill` (aten/src/ATen/native/TensorAdvancedIndexingUtils.h).
    """
    is_number = not accumulate and value.numel() == 1 and value.device.type == "cpu"
    given = [index for index in indices if index is not None]
    return is_number and len(given) == 1 and _is_mask(given[0]) and given[0].device == tensor.device


def _as_masked_fill(
    tensor: torch.Tensor, indices: Sequence[Any], value: torch.Tensor, *_: Any
) -> tuple[Any, ...]:
    """The mask has the dimensions that follow it as well."""
    before, mask = next((at, index) for at, index in enumerate(indices) if index is not None)
    after = tensor.dim() - before - mask.dim()
    return tensor, mask.reshape(*mask.shape, *(1,) * after), value


def _is_mask(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)
