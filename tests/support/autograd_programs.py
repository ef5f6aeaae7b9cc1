"""Small programs for corner cases of autograd that no fixture covers.

Each runs two square linear layers forward and backward, and leaves gradients behind.
`test_oracle.py` compares each with a real run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.autograd.graph import register_multi_grad_hook, saved_tensors_hooks
from torch.func import functional_call, vmap
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from fixtures.random_program import TwoResults
from graphmem import TrainingStep
from graphmem.torch_releases import installed_release

SIZE = 8
Program = Callable[[nn.Linear, nn.Linear], None]
PROGRAMS: dict[str, Program] = {}


def program(iterate: Program) -> Program:
    PROGRAMS[iterate.__name__] = iterate
    return iterate


def training_step(iterate: Program) -> TrainingStep:
    """The program as a training step whose gradients are dropped after each iteration."""
    first, second = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)
    layers = nn.ModuleList([first, second])

    def step() -> None:
        iterate(first, second)
        layers.zero_grad()

    return TrainingStep(model=layers, step=step)


def rows(count: int = 4) -> Tensor:
    return torch.randn(count, SIZE)


def cube() -> Tensor:
    """Three-dimensional inputs, for which a linear layer returns a view."""
    return torch.randn(2, 3, SIZE)


# ---- functions written in Python -----------------------------------------------------------------


class TwoResultsUnmaterialized(TwoResults):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        return TwoResults.forward(ctx, x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grads[0] * 2 if grads[1] is None else x


class ScaledByNumber(Function):
    """Takes an argument that is not a tensor, and returns an unneeded gradient."""

    @staticmethod
    def forward(ctx: Any, constant: Tensor, factor: float, x: Tensor) -> Tensor:
        ctx.factor = factor
        return constant + x * factor

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, Tensor]:
        return grads[0].clone(), None, grads[0] * ctx.factor


class WithIndices(Function):
    """One result is not differentiable."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        order = x.argsort()
        ctx.mark_non_differentiable(order)
        ctx.save_for_backward(order)
        return x.gather(-1, order), order

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (order,) = ctx.saved_tensors
        return torch.zeros_like(grads[0]).scatter_(-1, order, grads[0])


class AsCompiled(WithIndices):
    """What AOTAutograd sets for the functions that it makes (runtime_wrappers.py)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx._materialize_non_diff_grads = False
        return WithIndices.forward(ctx, x)


class DoubledInPlace(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * 2


class Tracked(Tensor):
    """Carries attributes, as MONAI's `MetaTensor` does; results of operations are of the class."""


class Recomputed(Function):
    """A graph inside a function, run by the function's backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.tanh().exp()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (saved,) = ctx.saved_tensors
        x = saved.detach().requires_grad_()
        with torch.enable_grad():
            result = x.tanh().exp()
        torch.autograd.backward(result, grads[0])
        assert x.grad is not None
        return x.grad


@program
def tensors_of_a_class_of_the_program(first: nn.Linear, second: nn.Linear) -> None:
    tracked = rows().as_subclass(Tracked)
    hidden = functional.relu(first(tracked)) * tracked
    torch.stack([second(hidden), hidden]).sum(0).square().mean().backward()


@program
def function_with_an_unused_result(first: nn.Linear, second: nn.Linear) -> None:
    left, _ = TwoResults.apply(first(rows()))  # type: ignore[no-untyped-call]
    second(left).square().sum().backward()


@program
def function_with_two_results(first: nn.Linear, second: nn.Linear) -> None:
    left, right = TwoResults.apply(first(rows()))  # type: ignore[no-untyped-call]
    (second(left) * right).square().sum().backward()


@program
def function_without_materialized_gradients(first: nn.Linear, second: nn.Linear) -> None:
    left, _ = TwoResultsUnmaterialized.apply(first(rows()))  # type: ignore[no-untyped-call]
    second(left).square().sum().backward()


@program
def function_with_an_argument_that_is_no_tensor(first: nn.Linear, second: nn.Linear) -> None:
    x = ScaledByNumber.apply(rows(), 0.5, first(rows()))  # type: ignore[no-untyped-call]
    second(x).square().sum().backward()


@program
def function_with_indices_as_compiled_ones_have(first: nn.Linear, second: nn.Linear) -> None:
    values, order = AsCompiled.apply(first(rows()))  # type: ignore[no-untyped-call]
    (second(values) * order).square().sum().backward()


@program
def function_with_indices(first: nn.Linear, second: nn.Linear) -> None:
    values, order = WithIndices.apply(first(rows()))  # type: ignore[no-untyped-call]
    (second(values) * order).square().sum().backward()


@program
def function_in_place(first: nn.Linear, second: nn.Linear) -> None:
    second(DoubledInPlace.apply(first(rows()))).square().sum().backward()  # type: ignore[no-untyped-call]


@program
def function_with_a_graph_inside(first: nn.Linear, second: nn.Linear) -> None:
    second(Recomputed.apply(first(rows()))).square().sum().backward()  # type: ignore[no-untyped-call]


# ---- writing into views --------------------------------------------------------------------------


@program
def activation_in_place_on_a_view(first: nn.Linear, second: nn.Linear) -> None:
    second(torch.relu_(first(cube()))).square().sum().backward()


@program
def product_in_place_on_a_view(first: nn.Linear, second: nn.Linear) -> None:
    x = cube()
    first(x).mul_(second(x)).exp().square().sum().backward()


@program
def write_into_a_view_of_a_view(first: nn.Linear, second: nn.Linear) -> None:
    part = first(rows(6)).view(2, 3, SIZE).transpose(0, 1)
    part.mul_(2)
    second(part.tanh()).square().sum().backward()


@program
def write_into_part_of_a_view(first: nn.Linear, second: nn.Linear) -> None:
    whole = first(cube())
    part = whole[:, 1]
    part.sigmoid_()
    (second(whole).square().sum() + part.exp().square().sum()).backward()


@program
def write_into_a_base(first: nn.Linear, second: nn.Linear) -> None:
    base = first(rows())
    part = base[1:]
    base.mul_(3)
    second(part.tanh()).square().sum().backward()


@program
def write_twice_into_a_view(first: nn.Linear, second: nn.Linear) -> None:
    x = first(cube())
    x.mul_(2)
    y = x.clone()
    x.add_(y)
    second(x).square().sum().backward()


@program
def assignment_to_a_slice(first: nn.Linear, second: nn.Linear) -> None:
    buffer = torch.zeros(4, 2 * SIZE)
    buffer[:, :SIZE] = first(rows())
    buffer[:, SIZE:] = second(rows()).exp()
    (buffer * buffer).square().sum().backward()


@program
def function_in_place_on_a_view(first: nn.Linear, second: nn.Linear) -> None:
    part = first(rows())[:, :]
    doubled = DoubledInPlace.apply(part)  # type: ignore[no-untyped-call]
    second(doubled).square().sum().backward()


@program
def swapped_after_it_was_written(first: nn.Linear, second: nn.Linear) -> None:
    """`detach` makes a view, but no node."""
    x = first(rows()).relu_()
    x.data = x.detach()
    second(x.view(2, 2, SIZE)).square().sum().backward()


# ---- sums of gradients ---------------------------------------------------------------------------


@program
def batched_gradients(first: nn.Linear, second: nn.Linear) -> None:
    """They are summed out of place, as all that is like a subclass."""
    x = first(rows())
    y = (x + second(x)).exp()
    directions = torch.eye(SIZE)[:, None].expand(SIZE, 4, SIZE)
    torch.autograd.grad(y, [x], directions, is_grads_batched=True, retain_graph=True)
    (jacobian,) = torch.autograd.grad(y, [x], directions, is_grads_batched=True, create_graph=True)
    jacobian.square().sum().backward()


@program
def zeros_without_memory(first: nn.Linear, second: nn.Linear) -> None:
    """The gradient of `sgn`, times a number."""
    x = first(rows())
    ((x * 2).sgn() + second(x)).square().sum().backward()


@program
def the_same_tensor_twice(first: nn.Linear, second: nn.Linear) -> None:
    x = first(rows())
    second(x + x).mul(x).square().sum().backward()


@program
def fan_out_to_three(first: nn.Linear, second: nn.Linear) -> None:
    x = first(rows())
    (second(x) + x.tanh() * x).square().sum().backward()


@program
def residual(first: nn.Linear, second: nn.Linear) -> None:
    x = rows()
    x = x + first(x).tanh()
    x = x + second(x).tanh()
    x.square().sum().backward()


@program
def both_inputs_from_one_node(first: nn.Linear, second: nn.Linear) -> None:
    left, right = first(rows()).chunk(2, dim=-1)
    x = left * right + left / (right.abs() + 1)
    (x @ second.weight[:4]).square().sum().backward()


@program
def one_weight_in_two_layers(first: nn.Linear, second: nn.Linear) -> None:
    x = functional.linear(first(rows()), first.weight.t(), second.bias)
    functional.linear(x, second.weight).square().sum().backward()


@program
def many_views_of_one_tensor(first: nn.Linear, second: nn.Linear) -> None:
    parts = first(rows(8)).unbind(0)
    x = torch.stack([parts[i] * parts[i + 1] for i in range(0, 8, 2)])
    torch.cat([second(x), x.flip(0)]).square().sum().backward()


# ---- what AccumulateGrad does --------------------------------------------------------------------


@program
def expanded_gradient(first: nn.Linear, second: nn.Linear) -> None:
    (first.weight.sum() + second.bias.sum()).backward()


@program
def transposed_gradient(first: nn.Linear, second: nn.Linear) -> None:
    (first.weight.t() * torch.randn(SIZE, SIZE)).square().sum().backward()
    (second.weight.t() @ rows().t()).square().sum().backward()


@program
def one_gradient_for_two_leaves(first: nn.Linear, second: nn.Linear) -> None:
    (first.weight + second.weight).square().sum().backward()


@program
def accumulation_with_a_graph(first: nn.Linear, second: nn.Linear) -> None:
    second(first(rows()).tanh()).square().sum().backward(create_graph=True)
    second(first(rows()).tanh()).square().sum().backward(create_graph=True)
    for layer in (first, second):  # a gradient with a graph and its leaf hold each other
        layer.weight.grad = layer.bias.grad = None


@program
def leaves_of_another_dtype(first: nn.Linear, second: nn.Linear) -> None:
    x = first(rows()).double() @ second.weight.double()
    (x.half().float() * second.bias).square().sum().backward()


# ---- hooks ---------------------------------------------------------------------------------------


@program
def hooks_on_tensors(first: nn.Linear, second: nn.Linear) -> None:
    kept: list[Tensor] = []
    x = first(rows())
    x.register_hook(kept.append)  # type: ignore[no-untyped-call]
    x.register_hook(lambda grad: grad * 2)  # type: ignore[no-untyped-call]
    x.retain_grad()
    removed = x.register_hook(lambda grad: grad * 3)  # type: ignore[no-untyped-call]
    removed.remove()
    (second(x) * x.exp()).square().sum().backward()
    assert len(kept) == 1
    assert x.grad is not None


def double_gradient(leaf: Tensor) -> None:
    assert leaf.grad is not None
    leaf.grad.mul_(2)


@program
def hooks_on_leaves(first: nn.Linear, second: nn.Linear) -> None:
    kept: list[Tensor] = []
    handles = [
        first.weight.register_hook(kept.append),  # type: ignore[no-untyped-call]
        second.weight.register_hook(lambda grad: grad.clone()),  # type: ignore[no-untyped-call]
        second.bias.register_post_accumulate_grad_hook(double_gradient),  # type: ignore[no-untyped-call]
    ]
    second(first(rows())).square().sum().backward()
    for handle in handles:
        handle.remove()


@program
def hooks_on_nodes(first: nn.Linear, second: nn.Linear) -> None:
    x = first(rows())
    y = second(x.tanh())
    assert x.grad_fn is not None
    assert y.grad_fn is not None
    y.grad_fn.register_prehook(lambda grads: tuple(grad * 2 for grad in grads))
    y.grad_fn.register_hook(lambda results, grads: tuple(grad * grads[0].sum() for grad in results))
    x.grad_fn.register_hook(lambda results, grads: None)
    leaf = y.grad_fn.next_functions[0][0]
    assert leaf is not None
    leaf.register_hook(lambda results, grads: None)
    y.square().sum().backward()


@program
def hook_on_several_tensors(first: nn.Linear, second: nn.Linear) -> None:
    x, y = first(rows()), second(rows())
    register_multi_grad_hook((x, y), lambda grads: None)
    (x * y).square().sum().backward()


@program
def callback_at_the_end(first: nn.Linear, second: nn.Linear) -> None:
    left: list[Tensor] = []

    def at_the_end() -> None:
        left.append(torch.ones(3))

    def hook(grad: Tensor) -> None:
        engine: Any = torch.autograd.Variable._execution_engine  # type: ignore[attr-defined]
        engine.queue_callback(at_the_end)

    x = first(rows())
    x.register_hook(hook)  # type: ignore[no-untyped-call]
    second(x).square().sum().backward()
    assert len(left) == 1


# ---- which part of the graph runs, and how often -------------------------------------------------


@program
def graph_kept_for_a_second_pass(first: nn.Linear, second: nn.Linear) -> None:
    loss = second(first(rows()).tanh()).square().sum()
    loss.backward(retain_graph=True)
    loss.backward()


@program
def gradients_of_some_inputs(first: nn.Linear, second: nn.Linear) -> None:
    x = first(rows())
    y = second(x.tanh())
    grads = torch.autograd.grad(y.square().sum(), [x, second.bias, first.bias], retain_graph=True)
    x_alone = x.square().sum()
    missing = torch.autograd.grad(
        x_alone, [first.weight, second.weight], retain_graph=True, allow_unused=True
    )
    assert missing[1] is None
    (y.square().sum() + grads[0].sum()).backward()


@program
def gradient_of_a_hooked_input(first: nn.Linear, second: nn.Linear) -> None:
    x = first(rows())
    x.register_hook(lambda grad: grad * 2)  # type: ignore[no-untyped-call]
    assert x.grad_fn is not None
    x.grad_fn.register_prehook(lambda grads: (grads[0] * 3,))
    y = second(x.exp())
    torch.autograd.grad(y.square().sum(), [x, first.weight])
    torch.autograd.grad(second(x).square().sum(), x)


@program
def backward_into_some_leaves(first: nn.Linear, second: nn.Linear) -> None:
    x = first(rows())
    second(x.tanh()).square().sum().backward(inputs=[x, second.weight])


@program
def several_roots(first: nn.Linear, second: nn.Linear) -> None:
    x = first(rows())
    y = second(x)
    torch.autograd.backward([y, x.tanh()], [torch.ones(4, SIZE), torch.ones(4, SIZE)])


@program
def several_scalar_roots(first: nn.Linear, second: nn.Linear) -> None:
    x = first(rows())
    torch.autograd.backward([second(x).square().sum(), x.exp().square().sum(), x.square().mean()])


@program
def gradient_given_by_the_caller(first: nn.Linear, second: nn.Linear) -> None:
    y = second(first(rows()).tanh())
    y.backward(torch.ones_like(y) * 0.5)


@program
def gradients_of_another_dtype_given_by_the_caller(first: nn.Linear, second: nn.Linear) -> None:
    """They are cast to the outputs' dtype; the casts live as long as the walk."""
    x, y = first(rows()).tanh(), second(rows()).tanh()
    x.backward(torch.ones(4, SIZE, dtype=torch.float64))
    gradients = [torch.ones(4, SIZE, dtype=torch.float64) for _ in range(2)]
    torch.autograd.backward([y.tanh(), first(y)], gradients)


@program
def gradient_of_a_gradient(first: nn.Linear, second: nn.Linear) -> None:
    x = rows().requires_grad_()
    y = second(first(x).tanh()).square().sum()
    (slope,) = torch.autograd.grad(y, x, create_graph=True)
    slope.square().sum().backward()


@program
def variables_are_deleted(first: nn.Linear, second: nn.Linear) -> None:
    for _ in range(2):
        hidden = first(rows()).tanh()
        loss = second(hidden).square().sum()
        loss.backward()
        del hidden
        total = loss.detach() * 2
        del loss
        total.add_(1)


# ---- saved tensors -------------------------------------------------------------------------------


@program
def hooks_on_saved_tensors(first: nn.Linear, second: nn.Linear) -> None:
    with saved_tensors_hooks(lambda tensor: tensor.double(), lambda packed: packed.float()):
        x = first(rows()).tanh()
    second(x.exp()).square().sum().backward()


@program
def checkpoint_inside_of_a_checkpoint(first: nn.Linear, second: nn.Linear) -> None:
    def inner(x: Tensor) -> Tensor:
        return second(x.tanh()).exp()

    def outer(x: Tensor) -> Tensor:
        return checkpoint(inner, first(x).sigmoid(), use_reentrant=False).tanh()

    x = checkpoint(outer, rows(), use_reentrant=False)
    x.square().sum().backward()


@program
def checkpoint_of_several_tensors(first: nn.Linear, second: nn.Linear) -> None:
    def block(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        mixed = functional.dropout(first(x) * y, 0.5)
        return second(mixed), mixed.sum()

    x = rows().requires_grad_()
    for use_reentrant in (True, False):
        y, total = checkpoint(block, x, x.exp(), use_reentrant=use_reentrant)
        (y.square().sum() + total).backward()


@program
def checkpoint_in_segments(first: nn.Linear, second: nn.Linear) -> None:
    blocks = nn.Sequential(first, nn.Tanh(), second, nn.Sigmoid())
    x = rows().requires_grad_()
    checkpoint_sequential(blocks, 2, x, use_reentrant=True).square().sum().backward()
    checkpoint_sequential(blocks, 2, x, use_reentrant=False).square().sum().backward()


@program
def swapped_while_it_was_saved(first: nn.Linear, second: nn.Linear) -> None:
    """Autograd saves the tensor itself, whose memory `.data` replaces, or a view of it."""
    weight, other = (nn.Parameter(torch.randn(SIZE, SIZE)) for _ in range(2))
    x = second(first(rows()))
    y = (x @ weight).sin() + functional.linear(x, other) + x.mT.sin().mT
    x.data, weight.data, other.data = (
        torch.ones(4, SIZE),
        other.exp().detach(),
        weight.sin().detach(),
    )
    y.sum().backward()


@program
def set_to_other_memory_while_it_was_saved(first: nn.Linear, second: nn.Linear) -> None:
    """Nothing walks the graph: `set_` counts as a write, after which that is an error."""
    x = rows().requires_grad_()
    saved = x.sin()
    with torch.no_grad():
        x.set_(torch.randn(2, SIZE))  # type: ignore[call-overload]
    second(first(rows())).sum().backward()
    del saved


class OfViews(Function):
    """Saves views that are made without gradients, which lead to no node of their own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x[1:], weight.t())
        return x[1:] @ weight

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return functional.pad(grads[0] @ weight, (0, 0, 1, 0)), x.t() @ grads[0]


@program
def views_that_a_function_saved_are_differentiated_twice(
    first: nn.Linear, second: nn.Linear
) -> None:
    y: Any = OfViews.apply(first(rows()), second.weight)  # type: ignore[no-untyped-call]
    (grad,) = torch.autograd.grad(y.exp().sum(), first.weight, create_graph=True)
    grad.square().sum().backward()


# ---- formulas that choose between writing in place and not ---------------------------------------


@program
def linear_of_a_permuted_tensor(first: nn.Linear, second: nn.Linear) -> None:
    x = first(torch.randn(3, 2, SIZE).transpose(0, 1)).tanh()
    second(x.transpose(0, 1)).square().sum().backward()


@program
def sum_written_by_hand(first: nn.Linear, second: nn.Linear) -> None:
    x = cube() @ first.weight + first.bias
    (x @ second.weight + second.bias).square().sum().backward()


@program
def attention_with_a_mask(first: nn.Linear, second: nn.Linear) -> None:
    x = first(cube())
    mask = torch.zeros(3, 3)
    with sdpa_kernel(SDPBackend.MATH):
        y = functional.scaled_dot_product_attention(x, second(x), x, attn_mask=mask)
    y.square().sum().backward()


@program
def gradient_of_indexing(first: nn.Linear, second: nn.Linear) -> None:
    x = first(rows())[torch.tensor([2, 0, 2])]
    second(x).square().sum().backward()


@program
def gradient_of_selecting_columns(first: nn.Linear, second: nn.Linear) -> None:
    x = first(rows()).index_select(1, torch.arange(SIZE))
    second(x).square().sum().backward()


@program
def gradient_of_gathering(first: nn.Linear, second: nn.Linear) -> None:
    x = first(rows()).gather(1, torch.zeros(4, SIZE, dtype=torch.int64))
    second(x).square().sum().backward()


@program
def gradient_of_the_best(first: nn.Linear, second: nn.Linear) -> None:
    x = first(rows())
    best = x.max(dim=1, keepdim=True).values * x.topk(1).values * x.kthvalue(1).values[:, None]
    (second(x) * best).square().sum().backward()


@program
def gradient_of_the_greatest(first: nn.Linear, second: nn.Linear) -> None:
    x = first(rows())
    (second(x) * x.max()).square().sum().backward()


@program
def gradients_are_scattered(first: nn.Linear, second: nn.Linear) -> None:
    x = first(rows())
    picked = x[torch.tensor([2, 0, 2])].sum() + x.index_select(1, torch.tensor([1, 1])).sum()
    gathered = x.gather(1, torch.zeros(4, 2, dtype=torch.int64)).sum()
    best = x.topk(2).values.sum() + x.max(dim=1).values.sum() + x.sort().values[:, 0].sum()
    second(x).sum().add(picked + gathered + best).backward()


@program
def gradient_of_a_loss_with_logits(first: nn.Linear, second: nn.Linear) -> None:
    target, weight = torch.ones(4, SIZE), torch.ones(SIZE)
    for options in ({}, {"weight": weight}, {"pos_weight": weight, "reduction": "sum"}):
        x = second(first(rows()).tanh())
        functional.binary_cross_entropy_with_logits(x, target, **options).backward()


@program
def gradient_of_a_target(first: nn.Linear, second: nn.Linear) -> None:
    weight = torch.ones(SIZE)
    with_logits = functional.binary_cross_entropy_with_logits
    for each, positive in ((None, None), (weight, None), (weight, weight)):
        target = second(rows()).sigmoid()
        with_logits(first(rows()), target, each, pos_weight=positive).backward()
    x, y = first(rows()).sigmoid(), second(rows()).sigmoid()
    functional.binary_cross_entropy(x, y, weight=weight).backward()


@program
def gradient_of_the_gradient_of_a_loss(first: nn.Linear, second: nn.Linear) -> None:
    """The previous node's result is not a temporary of the formula, although it was divided."""
    y, weight = second(rows()).sigmoid(), torch.ones(SIZE)
    x = first(rows()).sigmoid()
    loss = functional.binary_cross_entropy(x, y, weight=weight)
    (slope,) = torch.autograd.grad(loss, x, create_graph=True)
    (slope / 2 / rows()).square().sum().backward()
    logits = first(rows())
    loss = functional.binary_cross_entropy_with_logits(logits, torch.ones(4, SIZE), weight)
    (slope,) = torch.autograd.grad(loss, logits, create_graph=True)
    slope.square().sum().backward()


@program
def clamped_between_tensors(first: nn.Linear, second: nn.Linear) -> None:
    low, high = second(rows()), second(rows()) + 1
    x = first(rows())
    x.clamp(low, high).square().sum().backward(retain_graph=True)
    x.clamp(low.detach(), high.detach()).square().sum().backward()


@program
def angles_and_extremes(first: nn.Linear, second: nn.Linear) -> None:
    torch.atan2(first(rows()), second(rows())).square().sum().backward()
    low, high = torch.aminmax(first(rows()), dim=1)
    (low * high).sum().backward()
    x, y = first(rows()).detach().requires_grad_(), rows()
    (slope,) = torch.autograd.grad(torch.atan2(x, y).sum(), x, create_graph=True)
    slope.square().sum().backward()


if installed_release() < (2, 12):
    del PROGRAMS["angles_and_extremes"]  # aminmax has no derivative before


@program
def close_where_both_are_not_a_number(first: nn.Linear, second: nn.Linear) -> None:
    close = torch.isclose(first(rows()), second(rows()), equal_nan=True)
    by_hand = first(rows()).isnan() & second(rows()).isnan()
    (first(rows()) * close * by_hand).sum().backward()


@program
def searched_for_nan(first: nn.Linear, second: nn.Linear) -> None:
    with torch.autograd.set_detect_anomaly(True):
        (first(rows()).exp() * second(rows()).sin()).square().sum().backward()
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        first(rows()).exp().sum().backward()


@program
def products_with_a_batch_of_one(first: nn.Linear, second: nn.Linear) -> None:
    x = first(cube())
    (x @ torch.randn(1, SIZE, 5)).square().sum().backward()
    (torch.randn(1, 5, SIZE) @ second(cube()).transpose(1, 2)).square().sum().backward()


@program
def losses_of_all_kinds(first: nn.Linear, second: nn.Linear) -> None:
    x, y = first(rows()), second(rows())
    loss = (
        functional.mse_loss(x, y)
        + functional.smooth_l1_loss(x, y)
        + functional.l1_loss(x, y)
        + functional.huber_loss(x, y)
    )
    loss = loss + functional.binary_cross_entropy(x.sigmoid(), y.sigmoid())
    loss = loss + functional.binary_cross_entropy_with_logits(x, y.sigmoid())
    loss = loss + functional.soft_margin_loss(x, torch.ones(4, SIZE))
    loss = loss + functional.kl_div(x, y.softmax(-1), reduction="sum")
    loss = loss + functional.cross_entropy(
        x, torch.zeros(4, dtype=torch.int64), label_smoothing=0.1
    )
    loss.backward()


@program
def classes_as_rows_of_ones(first: nn.Linear, second: nn.Linear) -> None:
    classes = torch.arange(64).remainder(SIZE)
    first(functional.one_hot(classes, SIZE).float()).sum().backward()


@program
def quantiles_of_a_result(first: nn.Linear, second: nn.Linear) -> None:
    """Its kernel resolves overloads of `lerp`, whose recorded reasons hold the tensors."""
    x = first(rows())
    torch.quantile(x, torch.tensor([0.2, 0.5]), dim=1).sum().backward()


@program
def frozen_between_forward_and_backward(first: nn.Linear, second: nn.Linear) -> None:
    x = second(first(rows()).relu())
    first.weight.requires_grad_(False)
    x.sum().backward()
    first.weight.requires_grad_(True)


@program
def graph_that_outlives_its_backward_pass(first: nn.Linear, second: nn.Linear) -> None:
    x = first(rows())
    y = (x.sigmoid() * x.tanh()).exp() + second(x).square()
    (y.sum() + (y * x).sum()).backward(retain_graph=True)


@program
def graph_that_nobody_walks(first: nn.Linear, second: nn.Linear) -> None:
    x = first(rows()).relu_()
    y = (x + 1) * (second(x) + 1)
    product = second(x)[None] @ y.t().expand(2, SIZE, 4)
    del x, y
    assert product.requires_grad


@program
def graph_that_is_walked_in_vain(first: nn.Linear, second: nn.Linear) -> None:
    x, y = first(rows()), second(rows())
    both = ((x + 1) * (y + 1)).square() + (x - 1) * (x * y)
    torch.autograd.grad(both.square().mean(), [torch.ones(1).requires_grad_()], allow_unused=True)


@program
def kept_graph_with_a_node_that_the_program_has_seen(first: nn.Linear, second: nn.Linear) -> None:
    x, y = first(rows()), second(rows())
    hooked = x.exp() * y.cos()
    hooked.register_hook(lambda gradient: gradient)
    loss = (hooked.sin() * TwoResults.apply(y.tanh() * y.exp())[0] * x.sigmoid()).square().mean()
    loss.backward(retain_graph=True)


@program
def function_that_keeps_an_argument_with_its_gradient(first: nn.Linear, second: nn.Linear) -> None:
    """A saved argument is the variable itself, even after results exist."""
    x = first(rows())
    y = second(x)
    kept = TwoResults.apply(x)  # type: ignore[no-untyped-call]
    x.retain_grad()
    y.sum().backward()
    del x, y
    assert kept is not None


class Adjoint(torch.autograd.Function):
    """Differentiates in its backward pass with regard to the parameters that it saved."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        with torch.enable_grad():
            return None, *torch.autograd.grad((x @ weight).tanh(), weight, gradient)


@program
def function_that_differentiates_again(first: nn.Linear, second: nn.Linear) -> None:
    """As in torchdiffeq's `odeint_adjoint`."""
    Adjoint.apply(rows(), first.weight).sum().backward()


@program
def layer_that_is_cast_while_it_has_gradients(first: nn.Linear, second: nn.Linear) -> None:
    """The weight's old memory is freed before its gradient is cast."""
    first(rows()).sum().backward()
    first.half().float()


@program
def checkpoint_whose_result_is_added_to_its_argument(first: nn.Linear, second: nn.Linear) -> None:
    """The checkpoint saves the argument, whose history leads back to the checkpoint."""
    x = first(rows())
    y = checkpoint(lambda a: second(a).tanh(), x, use_reentrant=False)
    x.add_(y)
    del x, y


@program
def retained_gradient_that_has_a_graph(first: nn.Linear, second: nn.Linear) -> None:
    """The graph saves the tensor, which holds the gradient, which holds the graph."""
    x = rows().requires_grad_()
    y = first(x)
    y.retain_grad()
    part = y[:2]
    grad = torch.autograd.grad(part.square().sum(), [x], create_graph=True)[0]
    del x, y, part
    assert grad is not None


@program
def saved_again_with_its_gradient(first: nn.Linear, second: nn.Linear) -> None:
    x = first(rows())
    x.retain_grad()
    x.sum().backward()
    y = x.sin()
    del x
    second.weight + 1
    assert y is not None


@program
def kept_graph_of_a_tensor_that_retains_its_gradient(first: nn.Linear, second: nn.Linear) -> None:
    x = first(rows())
    x.retain_grad()
    y = x * second(x).tanh()
    (y.square().sum() + x.exp().sum()).backward(retain_graph=True)
    del x


@program
def base_of_a_saved_view_is_written_into(first: nn.Linear, second: nn.Linear) -> None:
    x = first(rows())
    y = second(x[1:])
    x[:1].mul_(second(rows(1)))
    del x
    assert (y.tanh() * y).requires_grad


@program
def variable_written_with_what_was_computed_from_it(first: nn.Linear, second: nn.Linear) -> None:
    x = first(rows())
    x.div_(x.square() + 1)


@program
def parts_of_written_complex_numbers(first: nn.Linear, second: nn.Linear) -> None:
    """Steps after the view of numbers as pairs are repeated one by one, those before it at once."""
    numbers = torch.complex(first(rows()), second(rows()))
    columns, row = numbers[1:].t().imag[2:].t(), numbers[1].real
    numbers.imag.mul_(2)
    (columns.exp() * row[2:]).sum().backward()


@program
def gradient_of_the_gradient_of_a_write_into_a_view(first: nn.Linear, second: nn.Linear) -> None:
    x = rows().requires_grad_()
    y = first(x)
    y.t()[1:].mul_(3)
    functional.hardtanh(y.transpose(0, 1), inplace=True)
    loss = second(y).square().sum()
    (gradient,) = torch.autograd.grad(loss, [x], create_graph=True)
    gradient.square().mean().backward()


@program
def gradients_of_products(first: nn.Linear, second: nn.Linear) -> None:
    x, y = first(rows()), second(rows())
    (x.prod() + x.prod(1).sum() + y.prod(-1, keepdim=True).sum() + x.cumprod(0).sum()).backward()


@program
def gradient_of_the_value_that_fills(first: nn.Linear, second: nn.Linear) -> None:
    x = first(rows())
    mask = torch.ones(4, SIZE, dtype=torch.bool)
    mask[1:] = False
    x.masked_fill(mask, second(rows()).sum()).square().sum().backward()


# ---- functions of functions ----------------------------------------------------------------------


@program
def mapped_over_rows(first: nn.Linear, second: nn.Linear) -> None:
    def one(row: Tensor) -> Tensor:
        return second.weight @ torch.tanh(first.weight @ row)

    vmap(one)(rows()).sum().backward()


@program
def called_with_other_parameters(first: nn.Linear, second: nn.Linear) -> None:
    doubled = {name: 2 * value for name, value in first.named_parameters()}
    second(functional_call(first, doubled, (rows(),))).sum().backward()


# ---- where results lie ---------------------------------------------------------------------------


@program
def gradients_that_lie_across(first: nn.Linear, second: nn.Linear) -> None:
    """Each kernel chooses its result's strides, which decide whether the linear layer copies."""
    for function in (
        lambda x: functional.layer_norm(x, (SIZE,)),
        lambda x: functional.log_softmax(x, dim=-1),
        lambda x: functional.glu(second(x)),
        functional.softplus,
        functional.hardswish,
        functional.hardtanh,
        functional.logsigmoid,
        lambda x: torch.logit(x, 1e-6),
        lambda x: 2**x,
    ):
        function(first(cube())).mT.contiguous().square().sum().backward()


@program
def gradients_of_losses_that_lie_across(first: nn.Linear, second: nn.Linear) -> None:
    for loss in (functional.mse_loss, functional.smooth_l1_loss, functional.huber_loss):
        x = first(cube()).mT
        loss(x, torch.zeros(2, SIZE, 3).mT.contiguous().mT).backward()


@program
def operands_that_lie_in_different_ways(first: nn.Linear, second: nn.Linear) -> None:
    across = torch.rand(3, SIZE, SIZE).mT
    for function in (torch.logaddexp, torch.xlogy, torch.floor_divide, torch.logical_and):
        result = function(torch.rand(3, 1, SIZE), across[0]) * first(across).mT
        second(result.reshape(-1, SIZE)).sum().backward()


@program
def normalised_across(first: nn.Linear, second: nn.Linear) -> None:
    norm = nn.BatchNorm1d(SIZE)
    second(norm(first(cube()).mT).mT).square().sum().backward()


@program
def normalised_before_any_weight(first: nn.Linear, second: nn.Linear) -> None:
    """The gradient of the batch norm's input is not needed."""
    norm = nn.BatchNorm1d(SIZE)
    second(norm(cube().mT).mT).square().sum().backward()


@program
def views_with_a_dimension_of_one(first: nn.Linear, second: nn.Linear) -> None:
    x = first(torch.randn(4, 1, SIZE)).unflatten(2, (4, 2)).transpose(1, 2)
    y = x.reshape(1, 4, 4, 2).transpose(0, 1).reshape(16, 1, 2)
    (second.weight.view(16, 2, 2) @ y.mT).square().sum().backward()


@program
def columns_and_images(first: nn.Linear, second: nn.Linear) -> None:
    image = first(torch.randn(2, 3, SIZE, SIZE))
    columns = functional.unfold(image, (3, 1), padding=(1, 0))
    functional.fold(columns.mT.exp().mT, (SIZE, SIZE), (3, 1), padding=(1, 0)).sum().backward()
    functional.unfold(second(image.detach()), 1, stride=2).exp().sum().backward()


@program
def correlated_with_itself(first: nn.Linear, second: nn.Linear) -> None:
    """A saved tensor may be a lazy conjugate."""
    x, y = torch.fft.rfft(first(cube())), torch.fft.rfft(second(cube()))
    torch.fft.irfft(x * y.conj(), n=SIZE).sum().backward()
    (torch.fft.rfft(first(cube())).conj().imag * second.weight[0, :5]).square().sum().backward()


@torch.jit.script
def scaled(x: Tensor, factor: int) -> Tensor:
    return x / torch.sqrt(torch.tensor(x.size(-1), dtype=torch.float) * factor)


@program
def scripted_from_the_first_call_on(first: nn.Linear, second: nn.Linear) -> None:
    scaled(first(rows()), 2).sum().backward()
    scaled(second(rows()), 3).sum().backward()


@program
def written_into_what_was_counted(first: nn.Linear, second: nn.Linear) -> None:
    """A tensor computed only from a range is real in a CPU trace."""
    positions = torch.arange(4.0).unsqueeze(1).expand(4, SIZE).contiguous()
    positions += first(rows()).detach()
    step = nn.Parameter(torch.tensor([0.5]))
    second(positions * step).sum().backward()


@program
def matched_on_the_host(first: nn.Linear, second: nn.Linear) -> None:
    x = first(rows())
    best = np.asarray(x.detach().mT).argmin(axis=0)
    second(x[torch.as_tensor(best * 0, dtype=torch.int64)]).sum().backward()


@program
def gradient_of_the_gradient_of_samples(first: nn.Linear, second: nn.Linear) -> None:
    image, places = first(rows(SIZE)), second(rows(SIZE))
    grid = torch.stack([places, places], -1).tanh()
    samples = functional.grid_sample(image[None, None], grid[None], align_corners=False)
    both = torch.autograd.grad(samples.square().sum(), [image, places], create_graph=True)
    sum(gradient.square().sum() for gradient in both).backward()


if installed_release() < (2, 13):
    del PROGRAMS["gradient_of_the_gradient_of_samples"]  # which has no derivative before
