"""The size of each storage on one rank of a layout, from its axes.

Clauses:
  (1) tensor parallelism divides the divisible atoms of every storage (`tensor_parallel`); a share
      that does not divide evenly is padded if the column pads, otherwise the layout is rejected;
  (2) the batch axis is cut into micro-batches, the sequence axis over the context-parallel ranks,
      on every storage that is not a parameter, buffer, gradient or optimizer state;
  (3) an axis that occurs twice in a storage is divided once, at its first position: attention's
      scores keep all keys for the rank's queries (Llama 3, arXiv:2407.21783, section 3.3.2: keys
      and values are gathered, queries are not);
  (4) sequence parallelism divides along the sequence, over the tensor-parallel ranks, those
      storages that tensor parallelism leaves whole and that have a whole feature axis or are a
      norm's statistics (Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2);
  (5) an expert's storages are on only one of the expert-parallel ranks, with the tokens of all of
      them (`experts`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from functools import cached_property

from msgspec import structs

from graphmem.graph import OwnerKind, PhaseName, StepGraph, Storage, TensorOut
from graphmem.kernel_program import CUBLAS_WORKSPACE, CUBLASLT_WORKSPACE
from graphmem.parallel.axes.attention import Part
from graphmem.parallel.axes.axis import Axis
from graphmem.parallel.axes.dimensions import Dimensions
from graphmem.parallel.axes.experts import MODEL_KINDS, count_experts, expert_of, is_of_model
from graphmem.parallel.axes.tensor_parallel import Column
from graphmem.parallel.layout import Layout, nearest_divisor
from graphmem.parallel.messages import (
    NoExpertTensorsError,
    NoSequenceError,
    UnevenBatchError,
    UnevenExpertsError,
    UnevenSequenceError,
    UnevenTensorSplitError,
)

_NORM_STATISTICS = re.compile(r"aten\.(native_layer_norm|_fused_rms_norm)")


class ShardSizes:
    """Computes one rank's share of each storage, before data-parallel sharding.

    Args:
        graph, dimensions: the trace and its axes.
        layout: how it is split.
        has_own_kernels: whether scratch memory of the forward and backward passes is already that
            of the rank's own kernels (`own_kernels`).

    Raises:
        InputError: the layout is impossible; the hint names the nearest possible one.
    """

    def __init__(
        self,
        graph: StepGraph,
        dimensions: Dimensions,
        layout: Layout,
        *,
        has_own_kernels: bool = False,
    ) -> None:
        self._graph = graph
        self._dimensions = dimensions
        self._layout = layout
        self._has_own_kernels = has_own_kernels
        self._model_sizes = dict(_tensor_sizes(dimensions.columns, layout.tensor))
        self._data_sizes = {**self._model_sizes, **self._token_sizes()}
        self._model_sizes |= self._expert_sizes()
        self._divisible = dimensions.divisible()

    def nbytes(self, storage: Storage) -> int:
        """Bytes of a storage on the first rank of its stage, for one micro-batch."""
        layout = self._layout
        if layout.tensor * layout.context * layout.micro_batches * layout.expert == 1:
            return storage.nbytes
        if storage.id not in self._dimensions.of_storage:
            return self._scratch(storage)
        return self._of_expert(storage, self._by_axes(storage))

    def own(self, tensor: TensorOut, axes: tuple[Axis, ...]) -> TensorOut:
        """The rank's share of a tensor, with strides that leave out as much as the traced ones."""
        if len(axes) != len(tensor.shape) or len(tensor.stride) != len(tensor.shape):
            return tensor
        storage = None if tensor.storage is None else self._graph.storages[tensor.storage]
        shape = self._local_shape(storage, axes)
        return structs.replace(tensor, shape=shape, stride=_local_strides(tensor, shape))

    def part(self, part: Part) -> int:
        """Bytes of a tensor that is only a part of its storage."""
        whole = self.nbytes(self._graph.storages[part.storage])
        return whole * part.numel // part.of

    def describe(self, storage: Storage) -> tuple[object, ...]:
        """Everything other than bytes and axes that determines a storage's share."""
        op = self._graph.op_of(storage)
        is_statistics = op is not None and _NORM_STATISTICS.match(op.target) is not None
        scratch_like: tuple[object, ...] = ()
        if storage.id not in self._dimensions.of_storage:
            scratch_like = (storage.id,)
        return is_statistics, expert_of(self._module_of(storage)), *scratch_like

    def is_divided(self, number: int) -> bool:
        """Whether a storage has an axis that tensor parallelism divides."""
        axes = self._dimensions.of_storage[number]
        return any(atom in self._divisible for axis in axes for atom in axis.atoms())

    def is_along_sequence(self, number: int) -> bool:
        """Whether sequence parallelism divides a storage."""
        axes = self._dimensions.of_storage[number]
        return self._is_split_along_sequence(self._graph.storages[number], axes)

    def gathered(self, number: int) -> int:
        """Bytes of a storage gathered along the sequence on each tensor-parallel rank."""
        ways = self._layout.tensor if self.is_along_sequence(number) else 1
        return self.nbytes(self._graph.storages[number]) * ways

    def shape(self, storage: Storage) -> tuple[int, ...]:
        """The shape of a parameter on one rank."""
        axes = self._dimensions.of_storage[storage.id]
        return tuple(axis.local_size(self._model_sizes) for axis in axes)

    def _scratch(self, storage: Storage) -> int:
        """Scale a kernel's scratch memory like its result, or else like its first argument.

        cuBLAS's workspaces, kept or not, and other memory that a library keeps do not shrink.
        """
        owner = storage.owned_as(OwnerKind.WORKSPACE)
        is_fixed = owner is not None and owner.name in (CUBLAS_WORKSPACE, CUBLASLT_WORKSPACE)
        if storage.death is None or storage.op is None or is_fixed:
            return storage.nbytes
        op = self._graph.ops[storage.op]
        if self._has_own_kernels and self._graph.phases[op.phase].name is not PhaseName.OPTIMIZER:
            return storage.nbytes
        ids = (*op.births, *self._dimensions.reads.get(op.index, ()))
        if not ids:
            return storage.nbytes
        like = self._graph.storages[ids[0]]
        return -(-storage.nbytes * self.nbytes(like) // like.nbytes) if like.nbytes else 0

    def belongs_to_model(self, storage: Storage) -> bool:
        """Whether a storage belongs to the model, or the optimizer made it for a parameter."""
        return is_of_model(storage) or storage.id in self._dimensions.of_parameter

    def _of_expert(self, storage: Storage, nbytes: int) -> int:
        """Clause (5), for experts in a list."""
        ways = self._layout.expert
        expert = expert_of(self._module_of(storage)) if ways > 1 else None
        if expert is None:
            return nbytes
        name, number = expert
        if number >= self._counts[name] // ways:
            return 0
        return nbytes if self.belongs_to_model(storage) else nbytes * ways

    @cached_property
    def _counts(self) -> dict[str, int]:
        return count_experts(self._graph)

    def _expert_sizes(self) -> dict[Axis, int]:
        """Clause (5), for stacked experts; also checks that all experts divide evenly."""
        ways, dimensions = self._layout.expert, self._dimensions
        if ways == 1:
            return {}
        if not dimensions.experts:
            raise NoExpertTensorsError(ways)
        for name, count in dimensions.experts.items():
            if count % ways:
                raise UnevenExpertsError(count, name, ways, nearest_divisor(count, ways))
        return {axis.root: axis.size // ways for axis in dimensions.expert_axes}

    def _module_of(self, storage: Storage) -> str:
        for owner in storage.owners:
            if owner.kind in MODEL_KINDS:
                return owner.name
        if storage.id in self._dimensions.of_parameter:
            return self._dimensions.of_parameter[storage.id]
        op = self._graph.op_of(storage)
        return "" if op is None else op.module

    def _by_axes(self, storage: Storage) -> int:
        axes = self._dimensions.of_storage[storage.id]
        whole = math.prod(axis.size for axis in axes)
        if not whole or not axes:
            return storage.nbytes
        return -(-storage.nbytes * math.prod(self._local_shape(storage, axes)) // whole)

    def _local_shape(self, storage: Storage | None, axes: tuple[Axis, ...]) -> tuple[int, ...]:
        """The sizes of axes; without a storage, of data that are not on the device."""
        if storage is not None and self.belongs_to_model(storage):
            return tuple(axis.local_size(self._model_sizes) for axis in axes)
        sizes = dict(self._data_sizes)
        sequence = self._dimensions.sequence
        along = storage is not None and self._is_split_along_sequence(storage, axes)
        if sequence is not None and along:
            sizes[sequence.root] = -(-sizes[sequence.root] // self._layout.tensor)
        shape = []
        for axis in axes:
            shape.append(axis.local_size(sizes))
            for atom in axis.atoms():  # clause (3)
                if sequence is not None and atom is sequence.root:
                    sizes.pop(atom, None)
        return tuple(shape)

    def _is_split_along_sequence(self, storage: Storage, axes: tuple[Axis, ...]) -> bool:
        """Clause (4)."""
        sequence = self._dimensions.sequence
        if not self._layout.sequence_parallel or sequence is None:
            return False
        atoms = {atom for axis in axes for atom in axis.atoms()}
        if sequence.root not in atoms or atoms & self._divisible:
            return False
        op = self._graph.op_of(storage)
        is_statistics = op is not None and _NORM_STATISTICS.match(op.target) is not None
        return is_statistics or bool(atoms & self._dimensions.whole)

    def _token_sizes(self) -> dict[Axis, int]:
        """Clause (2)."""
        layout, dimensions = self._layout, self._dimensions
        sizes: dict[Axis, int] = {}
        if layout.micro_batches > 1:
            batch = dimensions.batch
            if batch is None or batch.size % layout.micro_batches:
                size = 1 if batch is None else batch.size
                raise UnevenBatchError(
                    size, layout.micro_batches, nearest_divisor(size, layout.micro_batches)
                )
            sizes[batch.root] = batch.size // layout.micro_batches
        sequence = dimensions.sequence
        if layout.context > 1 or layout.sequence_parallel:
            ways = layout.context * (layout.tensor if layout.sequence_parallel else 1)
            if sequence is None:
                raise NoSequenceError()
            if sequence.size % ways:
                raise UnevenSequenceError(sequence.size, ways, nearest_divisor(sequence.size, ways))
            sizes[sequence.root] = sequence.size // layout.context
        return sizes


def _local_strides(tensor: TensorOut, shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a smaller shape in the same order of dimensions, with the same gaps."""
    strides = list(tensor.stride)
    traced = local = 1
    for i in sorted(range(len(shape)), key=lambda i: (tensor.stride[i], -i)):
        if tensor.stride[i]:
            strides[i] = max(1, tensor.stride[i] * local // traced)
            traced, local = tensor.stride[i] * tensor.shape[i], strides[i] * shape[i]
    return tuple(strides)


def _tensor_sizes(columns: Sequence[Column], degree: int) -> Iterator[tuple[Axis, int]]:
    """Clause (1): the local size of each divided atom."""
    for column in columns:
        if not _divides(column, degree):
            able = range(1, column.size + 1)
            possible = [each for each in able if all(_divides(c, each) for c in columns)]
            nearest = min(possible, key=lambda each: (abs(each - degree), each))
            raise UnevenTensorSplitError(column.size, column.what, column.weight, degree, nearest)
        left = degree
        for atom in column.atoms:
            ways = left if column.pads else math.gcd(left, atom.size)
            yield atom.root, -(-atom.size // ways)
            left //= ways


def _divides(column: Column, degree: int) -> bool:
    """Whether each rank can get a share: whole heads, whole features, or a padded vocabulary."""
    if column.pads:
        return degree <= column.size
    for atom in column.atoms:
        degree //= math.gcd(degree, atom.size)
    return degree == 1
