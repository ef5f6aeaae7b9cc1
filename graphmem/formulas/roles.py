"""The role of each storage, divided as published formulas divide a training step.

Clauses, for a storage at a moment:
  (1) anything that the report does not call an activation keeps the report's category;
  (2) the role of an activation comes from the autograd node that holds it: the node's operator, the
      field, and whether the gradient of a parameter needs it (`_of_one`); if several nodes hold a
      storage, the first in the order of `SavedRole` counts, so that each byte counts once;
  (3) it belongs to a block if the operation of that node ran in one (blocks.py): so a block's first
      norm holds the embedding's output.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from graphmem.annotations import SAVED_TENSORS
from graphmem.formulas.blocks import ModelBlocks
from graphmem.graph import Category, Op, StepGraph, Storage
from graphmem.nodes import Node
from graphmem.report.categories import CATEGORY_NAMES

if TYPE_CHECKING:
    from graphmem.pipeline import Annotations


class SavedRole(enum.StrEnum):
    """Why autograd holds an activation; the value is its name in reports."""

    SOFTMAX = "results of attention's softmax"
    PROBABILITIES = "operands of attention's last product, as large as the softmax"
    ATTENTION_MASK = "dropout masks as large as the softmax"
    NORM_INPUT = "inputs of norms"
    NORM_STATISTICS = "statistics of norms"
    NORMED_INPUT = "inputs of linear layers, made by a norm"
    LINEAR_INPUT = "inputs of other linear layers"
    QKV = "queries, keys and values"
    ATTENTION_STATISTICS = "other tensors that fused attention keeps"
    NONLINEARITY = "operands of activation functions"
    DROPOUT_MASK = "dropout masks"
    LOSS = "operands of the loss"
    MASK = "masks"
    INDICES = "indices"
    PRODUCT = "operands of elementwise products"
    OTHER = "other saved tensors"
    """Named after the node that holds them."""


_ORDER = list(SavedRole)
ROUNDING = "rounding"


class Role(NamedTuple):
    """The role of a storage; `in_block` is False outside of blocks and in clause (1)."""

    what: Category | SavedRole | str
    in_block: bool = False

    @property
    def is_activation(self) -> bool:
        """Whether it is not one of the report's categories (clause 1)."""
        return self.what not in CATEGORY_NAMES

    def __str__(self) -> str:
        if self.what in CATEGORY_NAMES:
            return CATEGORY_NAMES[self.what]
        return f"{self.what}{', blocks' if self.in_block else ', outside of blocks'}"


def of(*categories: Category) -> frozenset[Role]:
    """The roles of these report categories."""
    return frozenset(map(Role, categories))


def in_blocks(*saved: SavedRole) -> frozenset[Role]:
    """The roles of these activations in blocks."""
    return frozenset(Role(each, in_block=True) for each in saved)


def outside(*saved: SavedRole) -> frozenset[Role]:
    """The roles of these activations in embedding, last norm, head and loss."""
    return frozenset(map(Role, saved))


_ACTIVATION_FUNCTIONS = frozenset(
    "Celu Elu Gelu Glu Hardsigmoid Hardshrink Hardswish Hardtanh LeakyRelu LogSigmoidForward Mish "
    "PreluKernel Relu RreluWithNoise Sigmoid Silu Softplus Tanh Threshold".split()
)
_LOSSES = frozenset(
    "LogSoftmax NllLoss NllLoss2D CrossEntropyLoss BinaryCrossEntropy "
    "BinaryCrossEntropyWithLogits MseLoss KlDiv".split()
)
_PRODUCTS = frozenset("Mm Addmm Bmm Baddbmm Addbmm Mv".split())
_NORMS = frozenset(
    "NativeLayerNorm FusedRmsNorm NativeGroupNorm NativeBatchNorm CudnnBatchNorm".split()
)
_MASKS: Mapping[str, str] = MappingProxyType({"MaskedFill": "mask", "Where": "condition"})
_NORM_OPERATORS = ("aten.native_layer_norm", "aten._fused_rms_norm", "aten.native_group_norm")
_CASTS = ("aten._to_copy",)


@dataclass(frozen=True)
class Roles:
    """Finds the role of a storage at a moment.

    Attributes:
        graph: the traced step.
        saved: the result of the pass `saved_tensors`.
        blocks: the model's blocks.
    """

    graph: StepGraph
    saved: Any
    blocks: ModelBlocks

    @classmethod
    def of(cls, graph: StepGraph, annotations: Annotations, blocks: ModelBlocks) -> Roles:
        """Make it from the results of the passes."""
        return cls(graph, annotations.of(SAVED_TENSORS), blocks)

    def bytes_by_role(self, storages: Iterable[Storage], tick: int) -> dict[Role, int]:
        """Requested bytes of storages by role at `tick`; every byte counts once."""
        found: dict[Role, int] = {}
        for storage in storages:
            role = self.role(storage, tick)
            found[role] = found.get(role, 0) + storage.nbytes
        return found

    def role(self, storage: Storage, tick: int) -> Role:
        """The role of a storage at `tick`."""
        category = storage.category_at(tick)
        if category is not Category.ACTIVATION:
            return Role(category)
        found = [
            (_ORDER.index(self._of_one(held, storage)), held)
            for held in self.saved.holding(storage.id, tick)
        ]
        if not found:
            return Role(SavedRole.OTHER)
        first, held = min(found, key=lambda each: each[0])
        what = _ORDER[first]
        in_block = self._in_block(held.op)
        return Role(f"tensors held by {held.name}" if what is SavedRole.OTHER else what, in_block)

    def _in_block(self, op: int | None) -> bool:
        return op is not None and self.blocks.contain(self.graph.ops[op].module)

    def _of_one(self, held: Any, storage: Storage) -> SavedRole:
        """Why one autograd node holds a storage (clause 2)."""
        name, field = held.name.rpartition("Backward")[0], held.field.partition("[")[0]
        shape = held.tensor.shape
        like_softmax = self.blocks.like_softmax(shape)
        op = None if held.op is None else self.graph.ops[held.op]
        if name in _NORMS or self._in_norm(op):
            per_row = (bool(shape) and shape[-1] == 1) or field.startswith("result")
            return SavedRole.NORM_STATISTICS if per_row else SavedRole.NORM_INPUT
        if name in ("Softmax", "SafeSoftmax") and like_softmax:
            return SavedRole.SOFTMAX
        if name in _LOSSES:
            return SavedRole.LOSS
        if name.startswith("ScaledDotProduct"):
            return _of_attention(field)
        if name == "NativeDropout":
            return SavedRole.ATTENTION_MASK if like_softmax else SavedRole.DROPOUT_MASK
        if name in _PRODUCTS:
            return self._of_product(held, storage, like_softmax)
        return _of_elementwise(name, field)

    def _of_product(self, held: Any, storage: Storage, like_softmax: bool) -> SavedRole:
        if like_softmax:
            return SavedRole.PROBABILITIES
        if not any(parameter in held_for(held) for parameter in self.graph.parameters):
            return SavedRole.QKV
        maker = self.graph.op_of(storage)
        return SavedRole.NORMED_INPUT if self._is_normed(maker) else SavedRole.LINEAR_INPUT

    def _is_normed(self, op: Op | None) -> bool:
        """Whether an operation belongs to a norm, or casts the result of one."""
        while op is not None and op.target.startswith(_CASTS) and not self._in_norm(op):
            op = _made_by(op.args[0])
        return op is not None and (op.target.startswith(_NORM_OPERATORS) or self._in_norm(op))

    def _in_norm(self, op: Op | None) -> bool:
        """Whether an operation ran in a module whose class name contains "norm"."""
        return op is not None and "norm" in self.graph.modules.get(op.module, "").lower()


def held_for(held: Any) -> tuple[str, ...]:
    """The parameters or arguments whose gradients need a saved tensor."""
    names = (text.removeprefix("the gradient of ") for text in held.gradients_of)
    return tuple(part for name in names for part in name.split(" and "))


def _of_attention(field: str) -> SavedRole:
    if field in ("query", "key", "value"):
        return SavedRole.QKV
    return SavedRole.LINEAR_INPUT if field in ("output", "out") else SavedRole.ATTENTION_STATISTICS


def _of_elementwise(name: str, field: str) -> SavedRole:
    if name in _ACTIVATION_FUNCTIONS:
        return SavedRole.NONLINEARITY
    if name == "Embedding":
        return SavedRole.INDICES
    if _MASKS.get(name) == field:
        return SavedRole.MASK
    return SavedRole.PRODUCT if name in ("Mul", "Div") else SavedRole.OTHER


def _made_by(node: object) -> Op | None:
    """The operation that made an argument, also if it is one of several results."""
    while isinstance(node, Node):
        if isinstance(node, Op):
            return node
        node = node.args[0] if node.args else None
    return None
