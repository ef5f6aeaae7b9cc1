"""From a target the user names to a traceable training step."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch
from torch import nn

from graphmem import TrainingStep
from graphmem.errors import InputError
from graphmem.gpus import find_gpu
from graphmem.graph import OwnerKind, StepGraph
from graphmem.graph_lines import lines_of
from graphmem.targets import Target, load_target
from graphmem.torch_releases import installed_release
from graphmem.trace import TraceOptions, trace

Write = Callable[..., Path]

MODEL = """
    import torch
    from torch import nn

    def build(width: int = 4):
        return nn.Linear(width, 2), torch.zeros(3, width)
"""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a Python file below the test's folder."""

    def write(text: str, name: str = "model.py") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text).lstrip("\n"))
        return path

    return write


def made(target: str | Path | Callable[..., Any], **settings: str) -> TrainingStep:
    named = str(target) if isinstance(target, Path) else target
    return load_target(named, settings).build()


def traced(target: Target, steps: int = 1) -> StepGraph:
    with target.imported() as build:
        return trace(build, gpu=find_gpu("a100"), options=TraceOptions(steps=steps))


# ---- what a target may be -----------------------------------------------------------------------


def test_a_file_and_a_function(write: Write) -> None:
    path = write("def tiny(): ...\n" + dedent(MODEL).replace("build", "small"))
    assert isinstance(made(f"{path}:small").model, nn.Linear)


def test_the_function_is_build_unless_it_is_named(write: Write) -> None:
    assert isinstance(made(write(MODEL)).model, nn.Linear)


def test_a_dotted_module_is_found_from_the_working_directory(
    write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write(MODEL, "zoo/small.py")
    monkeypatch.chdir(tmp_path)
    assert isinstance(made("zoo.small:build").model, nn.Linear)


def test_a_callable_is_also_a_target() -> None:
    def build(width: int) -> TrainingStep:
        return TrainingStep(model=nn.Linear(width, width), inputs=torch.zeros(1, width))

    target = load_target(build, {"width": "3"})
    assert (target.name, target.build().inputs.shape) == ("build", (1, 3))


def test_a_target_keeps_the_name_the_user_gave(write: Write) -> None:
    text = f"{write(MODEL)}:build"
    assert load_target(text, {}).name == text


def test_the_users_code_runs_only_when_the_step_is_made(write: Write) -> None:
    target = load_target(str(write("raise ValueError('too early'); build = None")), {})
    with target.imported() as build, pytest.raises(InputError, match="too early"):
        build()


def test_a_wrong_file_name_is_reported_without_importing_torch(tmp_path: Path) -> None:
    program = dedent(f"""
        import sys
        from graphmem.errors import InputError
        from graphmem.targets import load_target
        try:
            load_target({str(tmp_path / "missing.py")!r}, {{}})
        except InputError:
            sys.exit("torch" in sys.modules)
        sys.exit("no error")
    """)
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


# ---- imports ------------------------------------------------------------------------------------


def test_a_file_imports_its_siblings(write: Write) -> None:
    write("WIDTH = 7", "sizes.py")
    path = write("""
        import sizes, torch
        def build():
            return torch.nn.Linear(sizes.WIDTH, 1), torch.zeros(1, sizes.WIDTH)
    """)
    assert made(path).inputs.shape == (1, 7)


def test_a_sibling_may_be_imported_inside_forward(write: Write) -> None:
    write("FACTOR = 2.0", "late/factor.py")
    path = write("""
        import torch

        class Net(torch.nn.Linear):
            def forward(self, x):
                from late.factor import FACTOR
                return super().forward(x) * FACTOR

        def build():
            return Net(4, 4), torch.zeros(1, 4)
    """)
    graph = traced(load_target(str(path), {}))
    assert "aten.mul.Tensor" in [op.target for op in graph.ops]


def test_siblings_of_one_name_in_two_folders_do_not_mix(write: Write) -> None:
    text = """
        import sizes, torch
        def build():
            return torch.nn.Linear(sizes.WIDTH, 1), torch.zeros(1, sizes.WIDTH)
    """
    for folder, width in (("one", 1), ("two", 2)):
        write(f"WIDTH = {width}", f"{folder}/sizes.py")
        assert made(write(text, f"{folder}/model.py")).inputs.shape == (1, width)


def test_a_module_of_the_same_name_loaded_before_is_put_back(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = type(sys)("sizes")
    elsewhere.__file__ = "/elsewhere/sizes.py"
    monkeypatch.setitem(sys.modules, "sizes", elsewhere)
    write("WIDTH = 5", "sizes.py")
    path = write("""
        import sizes, torch
        def build():
            return torch.nn.Linear(sizes.WIDTH, 1), torch.zeros(1, sizes.WIDTH)
    """)
    assert made(path).inputs.shape == (1, 5)
    assert sys.modules["sizes"] is elsewhere


def test_every_load_is_fresh(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "model", raising=False)  # another test's
    path = write(MODEL + "    CALLS = []\n")
    target = load_target(str(path), {})
    seen = []
    for _ in range(2):
        with target.imported() as build:
            build()
            seen.append(sys.modules["model"])
    assert seen[0] is not seen[1]
    assert "model" not in sys.modules


def test_paths_added_by_the_file_are_removed_with_their_imports(write: Write) -> None:
    write("WIDTH = 3", "library/extra_sizes.py")
    path = write("""
        import sys, pathlib
        sys.path.append(str(pathlib.Path(__file__).parent / "library"))
        import extra_sizes, torch
        def build():
            return torch.nn.Linear(extra_sizes.WIDTH, 1), torch.zeros(1, extra_sizes.WIDTH)
    """)
    before = list(sys.path)
    assert made(path).inputs.shape == (1, 3)
    assert sys.path == before
    assert "extra_sizes" not in sys.modules


def test_a_file_named_like_an_installed_module_does_not_replace_it(write: Write) -> None:
    assert isinstance(made(write(MODEL, "random.py")).model, nn.Linear)
    assert sys.modules["random"].__file__ != str(write(MODEL, "random.py"))


def test_a_file_sees_its_own_name_as_the_command_line(write: Write) -> None:
    path = write("""
        import argparse, torch
        parser = argparse.ArgumentParser()
        parser.add_argument("--width", type=int, default=6)
        arguments = parser.parse_args()
        def build():
            return torch.nn.Linear(arguments.width, 1), torch.zeros(1, arguments.width)
    """)
    assert made(path).inputs.shape == (1, 6)


# ---- what build returns -------------------------------------------------------------------------


class NeedsNothing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, scale: float = 2.0) -> torch.Tensor:
        return (self.weight * scale).sum()


def test_a_model_alone() -> None:
    graph = traced(load_target(NeedsNothing, {}))
    assert any(storage.owned_as(OwnerKind.GRADIENT) for storage in graph.storages)


def test_a_model_and_its_inputs() -> None:
    inputs = {"input": torch.zeros(1, 4)}
    step = made(lambda: (nn.Linear(4, 2), inputs))
    assert (step.inputs, step.loss) == (inputs, None)


def test_a_model_its_inputs_and_a_loss() -> None:
    def loss(output: torch.Tensor) -> torch.Tensor:
        return output.mean()

    assert made(lambda: (nn.Linear(4, 2), torch.zeros(1, 4), loss)).loss is loss


def test_a_training_step_keeps_its_options() -> None:
    optimizer = partial(torch.optim.SGD, lr=0.1)
    step = TrainingStep(nn.Linear(4, 2), torch.zeros(1, 4), optimizer=optimizer, autocast="bf16")
    assert made(lambda: step) == step


def test_without_an_optimizer_it_is_adamw() -> None:
    optimizer: Any = made(lambda: (nn.Linear(4, 2), torch.zeros(1, 4))).optimizer
    assert isinstance(optimizer(nn.Linear(1, 1).parameters()), torch.optim.AdamW)


def test_a_custom_step_gets_no_optimizer() -> None:
    assert made(lambda: TrainingStep(step=lambda: None)).optimizer is None


# ---- settings -----------------------------------------------------------------------------------

LAZY = "" if sys.version_info >= (3, 14) else "from __future__ import annotations\n"
SIGNATURES = """
    from collections.abc import Sequence
    from typing import Annotated, Any, Literal, Optional, Union
    import torch

    SEEN = []

    def build({parameter}):
        print(repr(value), end="")
        return torch.nn.Linear(1, 1), torch.zeros(1, 1)
"""


@pytest.mark.parametrize(
    ("annotation", "text", "value"),
    [
        ("int", "12", 12),
        ("int", "-1_000", -1000),
        ("float", "1e-3", 0.001),
        ("float", "2", 2.0),
        ("str", "12", "12"),
        ("str", "a,b", "a,b"),
        ("bool", "true", True),
        ("bool", "False", False),
        ("bool", "0", False),
        ("bool", "on", True),
        ("'int'", "5", 5),
        ("Annotated[int, 'layers']", "5", 5),
        ("Literal['fp16', 'bf16']", "bf16", "bf16"),
        ("Literal[1, 2]", "2", 2),
        ("Optional[int]", "none", None),
        ("Optional[int]", "3", 3),
        ("str | None", "None", None),
        ("str | None", "gelu", "gelu"),
        ("Union[str, int]", "3", 3),
        ("float | int", "3", 3),
        ("bool | str", "yes", True),
        ("list[int]", "1,2,3", [1, 2, 3]),
        ("list[int]", "[1, 2]", [1, 2]),
        ("list[str]", "['a', b]", ["a", "b"]),
        ("Sequence[float]", "1,2.5", [1.0, 2.5]),
        ("tuple[int, ...]", "(3, 4, 6, 3)", (3, 4, 6, 3)),
        ("tuple[int, ...]", "3", (3,)),
        ("tuple[int, ...]", "", ()),
        ("tuple[int, str]", "3,relu", (3, "relu")),
        ("tuple[int, ...] | None", "3,4", (3, 4)),
        ("str | list[int]", "3,4", [3, 4]),
        ("tuple", "3,relu", (3, "relu")),
        ("dict", "{'a': 1}", {"a": 1}),
        ("torch.dtype", "bfloat16", torch.bfloat16),
        ("torch.dtype", "torch.float16", torch.float16),
        ("Any", "3", 3),
        ("NotImported", "3", 3),
    ],
)
def test_a_setting_is_parsed_by_its_annotation(
    annotation: str, text: str, value: Any, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    future = LAZY if "NotImported" in annotation else ""
    path = write(future + dedent(SIGNATURES).format(parameter=f"value: {annotation}"))
    made(path, value=text)
    assert capsys.readouterr().out == repr(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [("12", 12), ("1e-3", 0.001), ("false", False), ("(1, 2)", (1, 2)), ("gelu", "gelu")],
)
@pytest.mark.parametrize("parameter", ["value", "**others"])
def test_without_annotation_a_setting_is_a_literal_or_text(
    parameter: str, text: str, value: Any, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    body = SIGNATURES.replace(
        "repr(value)", 'repr(others["value"])' if "*" in parameter else "repr(value)"
    )
    made(write(dedent(body).replace("{parameter}", parameter)), value=text)
    assert capsys.readouterr().out == repr(value)


def test_annotations_may_name_what_only_type_checkers_import(write: Write) -> None:
    model = """
        import torch

        class Net(torch.nn.Linear):
            def forward(self, x: Batch = None) -> Batch:
                return super().forward(torch.zeros(3, 4))

        def build(width: Width = 4) -> Network:
            return Net(width, 2)
    """
    assert made(write(LAZY + dedent(model)), width="4").model is not None


# ---- exported programs --------------------------------------------------------------------------


class Exportable(nn.Module):
    """Parameters, one tied and one frozen, a buffer, and a tensor made in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.second.bias.requires_grad_(False)
        self.scale: torch.Tensor
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x: torch.Tensor, shift: torch.Tensor | None = None) -> torch.Tensor:
        x = self.second(torch.relu(self.first(x))) * self.scale
        x = x + torch.arange(8, device=x.device).to(x.dtype)
        return x if shift is None else x + shift


X, SHIFT = torch.zeros(2, 8), torch.zeros(8)


@pytest.fixture
def export(tmp_path: Path) -> Callable[..., Target]:
    """Export the model with these inputs; return the file as a target."""

    def export(*args: torch.Tensor, **kwargs: torch.Tensor) -> Target:
        path = tmp_path / "model.pt2"
        torch.export.save(torch.export.export(Exportable(), args, kwargs), path)
        return load_target(str(path), {})

    return export


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((X,), {}), ((X, SHIFT), {}), ((), {"x": X}), ((X,), {"shift": SHIFT})],
    ids=["one", "two", "keywords", "both"],
)
def test_an_exported_program_trains(
    args: tuple[torch.Tensor, ...],
    kwargs: dict[str, torch.Tensor],
    export: Callable[..., Target],
) -> None:
    graph = traced(export(*args, **kwargs))
    weight, bias = 8 * 8 * 4, 8 * 4
    trained = weight + bias  # the tied weight once, and the bias that is not frozen
    assert bytes_of(graph, OwnerKind.PARAMETER) == trained + bias
    if installed_release() < (2, 10):
        trained += bias  # `torch.export.load` did not restore `requires_grad`
    assert bytes_of(graph, OwnerKind.GRADIENT) == trained
    assert bytes_of(graph, OwnerKind.OPTIMIZER_STATE) == 2 * trained


def bytes_of(graph: StepGraph, kind: OwnerKind) -> int:
    return sum(storage.nbytes for storage in graph.storages if storage.owned_as(kind))


def test_tensors_made_by_an_exported_program_are_on_the_gpu(
    export: Callable[..., Target],
) -> None:
    graph = traced(export(X))
    (arange,) = [op for op in graph.ops if op.target == "aten.arange.default"]
    assert [graph.storages[birth].nbytes for birth in arange.births] == [8 * 8]


def test_an_exported_program_makes_a_new_step_each_time(export: Callable[..., Target]) -> None:
    target = export(X)
    assert list(lines_of(traced(target))) == list(lines_of(traced(target)))
