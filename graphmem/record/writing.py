"""Write a traced step to the tables of a file."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import astuple
from typing import Any, Generic, TypeVar

from graphmem.gpus import label_of
from graphmem.graph import (
    Assumption,
    AutogradNode,
    Op,
    Owner,
    Phase,
    SavedTensor,
    Source,
    SparseOut,
    StepGraph,
    Storage,
    TensorOut,
)
from graphmem.nodes import Node
from graphmem.record import rows
from graphmem.record.arguments import encoded
from graphmem.record.observations import observed_table
from graphmem.record.operators import schema_of
from graphmem.record.step import TracedStep
from graphmem.retention import Retention
from graphmem.version import __version__

Key = TypeVar("Key", bound=Hashable)


def tables_of(step: TracedStep) -> rows.Tables:
    """The tables of a step."""
    return _Writer(step.graph).tables(step)


class _Table(Generic[Key]):
    """Values by the position at which they were first seen."""

    def __init__(self) -> None:
        self._positions: dict[Key, int] = {}

    def __call__(self, value: Key) -> int:
        return self._positions.setdefault(value, len(self._positions))

    def optional(self, value: Key | None) -> int | None:
        return None if value is None else self(value)

    def rows(self) -> list[Key]:
        return list(self._positions)


class _Writer:
    def __init__(self, graph: StepGraph) -> None:
        self._graph = graph
        self._names = _Table[str]()
        self._devices = _Table[str]()
        self._operators = _Table[tuple[str, str]]()
        self._sources: dict[tuple[Any, ...], int] = {}
        self._owner_places = {
            id(owner): (storage.id, position)
            for storage in graph.storages
            for position, owner in enumerate(storage.owners)
        }

    def tables(self, step: TracedStep) -> rows.Tables:
        graph, runtime = self._graph, step.runtime
        return rows.Tables(
            format=rows.FORMAT,
            version=rows.VERSION,
            written_by=f"graphmem {__version__}",
            target=step.name,
            options=step.options,
            gpu=label_of(runtime.gpu),
            torch=runtime.torch,
            env=dict(runtime.env),
            device=graph.device,
            end=graph.end,
            is_routed=graph.is_routed,
            storages=[self._storage(each) for each in graph.storages],
            ops=[self._op(each) for each in graph.ops],
            nodes=self._nodes(),
            phases=[_phase(each) for each in graph.phases],
            marks=[rows.MarkRow(each.name, each.step, each.tick) for each in graph.marks],
            assumptions=[self._assumption(each) for each in graph.assumptions],
            autograd_nodes=[self._autograd(each) for each in graph.autograd_nodes],
            modules=graph.modules,
            parameters=graph.parameters,
            tied=graph.tied,
            calls=graph.calls,
            emptied=graph.emptied,
            host=graph.host,
            compiled=graph.compiled,
            collections=[rows.CollectionRow(*astuple(each)) for each in graph.collections],
            retained=[self._retention(*each) for each in graph.retained.items()],
            observed=None
            if step.observed is None
            else observed_table(step.observed, self._storage),
            # Last, because the fields above fill them.
            names=self._names.rows(),
            devices=self._devices.rows(),
            sources=[rows.SourceRow(*each) for each in self._sources],
            operators=[rows.OperatorRow(*each) for each in self._operators.rows()],
        )

    def _assumption(self, each: Assumption) -> rows.AssumptionRow:
        source = self._source(each.source)
        told = (each.what, each.value, each.why)
        return rows.AssumptionRow(*told, source, each.times, each.highest)

    def _source(self, source: Source | None) -> int | None:
        if source is None:
            return None
        outer = self._source(source.called_from)
        key = (source.file, source.line, source.function, outer, source.within)
        return self._sources.setdefault(key, len(self._sources))

    def _storage(self, storage: Storage) -> rows.StorageRow:
        return rows.StorageRow(
            storage.nbytes,
            storage.birth,
            storage.op,
            list(storage.shape),
            storage.dtype,
            self._devices(storage.device),
            [self._owner(each) for each in storage.owners],
        )

    def _owner(self, owner: Owner) -> rows.OwnerRow:
        source = self._source(owner.source)
        return rows.OwnerRow(owner.kind, owner.name, owner.start, owner.end, source)

    def _retention(self, storage: int, held: Retention) -> rows.RetentionRow:
        source = self._source(held.by.source)
        return rows.RetentionRow(storage, held.by.name, source, held.through_graph)

    def _op(self, op: Op) -> rows.OpRow:
        return rows.OpRow(
            self._operators((op.target, schema_of(op.operator))),
            op.tick,
            op.phase,
            self._names(op.module),
            self._source(op.source),
            self._names.optional(op.autograd_node),
            op.forward,
            [tensor_row(each) for each in op.outputs],
            list(op.births),
            op.autocast,
            op.determinism,
        )

    def _nodes(self) -> list[rows.NodeRow]:
        position: dict[Node, int] = {node: index for index, node in enumerate(self._graph.nodes)}
        return [self._node(*named, position) for named in self._graph.nodes.names().items()]

    def _node(self, node: Node, name: str, position: dict[Node, int]) -> rows.NodeRow:
        op = node if isinstance(node, Op) else None
        return rows.NodeRow(
            name,
            None if op is None else op.index,
            [encoded(arg, position) for arg in node.args],
            {key: encoded(arg, position) for key, arg in node.kwargs.items()},
            None if op is not None or node.tensor is None else tensor_row(node.tensor),
        )

    def _autograd(self, node: AutogradNode) -> rows.AutogradRow:
        return rows.AutogradRow(
            node.number,
            node.name,
            node.op,
            list(node.next),
            [self._saved(each) for each in node.saved],
            self._source(node.source),
        )

    def _saved(self, saved: SavedTensor) -> rows.SavedRow:
        tensor = None if saved.tensor is None else tensor_row(saved.tensor)
        place = None if saved.owner is None else self._owner_places.get(id(saved.owner))
        return rows.SavedRow(saved.field, tensor, place)


def tensor_row(tensor: TensorOut) -> rows.TensorRow:
    """The row of one tensor."""
    return rows.TensorRow(
        list(tensor.shape),
        tensor.dtype,
        tensor.storage,
        list(tensor.stride),
        tensor.offset,
        *((tensor.nonzeros, tensor.is_coalesced) if isinstance(tensor, SparseOut) else ()),
    )


def _phase(phase: Phase) -> rows.PhaseRow:
    return rows.PhaseRow(
        phase.name, phase.step, phase.start, phase.end, phase.is_compiled_whole, phase.stepped
    )
