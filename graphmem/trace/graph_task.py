"""One call of `backward` or `grad`: which nodes it runs, and what it returns.

The rules and error texts are those of PyTorch's engine (torch/csrc/autograd/engine.cpp,
python_engine.cpp; names in brackets are the engine's).
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from graphmem.caller.tensors import leaf_of
from graphmem.frames import acts_for_the_program
from graphmem.torch_releases import UNUSED_INPUTS_ARE_COUNTED, installed_release
from graphmem.trace.node_hooks import Gradients
from graphmem.trace.ready_queue import ReadyQueue
from graphmem.trace.replayed_views import Edges

Node = Any
_FUNCTIONS: Any = torch._C._functions
_ONE_OF_THEM = "One of the differentiated Tensors"


@dataclass
class GraphTask:
    """One call of `backward` or `grad` [`GraphTask`]."""

    id: int
    keep_graph: bool
    edges: dict[Node, Edges]
    dependencies: dict[Node, int]
    needed: set[Node] | None = None
    captures: dict[Node, list[tuple[int, int]]] = field(default_factory=dict)
    captured: dict[int, torch.Tensor | None] = field(default_factory=dict)
    buffers: dict[Node, Gradients] = field(default_factory=dict)
    ready: ReadyQueue[Node] = field(default_factory=ReadyQueue)
    callbacks: list[Callable[[], None]] = field(default_factory=list)

    def executes(self, node: Node) -> bool:
        """Whether a node runs or hands its gradient to the caller [`exec_info_`]."""
        return self.needed is None or node in self.needed or node in self.captures

    def unwanted_edges(self, node: Node) -> list[int]:
        """The results of a node that this task does not use."""
        if self.needed is None:
            return []
        following = enumerate(edge[0] for edge in self.edges[node])
        return [i for i, next_ in following if next_ is not None and not self.executes(next_)]


class TasksOfThread(threading.local):
    """The calls that run in a thread, and the nodes that run for them, innermost last."""

    def __init__(self) -> None:
        self.tasks: list[GraphTask] = []
        self.nodes: list[Node] = []


@acts_for_the_program
def check_roots(tensors: Sequence[Any]) -> None:
    """Reject tensors without a gradient, in the words of `THPEngine_run_backward`."""
    for i, tensor in enumerate(tensors):
        if isinstance(tensor, torch.Tensor) and not tensor.requires_grad:
            raise RuntimeError(
                f"element {i} of tensors does not require grad and does not have a grad_fn"
            )


_CYCLE = (
    "Using backward() with create_graph=True will create a reference cycle between the parameter "
    "and its gradient which can cause a memory leak. We recommend using autograd.grad when "
    "creating the graph to avoid this. If you have to use this function, make sure to reset the "
    ".grad fields of your parameters to None after use to break the cycle and avoid the leak."
)


@cache
def warn_of_cycles() -> None:
    """Warn once, as `Engine::execute` does for `backward(create_graph=True)`."""
    warnings.warn(_CYCLE, stacklevel=3)


def edge_of(tensor: Any) -> tuple[Node, int]:
    """The node, and the index of its result, through which a gradient reaches a tensor."""
    if isinstance(tensor, torch.Tensor) and tensor.grad_fn is not None:
        return tensor.grad_fn, tensor.output_nr
    if isinstance(tensor, torch.autograd.graph.GradientEdge):
        return tensor.node, tensor.output_nr
    edge = torch.autograd.graph.get_gradient_edge(tensor)
    return edge.node, edge.output_nr


@acts_for_the_program
def _input_edge(tensor: Any, leaves: dict[int, Node]) -> tuple[Node | None, int]:
    """Find where an input's gradient arrives; errors are worded as in `THPEngine_run_backward`."""
    if isinstance(tensor, torch.Tensor) and not tensor.requires_grad:
        raise RuntimeError("One of the differentiated Tensors does not require grad")
    if isinstance(tensor, torch.Tensor) and tensor.grad_fn is None:
        known = leaves.get(id(tensor))
        if known is not None:
            return known, 0
        # Not in the graph, or unpacked by a node: then it is another tensor than the leaf, with
        # the leaf's accumulator (`SavedVariable::unpack`, torch/csrc/autograd/saved_variable.cpp).
    return edge_of(tensor)


def count_dependencies(graph: dict[Node, Edges]) -> dict[Node, int]:
    """How many gradients each node waits for [`compute_dependencies`]."""
    dependencies: dict[Node, int] = {}
    for edges in graph.values():
        for following, _ in edges:
            if following is not None:
                dependencies[following] = dependencies.get(following, 0) + 1
    return dependencies


def limit_to(task: GraphTask, inputs: Sequence[Any], accumulate: bool) -> None:
    """Run only the nodes that lead to `inputs` [`GraphTask::init_to_execute`]."""
    leaves = {id(leaf_of(node)): node for node in task.edges if is_accumulate_grad(node)}
    wanted: set[Node] = set()
    for index, tensor in enumerate(inputs):
        node, position = _input_edge(tensor, leaves)
        if node not in task.edges:
            continue
        if not accumulate:
            task.captures.setdefault(node, []).append((position, index))
            continue
        wanted.add(node)
        if not is_accumulate_grad(node):
            tensor.retain_grad()
    task.needed = wanted | _leading_to(task.edges, wanted | set(task.captures))


def _leading_to(graph: dict[Node, Edges], targets: set[Node]) -> set[Node]:
    """The nodes from which a path leads to a target."""
    before: dict[Node, list[Node]] = {}
    for node, edges in graph.items():
        for following, _ in edges:
            before.setdefault(following, []).append(node)
    found: set[Node] = set()
    stack = list(targets)
    while stack:
        for node in before.get(stack.pop(), ()):
            if node not in found:
                found.add(node)
                stack.append(node)
    return found


def is_accumulate_grad(node: Node) -> bool:
    """Whether the node adds to the gradient of a leaf."""
    return isinstance(node, _FUNCTIONS.AccumulateGrad)


@acts_for_the_program
def captured_by(
    task: GraphTask, count: int, allow_unreachable: bool
) -> tuple[torch.Tensor | None, ...]:
    """The gradients that `grad` returns.

    Raises:
        RuntimeError: no gradient reached one of the inputs.
    """
    for i in range(count):
        if task.captured.get(i) is None and not allow_unreachable:
            is_counted = UNUSED_INPUTS_ARE_COUNTED.holds_in(installed_release())
            raise RuntimeError(
                (f"The differentiated Tensor at index {i}" if is_counted else _ONE_OF_THEM)
                + " appears to not have been used in the graph. Set allow_unused=True if this is "
                "the desired behavior."
            )
    return tuple(task.captured.get(i) for i in range(count))
