"""What optimizers keep: as many bytes as on a CPU, each named, however the optimizer nests it."""

from __future__ import annotations

import importlib
import importlib.util
import unittest.mock
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

import graphmem
from graphmem.graph import OwnerKind
from tests.support.sizes import KEPT_WORKSPACES

WIDTH = 64
with_kept_workspaces = unittest.mock.patch.dict("os.environ", KEPT_WORKSPACES)
"""A product takes more than an optimizer's step where it returns its workspace, since 2.15."""
Make = Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer]


class Projector:
    """An object with a matrix, as in GaLore's state."""

    def __init__(self, matrix: torch.Tensor) -> None:
        self.rank = matrix.shape[1]
        self.ortho_matrix = matrix


class Halves(torch.Tensor):
    """A tensor that holds others, as torchao's optimizer states do."""

    def __new__(cls, codes: torch.Tensor, scale: torch.Tensor) -> Halves:
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, device=codes.device)

    def __init__(self, codes: torch.Tensor, scale: torch.Tensor) -> None:
        self.codes, self.scale = codes, scale

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["codes", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Halves:
        return cls(inner["codes"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return NotImplemented


class Nesting(torch.optim.Optimizer):
    """Keeps its state in lists, objects and tensors that hold others."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for each in group["params"]:
                if each not in self.state:
                    self.state[each] = {
                        "Q": [torch.zeros_like(each), each.new_zeros(32, 32)],
                        "projector": Projector(each.new_zeros(WIDTH, 16)),
                        "exp_avg": Halves(
                            torch.zeros_like(each, dtype=torch.uint8), each.new_zeros(16)
                        ),
                    }


def stepped(make: Make, device: str, steps: int = 2) -> torch.optim.Optimizer:
    """An optimizer of one matrix after some steps."""
    layer = nn.Linear(WIDTH, WIDTH, bias=False, device=device)
    optimizer = make(list(layer.parameters()))
    if hasattr(optimizer, "train"):
        optimizer.train()
    for _ in range(steps):
        layer(torch.ones(8, WIDTH, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


def test_every_part_of_a_nested_state_has_a_name() -> None:
    with graphmem.virtual_gpu("t4") as gpu:
        optimizer = stepped(Nesting, "cuda")
    del optimizer

    named = {
        (owner.name, storage.nbytes)
        for storage in gpu.step().graph.storages
        for owner in storage.owners
        if owner.kind is OwnerKind.OPTIMIZER_STATE
    }
    assert named == {
        ("weight.Q[0]", WIDTH * WIDTH * 4),
        ("weight.Q[1]", 32 * 32 * 4),
        ("weight.projector.ortho_matrix", WIDTH * 16 * 4),
        ("weight.exp_avg.codes", WIDTH * WIDTH),
        ("weight.exp_avg.scale", 16 * 4),
    }


@with_kept_workspaces
def test_what_the_first_step_makes_is_named_at_the_peak_in_that_step() -> None:
    with graphmem.virtual_gpu("t4") as gpu:
        optimizer = stepped(torch.optim.Adam, "cuda", steps=1)
    del optimizer

    report = gpu.report()
    of_weights = [each for each in report.at_peak.holders if each.shape == [WIDTH, WIDTH]]
    assert (report.peak.phase, report.peak.op) == ("optimizer", "aten._foreach_sqrt.default")
    assert sorted(each.reason for each in of_weights if each.category != "temporary") == [
        "the parameter weight",
        "weight.exp_avg, the optimizer's state",
        "weight.exp_avg_sq, the optimizer's state",
        "weight.grad, the gradient that the optimizer reads",
    ]


def test_what_trains_outside_of_modules_is_a_parameter() -> None:
    """As in style transfer, which trains an image, and in copies of weights in full precision."""

    class Model:
        def __init__(self) -> None:
            weights = (torch.randn(WIDTH, WIDTH, device="cuda") for _ in range(2))
            self.weight, nameless = (each.requires_grad_() for each in weights)
            self.more = deque([nameless])

    def train() -> None:
        model, image = Model(), torch.rand(3, WIDTH, WIDTH, device="cuda", requires_grad=True)
        optimizer = torch.optim.Adam([*model.more, model.weight, image])
        for _ in range(2):
            (image @ model.weight @ model.more[0]).sum().backward()
            optimizer.step()

    with graphmem.virtual_gpu("t4") as gpu:
        train()

    numbers = 2 * WIDTH * WIDTH + 3 * WIDTH * WIDTH
    report = gpu.report()
    assert report.model.parameters == numbers
    assert report.model.parameter_bytes == report.model.gradient_bytes == numbers * 4
    assert report.model.optimizer_state_bytes == 2 * numbers * 4
    owners = [owner for storage in gpu.step().graph.storages for owner in storage.owners]
    names = {owner.name for owner in owners if owner.kind is OwnerKind.PARAMETER}
    assert names == {"Adam.param_groups[0].params[0]", "model.weight", "image"}


@with_kept_workspaces
def test_what_the_script_made_before_is_no_temporary_result_of_the_optimizer() -> None:
    class Average:
        def __init__(self, net: nn.Linear) -> None:
            self.weight = net.weight.detach().clone()

    def train() -> None:
        net = nn.Linear(WIDTH, WIDTH, bias=False, device="cuda")
        average, optimizer = Average(net), torch.optim.Adam(net.parameters())
        net(torch.ones(1, WIDTH, device="cuda")).sum().backward()
        optimizer.step()
        assert average is not None

    with graphmem.virtual_gpu("t4") as gpu:
        train()

    report = gpu.report()
    assert report.peak.phase == "optimizer"
    reasons = [each.reason for each in report.at_peak.holders]
    assert any(each.startswith("held by the variable average.weight ") for each in reasons)


def test_a_table_with_tensors_as_keys_names_their_class() -> None:
    """Printing a key would be an operation, which looks for names, and so on without end."""

    def prune() -> None:
        net, kept = nn.Linear(WIDTH, WIDTH, device="cuda"), {}
        for _ in range(2):
            net(torch.ones(WIDTH, device="cuda")).sum().backward()
            kept[net.weight] = net.weight.detach().abs()

    with graphmem.virtual_gpu("t4") as gpu:
        prune()

    owners = [owner.name for storage in gpu.step().graph.storages for owner in storage.owners]
    assert "kept[<Parameter>]" in owners


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of a state that have memory."""
    if isinstance(value, torch.Tensor):
        if is_traceable_wrapper_subclass(value):
            for name in value.__tensor_flatten__()[0]:
                yield from tensors_in(getattr(value, name))
        else:
            yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from tensors_in(each)
    elif hasattr(value, "__dict__"):
        yield from tensors_in(vars(value))


def bytes_kept(optimizer: torch.optim.Optimizer) -> list[int]:
    return [each.untyped_storage().nbytes() for each in tensors_in(dict(optimizer.state))]


def low_rank(cls: Any) -> Make:
    options = {"rank": 16, "update_proj_gap": 2, "scale": 0.25, "proj_type": "std"}
    return lambda parameters: cls([{"params": parameters, **options}], lr=1e-3)


OPTIMIZERS: list[tuple[str, str, Callable[[Any], Make]]] = [
    ("torch.optim", "Adafactor", lambda cls: cls),
    ("torch.optim", "Muon", lambda cls: cls),
    ("transformers", "Adafactor", lambda cls: lambda given: cls(given, 1e-3, scale_parameter=False,
                                                                 relative_step=False)),
    ("galore_torch", "GaLoreAdamW", low_rank),
    ("lion_pytorch", "Lion", lambda cls: cls),
    ("prodigyopt", "Prodigy", lambda cls: cls),
    ("schedulefree", "AdamWScheduleFree", lambda cls: cls),
    ("torchao.optim", "AdamW8bit", lambda cls: lambda given: cls(given, block_size=64)),
    ("torchao.optim", "AdamW4bit", lambda cls: cls),
    ("torchao.optim", "AdamWFp8", lambda cls: cls),
]  # fmt: skip


@pytest.mark.parametrize(
    ("library", "name", "made_by"), OPTIMIZERS, ids=[f"{row[0]}.{row[1]}" for row in OPTIMIZERS]
)
def test_an_optimizer_keeps_as_many_bytes_as_on_a_cpu(
    library: str, name: str, made_by: Callable[[Any], Make]
) -> None:
    if importlib.util.find_spec(library.partition(".")[0]) is None:
        pytest.skip(f"{library} is not installed")
    make = made_by(getattr(importlib.import_module(library), name))

    with torch.compiler.set_stance("force_eager"):
        real = bytes_kept(stepped(make, "cpu"))
        with graphmem.virtual_gpu("h100-80gb"):
            predicted = bytes_kept(stepped(make, "cuda"))

    assert predicted == real
    assert sum(real) > 0


def test_a_table_by_addresses_names_none_of_them() -> None:
    """An object's `id` differs from run to run, and a report should not."""

    def prune() -> None:
        net, kept = nn.Linear(WIDTH, WIDTH, device="cuda"), {}
        for _ in range(2):
            net(torch.ones(WIDTH, device="cuda")).sum().backward()
            kept[id(net.weight)] = net.weight.detach().abs()

    with graphmem.virtual_gpu("t4") as gpu:
        prune()

    owners = [owner.name for storage in gpu.step().graph.storages for owner in storage.owners]
    assert "kept[<id>]" in owners
