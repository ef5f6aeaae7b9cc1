"""Which saved tensors freezing each layer avoids, which it does not, and why.

A layer here is a module that runs operations itself. It is frozen if it has parameters of its own
and none of them trains; without any, if the layer with parameters that ran last before it is
frozen, as an activation between two frozen layers. Clauses, for the fullest forward pass
(graphmem/forward_passes.py):
  (1) an operation without an autograd node has nothing upstream that trains: nothing is saved;
  (2) for an operation with a node, the tensors that only formulas of unwanted gradients need are
      *pruned*: a frozen linear layer passes a gradient on with its weight alone; the gradient of a
      number is never wanted;
  (3) tensors that the formula of a wanted gradient needs are *kept*, because a parameter upstream
      trains;
  (4) bytes are those of storages, counted once, parameters excepted; a pruned tensor that another
      layer saves counts for zero bytes;
  (5) a tensor in whose place a hook keeps something else, as checkpointing's does, is neither;
  (6) an operation that has no node although something upstream trains ran without gradients, as
      under `torch.no_grad()` or where a reentrant checkpoint begins: it is left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from graphmem.annotations import FULLEST_FORWARD, SAVED_TENSORS
from graphmem.graph import AutogradNode, Op, OwnerKind, StepGraph, TensorOut
from graphmem.layer_ranges import fold, members
from graphmem.nodes import Item, Node
from graphmem.pipeline import Annotations, Pass
from graphmem.runtime import Runtime
from graphmem.units import format_bytes

from . import derivatives
from .saved_tensors import Saved, SavedTensors

NOTHING_UPSTREAM = "nothing upstream trains, so nothing is saved"
LINEAR = "linear in the input, so its gradient needs the weight alone; not saved: {}"
NEEDED = "a parameter upstream trains, so {} keeps its {}"
NO_TENSOR = "freezing it changes nothing that autograd holds"
_MOST_NAMES = 3


@dataclass(frozen=True, slots=True)
class FrozenLayer:
    """One frozen layer.

    Attributes:
        module: its qualified name.
        parameters: its own parameters.
        pruned_bytes: saved only if everything trained.
        kept_bytes: saved even though the layer is frozen.
        reason: clause (1), (2) or (3) in words.
    """

    module: str
    parameters: tuple[str, ...]
    pruned_bytes: int
    kept_bytes: int
    reason: str


@dataclass(frozen=True)
class FrozenLayers:
    """The layers, in execution order."""

    layers: tuple[FrozenLayer, ...]

    def report_lines(self) -> Iterator[str]:
        """Yield one line for each reason, if it is about any memory of the layers' own."""
        by_reason = defaultdict[str, list[FrozenLayer]](list)
        for layer in self.layers:
            by_reason[layer.reason].append(layer)
        for reason, layers in by_reason.items():
            pruned = sum(each.pruned_bytes for each in layers)
            kept = sum(each.kept_bytes for each in layers)
            if pruned or kept:
                yield (
                    f"{_named(layers)}: {reason} "
                    f"(pruned {format_bytes(pruned)}, kept {format_bytes(kept)})"
                )


def _named(layers: Sequence[FrozenLayer]) -> str:
    """The layers' names, equal ones as one, and how many more there are than can be listed."""
    names = list(fold(dict.fromkeys((layer.module for layer in layers), 0)))
    rest = sum(1 for name in names[_MOST_NAMES:] for _ in members(name))
    return ", ".join(names[:_MOST_NAMES]) + (f" and {rest} more" if rest else "")


def find_frozen_layers(
    graph: StepGraph, runtime: Runtime, annotations: Annotations
) -> FrozenLayers:
    """Find every frozen layer."""
    forward = annotations.of(FULLEST_FORWARD)
    if forward is None or all(graph.parameters.values()):
        return FrozenLayers(())
    own = defaultdict[str, list[str]](list)
    for name in (*graph.parameters, *graph.tied):
        own[name.rpartition(".")[0]].append(name)
    ops = defaultdict[str, list[Op]](list)
    is_frozen = False
    for op in _with_gradients(graph, [op for op in graph.ops if op.phase == forward]):
        if not op.module:
            continue
        if own[op.module]:
            is_frozen = not any(_trains(graph, name) for name in own[op.module])
        if is_frozen:
            ops[op.module].append(op)
    tick = graph.phases[forward].end
    search = _Search(graph, annotations.of(SAVED_TENSORS), tick)
    return FrozenLayers(
        tuple(search.layer(module, tuple(own[module]), found) for module, found in ops.items())
    )


def _with_gradients(graph: StepGraph, ops: list[Op]) -> Iterator[Op]:
    """All but those that ran without gradients (clause 6)."""
    with_node = {node.op for node in graph.autograd_nodes}
    downstream = set[Node]()
    for op in ops:
        inputs = [_made_by(each) for each in op.all_input_nodes]
        if op.index in with_node or any(n in downstream or _is_trained(graph, n) for n in inputs):
            downstream.add(op)
        if op.index in with_node or op not in downstream:
            yield op


def _made_by(node: Node) -> Node:
    """The call that made one of several results; any other node itself."""
    return node.args[0] if isinstance(node, Item) else node


def _is_trained(graph: StepGraph, node: Node) -> bool:
    tensor = node.tensor
    if tensor is None or tensor.storage is None:
        return False
    owner = graph.storages[tensor.storage].owned_as(OwnerKind.PARAMETER)
    return owner is not None and graph.parameters.get(owner.name, False)


def _trains(graph: StepGraph, parameter: str) -> bool:
    return graph.parameters[graph.tied.get(parameter, parameter)]


class _Search:
    """Compares the tensors that layers save with those they would save if everything trained."""

    def __init__(self, graph: StepGraph, saved: SavedTensors, tick: int) -> None:
        self._graph = graph
        self._saved = saved
        self._tick = tick
        self._nodes: Mapping[int | None, AutogradNode] = {
            node.op: node for node in graph.autograd_nodes
        }

    def layer(self, module: str, parameters: tuple[str, ...], ops: list[Op]) -> FrozenLayer:
        nodes = {op.index: self._nodes.get(op.index) for op in ops}
        kept = [held for op in ops for held in self._kept(nodes[op.index])]
        pruned = [
            held
            for op in ops
            for held in self._would_save(op)
            if held[0] not in {each.full_name for each in self._held_by(nodes[op.index])}
        ]
        gone = {storage for _, storage in pruned if not self._saved.holding(storage, self._tick)}
        return FrozenLayer(
            module=module,
            parameters=parameters,
            pruned_bytes=self._bytes(gone),
            kept_bytes=self._bytes({storage for _, storage in kept}),
            reason=self._reason(
                any(nodes.values()), [field for field, _ in kept], [field for field, _ in pruned]
            ),
        )

    def _held_by(self, node: AutogradNode | None) -> tuple[Saved, ...]:
        return () if node is None else self._saved.by_node.get(node.number, ())

    def _kept(self, node: AutogradNode | None) -> Iterator[tuple[str, int]]:
        for saved in self._held_by(node):
            if saved.storage is not None and self._counts(saved.storage):
                yield saved.full_name, saved.storage

    def _would_save(self, op: Op) -> Iterator[tuple[str, int]]:
        """The storages that the operation's formulas name, each under its field."""
        derivative = derivatives.of_operator(op.target)
        if derivative is None:
            return
        tensors = dict(_tensors_of(op))
        for name, tensor in tensors.items():
            wanted = (each.gradients_of for each in derivative.needing(name))
            is_needed = any(argument in tensors for names in wanted for argument in names)
            if tensor.storage is not None and self._counts(tensor.storage) and is_needed:
                yield f"{derivative.node}.{name}", tensor.storage

    def _counts(self, storage: int) -> bool:
        return self._graph.storages[storage].owned_as(OwnerKind.PARAMETER) is None

    def _bytes(self, storages: set[int]) -> int:
        return sum(self._graph.storages[storage].nbytes for storage in storages)

    def _reason(self, has_nodes: bool, kept: list[str], pruned: list[str]) -> str:
        if kept:
            node = kept[0].partition(".")[0]
            return NEEDED.format(node, _listed(each.removeprefix(f"{node}.") for each in kept))
        if not pruned:
            return NO_TENSOR
        return LINEAR.format(_listed(pruned)) if has_nodes else NOTHING_UPSTREAM


def _listed(fields: Iterable[str]) -> str:
    """Fields in words, each once."""
    *others, last = dict.fromkeys(fields)
    return f"{', '.join(others)} and {last}" if others else last


def _tensors_of(op: Op) -> Iterator[tuple[str, TensorOut]]:
    """An operation's arguments and results, by their names in its derivative formula."""
    schema = op.operator._schema
    for argument, value in zip(schema.arguments, op.args, strict=False):
        if isinstance(value, Node):
            described = value.tensor
            if described is not None:
                yield argument.name, described
    for position, output in enumerate(op.outputs):
        yield ("result" if len(op.outputs) == 1 else f"result{position}"), output


FROZEN_LAYERS = Pass(
    provides="frozen_layers", run=find_frozen_layers, requires=("fullest_forward", "saved_tensors")
)
