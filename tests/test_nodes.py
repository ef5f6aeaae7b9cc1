"""The nodes of a step graph: they read as those of `torch.fx`, and take little memory."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from graphmem import TrainingStep
from graphmem.gpus import find_gpu
from graphmem.graph import Op, StepGraph
from graphmem.nodes import Input
from graphmem.trace import TraceOptions, trace


def perceptron() -> TrainingStep:
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    return TrainingStep(model=model, inputs=(torch.randn(8, 64),), loss=Tensor.sum)


def graph_of(steps: int) -> StepGraph:
    return trace(perceptron, gpu=find_gpu("t4"), options=TraceOptions(steps=steps))


@pytest.fixture(scope="module")
def graph() -> StepGraph:
    return graph_of(steps=2)


def test_names_are_those_that_fx_gives(graph: StepGraph) -> None:
    named_by_fx = torch.fx.Graph()
    for node, name in graph.nodes.names().items():
        kind = "placeholder" if isinstance(node, Input) else "call_function"
        named_by_fx.create_node(kind, node.operator or name)

    assert list(graph.nodes.names().values()) == names(named_by_fx.nodes)


def test_inputs_and_users_are_those_that_fx_finds(graph: StepGraph) -> None:
    theirs, named, users = graph.fx, graph.nodes.names(), graph.nodes.users()
    theirs.lint()

    for ours, node in zip(graph.nodes, theirs.nodes, strict=True):
        assert [named[each] for each in ours.all_input_nodes] == names(node.all_input_nodes)
        assert [named[each] for each in users.get(ours, ())] == names(node.users)
        assert node.meta == ({"op": ours} if isinstance(ours, Op) else {"tensor": ours.tensor})


def names(nodes: Any) -> list[str]:
    return [node.name for node in nodes]


def test_nodes_in_lists_and_keyword_arguments_are_inputs(graph: StepGraph) -> None:
    first, second = list(graph.nodes)[:2]
    func = torch.ops.aten.cat.default
    op = Op(([first, second, first],), func, {"dim": second}, str(func), index=0, tick=0, phase=0)

    assert op.all_input_nodes == [first, second]


def test_a_further_operation_takes_less_than_a_node_of_fx_alone() -> None:
    """1,130 bytes: `torch.fx.Node` with two arguments (docs/speed.md)."""
    graph_of(steps=2)  # fills the caches
    (few, fewer_operations), (many, operations) = map(traced_bytes, (2, 22))

    assert (many - few) / (operations - fewer_operations) < 1130


def traced_bytes(steps: int) -> tuple[int, int]:
    gc.collect()
    tracemalloc.start()
    try:
        graph = graph_of(steps)
        gc.collect()
        return tracemalloc.get_traced_memory()[0], len(graph.ops)
    finally:
        tracemalloc.stop()
