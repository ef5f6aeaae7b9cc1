"""Tensors that hold others are taken apart without reading them."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map_only

import graphmem
from graphmem import TrainingStep


class Scaled(torch.Tensor):
    """A weight that may have a scale, as torchao's `WeightWithDynamicFloat8CastTensor`.

    It asks whether the scale is true where it means "is there one" (torchao 0.18,
    torchao/float8/fsdp_utils.py).
    """

    def __new__(cls, inner: torch.Tensor) -> Scaled:
        return torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            dtype=inner.dtype,
            device=inner.device,
            requires_grad=inner.requires_grad,
        )

    def __init__(self, inner: torch.Tensor) -> None:
        self.numbers = inner
        self.scale: torch.Tensor | None = None

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["numbers", "scale"] if self.scale else ["numbers"], None

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: Any, size: Any, stride: Any) -> Scaled:
        return Scaled(inner["numbers"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inner = tree_map_only(Scaled, lambda each: each.numbers, (args, kwargs or {}))
        made = func(*inner[0], **inner[1])
        return cls(made) if func is torch.ops.aten.detach.default else made


class Net(torch.nn.Module):
    """Computes the scale after each use of its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(Scaled(torch.randn(512, 256, device="cuda")))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def test_whether_a_number_inside_is_true_is_not_asked_of_the_card() -> None:
    def build() -> TrainingStep:
        net = Net()

        def step() -> None:
            net(torch.ones(64, 512, device="cuda"))
            weight: Any = net.weight
            weight.scale = weight.numbers.abs().max()

        return TrainingStep(step=step)

    report = graphmem.analyze(build, gpu="h100-80gb", steps=3)

    names = {owner.name: held.bytes for held in report.at_peak.holders for owner in held.owners}
    assert names["weight.numbers"] == 4 * 512 * 256
