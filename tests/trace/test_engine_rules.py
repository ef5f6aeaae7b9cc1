"""Each rule of PyTorch's engine that the walk mirrors, demonstrated on the engine itself.

Every test runs the same code twice: with the C++ engine on unobserved real tensors, and in a
trace, with the walk. It states what the engine does, and both must do it.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import Function

from graphmem import TrainingStep
from graphmem.trace import TraceOptions, trace
from graphmem.trace.ready_queue import ReadyQueue
from tests.support import oracle, unobserved
from tests.support.autograd_programs import PROGRAMS, training_step

Log = list[Any]
Rule = Callable[[Log], None]


def in_both(rule: Rule) -> Log:
    """What the rule's code logs under the engine; it must log the same under the walk."""
    by_engine: Log = []
    by_walk: Log = []
    with oracle.comparable():
        rule(by_engine)
        step = TrainingStep(step=lambda: rule(by_walk))
        trace(lambda: step, gpu=None, options=TraceOptions(steps=1))
    assert by_walk == by_engine
    return by_engine


def leaf(*shape: int) -> Tensor:
    return torch.randn(*(shape or (4,))).requires_grad_()


def memory_of(tensor: Tensor | None) -> int:
    """A real tensor's storage object would be another reference, which the engine would see."""
    assert tensor is not None
    if isinstance(tensor, FakeTensor):
        return tensor.untyped_storage()._cdata
    return tensor.data_ptr()


# ---- whole programs, unobserved ------------------------------------------------------------------

OTHER_ON_THE_CPU = {
    "gradient_of_the_greatest": "max() has another formula on the CPU than on CUDA",
    "matched_on_the_host": "arrays of numpy's are not the allocator's",
    "layer_that_is_cast_while_it_has_gradients": "weights are older than the profile",
    "correlated_with_itself": "a conjugate is computed within the operation that reads it",
}


SLOW_IN_ORACLE = [name for name in list(PROGRAMS)[::2] if name not in OTHER_ON_THE_CPU]
"""Programs that are slow tests of test_oracle.py; all others are slow tests here."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in SLOW_IN_ORACLE else pytest.mark.slow)
        for name in PROGRAMS
        if name not in OTHER_ON_THE_CPU
    ],
)
def test_an_unobserved_program(name: str) -> None:
    make = partial(training_step, PROGRAMS[name])
    real = unobserved.profiled_events(make, steps=2)
    assert real
    oracle.assert_equal(real, unobserved.traced_events(make, steps=2))


# ---- summing gradients for one node (InputBuffer::add) -------------------------------------------


class Branch(Function):
    """Passes on a gradient in new memory, and logs its address."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, make: Callable[[Tensor], Tensor], log: Log) -> Tensor:
        ctx.make, ctx.log = make, log
        return x * 1

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        result = ctx.make(grads[0])
        ctx.log.append(memory_of(result))
        return result, None, None


def sum_of_branches(
    log: Log, make: Callable[[Tensor], Tensor], branches: int = 2, **options: bool
) -> None:
    """Log whether the sum is in the memory of the first gradient."""
    memories: Log = []
    x = leaf() * 1
    x.register_hook(lambda grad: log.append(memory_of(grad) == memories[0]))  # type: ignore[no-untyped-call]
    results = [Branch.apply(x, make, memories) for _ in range(branches)]  # type: ignore[no-untyped-call]
    torch.stack([result.sum() for result in results]).sum().backward(**options)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("branches", [2, 3])
def test_later_gradients_are_added_into_the_first(branches: int) -> None:
    assert in_both(lambda log: sum_of_branches(log, torch.clone, branches)) == [True]


def test_a_gradient_with_another_reference_is_not_added_into() -> None:
    def rule(log: Log) -> None:
        held: list[Tensor] = []

        def make(grad: Tensor) -> Tensor:
            held.append(grad.clone())
            return held[-1]

        sum_of_branches(log, make)

    assert in_both(rule) == [False]


def test_a_gradient_with_a_live_view_is_not_added_into() -> None:
    def rule(log: Log) -> None:
        held: list[Tensor] = []

        def make(grad: Tensor) -> Tensor:
            result = grad.clone()
            held.append(result[1:])
            return result

        sum_of_branches(log, make)

    assert in_both(rule) == [False]


def test_an_expanded_gradient_is_not_added_into() -> None:
    def make(grad: Tensor) -> Tensor:
        return grad[:1].clone().expand(4)

    assert in_both(lambda log: sum_of_branches(log, make)) == [False]


def test_zeros_without_memory_are_not_added_into() -> None:
    """`sgn` has them for its gradient, as in StyleGAN's penalty through a maximum norm."""

    def rule(log: Log) -> None:
        x = leaf()
        total = x.sum()
        (sign,) = torch.autograd.grad(x.abs().sum(), x, create_graph=True)
        (total + sign.sum()).backward()  # type: ignore[no-untyped-call]
        assert x.grad is not None
        log.append(x.grad._is_zerotensor())

    assert in_both(rule) == [False]


def test_nothing_is_added_into_with_create_graph() -> None:
    assert in_both(lambda log: sum_of_branches(log, torch.clone, create_graph=True)) == [False]


def test_one_gradient_for_both_inputs_is_not_added_into_itself() -> None:
    def rule(log: Log) -> None:
        memories: Log = []
        x = leaf() * 1
        x.register_hook(lambda grad: log.append(memory_of(grad) == memories[0]))  # type: ignore[no-untyped-call]
        y = x + x
        y.register_hook(lambda grad: memories.append(memory_of(grad)))  # type: ignore[no-untyped-call]
        (y * 1).sum().backward()  # type: ignore[no-untyped-call]

    assert in_both(rule) == [False]


# ---- the gradient of a leaf (AccumulateGrad) -----------------------------------------------------


def first_gradient(log: Log, make: Callable[[Tensor], Tensor], x: Tensor, **options: bool) -> None:
    """Log whether the leaf's gradient is in the memory its node received."""
    memories: Log = []
    Branch.apply(x, make, memories).sum().backward(**options)  # type: ignore[no-untyped-call]
    log.append(memory_of(x.grad) == memories[0])


def test_the_first_gradient_of_a_leaf_is_stolen() -> None:
    assert in_both(lambda log: first_gradient(log, torch.clone, leaf())) == [True]


def test_a_gradient_with_another_reference_is_copied() -> None:
    def rule(log: Log) -> None:
        held: list[Tensor] = []

        def make(grad: Tensor) -> Tensor:
            held.append(grad.clone())
            return held[-1]

        first_gradient(log, make, leaf())

    assert in_both(rule) == [False]


@pytest.mark.parametrize(
    ("make", "is_stolen"),
    [
        (lambda grad: grad.t().clone().t(), False),
        (lambda grad: grad[:1].clone().expand(4, 4), False),
        (lambda grad: grad.clone(), True),
    ],
    ids=["transposed", "expanded", "contiguous"],
)
def test_a_gradient_of_another_layout_is_copied(
    make: Callable[[Tensor], Tensor], is_stolen: bool
) -> None:
    assert in_both(lambda log: first_gradient(log, make, leaf(4, 4))) == [is_stolen]


def test_a_transposed_leaf_steals_a_transposed_gradient() -> None:
    def rule(log: Log) -> None:
        x = torch.randn(3, 5).t().requires_grad_()
        first_gradient(log, lambda grad: grad.t().contiguous().t(), x)
        assert x.grad is not None
        log.append(x.grad.stride() == x.stride())

    assert in_both(rule) == [True, True]


def test_a_hook_after_the_leafs_node_does_not_prevent_stealing() -> None:
    def rule(log: Log) -> None:
        x = leaf()
        edge = torch.autograd.graph.get_gradient_edge(x)
        edge.node.register_hook(lambda results, grads: None)
        first_gradient(log, torch.clone, x)

    assert in_both(rule) == [True]


def test_one_gradient_for_two_leaves_is_stolen_by_one() -> None:
    def rule(log: Log) -> None:
        x, y = leaf(), leaf()
        (x + y).sum().backward()  # type: ignore[no-untyped-call]
        log.append(memory_of(x.grad) == memory_of(y.grad))

    assert in_both(rule) == [False]


def test_the_second_gradient_is_added_in_place_without_create_graph() -> None:
    def rule(log: Log) -> None:
        x = leaf()
        (x * 2).sum().backward()  # type: ignore[no-untyped-call]
        first, memory = x.grad, memory_of(x.grad)
        (x * 2).sum().backward()  # type: ignore[no-untyped-call]
        log += [x.grad is first, memory_of(x.grad) == memory]
        (x * x).sum().backward(create_graph=True)  # type: ignore[no-untyped-call]
        log += [x.grad is first, memory_of(x.grad) == memory]
        x.grad = None

    assert in_both(rule) == [True, True, False, False]


# ---- what a node's results become (validate_outputs) ---------------------------------------------


def test_results_are_summed_to_the_expected_shape_and_cast_to_the_dtype() -> None:
    def rule(log: Log) -> None:
        x, y = leaf(1, 4), torch.randn((), dtype=torch.float64, requires_grad=True)

        def note(grad: Tensor) -> None:
            log.append((tuple(grad.shape), grad.dtype))

        wide, scalar = x * 1, y * 1
        wide.register_hook(note)  # type: ignore[no-untyped-call]
        scalar.register_hook(note)  # type: ignore[no-untyped-call]
        (wide * torch.ones(3, 4) * scalar).sum().backward()  # type: ignore[no-untyped-call]

    assert in_both(rule) == [((), torch.float64), ((1, 4), torch.float32)]


# ---- what is released, and when ------------------------------------------------------------------


def test_a_node_releases_its_gradient_then_its_saved_tensors() -> None:
    def rule(log: Log) -> None:
        def watch(name: str, tensor: Tensor) -> None:
            weakref.finalize(tensor.untyped_storage(), log.append, name)

        hidden = leaf() * 1
        x = hidden.tanh()
        x.register_hook(partial(watch, "gradient"))  # type: ignore[no-untyped-call]
        hidden.register_hook(lambda grad: log.append("next node"))  # type: ignore[no-untyped-call]
        loss = (x * 2).sum()
        watch("saved", x)
        del x
        loss.backward()  # type: ignore[no-untyped-call]

    engine: Log = []  # fake memory never dies; a trace's order of frees is compared above
    with oracle.comparable():
        rule(engine)
    assert engine == ["gradient", "saved", "next node"]


@pytest.mark.parametrize("keep", [False, True])
def test_a_kept_graph_can_be_walked_again(keep: bool) -> None:
    def rule(log: Log) -> None:
        loss = leaf().tanh().sum()
        loss.backward(retain_graph=keep)  # type: ignore[no-untyped-call]
        try:
            loss.backward()  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            log.append("a second time" in str(error))
        else:
            log.append("again")

    assert in_both(rule) == (["again"] if keep else [True])


# ---- the order of nodes --------------------------------------------------------------------------


def test_a_walk_from_several_roots_takes_a_sequence_number() -> None:
    def rule(log: Log) -> None:
        for count in (1, 2, 3):
            losses = [leaf().sum() for _ in range(count)]
            before = torch._C._autograd._get_sequence_nr()
            torch.autograd.backward(losses)
            log.append(torch._C._autograd._get_sequence_nr() - before)

    assert in_both(rule) == [0, 1, 1]


def log_nodes(log: Log, root: Tensor) -> None:
    """Make every node of a graph log its name and number, leaves their size."""
    assert root.grad_fn is not None
    first = root.grad_fn._sequence_nr()
    seen, stack = set(), [root.grad_fn]
    while stack:
        node: Any = stack.pop()
        if node not in seen:
            seen.add(node)
            is_leaf = hasattr(node, "variable")
            label = len(node.variable) if is_leaf else first - node._sequence_nr()
            node.register_prehook(
                lambda grads, node=node, label=label: log.append((node.name(), label))
            )
            stack += [edge[0] for edge in node.next_functions if edge[0] is not None]


class Join(Function):
    """One node with many inputs, all ready at once."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> Tensor:
        ctx.sizes = [len(x) for x in inputs]
        return torch.cat(inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        return tuple(part.clone() for part in grads[0].split(ctx.sizes))


@pytest.mark.parametrize("count", range(1, 12))
def test_leaves_ready_at_once_come_in_heap_order(count: int) -> None:
    def rule(log: Log) -> None:
        joined = Join.apply(*(leaf(size + 1) for size in range(count)))  # type: ignore[no-untyped-call]
        log_nodes(log, joined)
        joined.sum().backward()

    order = [label for name, label in in_both(rule) if "AccumulateGrad" in name]
    assert sorted(order) == [size + 1 for size in range(count)]


def test_leaves_run_before_nodes_and_newer_nodes_before_older_ones() -> None:
    def rule(log: Log) -> None:
        x = leaf(2)
        older, newer = x.exp(), x.tanh()
        total = older.sum() + (newer * leaf(3).sum()).sum()
        log_nodes(log, total)
        total.backward()  # type: ignore[no-untyped-call]

    names = [name.split("::")[-1] for name, _ in in_both(rule)]
    assert names.index("TanhBackward0") < names.index("ExpBackward0")
    assert names[-1] == "AccumulateGrad"


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.booleans()), max_size=25))
@pytest.mark.slow
def test_any_graph_runs_in_the_engines_order(steps: list[tuple[int, int, bool]]) -> None:
    def rule(log: Log) -> None:
        values = [leaf(3) for _ in range(3)]
        for left, right, joins in steps:
            x, y = values[left % len(values)], values[right % len(values)]
            values.append(Join.apply(x, y)[:3] if joins else x * y)  # type: ignore[no-untyped-call]
        total = torch.stack([value.sum() for value in values]).sum()
        log_nodes(log, total)
        total.backward()  # type: ignore[no-untyped-call]

    in_both(rule)


# ---- hooks ---------------------------------------------------------------------------------------


def test_hooks_run_in_the_engines_order_and_see_its_values() -> None:
    def rule(log: Log) -> None:
        x = leaf()
        hidden = x * 1
        assert hidden.grad_fn is not None

        def note(name: str, *seen: Any) -> None:
            log.append((name, hidden.grad is not None, x.grad is not None, len(seen)))

        hidden.retain_grad()
        hidden.grad_fn.register_prehook(partial(note, "before the node"))
        hidden.grad_fn.register_hook(partial(note, "after the node"))
        hidden.register_hook(partial(note, "tensor"))  # type: ignore[no-untyped-call]
        x.register_hook(partial(note, "leaf"))  # type: ignore[no-untyped-call]
        edge = torch.autograd.graph.get_gradient_edge(x)
        edge.node.register_prehook(partial(note, "before the leaf's node"))
        edge.node.register_hook(partial(note, "after the leaf's node"))
        x.register_post_accumulate_grad_hook(partial(note, "accumulated"))  # type: ignore[no-untyped-call]
        (hidden * 2).sum().backward()  # type: ignore[no-untyped-call]

    assert in_both(rule) == [
        ("tensor", False, False, 1),
        ("before the node", True, False, 1),
        ("after the node", True, False, 2),
        ("leaf", True, False, 1),
        ("before the leaf's node", True, False, 1),
        ("accumulated", True, True, 1),
        ("after the leaf's node", True, True, 2),
    ]


def test_a_retained_gradient_follows_its_tensor_through_an_in_place_write() -> None:
    def rule(log: Log) -> None:
        x = leaf() * 1
        x.retain_grad()
        x.mul_(3)
        (x * 2).sum().backward()  # type: ignore[no-untyped-call]
        log.append(x.grad is not None)

    assert in_both(rule) == [True]


def test_hooks_die_with_their_node() -> None:
    def rule(log: Log) -> None:
        x = leaf() * 1
        held = torch.zeros(4)
        x.register_hook(lambda grad, held=held: None)  # type: ignore[no-untyped-call]
        known = weakref.ref(held)
        del held, x
        log.append(known() is None)

    assert in_both(rule) == [True]


# ---- which part of the graph runs ----------------------------------------------------------------


def two_layers(log: Log) -> tuple[Tensor, Tensor, Tensor]:
    x, hidden = leaf(2), leaf(3)[:2] * 1
    total = (x.exp() * hidden.tanh()).sum()
    log_nodes(log, total)
    return x, hidden, total


def test_grad_runs_only_what_leads_to_its_inputs() -> None:
    def rule(log: Log) -> None:
        _, hidden, total = two_layers(log)
        torch.autograd.grad(total, hidden)

    names = [name for name, _ in in_both(rule)]
    assert names == ["SumBackward0", "MulBackward0", "TanhBackward0"]


def test_backward_into_inputs_runs_only_what_leads_to_them() -> None:
    def rule(log: Log) -> None:
        x, hidden, total = two_layers(log)
        total.backward(inputs=[x])  # type: ignore[no-untyped-call]
        log.append((x.grad is not None, hidden.grad is not None))

    *nodes, grads = in_both(rule)
    assert [name.split("::")[-1] for name, _ in nodes] == [
        "SumBackward0",
        "MulBackward0",
        "ExpBackward0",
        "AccumulateGrad",
    ]
    assert grads == (True, False)


def test_an_unused_input_is_an_error() -> None:
    def rule(log: Log) -> None:
        used, unused = leaf(), leaf()
        try:
            torch.autograd.grad(used.sum(), [used, unused])
        except RuntimeError as error:
            log.append(str(error))

    (message,) = in_both(rule)
    assert "not have been used in the graph" in message


# ---- the queue -----------------------------------------------------------------------------------

Ranks = st.lists(st.integers(0, 6) | st.none(), max_size=80)
"""None: pop."""


def replay(ranks: list[int | None]) -> list[tuple[int, int]]:
    """Push each rank with its position; return what is popped, finally everything left."""
    queue: ReadyQueue[tuple[int, int]] = ReadyQueue()
    popped = []
    for position, rank in enumerate(ranks):
        if rank is not None:
            queue.push(rank, (rank, position))
        elif queue:
            popped.append(queue.pop())
    while queue:
        popped.append(queue.pop())
    return popped


@given(st.lists(st.integers(0, 6), max_size=80))
def test_the_highest_rank_comes_first_and_nothing_is_lost(ranks: list[int]) -> None:
    popped = replay(list(ranks))
    assert [rank for rank, _ in popped] == sorted(ranks, reverse=True)
    assert sorted(position for _, position in popped) == list(range(len(ranks)))


PRIORITY_QUEUE = """
#include <queue>
#include <utility>
#include <vector>
using Item = std::pair<int, int>;
struct Lower { bool operator()(const Item& a, const Item& b) const { return a.first < b.first; } };
extern "C" int replay(const int* ranks, int count, int* popped) {
  std::priority_queue<Item, std::vector<Item>, Lower> queue;
  int done = 0;
  auto pop = [&] { popped[done++] = queue.top().second; queue.pop(); };
  for (int i = 0; i < count; ++i) {
    if (ranks[i] >= 0) queue.push({ranks[i], i});
    else if (!queue.empty()) pop();
  }
  while (!queue.empty()) pop();
  return done;
}
"""


@pytest.fixture(scope="module")
def libstdcxx(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """`std::priority_queue` itself, if there is a compiler."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ to compile std::priority_queue with")
    folder: Path = tmp_path_factory.mktemp("queue")
    (folder / "queue.cpp").write_text(PRIORITY_QUEUE)
    library = folder / "queue.so"
    subprocess.run(
        [compiler, "-O1", "-shared", "-fPIC", folder / "queue.cpp", "-o", library], check=True
    )
    return ctypes.CDLL(str(library))


@given(ranks=Ranks)
def test_ties_come_in_libstdcxxs_order(libstdcxx: Any, ranks: list[int | None]) -> None:
    given_ranks = (ctypes.c_int * len(ranks))(*(-1 if rank is None else rank for rank in ranks))
    popped = (ctypes.c_int * len(ranks))()
    count = libstdcxx.replay(given_ranks, len(ranks), popped)
    assert [position for _, position in replay(ranks)] == list(popped[:count])
