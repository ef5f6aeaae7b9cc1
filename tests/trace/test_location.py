"""Where an operation happens: the running module and the user's line."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphmem.passes
from graphmem import TrainingStep
from graphmem.frames import is_program, short_path
from graphmem.graph import Source
from graphmem.trace import TraceOptions, trace
from graphmem.trace.location import Location

HERE = short_path(__file__)


@pytest.fixture
def location() -> Iterator[Location]:
    """Frames outside the test are not searched."""
    here = Location()
    with here.following(sys._getframe()):
        yield here


def line_after(function: Callable[..., Any], offset: int) -> int:
    return inspect.getsourcelines(function)[1] + offset


class Asking(nn.Module):
    """Records its location whenever it is called."""

    def __init__(self, location: Location) -> None:
        super().__init__()
        self.location = location
        self.seen: list[str] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(self.location.module)
        return x


class Raising(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("inside")


class TestSource:
    def test_the_calling_line_is_found(self, location: Location) -> None:
        def ask() -> Source | None:
            return location.source()

        assert ask() == Source(HERE, line_after(ask, 1), "ask")

    def test_the_innermost_line_of_the_user_wins(self, location: Location) -> None:
        def inner() -> Source | None:
            return location.source()

        def outer() -> Source | None:
            return inner()

        found = outer()
        assert found is not None
        assert found.function == "inner"

    @pytest.mark.parametrize("asked", ["source", "place"])
    def test_methods_that_dataclasses_write_are_skipped(
        self, location: Location, asked: str
    ) -> None:
        @dataclass
        class Batch:
            made_at: Source | None = field(default_factory=getattr(location, asked))

        def make() -> Batch:
            return Batch()

        assert make().made_at == Source(HERE, line_after(make, 1), make.__code__.co_name)

    @pytest.mark.parametrize("library", [torch.__file__, contextlib.__file__])
    def test_library_lines_are_skipped(self, location: Location, library: str) -> None:
        names: dict[str, Any] = {}
        exec(compile("def run(function): return function()", library, "exec"), names)

        def call() -> Source | None:
            found: Source | None = names["run"](location.source)
            return found

        assert call() == Source(HERE, line_after(call, 1), "call")

    def test_beyond_the_outermost_frame_nothing_is_searched(self) -> None:
        location = Location()
        with location.following(sys._getframe()):
            assert location.source() is None

    def test_after_the_trace_the_whole_stack_is_searched_again(self) -> None:
        location = Location()
        with location.following(sys._getframe()):
            pass
        assert location.source() is not None

    def test_the_same_line_is_one_object(self, location: Location) -> None:
        def ask() -> Source | None:
            return location.source()

        assert ask() is ask()

    def test_code_may_have_constants_that_cannot_be_hashed(self, location: Location) -> None:
        """As Dynamo's functions that resume a program after a graph break have."""

        def ask() -> Source | None:
            return location.source()

        ask.__code__ = ask.__code__.replace(co_consts=(*ask.__code__.co_consts, {}))

        assert ask() == Source(HERE, line_after(ask, 1), "ask")

    def test_the_users_frames_come_innermost_first(self, location: Location) -> None:
        def inner() -> list[str]:
            frames = list(location.user_frames())
            return [frame.f_code.co_name for frame in frames]

        def outer() -> list[str]:
            return inner()

        assert outer()[:2] == ["inner", "outer"]


class TestFiles:
    @pytest.mark.parametrize(
        ("file", "is_users"),
        [
            (__file__, True),
            (torch.__file__, False),
            (inspect.__file__, False),
            (sys.modules[Location.__module__].__file__, False),
            (graphmem.passes.__file__, False),
            ("<frozen importlib._bootstrap>", False),
            (f"{Path(torch.__file__).parent.parent}/transformers/modeling.py", True),
        ],
    )
    def test_who_owns_a_file(self, file: str, is_users: bool) -> None:
        assert is_program(file) is is_users

    def test_paths_below_the_working_directory_and_site_packages_are_short(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert short_path(str(tmp_path / "models" / "mlp.py")) == "models/mlp.py"
        assert short_path(f"{Path(torch.__file__).parent.parent}/x/y.py") == "x/y.py"
        assert short_path("/elsewhere/mlp.py") == "/elsewhere/mlp.py"


class TestModule:
    def test_the_innermost_module_is_named_by_its_path(self, location: Location) -> None:
        asking = Asking(location)
        model = nn.Sequential(nn.Identity(), nn.Sequential(asking))
        location.know(model)
        assert location.module == ""
        model(torch.ones(1))

        assert asking.seen == ["1.0"]
        assert location.module == ""

    def test_an_unknown_model_is_named_when_it_is_called(self, location: Location) -> None:
        asking = Asking(location)
        model = nn.Sequential(asking)
        model(torch.ones(1))

        assert asking.seen == ["0"]
        assert location.roots == [("", model)]

    def test_a_module_under_two_names_keeps_the_first(self, location: Location) -> None:
        asking = Asking(location)
        model = nn.ModuleDict({"wte": asking, "lm_head": asking})
        location.know(model)
        for name in ("lm_head", "wte"):
            model[name](torch.ones(1))

        assert asking.seen == ["wte", "wte"]

    def test_a_module_that_blocks_share_is_named_below_the_block_that_calls_it(
        self, location: Location
    ) -> None:
        """DDPM's blocks share one `nn.SiLU()`, and so do those of many diffusion models."""
        asking = Asking(location)

        class Block(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.acts = nn.ModuleList([nn.Identity(), asking])

            def forward(self, x: Tensor) -> Tensor:
                result: Tensor = self.acts[1](x)
                return result

        model = nn.Sequential(asking, Block(), Block())
        model(torch.ones(1))
        model(torch.ones(1))

        assert asking.seen == ["0", "1.acts.1", "2.acts.1"] * 2

    @pytest.mark.parametrize(
        ("has_weight", "names"), [(False, ["0", "1.Asking"]), (True, ["0"] * 2)]
    )
    def test_a_module_of_a_class_is_named_below_the_block_if_it_has_no_weight(
        self, location: Location, has_weight: bool, names: list[str]
    ) -> None:
        """ddpm-torch's `ResidualBlock.nonlinearity`, which is a layer of a `Sequential` too."""
        asking = Asking(location)
        asking.weight = nn.Parameter(torch.ones(1)) if has_weight else None

        class Block(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                result: Tensor = asking(x)
                return result

        nn.Sequential(asking, Block())(torch.ones(1))

        assert asking.seen == names

    def test_a_module_of_two_models_keeps_the_name_in_the_first(self, location: Location) -> None:
        shared = Asking(location)
        location.know(nn.ModuleDict({"encoder": shared}))
        second = nn.ModuleDict({"decoder": shared})
        location.know(second)
        second["decoder"](torch.ones(1))

        assert shared.seen == ["encoder"]

    def test_an_unregistered_module_is_named_by_its_class(self, location: Location) -> None:
        stranger = Asking(location)

        class Calling(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                result: Tensor = stranger(x)
                return result

        model = nn.Sequential(Calling())
        location.know(model)
        model(torch.ones(1))

        assert stranger.seen == ["0.Asking"]
        assert location.roots == [("", model), ("0.Asking", stranger)]

    def test_a_layer_that_replaces_another_has_its_name(self, location: Location) -> None:
        """As a head for other classes, or a grown layer, once the model has been called."""
        model = nn.Sequential(nn.Sequential(Asking(location), nn.Identity()))
        model(torch.ones(1))
        grown = model[0][1] = nn.Sequential(Asking(location))
        model(torch.ones(1))

        assert grown[0].seen == ["0.1.0"]
        assert location.roots == [("", model)]

    def test_an_adapter_is_named_below_the_layer_whose_forward_it_replaces(
        self, location: Location
    ) -> None:
        """The `LoRAModule` of kohya's trainers, which their model does not register."""
        model = nn.Sequential(nn.Identity(), nn.Identity())
        down = Asking(location)

        class Adapter(nn.Module):
            def __init__(self, layer: nn.Module) -> None:
                super().__init__()
                self.lora = nn.ModuleDict({"down": down})
                self.wrapped = layer.forward
                layer.forward = self.forward

            def forward(self, x: Tensor) -> Tensor:
                result: Tensor = self.lora["down"](self.wrapped(x))
                return result

        adapter = Adapter(model[1])
        model(torch.ones(1))

        assert down.seen == ["1.lora.down"]
        assert location.roots == [("", model), ("1", adapter)]

    def test_a_module_that_raises_is_left(self, location: Location) -> None:
        model = nn.Sequential(Raising())
        with pytest.raises(RuntimeError, match="inside"):
            model(torch.ones(1))

        assert location.module == ""

    def test_no_module_is_tracked_after_the_trace(self) -> None:
        location = Location()
        asking = Asking(location)
        with location.following(sys._getframe()):
            pass
        asking(torch.ones(1))

        assert asking.seen == [""]
        assert location.roots == []


def test_a_package_is_named_the_same_in_an_environment_within_the_project(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packages = Path(torch.__file__).parents[1]
    monkeypatch.chdir(packages.parent)  # such a project

    assert short_path(f"{packages}/transformers/trainer.py") == "transformers/trainer.py"
    assert short_path(f"{packages.parent}/train.py") == "train.py"


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0].neg()


class TestBackward:
    def test_a_function_written_in_python_has_the_lines_of_its_own_backward(self) -> None:
        """PyTorch's formulas run no line of the program: theirs is that of the operation."""

        def step() -> None:
            x = torch.ones(4, requires_grad=True).exp()
            Doubled.apply(x).sum().backward()  # type: ignore[no-untyped-call]

        graph = trace(lambda: TrainingStep(step=step), gpu=None, options=TraceOptions(steps=1))
        lines = {op.target: op.source.line for op in graph.ops if op.source and op.autograd_node}

        assert lines["aten.neg.default"] == line_after(Doubled.backward, 2)
        assert lines["aten.expand.default"] == line_after(step, 2)
        assert lines["aten.mul.Tensor"] == line_after(step, 1)  # by the result of exp

    def test_a_transform_without_an_operation_for_its_node_has_the_calling_line(self) -> None:
        """The node of `vjp`'s level is not that of the layer below, which is recorded."""
        weight = nn.Parameter(torch.ones(3, 3))

        def step() -> None:
            _, pull = torch.func.vjp(lambda x: x @ weight, torch.ones(3, 3))
            pull(torch.ones(3, 3))

        graph = trace(lambda: TrainingStep(step=step), gpu=None, options=TraceOptions(steps=1))
        found = [op.source for op in graph.ops if op.target == "aten.mm.default"]

        assert [source and source.line for source in found] == [
            line_after(step, 1),
            line_after(step, 2),
        ]
