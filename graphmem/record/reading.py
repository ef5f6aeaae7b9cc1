"""Read a traced step from the tables of a file, checking every reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from itertools import chain, pairwise
from typing import Any, TypeVar

from graphmem.cycle_collector import Collection
from graphmem.gpus import find_gpu
from graphmem.graph import (
    Assumption,
    AutogradNode,
    Mark,
    Op,
    Owner,
    OwnerKind,
    Phase,
    PhaseName,
    SavedTensor,
    Source,
    SparseOut,
    StepGraph,
    Storage,
    TensorOut,
)
from graphmem.nodes import Node, NodeList
from graphmem.op_states import AutocastState, Determinism
from graphmem.record import rows
from graphmem.record.arguments import decoded
from graphmem.record.observations import observed_of
from graphmem.record.operators import operator_named
from graphmem.record.step import TracedStep
from graphmem.retention import Referrer, Retention
from graphmem.runtime import Runtime
from graphmem.torch_releases import parse_release

Item = TypeVar("Item")


def step_of(tables: rows.Tables) -> TracedStep:
    """Build the step that the tables describe.

    Raises:
        ValueError: they refer to something that does not exist, or that no capture writes.
        InputError: the card is unknown to this version of graphmem.
    """
    reader = _Reader(tables)
    graph = reader.graph()
    observed = None
    if tables.observed is not None:
        observed = observed_of(tables.observed, graph.storages, reader.storage)
    parse_release(tables.torch)
    runtime = Runtime(find_gpu(tables.gpu), tables.torch, tables.env)
    return TracedStep(tables.target, runtime, graph, observed, options=tables.options)


class _Reader:
    def __init__(self, tables: rows.Tables) -> None:
        self._tables = tables
        self._sources: list[Source] = []
        for row in tables.sources:
            outer = self._source(row.called_from)
            self._sources.append(Source(row.file, row.line, row.function, outer, row.within))

    def graph(self) -> StepGraph:
        tables = self._tables
        graph = StepGraph(
            device=tables.device,
            storages=[self.storage(*each) for each in enumerate(tables.storages)],
            phases=[_phase(each) for each in tables.phases],
            marks=[Mark(each.name, each.step, each.tick) for each in tables.marks],
            assumptions=[self._assumption(each) for each in tables.assumptions],
            modules=tables.modules,
            parameters=tables.parameters,
            tied=tables.tied,
            calls=tables.calls,
            emptied=tables.emptied,
            collections=[
                Collection(each.start, each.end, each.is_asked) for each in tables.collections
            ],
            host=tables.host,
            compiled=tables.compiled,
            is_routed=tables.is_routed,
            end=tables.end,
        )
        graph.retained = dict(map(self._retention, tables.retained))
        graph.ops = self._ops(graph.nodes)
        graph.autograd_nodes = [self._autograd(each, graph) for each in tables.autograd_nodes]
        _check(graph)
        return graph

    def storage(self, number: int, row: rows.StorageRow) -> Storage:
        if row.op is not None:
            _at(self._tables.ops, row.op)
        if row.nbytes < 0:
            raise ValueError("a storage of negative size")
        return Storage(
            id=number,
            nbytes=row.nbytes,
            birth=row.birth,
            op=row.op,
            shape=tuple(row.shape),
            dtype=row.dtype,
            device=_at(self._tables.devices, row.device),
            owners=[
                Owner(OwnerKind(o.kind), o.name, o.start, o.end, self._source(o.source))
                for o in row.owners
            ],
        )

    def _retention(self, row: rows.RetentionRow) -> tuple[int, Retention]:
        _at(self._tables.storages, row.storage)
        by = Referrer(row.name, self._source(row.source))
        return row.storage, Retention(by, row.through_graph)

    def _assumption(self, row: rows.AssumptionRow) -> Assumption:
        told = (row.what, row.value, row.why, self._source(row.source))
        return Assumption(*told, row.times, highest=row.highest)

    def _source(self, index: int | None) -> Source | None:
        return None if index is None else _at(self._sources, index)

    def _name(self, index: int) -> str:
        return _at(self._tables.names, index)

    def _ops(self, written: NodeList) -> list[Op]:
        """Read the operations, and write their nodes."""
        operators = [operator_named(each.name, each.schema) for each in self._tables.operators]
        nodes: list[Node] = []
        ops: list[Op] = []
        for row in self._tables.nodes:
            args = tuple(decoded(arg, nodes) for arg in row.args)
            if row.op is not None:
                if row.op != len(ops):
                    raise ValueError("operations that are not in the order of their nodes")
                kwargs = {key: decoded(arg, nodes) for key, arg in row.kwargs.items()}
                op = self._op(len(ops), operators, args, kwargs)
                written.append(op)
                ops.append(op)
                nodes.append(op)
                continue
            node = written.item(*_several(args)) if args else written.input()
            node.tensor = None if row.tensor is None else self._tensor(row.tensor)
            nodes.append(node)
        if len(ops) != len(self._tables.ops):
            raise ValueError("an operation without a node")
        return ops

    def _op(
        self, index: int, operators: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Op:
        row = _at(self._tables.ops, index)
        op = Op(
            args=args,
            operator=_at(operators, row.target),
            kwargs=kwargs,
            target=self._tables.operators[row.target].name,
            index=index,
            tick=row.tick,
            phase=row.phase,
            module=self._name(row.module),
            source=self._source(row.source),
            autograd_node=None if row.autograd_node is None else self._name(row.autograd_node),
            forward=row.forward,
            outputs=tuple(map(self._tensor, row.outputs)),
            births=tuple(row.births),
            autocast=AutocastState(row.autocast),
            determinism=Determinism(row.determinism),
        )
        _at(self._tables.phases, op.phase)
        if op.forward is not None:
            _at(self._tables.ops, op.forward)
        for born in op.births:
            _at(self._tables.storages, born)
        return op

    def _tensor(self, row: rows.TensorRow) -> TensorOut:
        if row.storage is not None:
            _at(self._tables.storages, row.storage)
        told = (tuple(row.shape), row.dtype, row.storage, tuple(row.stride), row.offset)
        if row.nonzeros is None:
            return TensorOut(*told)
        return SparseOut(*told, nonzeros=row.nonzeros, is_coalesced=row.is_coalesced)

    def _autograd(self, row: rows.AutogradRow, graph: StepGraph) -> AutogradNode:
        if row.op is not None:
            _at(graph.ops, row.op)
        saved = tuple(self._saved(each, graph.storages) for each in row.saved)
        source = self._source(row.source)
        return AutogradNode(row.number, row.name, row.op, tuple(row.next), saved, source)

    def _saved(self, row: rows.SavedRow, storages: Sequence[Storage]) -> SavedTensor:
        tensor = None if row.tensor is None else self._tensor(row.tensor)
        owner = None
        if row.owner is not None:
            storage, position = row.owner
            owner = _at(_at(storages, storage).owners, position)
        return SavedTensor(row.field, tensor, owner)


def _phase(row: rows.PhaseRow) -> Phase:
    return Phase(
        PhaseName(row.name), row.step, row.start, row.end, row.is_compiled_whole, row.stepped
    )


def _several(args: tuple[Any, ...]) -> tuple[Node, int]:
    match args:
        case (Node() as several, int(position)):
            return several, position
    raise ValueError("a node that is neither an input, an operation nor one of several results")


def _at(items: Sequence[Item], index: int) -> Item:
    if not 0 <= index < len(items):
        raise ValueError(f"a reference to row {index} of {len(items)}")
    return items[index]


def _check(graph: StepGraph) -> None:
    """Check that time runs forwards, and that phases exist."""
    if not graph.phases:
        raise ValueError("a step without phases")
    ticks = [op.tick for op in graph.ops]
    if any(before > after for before, after in pairwise(ticks)):
        raise ValueError("operations that run backwards")
    owners = chain.from_iterable(storage.owners for storage in graph.storages)
    if any(owner.end is not None and owner.end < owner.start for owner in owners):
        raise ValueError("an owner that ends before it starts")
    collected = [tick for each in graph.collections for tick in (each.start, each.end)]
    if any(before > after for before, after in pairwise(collected)):
        raise ValueError("collections that run backwards")
    host = graph.host
    if host is not None and min(astuple(host)) < 0:
        raise ValueError("fewer than 0 bytes on the host")
    if any(phase.step >= len(graph.phases) for phase in graph.phases):
        raise ValueError("an iteration without phases")
