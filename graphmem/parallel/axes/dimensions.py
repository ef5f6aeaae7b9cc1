"""Identify the axes of a traced step: batch, sequence, and those tensor parallelism divides.

The rules of `axis_rules` are applied to every operation of the forward and the backward passes.

Clauses:
  (1) the *batch* axis is the first axis of the first input; the *sequence* axis is that of
      attention's queries, or of the rows of a batched product of activations where attention is
      written out;
  (2) an axis that an operator normalises or reduces over in the forward pass stays *whole*, except
      the classes of a cross entropy (Megatron-LM computes it in parts,
      megatron/core/tensor_parallel/cross_entropy.py);
  (3) `tensor_parallel` chooses what tensor parallelism divides among the rest.

Not covered: tensor parallelism of convolutions and recurrent layers, which stay whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import structs

from graphmem.graph import Op, OwnerKind, PhaseName, StepGraph, Storage, TensorOut
from graphmem.nodes import Item, Node
from graphmem.parallel.axes.attention import BatchedProduct, Part, find_written_out
from graphmem.parallel.axes.axis import Axis, unify
from graphmem.parallel.axes.axis_rules import relate
from graphmem.parallel.axes.device_copies import find_device_copies
from graphmem.parallel.axes.experts import (
    Exchange,
    count_experts,
    expert_of,
    find_exchanges,
    may_be_stacked,
    parameter_of,
)
from graphmem.parallel.axes.recorded_op import RecordedOp, is_row_major
from graphmem.parallel.axes.rule_interface import Axes, AxisFacts, equate, new_axes
from graphmem.parallel.axes.tensor_parallel import (
    Column,
    Differentiated,
    Lookup,
    Meeting,
    WeightProduct,
    choose_split_axes,
    meetings,
)

_Key = tuple[int, tuple[int, ...], tuple[int, ...], int]
_CASTS = frozenset({"aten._to_copy.default", "aten.t.default", "aten.detach.default"})
_PRODUCTS = frozenset(
    {
        "aten.mm.default",
        "aten.addmm.default",
        "aten.bmm.default",
        "aten.baddbmm.default",
        "aten.linear.default",
    }
)
_RECURRENT = frozenset({"LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell"})
_BATCHED = frozenset({"aten.bmm.default", "aten.baddbmm.default"})
_SAME_SHAPE = frozenset({OwnerKind.GRADIENT, OwnerKind.OPTIMIZER_STATE, OwnerKind.AUTOCAST_CACHE})


@dataclass
class Dimensions:
    """The axes of a step.

    Attributes:
        of_storage: by storage id, the axes of the first tensor that lived in it.
        of_tensor: the axes of the tensors of these passes, by node and number of the result.
        batch, sequence: None if there is none.
        columns: the axes that tensor parallelism divides.
        meetings: the tensors that tensor-parallel ranks sum and gather.
        whole: atoms that tensor parallelism leaves whole; sequence parallelism may divide their
            tensors along the sequence.
        products: products with a weight, in forward order.
        all_products: operations of the forward and backward passes that multiply matrices.
        attentions: by operation, the keys and values, or their gradients, of which attention needs
            all positions; gradients of fused attention count like keys and values.
        experts: by name of an expert parameter, the number of experts.
        expert_axes: axes along which experts are stacked in one parameter.
        whole_experts: parameters that look like stacked experts but that no batched product reads:
            they stay whole.
        exchanges: the data sent to the experts and back.
        of_parameter: by storage, the parameter that it is, or whose gradient or optimizer state it
            is, or for which the optimizer made it.
        reads: by operation of the forward and backward passes, the storages of its arguments.
    """

    of_storage: dict[int, Axes] = field(default_factory=dict)
    of_tensor: dict[tuple[Node, int], Axes] = field(default_factory=dict)
    batch: Axis | None = None
    sequence: Axis | None = None
    columns: list[Column] = field(default_factory=list)
    meetings: list[Meeting] = field(default_factory=list)
    whole: set[Axis] = field(default_factory=set)
    products: list[WeightProduct] = field(default_factory=list)
    all_products: list[int] = field(default_factory=list)
    attentions: dict[int, tuple[Part, ...]] = field(default_factory=dict)
    experts: dict[str, int] = field(default_factory=dict)
    expert_axes: set[Axis] = field(default_factory=set)
    whole_experts: list[str] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)
    of_parameter: dict[int, str] = field(default_factory=dict)
    reads: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def divisible(self) -> set[Axis]:
        """Every atom that tensor parallelism divides."""
        return {atom.root for column in self.columns for atom in column.atoms}


def find_dimensions(graph: StepGraph) -> Dimensions:
    """Relate the axes of all tensors of a step, and identify them."""
    return _Finder(graph).run()


class _Finder:
    def __init__(self, graph: StepGraph) -> None:
        self._graph = graph
        self._axes: dict[tuple[Node, int], Axes] = {}
        self._seen: dict[_Key, Axes] = {}
        self._by_name: dict[str, Axes] = {}
        self._homes = find_device_copies(graph)
        self._weights: dict[int, str] = {}
        self._learned = AxisFacts()
        self._classes: list[Axis] = []
        self._lookups: list[Lookup] = []
        self._backward = Differentiated()
        self._copied: dict[int, int] = {}
        self._batches: set[str] = set()
        self._of_activations: list[BatchedProduct] = []
        self._found = Dimensions()

    def run(self) -> Dimensions:
        for storage in self._graph.storages:
            owner = storage.owned_as(OwnerKind.PARAMETER)
            if owner is not None:
                self._weights[storage.id] = owner.name
                self._at_home(storage.id)
        for op in self._graph.ops:
            phase = self._graph.phases[op.phase].name
            if phase in (PhaseName.FORWARD, PhaseName.BACKWARD):
                self._relate(op, phase is PhaseName.FORWARD)
        for storage in self._graph.storages:
            axes = self._at_home(storage.id)
            for owner in storage.owners:
                if owner.kind in _SAME_SHAPE:
                    self._like_parameter(owner.kind, owner.name, axes)
        self._follow_optimizer()
        self._name_data_axes()
        self._choose_columns()
        self._find_experts()
        return replace(self._found, of_tensor=self._axes)

    def _at_home(self, storage_id: int) -> Axes:
        """The axes of the first tensor in a storage; gradients have their parameter's."""
        found = self._found.of_storage
        if storage_id in found:
            return found[storage_id]
        storage = self._graph.storages[storage_id]
        axes = found[storage_id] = new_axes(storage.shape)
        owner = storage.owned_as(OwnerKind.PARAMETER)
        if owner is not None:
            self._by_name.setdefault(owner.name, axes)
        return axes

    def _like_parameter(self, kind: OwnerKind, name: str, axes: Axes) -> None:
        if kind is not OwnerKind.AUTOCAST_CACHE:
            name = name.rpartition(".")[0]
        self._as_parameter(name, axes)

    def _as_parameter(self, name: str, axes: Axes) -> None:
        parameter = self._by_name.get(name, ())
        if [axis.size for axis in parameter] == [axis.size for axis in axes]:
            for mine, theirs in zip(axes, parameter, strict=True):
                unify(mine, theirs)

    def _relate(self, op: Op, forward: bool) -> None:
        call = RecordedOp(op, self._axes_of)
        facts = self._learned if forward else AxisFacts()
        name = op.target.rpartition(".")[0]
        self._found.reads[op.index] = self._storages_of(op.all_input_nodes)
        results = relate(name, call, facts)
        for i, (output, axes) in enumerate(zip(op.outputs, results, strict=True)):
            if output.storage in op.births:
                self._found.of_storage.setdefault(output.storage, axes)
            self._axes[op, i] = self._remember(output, axes)
        if op.target in _PRODUCTS:
            self._found.all_products.append(op.index)
        if name.startswith("aten._scaled_dot_product"):
            keys = [call.value(each) for each in ("key", "value")]
            times = 2 if name.endswith("_backward") else 1
            self._found.attentions[op.index] = self._parts_of(keys) * times
        if op.target in _BATCHED:
            self._note_batched(op)
        if forward:
            self._note(op, name, call)
        elif op.target in _PRODUCTS:
            self._note_in_backward(op)
        if op.target in _CASTS and op.outputs and op.outputs[0].storage is not None:
            weight, made = self._weight_of(op.args[0]), op.outputs[0].storage
            if weight is not None:
                self._weights.setdefault(made, weight)
            source = self._storage_of(op.args[0])
            self._copied.setdefault(made, self._copied.get(source, source))

    def _follow_optimizer(self) -> None:
        """Give the optimizer's tensors for a parameter the parameter's axes.

        A result of a `_foreach` operation belongs to the parameter at its position in the list; any
        other result to the first argument that belongs to one.
        """
        known = self._found.of_parameter
        for storage in self._graph.storages:
            name = parameter_of(storage)
            if name is not None:
                known[storage.id] = name
        for op in self._graph.ops:
            if self._graph.phases[op.phase].name is PhaseName.OPTIMIZER:
                for made, name in self._made_for(op):
                    known.setdefault(made, name)
                    self._as_parameter(name, self._found.of_storage[made])

    def _made_for(self, op: Op) -> Iterator[tuple[int, str]]:
        lists = [arg for arg in op.args if isinstance(arg, (list, tuple))]
        first = lists[0] if lists and op.target.startswith("aten._foreach") else None
        for i, output in enumerate(op.outputs):
            nodes: Sequence[Any] = op.all_input_nodes if first is None else first[i : i + 1]
            read = self._storages_of([node for node in nodes if isinstance(node, Node)])
            names = (self._found.of_parameter.get(each) for each in read)
            name = next((name for name in names if name is not None), None)
            if name is not None and output.storage is not None:
                yield output.storage, name

    def _note(self, op: Op, name: str, call: RecordedOp) -> None:
        if name == "aten._log_softmax":
            self._classes.append(self._learned.whole.pop())
        elif name == "aten.embedding":
            weight, indices = op.args[:2]
            table = self._weight_of(weight)
            if table is not None and self._is_input(indices):
                rows = call.tensors()[0][0]
                self._lookups.append(Lookup(op.index, table, rows, tuple(op.births)))
        elif op.target in _PRODUCTS:
            self._found.products += self._product(op)

    def _note_batched(self, op: Op) -> None:
        nodes = [arg for arg in op.args if isinstance(arg, Node)][-2:]
        if not any(map(self._weight_of, nodes)):
            one, other = map(self._axes_of, nodes)
            reads, makes = self._parts_of(nodes), self._parts_of([op])
            is_gradient = op.forward is not None
            self._of_activations.append(
                BatchedProduct(op.index, is_gradient, (one, other), reads, makes)
            )

    def _note_in_backward(self, op: Op) -> None:
        if op.forward is None:
            self._backward.again += self._product(op)
        elif any(map(self._weight_of, op.all_input_nodes)):
            self._backward.inputs.add(op.forward)
        else:
            self._backward.weights.add(op.forward)

    def _product(self, op: Op) -> Iterator[WeightProduct]:
        nodes = [arg for arg in op.args if isinstance(arg, Node)]
        one, other = nodes[:2] if op.target == "aten.linear.default" else nodes[-2:]
        name, forward_end = self._weight_of(other), False
        if name is None:
            name, forward_end = self._weight_of(one), True
        if name is None:
            if op.target in _BATCHED:
                self._learned.queries.append(self._axes_of(one)[-2])
            return
        left, right = self._axes_of(one), self._axes_of(other)
        if op.target in _BATCHED and left[0].root is self._by_name[name][0].root:
            self._batches.add(name)
        if op.target == "aten.linear.default":
            sums_over, makes = right[1], right[0]
        else:
            sums_over, makes = (left[-1], left[-2]) if forward_end else (right[-2], right[-1])
        reads = self._storage_of(other if forward_end else one)
        source, made = self._copied.get(reads, reads), tuple(op.births)
        yield WeightProduct(op.index, name, sums_over, makes, reads, source, made)

    def _remember(self, output: TensorOut, axes: Axes) -> Axes:
        """Give tensors of one storage with the same geometry the same axes."""
        if output.storage is None:
            return axes
        storage = self._graph.storages[output.storage]
        key = (output.storage, output.shape, output.stride, output.offset)
        known = self._seen.get(key)
        if known is None and output.shape == storage.shape and is_row_major(output):
            known = self._at_home(output.storage)
        if known is None:
            self._seen[key] = axes
            return axes
        for mine, theirs in zip(axes, known, strict=True):
            unify(mine, theirs)
        self._seen[key] = known
        return known

    def _axes_of(self, node: Node) -> Axes:
        key = (node, 0)
        if isinstance(node, Item):
            key = (node.args[0], node.args[1])
        if key not in self._axes:
            tensor = self._described(node)
            shape = () if tensor is None else tensor.shape
            axes = new_axes(shape)
            self._axes[key] = axes if tensor is None else self._remember(tensor, axes)
        return self._axes[key]

    def _weight_of(self, node: Any) -> str | None:
        return self._weights.get(self._storage_of(node))

    def _storage_of(self, node: Any) -> int:
        tensor = self._described(node) if isinstance(node, Node) else None
        return -1 if tensor is None or tensor.storage is None else tensor.storage

    def _described(self, node: Node) -> TensorOut | None:
        tensor = node.tensor
        if tensor is not None and tensor.storage is None and node in self._homes:
            return structs.replace(tensor, storage=self._homes[node])
        return tensor

    def _storages_of(self, nodes: Sequence[Node]) -> tuple[int, ...]:
        described = map(self._described, nodes)
        return tuple(each.storage for each in described if each and each.storage is not None)

    def _parts_of(self, nodes: Sequence[Node]) -> tuple[Part, ...]:
        found = []
        for each in map(self._described, nodes):
            if each is not None and each.storage is not None:
                of = max(1, math.prod(self._graph.storages[each.storage].shape))
                found.append(Part(each.storage, min(math.prod(each.shape), of), of))
        return tuple(found)

    def _is_input(self, node: Any) -> bool:
        number = self._storage_of(node)
        return number >= 0 and bool(self._graph.storages[number].owned_as(OwnerKind.INPUT))

    # Identifying the axes -----------------------------------------------------------------------

    def _name_data_axes(self) -> None:
        inputs = self._inputs_by_step()
        for others in inputs[1:]:
            for one, other in zip(inputs[0], others, strict=False):
                equate(self._found.of_storage[one.id], self._found.of_storage[other.id])
        if inputs:
            atoms = self._found.of_storage[inputs[0][0].id][0].atoms()
            self._found.batch = atoms[0] if len(atoms) == 1 else None
        positions = (axis.atoms() for axis in self._learned.queries)
        sequence = next((atoms[0] for atoms in positions if len(atoms) == 1), None)
        self._found.sequence = sequence
        if sequence is not None:
            self._found.attentions |= dict(find_written_out(self._of_activations, sequence))

    def _inputs_by_step(self) -> list[list[Storage]]:
        """The inputs of each step; those moved before the first step belong to it."""
        found: dict[int, list[Storage]] = {}
        for storage in self._graph.storages:
            if storage.shape and storage.owned_as(OwnerKind.INPUT):
                op = self._graph.op_of(storage)
                step = 0 if op is None else max(0, self._graph.phases[op.phase].step)
                found.setdefault(step, []).append(storage)
        return [found[step] for step in sorted(found)]

    def _find_experts(self) -> None:
        found, counts = self._found, count_experts(self._graph)
        for name, axes in self._by_name.items():
            expert = expert_of(name)
            if expert is not None:
                found.experts[name] = counts[expert[0]]
            elif may_be_stacked(name, tuple(axis.size for axis in axes)):
                if name not in self._batches:
                    found.whole_experts.append(name)
                    continue
                found.experts[name] = axes[0].size
                found.expert_axes.add(axes[0].root)
        if found.experts:
            found.exchanges = list(find_exchanges(self._graph, found.reads))

    def _choose_columns(self) -> None:
        found = self._found
        recurrent = {
            each.op
            for each in found.products
            if self._graph.modules.get(self._graph.ops[each.op].module) in _RECURRENT
        }
        chosen = choose_split_axes(
            found.products, self._learned, self._classes, self._lookups, recurrent
        )
        found.columns, found.whole = chosen.columns, chosen.whole
        found.meetings += meetings(chosen, found.products, self._lookups, self._backward)
        found.whole -= {axis.root for axis in (found.batch, found.sequence) if axis is not None}
