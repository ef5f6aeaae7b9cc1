"""The backward pass, walked in Python by the rules of PyTorch's C++ engine.

The C++ engine refuses CUDA tensors on a machine without CUDA, but each autograd node can be called
from Python and then runs its real derivative formula. This module does what the engine does around
the nodes (torch/csrc/autograd/engine.cpp; names in brackets are the engine's):

  (1) a node runs when every gradient that can reach it has arrived [`compute_dependencies`], the
      newest node first and `AccumulateGrad` before all others [`ReadyQueue`];
  (2) hooks see a node's gradients before it runs and its results after [`call_function`];
  (3) results are summed and cast to what the next node expects while the node's incoming gradients
      and saved tensors are still alive [`validate_outputs`];
  (4) then the incoming gradients are dropped, then the saved tensors [`evaluate_function`];
  (5) in anomaly mode each result is then searched for NaN [`evaluate_function`];
  (6) then each result moves to the next node's buffer, where it is summed [`InputBuffer::add`].

Not covered: several devices at once (one queue serves all), and anomaly mode on sparse gradients.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch.autograd.function import BackwardCFunction

from graphmem.caller.tensors import leaf_of
from graphmem.frames import acts_for_the_program
from graphmem.trace import python_functions, whole_backward
from graphmem.trace.formulas_by_data import formula_by_data
from graphmem.trace.freed_graphs import free_in_a_loop
from graphmem.trace.gradients import GradientRules, search_for_nan
from graphmem.trace.graph_task import (
    GraphTask,
    Node,
    TasksOfThread,
    captured_by,
    check_roots,
    count_dependencies,
    edge_of,
    is_accumulate_grad,
    limit_to,
    warn_of_cycles,
)
from graphmem.trace.later_nodes import LaterNodes
from graphmem.trace.node_hooks import Gradients, NodeHooks, run_tensor_hooks
from graphmem.trace.node_order import NodeOrder, number_root
from graphmem.trace.pruned_edges import without_edges
from graphmem.trace.replayed_views import Edges, ReplayedViews
from graphmem.trace.saved_tensors import SavedTensorHooks
from graphmem.virtual_device.patching import Replacement, replaced

_make_grads = torch.autograd._make_grads


class BackwardObserver(python_functions.FunctionObserver, Protocol):
    """Receives events of the backward walk."""

    def begin_backward(self) -> None:
        """A pass was called; once more if `backward` or `grad` has made its outputs' gradients."""

    def compiles_whole(self, nodes: Iterable[Node]) -> bool:
        """Whether compiled autograd, which has been on, takes over a pass through these nodes."""

    def enter_backward(self) -> None:
        """The walk begins."""

    def leave_backward(self) -> None:
        """The walk has ended."""

    def run_node(self, node: Node | None, *, keeps_graph: bool = False) -> None:
        """A node begins to run, perhaps not for the last time; None between two nodes."""

    def failed(self, error: Exception, roots: list[Node]) -> None:
        """The walk from these roots failed with an error, in the running node."""


class Backward:
    """Stands in for `torch.autograd.Variable._execution_engine` while a trace runs."""

    def __init__(
        self,
        rules: GradientRules,
        saved: SavedTensorHooks,
        hooks: NodeHooks,
        views: ReplayedViews,
        later: LaterNodes,
        observer: BackwardObserver,
    ) -> None:
        self._rules = rules
        self._saved = saved
        self._hooks = hooks
        self._views = views
        self._later = later
        self._observer = observer
        self._ids = itertools.count()
        self._order = NodeOrder()
        self._of_thread = TasksOfThread()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Route every backward pass here while the context is open."""
        variable: Any = torch.autograd.Variable
        make_grads = torch.autograd._make_grads

        def begin_and_make_grads(*args: Any, **kwargs: Any) -> Any:
            self._observer.begin_backward()
            return make_grads(*args, **kwargs)

        replacements = [
            (variable, "_execution_engine", self),
            (torch.autograd, "_make_grads", begin_and_make_grads),
            *whole_backward.unless_running(self._answers(), lambda: bool(self._tasks)),
            (BackwardCFunction, "maybe_clear_saved_tensors", self._clear_saved),
            *python_functions.replacements(self._observer),
        ]
        with replaced(replacements):
            yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Replace the installed engine while the context is open."""
        replacements: list[Any] = [
            (torch.autograd.Variable, "_execution_engine", self),
            (torch.autograd, "_make_grads", _make_grads),
            *whole_backward.only_if(self._answers(), lambda: bool(self._tasks)),
        ]
        with replaced(replacements):
            yield

    def _answers(self) -> list[Replacement]:
        return [
            (torch._C, "_current_graph_task_id", self._current_task_id),
            (torch._C, "_current_autograd_node", self._current_node),
            (torch._C._autograd, "_get_current_graph_task_keep_graph", self._keeps_graph),
            (torch._C, "_will_engine_execute_node", self._will_execute),
        ]

    @property
    def _tasks(self) -> list[GraphTask]:
        """The calls running in this thread, innermost last."""
        return self._of_thread.tasks

    # PyTorch's calls to its engine --------------------------------------------------------------

    def run_backward(
        self,
        tensors: Sequence[Any],
        grad_tensors: Sequence[torch.Tensor | None],
        keep_graph: bool,
        create_graph: bool,
        inputs: Sequence[Any] = (),
        allow_unreachable: bool = False,
        accumulate_grad: bool = False,
    ) -> tuple[torch.Tensor | None, ...]:
        """`THPEngine_run_backward`, with its arguments; Megatron-LM calls it directly."""
        self._observer.begin_backward()
        check_roots(tensors)
        roots = [edge_of(tensor) for tensor in tensors]
        edges = self._reachable_from(roots)
        if whole_backward.was_on() and self._observer.compiles_whole(edges):
            options = (keep_graph, create_graph, inputs, allow_unreachable, accumulate_grad)
            return self._run_whole(tensors, grad_tensors, *options)
        if create_graph and accumulate_grad:
            warn_of_cycles()
        if keep_graph:
            self._later.kept(edges)
        task = GraphTask(next(self._ids), keep_graph, edges, count_dependencies(edges))
        if inputs:
            limit_to(task, inputs, accumulate_grad)
            self._hooks.settle()
        self._observer.enter_backward()
        gradients = list(grad_tensors)  # `grads` of THPEngine_run_backward: they outlive the walk
        try:
            self._walk_from(roots, gradients, task, create_graph=create_graph)
            for callback in task.callbacks:  # `GraphTask::exec_post_processing`
                callback()
        finally:
            self._observer.leave_backward()
        captured = () if accumulate_grad else captured_by(task, len(inputs), allow_unreachable)
        _drop(gradients)
        return captured

    def _run_whole(self, *args: Any) -> tuple[torch.Tensor | None, ...]:
        self._observer.enter_backward()
        try:
            return whole_backward.run(*args)
        finally:
            self._observer.leave_backward()

    def _walk_from(
        self, roots: list[Any], gradients: list[Any], task: GraphTask, *, create_graph: bool
    ) -> None:
        was_enabled = torch.is_grad_enabled()
        self._tasks.append(task)
        try:
            self._fit_roots(roots, gradients)
            if len(roots) > 1:
                number_root()
            torch.set_grad_enabled(create_graph)
            self._start(task, roots, list(gradients))
            while task.ready:
                if torch.is_grad_enabled() != create_graph:  # a node's Python changed it
                    torch.set_grad_enabled(create_graph)  # `Engine::thread_main`, for each task
                self._evaluate(task, task.ready.pop())
        except torch.OutOfMemoryError as error:
            # A traceback keeps what its frames hold; the engine's C++ frames are gone by then.
            error.__traceback__ = None
            task.buffers.clear()
            _drop(gradients)
            raise
        except Exception as error:
            self._observer.failed(error, [node for node, _ in roots])
            raise
        finally:
            torch.set_grad_enabled(was_enabled)
            self._tasks.pop()
            self._observer.run_node(None)

    def queue_callback(self, callback: Callable[[], None]) -> None:
        """Run a callback when the running backward pass ends."""
        tasks = self._tasks
        (tasks[-1].callbacks.append if tasks else whole_backward.queue_callback)(callback)

    def is_checkpoint_valid(self) -> bool:
        """Whether reentrant checkpointing is allowed: not under `autograd.grad` with inputs."""
        return all(task.needed is None for task in self._tasks)

    def _current_task_id(self) -> int:
        return self._tasks[-1].id if self._tasks else -1

    def _current_node(self) -> Node | None:
        """The running node, to which an unpack hook may add hooks (`get_current_node`)."""
        return self._of_thread.nodes[-1] if self._of_thread.nodes else None

    def _keeps_graph(self) -> bool:
        """`get_current_graph_task_keep_graph`, which is True when no task is running."""
        return not self._tasks or self._tasks[-1].keep_graph

    @property
    def _clear_saved(self) -> Callable[[Node], None]:
        """`THPFunction_maybe_clear_saved_tensors` (torch/csrc/autograd/python_function.cpp)."""

        def clear(node: Node) -> None:
            if not self._keeps_graph():
                self._saved.release(node)

        return clear

    def _will_execute(self, node: Node) -> bool:
        task = self._tasks[-1]
        return node in task.edges and task.executes(node)

    # The walk -----------------------------------------------------------------------------------

    def _reachable_from(self, roots: list[tuple[Node, int]]) -> dict[Node, Edges]:
        """Every node that a gradient can reach, with its edges."""
        self._views.settle()
        self._hooks.settle()
        graph: dict[Node, Edges] = {}
        stack = list(dict.fromkeys(node for node, _ in roots if node is not None))
        while stack:
            node = stack.pop()
            if node not in graph:
                free_in_a_loop(node, self._saved.release)
                graph[node] = self._views.edges_of(node)
                stack += [following for following, _ in graph[node] if following is not None]
        return graph

    def _fit_roots(self, roots: list[tuple[Node, int]], gradients: list[Any]) -> None:
        """Cast the caller's gradients to the dtypes of the outputs, as `Engine::execute` does."""
        for i, (node, position) in enumerate(roots):
            if node is not None and gradients[i] is not None:
                self._rules.fit(gradients, i, node, position)

    def _start(self, task: GraphTask, roots: list[tuple[Node, int]], gradients: list[Any]) -> None:
        for i, (node, position) in enumerate(roots):
            if node is not None and task.executes(node):
                buffer = task.buffers.setdefault(node, [None] * len(node._input_metadata))
                self._rules.add_to_buffer(buffer, position, gradients, i)
        for node in dict.fromkeys(node for node, _ in roots if node in task.buffers):
            if not task.dependencies.get(node):
                task.ready.push(self._order.rank_of(node), node)

    def _evaluate(self, task: GraphTask, node: Node) -> None:
        running = self._of_thread.nodes
        running.append(node)
        try:
            with self._order.running(node):
                self._run(task, node)
        finally:
            running.pop()

    def _run(self, task: GraphTask, node: Node) -> None:
        inputs = task.buffers.pop(node)
        self._observer.run_node(node, keeps_graph=task.keep_graph)
        if task.needed is None or self._capture(task, node, inputs):
            with self._saved.running(node, release=not task.keep_graph):
                outputs = self._call(task, node, inputs)
                _drop(inputs)
            search_for_nan(outputs)
            self._observer.run_node(None)
            self._hand_on(task, node, outputs)

    def _capture(self, task: GraphTask, node: Node, inputs: Gradients) -> bool:
        """Keep the gradients that the caller asked for; return whether the node must still run."""
        assert task.needed is not None
        runs = node in task.needed
        if not runs:
            self._run_tensor_hooks(node, inputs)
        for position, index in task.captures.get(node, ()):
            task.captured[index] = inputs[position]
        return runs

    def _call(self, task: GraphTask, node: Node, inputs: Gradients) -> Gradients:
        self._run_tensor_hooks(node, inputs)
        self._hooks.run_before(node, inputs)
        if is_accumulate_grad(node):
            self._accumulate_grad(node, inputs)
            return []
        if isinstance(node, BackwardCFunction):
            keep = self._hooks.has_after(node)
            outputs = python_functions.apply(node, inputs, task.edges[node], keep=keep)
        else:
            outputs = self._apply(task, node, inputs)
        for i, (following, position) in enumerate(task.edges[node]):
            if following is not None and outputs[i] is not None:
                self._rules.fit(outputs, i, following, position, node)
        self._hooks.run_after(node, outputs, inputs)
        return outputs

    def _apply(self, task: GraphTask, node: Node, inputs: Gradients) -> Gradients:
        unwanted = task.unwanted_edges(node)
        by_data = None if self._rules.subclass_like else formula_by_data(node)
        if by_data is None or inputs[0] is None:
            formula = self._views.formula_of(node)
            if formula is not node:
                self._order.pass_over()
            return _apply(formula, inputs, unwanted)
        edges = enumerate(task.edges[node])
        wanted = {i for i, (following, _) in edges if following is not None} - set(unwanted)
        return by_data(node, inputs[0], wanted)

    def _run_tensor_hooks(self, node: Node, inputs: Gradients) -> None:
        if is_accumulate_grad(node) and (registered := leaf_of(node)._backward_hooks):
            inputs[0] = run_tensor_hooks(registered, inputs[0])
        self._hooks.run_tensor_hooks(node, inputs)

    def _accumulate_grad(self, node: Node, gradients: Gradients) -> None:
        """`AccumulateGrad::apply`: hooks that see the node's inputs hold a second reference.

        A leaf that was frozen after the forward pass accumulates no gradient
        (torch/csrc/autograd/functions/accumulate_grad.cpp).
        """
        leaf: Any = leaf_of(node)
        if gradients[0] is None or not leaf.requires_grad:
            self._hooks.run_after(node, [], list(gradients))
            return
        has_hooks = self._hooks.has_after(node)
        inputs = list(gradients) if has_hooks else []
        self._rules.accumulate(leaf, gradients, 1 + has_hooks)
        self._hooks.run_after_accumulation(leaf)
        self._hooks.run_after(node, [], inputs)

    def _hand_on(self, task: GraphTask, node: Node, outputs: Gradients) -> None:
        for i, (following, position) in enumerate(task.edges[node] if outputs else ()):
            if following is None:
                continue
            task.dependencies[following] -= 1
            if not task.executes(following):
                continue
            buffer = task.buffers.setdefault(following, [None] * len(following._input_metadata))
            self._rules.add_to_buffer(buffer, position, outputs, i)
            if not task.dependencies[following]:
                task.ready.push(self._order.rank_of(following), following)
        _drop(outputs)


def _drop(gradients: Gradients) -> None:
    """Release gradients first to last, as the destructor of a `std::vector` does."""
    for i in range(len(gradients)):
        gradients[i] = None


@acts_for_the_program
def _apply(node: Node, inputs: Gradients, unwanted: list[int]) -> Gradients:
    """Call a formula without its unwanted results; one in Python computes them all the same."""
    with without_edges(node, unwanted):
        result = node(*inputs)
    return list(result) if isinstance(result, tuple) else [result]
