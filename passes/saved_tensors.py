"""The tensors that each autograd node saves, and the derivative formulas that need them.

A tensor is *saved* by a node from the forward operation until the node has run. For each:
  (1) the field, under the name that the formula uses: `self`, `result`, `mat1`;
  (2) the formulas that need it and are wanted: those computing the gradient of an argument that
      leads to a leaf that trains (formulas come from derivatives.py); a custom `autograd.Function`
      gives its name and line instead;
  (3) the target of those gradients: the parameter behind the argument, reached through nodes that
      hold nothing, such as a transposed or a cast weight;
  (4) its storage: tensors that share one are views of the same bytes, which count once.

Nodes that wrap another one, such as `CopySlices` (torch/csrc/autograd/functions/tensor.h), are
named without a field. Not covered: nodes that never ran.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from graphmem.graph import AutogradNode, Owner, SavedTensor, StepGraph, TensorOut
from graphmem.pipeline import Annotations, Pass
from graphmem.runtime import Runtime
from graphmem.wording import fields_in_words, listed

from . import derivatives
from .derivatives import Derivative

_GRADIENT = "the gradient of "


@dataclass(frozen=True, slots=True)
class Saved:
    """One tensor that one node holds.

    Attributes:
        node: the node's number in the trace.
        name: the node's name, such as `GeluBackward0`.
        op: index of the forward operation.
        field: see clause (1); "" if the node does not expose its fields, like those of
            `torch._foreach_exp`.
        tensor: None if the user's hooks keep something else.
        owner: autograd's entry among the owners of the storage.
        formulas: see clause (2); each is `argument: formula`.
        gradients_of: see clause (3).
    """

    node: int
    name: str
    op: int | None
    field: str
    tensor: TensorOut | None
    owner: Owner | None
    formulas: tuple[str, ...]
    gradients_of: tuple[str, ...]

    @property
    def storage(self) -> int | None:
        """The storage of the tensor."""
        return None if self.tensor is None else self.tensor.storage

    def __str__(self) -> str:
        return f"{self.full_name} {self.purpose}"

    @property
    def full_name(self) -> str:
        """The node's name, and the field's."""
        return f"{self.name}.{self.field}" if self.field else self.name

    @property
    def purpose(self) -> str:
        """What needs it: the gradients, and their formulas."""
        return f"for {self.gradients} ({'; '.join(self.formulas)})"

    @property
    def gradients(self) -> str:
        """Those that need it: `the gradients of query, key and value`."""
        names = [each.removeprefix(_GRADIENT) for each in self.gradients_of]
        if len(names) == 1 or any(not each.startswith(_GRADIENT) for each in self.gradients_of):
            return listed(self.gradients_of)
        return f"the gradients of {listed(names)}"


@dataclass(frozen=True)
class SavedTensors:
    """Every tensor that autograd saved in the trace, in the order in which the nodes ran."""

    tensors: tuple[Saved, ...]

    @cached_property
    def by_storage(self) -> Mapping[int, tuple[Saved, ...]]:
        """The tensors of each storage (clause 4)."""
        found = defaultdict[int, list[Saved]](list)
        for saved in self.tensors:
            if saved.storage is not None:
                found[saved.storage].append(saved)
        return {storage: tuple(sharing) for storage, sharing in found.items()}

    @cached_property
    def by_node(self) -> Mapping[int, tuple[Saved, ...]]:
        """The tensors of each node, by its number."""
        found = defaultdict[int, list[Saved]](list)
        for saved in self.tensors:
            found[saved.node].append(saved)
        return {node: tuple(held) for node, held in found.items()}

    def holding(self, storage: int, tick: int) -> tuple[Saved, ...]:
        """The tensors for which autograd holds a storage at a tick."""
        return tuple(
            saved
            for saved in self.by_storage.get(storage, ())
            if saved.owner is not None and saved.owner.holds_at(tick)
        )

    def reasons_for(self, storage: int, tick: int) -> tuple[str, ...]:
        """The distinct reasons for which autograd holds a storage at a tick, in words.

        Fields of one node that serve the same gradients have one reason.
        """
        alike = defaultdict[tuple[int, str], list[str]](list)
        for saved in self.holding(storage, tick):
            alike[saved.node, saved.purpose].append(saved.full_name)
        return tuple(
            dict.fromkeys(
                f"{listed(fields_in_words(names))} {purpose}"
                for (_, purpose), names in alike.items()
            )
        )


def find_saved_tensors(
    graph: StepGraph, runtime: Runtime, annotations: Annotations
) -> SavedTensors:
    """Find the tensors that every autograd node saves, and why."""
    nodes = {node.number: node for node in graph.autograd_nodes}
    return SavedTensors(
        tuple(
            saved
            for node in graph.autograd_nodes
            if node.saved
            for saved in _saved_by(node, nodes, graph)
        )
    )


def _saved_by(
    node: AutogradNode, nodes: Mapping[int, AutogradNode], graph: StepGraph
) -> Iterator[Saved]:
    derivative = derivative_of(node, graph)
    wanted = wanted_arguments(node, derivative)
    for each in node.saved:
        formulas, arguments = _needs(node, derivative, each, tuple(wanted))
        targets = dict.fromkeys(
            _named(wanted[name], name, nodes) for name in arguments if name in wanted
        )
        yield Saved(
            node=node.number,
            name=node.name,
            op=node.op,
            field=each.field,
            tensor=each.tensor,
            owner=each.owner,
            formulas=formulas,
            gradients_of=tuple(targets) or ("the gradients of its inputs",),
        )


def derivative_of(node: AutogradNode, graph: StepGraph) -> Derivative | None:
    """The entry for a node: by its name, else by its operation's, as for `_foreach_exp`."""
    found = derivatives.of_node(node.name)
    if found is None and node.source is None and node.op is not None:
        found = derivatives.of_operator(graph.ops[node.op].target)
    return found


def wanted_arguments(
    node: AutogradNode, derivative: Derivative | None
) -> dict[str, tuple[int | str, ...]]:
    """The arguments whose gradients are wanted, each with the targets of its edges.

    A node has one edge for each differentiable argument, in order, and for a list of tensors one
    for each of its elements.
    """
    if derivative is None:
        return {}
    names = derivative.differentiable
    lists = [name for name in names if name in derivative.lists]
    extra = len(node.next) - len(names)
    if extra and len(lists) != 1:
        return {}
    found: dict[str, tuple[int | str, ...]] = {}
    position = 0
    for name in names:
        count = 1 + extra if name in lists[:1] else 1
        edges = node.next[position : position + count]
        position += count
        leading = tuple(edge for edge in edges if edge is not None)
        if leading:
            found[name] = leading
    return found


def _needs(
    node: AutogradNode, derivative: Derivative | None, saved: SavedTensor, wanted: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The formulas that need a saved tensor, and the arguments whose gradients they compute."""
    if node.source is not None:
        return (f"custom function {node.source.function} ({node.source})",), ()
    if derivative is None:
        return (f"the derivative of {node.name.rpartition('Backward')[0]}",), ()
    field = saved.field.partition("[")[0]
    needing = derivative.needing(field) if field else derivative.formulas
    chosen = [each for each in needing if set(each.gradients_of) & set(wanted)] or list(needing)
    arguments = tuple(name for each in chosen for name in each.gradients_of)
    return tuple(str(each) for each in chosen), arguments


def _named(edges: tuple[int | str, ...], argument: str, nodes: Mapping[int, AutogradNode]) -> str:
    """The target of a gradient: parameters by name, else the forward operation's argument."""
    leaves = [_leaf_behind(edge, nodes) for edge in edges]
    known = list(dict.fromkeys(leaf for leaf in leaves if leaf is not None))
    return _GRADIENT + (listed(known) if known else argument)


def _leaf_behind(edge: int | str, nodes: Mapping[int, AutogradNode]) -> str | None:
    while not isinstance(edge, str):
        node = nodes.get(edge)
        if node is None or node.saved or len(node.next) != 1 or node.next[0] is None:
            return None
        edge = node.next[0]
    return edge


SAVED_TENSORS = Pass(provides="saved_tensors", run=find_saved_tensors)
