"""TorchScript in a step that graphmem iterates."""

from __future__ import annotations

import torch
from torch import nn

import graphmem


class Scripted(nn.Module):
    """A linear layer and a scripted activation."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.activation = torch.jit.script(doubled_tanh)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.activation(self.linear(x))
        return out


def doubled_tanh(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x * 2) * x


def test_a_step_with_scripted_parts_says_that_they_are_not_fused() -> None:
    """On a card the executor fuses them from the third call on; here each operation runs."""
    report = graphmem.analyze(Scripted(), torch.randn(64, 64), gpu="h100-80gb")
    assumed = [(each.what, each.value, each.times) for each in report.assumptions]
    assert assumed == [("TorchScript", "run without fusion", 3)]


def test_a_program_that_asks_for_fusion_runs_without_it() -> None:
    """Score-Entropy-Discrete-Diffusion does (`0605786`, model/fused_add_dropout_scale.py).

    On a CUDA build without a card PyTorch's older fuser looked for a driver then.
    """
    executor_fuses = torch._C._jit_can_fuse_on_gpu
    before = executor_fuses()
    read: list[tuple[bool, bool]] = []

    def step() -> None:
        torch._C._jit_override_can_fuse_on_gpu(True)
        read.append((torch._C._jit_can_fuse_on_gpu(), executor_fuses()))

    graphmem.analyze(lambda: graphmem.TrainingStep(step=step), gpu="h100-80gb")

    assert set(read) == {(True, False)}
    assert torch._C._jit_can_fuse_on_gpu() == before


def test_a_model_that_is_scripted_before_it_moves_trains_and_is_back_afterwards() -> None:
    """A scripted module holds tensors in C++, where a parameter that moves is another one."""
    model = torch.jit.script(nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64)))
    weight = dict(model.named_parameters())["0.weight"]
    before, x = weight.detach().clone(), torch.randn(8, 64)
    optimizer = torch.optim.SGD(model.parameters())

    with graphmem.virtual_gpu("h100"):
        model.cuda()
        model(x.cuda()).sum().backward()
        optimizer.step()
        assert weight.is_cuda
        assert weight.grad is not None
    graphmem.analyze(model, x, gpu="h100")

    assert dict(model.named_parameters())["0.weight"] is weight
    assert torch.equal(weight, before)
    assert model(x).device.type == "cpu"
