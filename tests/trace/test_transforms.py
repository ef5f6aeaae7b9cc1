"""`torch.func`: derivatives and transforms inside a step, compared with real CPU runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._decomp.decompositions_for_jvp  # may leave the frames that import it in a cycle
from torch import nn
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    vjp,
    vmap,
)

from graphmem import TrainingStep, analyze, virtual_gpu
from graphmem.errors import InputError
from graphmem.gpus import find_gpu
from graphmem.trace import TraceOptions, trace
from tests.support.oracle import assert_agree, run, traced_events
from tests.support.traced_step import traced

SAMPLES, WIDTH = 5, 8


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, 1))


def parameters_of(net: nn.Module) -> dict[str, torch.Tensor]:
    return {name: each.detach() for name, each in net.named_parameters()}


def loss_of(net: nn.Module) -> Callable[..., torch.Tensor]:
    def loss(params: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (functional_call(net, params, (x[None],)) - y).pow(2).mean()

    return loss


def per_sample_gradients(net: nn.Module, x: torch.Tensor) -> Any:
    y = x.new_ones(SAMPLES, 1)
    return vmap(grad(loss_of(net)), in_dims=(None, 0, 0))(parameters_of(net), x, y)


def gradients_of_a_batch(net: nn.Module, x: torch.Tensor) -> Any:
    return grad_and_value(loss_of(net))(parameters_of(net), x, x.new_ones(SAMPLES, 1))


def ensemble(net: nn.Module, x: torch.Tensor) -> Any:
    stacked = {name: torch.stack([each, each]) for name, each in parameters_of(net).items()}
    return vmap(lambda params, x: functional_call(net, params, (x,)), (0, None))(stacked, x)


def product_with_a_vector(net: nn.Module, x: torch.Tensor) -> Any:
    made, pull = vjp(net, x)
    return pull(torch.ones_like(made))


def tangents(net: nn.Module, x: torch.Tensor) -> Any:
    return jvp(net, (x,), (torch.ones_like(x),))


def jacobian(net: nn.Module, x: torch.Tensor) -> Any:
    return jacrev(net)(x)


def forward_jacobian(net: nn.Module, x: torch.Tensor) -> Any:
    return jacfwd(net)(x[0])


def second_derivatives(net: nn.Module, x: torch.Tensor) -> Any:
    return hessian(lambda x: net(x).sum())(x[0])


def gradient_of_a_gradient(net: nn.Module, x: torch.Tensor) -> Any:
    return grad(lambda x: grad(lambda x: net(x).sum())(x).pow(2).sum())(x)


def parameters_made_within(net: nn.Module, x: torch.Tensor) -> Any:
    """TD-MPC2's ensembles: tensordict puts parameters into a module within `vmap`."""
    weight, bias = (each.detach() for each in net[0].parameters())

    def layer(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        kept = nn.Parameter(bias), nn.Parameter(bias, requires_grad=False)
        assert [each.requires_grad for each in kept] == [True, False]
        return nn.functional.linear(x, weight, kept[0] + kept[1])

    return vmap(layer, (0, None))(torch.stack([weight, weight]), x)


def with_plain_backward(net: nn.Module, x: torch.Tensor) -> Any:
    """As in meta-learning and gradient penalties: a transform inside an autograd graph."""
    slopes = vmap(grad(lambda x: net(x).sum()))(x)
    (slopes.norm(dim=1) - 1).pow(2).mean().backward()
    return [each.grad for each in net.parameters()]


CASES = [
    per_sample_gradients,
    gradients_of_a_batch,
    ensemble,
    product_with_a_vector,
    tangents,
    jacobian,
    forward_jacobian,
    second_derivatives,
    gradient_of_a_gradient,
    parameters_made_within,
    with_plain_backward,
]


@pytest.mark.parametrize("transform", CASES)
def test_a_real_run_agrees(transform: Callable[[nn.Module, torch.Tensor], Any]) -> None:
    def build() -> TrainingStep:
        net, x = model(), torch.randn(SAMPLES, WIDTH)

        def step() -> None:
            transform(net, x)
            net.zero_grad()

        return TrainingStep(step=step)

    options = TraceOptions(steps=2)
    assert_agree(run(build, options), traced_events(build, options))


def test_per_sample_gradients_on_a_card() -> None:
    """Each of the 5 samples has a gradient for every weight, and nothing else is kept."""
    kept: list[Any] = []

    def step() -> None:
        net, x = model().cuda(), torch.randn(SAMPLES, WIDTH, device="cuda")
        kept.append(per_sample_gradients(net, x))

    graph = trace(
        lambda: TrainingStep(step=step), gpu=find_gpu("a100"), options=TraceOptions(steps=1)
    )

    alive = sum(s.nbytes for s in graph.storages if s.death is None and s.device == "cuda:0")
    assert alive == SAMPLES * (WIDTH * 16 + 16 + 16 + 1) * 4


def test_adding_to_a_missing_tangent_makes_a_zero() -> None:
    """The bias has none. fixtures/real/derivatives.py on an H200 takes 4 bytes at each such sum.

    PyTorch finds out the sum's shape with `self.to("meta")`, for which it makes the tangent.
    """
    net, x = nn.Linear(8, 4), torch.ones(2, 8)
    graph = traced(lambda: vmap(jacfwd(net.to("cuda")))(x.to("cuda")))

    targets = [op.target for op in graph.ops]
    adding = targets.index("aten._efficientzerotensor.default")
    made = targets.index("aten.zeros.default", adding)
    copied = targets.index("aten._to_copy.default", made)
    (zero,) = graph.ops[made].births
    assert graph.storages[zero].nbytes == 4
    death = graph.storages[zero].death
    assert death is not None
    assert death < graph.ops[copied + 1].tick
    assert graph.ops[copied].births == ()  # it is on the device "meta"


def test_a_missing_tangent_takes_no_memory() -> None:
    """The weight has none. cuBLAS copies zeros that are expanded from one; all else is rows."""
    with virtual_gpu("t4"):
        net, x = nn.Linear(512, 512).cuda(), torch.randn(1, 512, device="cuda")
        net(x)
        before = torch.cuda.max_memory_allocated()  # with cuBLAS's workspace, kept or not
        torch.cuda.reset_peak_memory_stats()

        jvp(net, (x,), (x,))

        assert torch.cuda.max_memory_allocated() - before < 2 * 512 * 512 * 4


def test_what_a_transform_saves_is_reported_as_saved() -> None:
    def step() -> None:
        grad(lambda x: x.sin().sum())(torch.randn(1000, device="cuda"))

    graph = trace(
        lambda: TrainingStep(step=step), gpu=find_gpu("a100"), options=TraceOptions(steps=1)
    )

    names = {owner.name for storage in graph.storages for owner in storage.owners}
    assert "SinBackward0.self" in names


def test_the_users_hooks_are_rejected_as_in_a_real_run() -> None:
    def step() -> None:
        with torch.autograd.graph.save_on_cpu():
            grad(lambda x: x.sin().sum())(torch.randn(10, device="cuda"))

    with pytest.raises(InputError, match="don't yet support saved tensor hooks"):
        analyze(lambda: TrainingStep(step=step), steps=1)
