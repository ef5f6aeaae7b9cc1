"""Operations that need data.

(1) Values read off the device, or copied to the host, come from `reads`.
(2) `equal` and `allclose` compare on the device, and their result is read like any other value.
(3) An index that is a mask becomes the positions that it selects (`sizes_by_data`).
(4) Lengths of sequences are the known ones, or else the longest possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    FakeTensor,
)

from graphmem import constructors
from graphmem.trace.composites import run_in_parts
from graphmem.trace.matrix_exponentials import matrix_exponential
from graphmem.trace.operands import tensors_of
from graphmem.trace.python_functions import name_of
from graphmem.trace.sizes_by_data import SizesByDataMode
from graphmem.virtual_device.operators import KERNELS
from graphmem.virtual_device.operators.lengths import lengths_on_host

aten = torch.ops.aten

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


class DataDependentMode(SizesByDataMode):
    """A trace that continues where a real run would need data."""

    def __init__(self, *watchers: Any) -> None:
        super().__init__(*watchers)
        self._handlers |= {
            aten._local_scalar_dense.default: self._read_scalar,
            aten.equal.default: self._equal,
            aten.allclose.default: self._allclose,
            aten._pack_padded_sequence.default: self._pack_padded,
            aten._ctc_loss.Tensor: self._ctc_loss,
            aten.copy_.default: self._copy,
            aten.linalg_matrix_exp.default: self._matrix_exponential,
        }

    # Reading ------------------------------------------------------------------------------------

    def _read_scalar(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        tensor = args[0]
        if not isinstance(tensor, FakeTensor):
            return func(*args, **kwargs)
        if tensor.fake_device.type != "cpu":
            self._recorder.host.pinned.lend(tensor.element_size())
        return self.reads.scalar(tensor)

    def _run(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func in _AT_INDICES:
            if func in _WRITES and _is_masked_fill(*args):
                return self._run(aten.masked_fill_.Tensor, types, _as_masked_fill(*args), {})
            if func in _WRITES and self._is_gradient_at_mask(*args):
                return self._record_made(func, args, kwargs, args[0])
            args = self._at_positions(args)
        if kwargs.get("pin_memory"):
            return self._run_pinned(func, types, args, kwargs)
        result = super()._run(func, types, args, kwargs)
        if func is not aten._to_copy.default or not isinstance(result, FakeTensor):
            return result
        if result.fake_device.type != "cpu" or self.is_host_counted:
            return result
        return self._copied_to_host(args[0], result, kwargs)

    def _run_pinned(self, func: Any, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Make a tensor in page-locked memory, for which a CPU build has no allocator."""
        result = self._run(func, types, args, {**kwargs, "pin_memory": None})
        self._recorder.host.pinned.hold(result)
        return result

    def _run_real(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = super()._run_real(func, args, kwargs)
        if not self.is_host_counted:
            self._recorder.host.note(result)
        return result

    def _copied_to_host(self, source: torch.Tensor, copy: FakeTensor, kwargs: Any) -> torch.Tensor:
        """A copy on the host: real if its values are answered, and pinned if nobody waits for it.

        `_to_copy` (aten/src/ATen/native/TensorConversions.cpp) pins what it copies off a card with
        `non_blocking`.
        """
        is_read = self._is_answered(source, copy)
        result = self._on_host(copy, source) if is_read else copy
        host = self._recorder.host
        host.note(result)
        if source.device.type == "cpu":
            return result
        host.copied(result)
        if kwargs.get("non_blocking"):
            host.pinned.hold(result)
        return result

    def _is_answered(self, source: torch.Tensor, copy: FakeTensor) -> bool:
        """Whether a copy on the host should be a real tensor.

        Weights should not, nor anything that autograd moves, nor large tensors with unknown values.
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
        """`copy_`; a copy into a real host tensor is a read."""
        target, source = args[:2]
        if not isinstance(source, FakeTensor) or self.is_host_counted:
            return self._run(func, types, args, kwargs)
        if target.device.type == "cpu" and source.fake_device.type != "cpu":
            self._recorder.host.copied(target)
        if isinstance(target, FakeTensor):
            return self._run(func, types, args, kwargs)
        like: Any = self._fake_mode.dispatch(aten.empty_like.default, types, (target,), {})
        assumed = self.reads.on_host(like, source)
        self._record(func, args, kwargs, target, self._recorder.begin_op())
        self._spare(func, args, kwargs)
        self._write(target, assumed)
        return target

    def _write(self, target: torch.Tensor, copied: torch.Tensor) -> None:
        """Write the card's numbers into a tensor on the host."""
        target.copy_(copied)

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

    def _matrix_exponential(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if self.is_host_counted or self._stays_real(func, args, kwargs):
            return self._run(func, types, args, kwargs)
        with self:
            return matrix_exponential(args[0], self.reads.known.assume)

    def _is_gradient_at_mask(self, tensor: Any, indices: Any, value: Any, *options: Any) -> bool:
        """Whether `index_backward` writes where a single mask on the card selects.

        The kernel finds the positions itself, and drops them before it sorts
        (`passes/kernels/indexing.py`).
        """
        given = [index for index in indices if index is not None]
        is_mask = len(given) == 1 and _is_mask(given[0]) and isinstance(given[0], FakeTensor)
        is_gradient = self.node is not None and name_of(self.node) == "IndexBackward0"
        is_on_card = isinstance(tensor, FakeTensor) and tensor.fake_device.type != "cpu"
        return is_mask and is_gradient and is_on_card and options[:1] == (True,)

    def _at_positions(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Indices in which each mask is replaced by the positions that it selects.

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

    def _fake_among(self, *tensors: Any) -> FakeTensor:
        """The first tensor without data, whose device is that of the result."""
        return next(each for each in tensors if isinstance(each, FakeTensor))

    def _pack_padded(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Pack sequences, with a row for each step of each; the lengths are real, on the CPU."""
        padded, lengths, batch_first = args
        if not isinstance(padded, FakeTensor):
            return self._run(func, types, args, kwargs)
        longest = padded.shape[1 if batch_first else 0]
        on_host = lengths_on_host(lengths, longest, "the lengths of packed sequences", self)
        lengths = constructors.tensor(on_host, dtype=torch.int64, device="cpu")
        with self:  # a copy of the steps of each length, then all in one (PackedSequence.cpp)
            return run_in_parts(func, (padded, lengths, batch_first), {})

    def _ctc_loss(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """`ctc_loss_tensor` (native/LossCTC.cpp), which reads the lengths.

        This is the CPU's form: a card's takes lists (`virtual_device/operators/ctc.py`).
        """
        log_probs, targets, _, lengths, *_ = args
        if not isinstance(log_probs, FakeTensor):
            return self._run(func, types, args, kwargs)
        longest = min(targets.shape[-1], log_probs.shape[0])
        on_host = lengths_on_host(lengths, longest, "the lengths of ctc_loss's targets", self)
        made = KERNELS[aten._ctc_loss.default](log_probs, targets, (), on_host)
        return self._record_made(func, args, kwargs, made)

    def lengths_of(self, tensor: FakeTensor, bound: int, what: str) -> Sequence[int]:
        """Lengths of sequences on the device: the known ones, or else the bound for each."""
        known = self.reads.known.of(tensor)
        if known is not None:
            self.reads.use(known.basis)
            lengths: list[int] = known.tensor.reshape(-1).tolist()
            return lengths
        self._recorder.assume(
            what, f"{bound} each (the bound)", "they are on the device", self._location.place()
        )
        return [bound] * tensor.numel()

    def _count(self, what: str, numel: int) -> int:
        """How many of `numel` elements a result whose size depends on data has."""
        return self.reads.count(what, numel)


def _all_of(tensor: torch.Tensor) -> Any:
    return aten._local_scalar_dense.default(aten.all.default(tensor))


def _is_masked_fill(
    tensor: torch.Tensor,
    indices: Sequence[Any],
    value: torch.Tensor,
    accumulate: bool = False,
    *_: Any,
) -> bool:
    """Whether a host scalar is written where a single mask selects.

    `canDispatchToMaskedFill` (aten/src/ATen/native/TensorAdvancedIndexingUtils.h).
    """
    is_number = not accumulate and value.numel() == 1 and value.device.type == "cpu"
    given = [index for index in indices if index is not None]
    return is_number and len(given) == 1 and _is_mask(given[0]) and given[0].device == tensor.device


def _as_masked_fill(
    tensor: torch.Tensor, indices: Sequence[Any], value: torch.Tensor, *_: Any
) -> tuple[Any, ...]:
    """The arguments of `masked_fill_`; the mask gains the dimensions that follow it."""
    before, mask = next((at, index) for at, index in enumerate(indices) if index is not None)
    after = tensor.dim() - before - mask.dim()
    return tensor, mask.reshape(*mask.shape, *(1,) * after), value


def _is_mask(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)
