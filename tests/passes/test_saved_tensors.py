"""What autograd saves, by which formula, and for which gradient."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torchgen
from torch import nn

from graphmem import TrainingStep
from graphmem.gpus import find_gpu
from graphmem.graph import StepGraph
from graphmem.passes import derivatives
from graphmem.passes.saved_tensors import SAVED_TENSORS, Saved, SavedTensors
from graphmem.runtime import Runtime
from graphmem.trace import TraceOptions, trace

RUNTIME = Runtime(find_gpu("a100"), "2.13.0")


Make = Callable[[], nn.Module]


def traced(make: Make, *shape: int, inputs_train: bool = False) -> StepGraph:
    def build() -> TrainingStep:
        inputs = torch.randn(shape, requires_grad=inputs_train)
        return TrainingStep(model=make(), inputs=inputs, loss=lambda output: output.sum())

    return trace(build, gpu=find_gpu("a100"), options=TraceOptions(steps=1))


def saved_in(make: Make, *shape: int, inputs_train: bool = False) -> SavedTensors:
    graph = traced(make, *shape, inputs_train=inputs_train)
    annotation: SavedTensors = SAVED_TENSORS.run(graph, RUNTIME, {})
    return annotation


def fields(annotation: SavedTensors) -> dict[str, Saved]:
    return {f"{saved.name}.{saved.field}": saved for saved in annotation.tensors}


def test_a_linear_layer_saves_its_input_for_the_gradient_of_its_weight() -> None:
    saved = fields(saved_in(lambda: nn.Sequential(nn.Linear(8, 4)), 16, 8))

    assert list(saved) == ["AddmmBackward0.mat1"]
    assert saved["AddmmBackward0.mat1"].gradients_of == ("the gradient of 0.weight",)
    (formula,) = saved["AddmmBackward0.mat1"].formulas
    assert formula.startswith("mat2: mm_mat2_backward(grad, mat1")


def test_an_input_with_a_gradient_saves_the_weight_too() -> None:
    saved = fields(saved_in(lambda: nn.Sequential(nn.Linear(8, 4)), 16, 8, inputs_train=True))

    assert saved["AddmmBackward0.mat2"].gradients_of == ("the gradient of a moved input",)


def test_tensors_that_share_a_storage_are_counted_once() -> None:
    annotation = saved_in(lambda: nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2)), 16, 8)
    result = fields(annotation)["ReluBackward0.result"]

    assert result.storage is not None
    assert {f"{each.name}.{each.field}" for each in annotation.by_storage[result.storage]} == {
        "ReluBackward0.result",
        "AddmmBackward0.mat1",
    }


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * grads[0]


class Cubed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = Cube.apply(x)
        return result


def test_a_custom_function_gives_its_name_and_line() -> None:
    saved = fields(saved_in(lambda: nn.Sequential(nn.Linear(8, 4), Cubed()), 16, 8))
    (formula,) = saved["CubeBackward.tensors[0]"].formulas
    first_line = Cube.forward.__code__.co_firstlineno

    assert formula.startswith("custom function Cube.forward (")
    assert formula.endswith(f"test_saved_tensors.py:{first_line})")


def test_a_node_that_hides_its_fields_has_the_formula_of_its_operator() -> None:
    class Exponentials(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch._foreach_exp([x * self.scale])[0]

    saved = fields(saved_in(Exponentials, 16, 4))

    assert saved["ForeachExpBackward0."].formulas == ("self: grad * result.conj()",)


def theirs() -> dict[str, Any]:
    """PyTorch's own parse of derivatives.yaml, by node name."""
    load = pytest.importorskip("torchgen.packaged.autograd.load_derivatives").load_derivatives
    packaged = Path(torchgen.__file__).parent / "packaged"
    native = packaged / "ATen" / "native"
    files = (
        packaged / "autograd" / "derivatives.yaml",
        native / "native_functions.yaml",
        native / "tags.yaml",
    )
    infos, _ = load(*map(str, files))
    return {info.op: info for variants in infos.values() for info in variants.values() if info.op}


def saved_tensors_of(derivative: Any) -> set[str]:
    """The tensors among a derivative's saved variables, by torchgen's C++ types."""
    found = set()
    for each in (*derivative.saved_inputs, *derivative.saved_outputs):
        kind = str(each.nctype.type)
        if "Tensor" in kind and "TensorOptions" not in kind and "TensorGeometry" not in kind:
            found.add(str(getattr(each.nctype.name, "name", each.nctype.name)))
    return found


def test_derivatives_are_parsed_as_pytorch_parses_them() -> None:
    """Every node, its differentiable arguments, and the tensors each formula needs."""
    wrong = []
    compared = 0
    for node, info in theirs().items():
        ours = derivatives.of_node(node)
        if ours is None:
            assert node.startswith("Foreach"), node  # derived from the operator for one tensor
            continue
        compared += 1
        assert ours.differentiable == tuple(arg.name for arg in info.args_with_derivatives), node
        by_names = {formula.gradients_of: formula for formula in ours.formulas}
        for derivative in info.derivatives:
            formula = by_names[tuple(derivative.var_names)]
            if not all(formula.needs(name) for name in saved_tensors_of(derivative)):
                wrong.append((node, str(formula)))

    assert compared > 500
    assert not wrong


def test_a_formula_that_only_uses_the_shape_needs_no_tensor() -> None:
    formula = derivatives.GradientFormula(("self",), "grad.expand_symint(self.sym_sizes()) / other")

    assert (formula.needs("self"), formula.needs("other")) == (False, True)
