"""Unusable input gets a one-line error that says what is wrong, where, and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

import graphmem
from graphmem.errors import InputError
from graphmem.targets import load_target, messages
from graphmem.trace.messages import UnknownAutocastError
from graphmem.values.choices import NotShareError

Refused = Callable[..., InputError]

NET = """
    import torch
    from torch import nn

    class Net(nn.Linear):
        def forward(self, x):
            {line}
            return super().forward(x)

    def build(model_on: str = "cpu", inputs_on: str = "cpu"):
        return Net(4, 4).to(model_on), torch.zeros(2, 4, device=inputs_on)
"""
THE_LINE = 6


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Refused:
    """Write `model.py`, trace a target on the virtual GPU, and return its error."""
    monkeypatch.chdir(tmp_path)

    def refused(text: str | None = None, target: str = "model.py", **settings: str) -> InputError:
        if text is not None:
            Path("model.py").write_text(dedent(text).lstrip("\n"))
        with pytest.raises(InputError) as raised:
            run(target, settings)
        assert raised.value.exit_code == 2
        assert "\n" not in str(raised.value)
        return raised.value

    return refused


def run(target: str, settings: dict[str, str]) -> None:
    """Analyse two steps of a target."""
    graphmem.analyze(target, settings=settings, steps=2)


# ---- the name -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "kind", "hint"),
    [
        ("modle.py:build", messages.NoSuchFileError, "did you mean model.py?"),
        ("modle.pt2", messages.NoSuchFileError, "did you mean model.py?"),
        ("nowhere/model.py", messages.NoSuchFileError, "there is no folder nowhere"),
        ("modle", messages.NoSuchModuleError, "did you mean model.py?"),
        ("no.such.module:build", messages.NoSuchModuleError, None),
        ("./folder", messages.FolderError, "name a file in it"),
        ("folder", messages.FolderError, "name a file in it: folder/small.py"),
        ("notes.txt", messages.NotPythonError, "a target is a .py file"),
        ("", messages.NoFileNamedError, "write it as model.py:build"),
        (f"{'x' * 300}.py", messages.UnreadableFileError, None),
        ("broken.pt2", messages.NoExportedProgramError, "torch.export.save"),
        ("broken.pt2:build", messages.ExportedFunctionError, None),
    ],
)
def test_a_wrong_name(
    target: str, kind: type[InputError], hint: str | None, refused: Refused, tmp_path: Path
) -> None:
    for name in ("model.py", "notes.txt", "broken.pt2", "folder/small.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    error = refused(target=target)
    assert type(error) is kind
    assert hint is None or hint in str(error.hint)


@pytest.mark.parametrize(
    ("function", "text", "kind", "hint"),
    [
        ("build", "def biuld(): ...", messages.NoFunctionError, "did you mean biuld?"),
        ("build", "def a(): ...\ndef b(): ...", messages.NoFunctionError, "it has a, b"),
        ("build", "import os", messages.NoFunctionError, "it has no function at all"),
        (
            "build",
            "raise SystemExit",
            messages.NoFunctionError,
            "`graphmem run model.py` runs a script",
        ),
        ("build", "build = 3", messages.NotCallableError, None),
        ("Net", NET.format(line=""), messages.ModelNotFunctionError, "name a"),
    ],
)
def test_a_wrong_function(
    function: str, text: str, kind: type[InputError], hint: str | None, refused: Refused
) -> None:
    error = refused(text, target=f"model.py:{function}")
    assert type(error) is kind
    assert hint is None or hint in str(error.hint)


# ---- the file -----------------------------------------------------------------------------------


def test_a_syntax_error_is_shown_with_its_place(refused: Refused) -> None:
    error = refused("import torch\n\ndef build(:\n    pass\n")
    assert str(error) == "syntax error in model.py:3: invalid syntax"
    assert "def build(:\n              ^\n" in str(error.user_traceback)


def test_a_syntax_error_in_a_sibling_is_shown_with_the_import(
    refused: Refused, tmp_path: Path
) -> None:
    (tmp_path / "sibling.py").write_text("x = (\n")
    error = refused("\nimport sibling; build = None")
    assert str(error) == "syntax error in sibling.py:1: '(' was never closed"
    assert 'model.py", line 1, in <module>' in str(error.user_traceback)


@pytest.mark.parametrize(
    "text", ["import no_such_package; build = None", "def build():\n    import no_such_package"]
)
def test_a_missing_package_is_named(text: str, refused: Refused) -> None:
    error = refused(text)
    assert "imports 'no_such_package', and there is no such module at model.py:" in str(error)
    assert "install no_such_package in graphmem's environment" in str(error.hint)


def test_an_installed_package_without_that_module_gets_no_install_hint(refused: Refused) -> None:
    error = refused("import torch.no_such_module; build = None")
    assert error.hint == "torch is installed, but has no module of that name"


def test_a_relative_import_needs_the_packages_name(refused: Refused) -> None:
    assert "package.module:build" in str(refused("from . import build").hint)


def test_an_error_raised_by_the_file_names_its_line(refused: Refused) -> None:
    error = refused("WIDTH = 4\nWIDTH / 0; build = None")
    assert str(error) == "model.py raised ZeroDivisionError: division by zero (model.py:2)"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import sys\nsys.exit(3); build = None", "model.py called sys.exit(3) at model.py:2"),
        ("def build():\n    raise SystemExit", "build() called sys.exit(None) at model.py:2"),
    ],
)
def test_a_program_that_exits(text: str, message: str, refused: Refused) -> None:
    error = refused(text)
    assert str(error) == message
    assert "__main__" in str(error.hint)


def test_a_keyboard_interrupt_passes_through(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text("def build():\n    raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load_target(str(path), {}).build()


# ---- build --------------------------------------------------------------------------------------


def test_an_error_in_build_is_shown_from_the_users_frame_on(
    refused: Refused, tmp_path: Path
) -> None:
    error = refused("""
        def helper():
            raise ValueError("no such width\\nas this")

        def build():
            helper()
    """)
    path = tmp_path / "model.py"
    assert str(error) == "build() raised ValueError: no such width (model.py:2)"
    assert re.sub(r"\n\s*[~^]+", "", str(error.user_traceback)) == (
        "Traceback (most recent call last):\n"
        f'  File "{path}", line 5, in build\n'
        "    helper()\n"
        f'  File "{path}", line 2, in helper\n'
        '    raise ValueError("no such width\\nas this")\n'
        "ValueError: no such width\nas this\n"
    )


def test_a_name_that_graphmem_does_not_have_is_the_users_mistake(refused: Refused) -> None:
    error = refused("import graphmem\n\ndef build():\n    return graphmem.tensor(4)\n")

    assert "no attribute 'tensor' (model.py:4)" in str(error)


def test_frames_of_torch_are_not_shown(refused: Refused) -> None:
    error = refused("import torch\ndef build():\n    return torch.nn.Linear(2, 'wide')")
    assert "model.py:3" in str(error)
    assert "linear.py" not in str(error.user_traceback)
    assert "graphmem/" not in str(error.user_traceback)


def test_a_cause_in_the_users_code_is_shown_too(refused: Refused) -> None:
    error = refused("""
        def build():
            try:
                {}["width"]
            except KeyError as missing:
                raise ValueError("no width") from missing
    """)
    assert "KeyError: 'width'\n\nThe above exception was the direct cause" in str(
        error.user_traceback
    )


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("None", "build() returned None"),
        ("'model'", "build() returned a value of type str"),
        ("nn.Linear", "build() returned the class Linear"),
        ("[nn.Linear(1, 1)]", "build() returned a value of type list"),
        ("(torch.ones(1), 2)", "build() returned a tuple of (Tensor, int)"),
        ("(nn.Linear(1, 1),)", "build() returned a tuple of (Linear)"),
        (
            "(nn.Linear(1, 1), 1, sum, 2)",
            "a tuple of (Linear, int, builtin_function_or_method, int)",
        ),
    ],
)
def test_a_wrong_return_value_lists_what_is_accepted(
    returned: str, message: str, refused: Refused
) -> None:
    error = refused(f"import torch\nfrom torch import nn\ndef build():\n    return {returned}")
    assert type(error) is messages.WrongReturnError
    assert message in str(error)
    assert "a graphmem.TrainingStep" in str(error.hint)


@pytest.mark.parametrize(
    ("returned", "kind"),
    [
        ("net", messages.NoInputsError),
        ("(net, None)", messages.NoInputsError),
        ("(net, x, 'mse')", messages.WrongPartError),
        ("Step()", messages.EmptyStepError),
        ("Step(net)", messages.NoInputsError),
        ("Step(model=3)", messages.WrongPartError),
        ("Step(net, x, optimizer='sgd')", messages.WrongPartError),
        ("Step(net, x, accumulate=0)", messages.WrongAccumulateError),
        ("Step(step='train')", messages.WrongPartError),
        ("Step(net, x, autocast='fp8')", UnknownAutocastError),
        ("Step(net, x, assume={'nonzero': 2})", NotShareError),
    ],
)
def test_a_training_step_with_a_wrong_part(
    returned: str, kind: type[InputError], refused: Refused
) -> None:
    error = refused(f"""
        import torch
        from graphmem import TrainingStep as Step
        def build():
            net, x = torch.nn.Linear(1, 1), torch.zeros(1, 1)
            return {returned}
    """)
    assert type(error) is kind


# ---- settings -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "settings", "kind", "hint"),
    [
        ("layers=1", {"layer": "2"}, messages.UnknownParameterError, "did you mean layers?"),
        ("layers=1", {"xyz": "2"}, messages.UnknownParameterError, "it takes layers"),
        ("", {"xyz": "2"}, messages.UnknownParameterError, "it takes none"),
        ("a, *, b, c=1", {"a": "2"}, messages.MissingParameterError, "--set b=…"),
        ("a: int", {"a": "two"}, messages.WrongSettingError, None),
        ("a: int", {"a": "1.5"}, messages.WrongSettingError, None),
        ("a: float", {"a": "x"}, messages.WrongSettingError, None),
        ("a: bool", {"a": "maybe"}, messages.WrongSettingError, None),
        ("a: int | None", {"a": "x"}, messages.WrongSettingError, None),
        ("a: Literal['x', 'y']", {"a": "z"}, messages.WrongSettingError, None),
        ("a: list[int]", {"a": "1,b"}, messages.WrongSettingError, None),
        ("a: list[int]", {"a": "(1,2),(3,4)"}, messages.WrongSettingError, None),
        ("a: tuple[int, int]", {"a": "1"}, messages.WrongSettingError, None),
        ("a: dict", {"a": "3"}, messages.WrongSettingError, None),
        ("a: dict", {"a": "{"}, messages.WrongSettingError, None),
        ("a: object()", {"a": "3"}, messages.WrongSettingError, None),
        ("a: torch.dtype", {"a": "int33"}, messages.WrongSettingError, None),
        ("**more: int", {"a": "b"}, messages.WrongSettingError, None),
    ],
)
def test_a_wrong_setting(
    parameters: str,
    settings: dict[str, str],
    kind: type[InputError],
    hint: str | None,
    refused: Refused,
) -> None:
    error = refused(
        f"import torch\nfrom typing import Literal\ndef build({parameters}): ...", **settings
    )
    assert type(error) is kind
    assert hint is None or hint in str(error.hint)


def test_an_exported_program_takes_no_settings(refused: Refused) -> None:
    error = refused(target="model.pt2", layers="2")
    assert type(error) is messages.ExportedSettingError


# ---- the step -----------------------------------------------------------------------------------


def test_mismatched_shapes_name_their_line(refused: Refused) -> None:
    error = refused(NET.format(line="x = x @ torch.ones(3, 4, device=x.device)"))
    assert "the step raised RuntimeError: a and b must have same reduction dim" in str(error)
    assert f"model.py:{THE_LINE}" in str(error)


def test_without_a_user_line_the_module_is_named(refused: Refused) -> None:
    error = refused("""
        import torch
        def build():
            return torch.nn.Sequential(torch.nn.Linear(4, 3)), torch.zeros(2, 5)
    """)
    assert "(module 0, Linear(in_features=4, out_features=3, bias=True))" in str(error)


def test_inputs_on_another_device_than_the_model(refused: Refused) -> None:
    error = refused(NET.format(line="pass"), inputs_on="cuda")
    assert str(error) == "the model is on the CPU and its inputs are on cuda:0"
    assert "put the model on the device" in str(error.hint)


@pytest.mark.parametrize(
    "line",
    ["x = x + torch.ones(4)", "x = x @ torch.ones(4, 4)", "x = torch.cat([x, torch.ones(1, 4)])"],
)
def test_a_tensor_made_on_another_device_names_its_line(line: str, refused: Refused) -> None:
    error = refused(NET.format(line=line))
    message = f"the step mixes tensors on cpu and cuda:0 at model.py:{THE_LINE}"
    assert str(error) == message
    assert "device=x.device" in str(error.hint)


def test_an_operator_without_a_meta_kernel_is_named(refused: Refused) -> None:
    error = refused("""
        import torch
        LIBRARY = torch.library.Library("graphmem_bad_input", "DEF")
        LIBRARY.define("double(Tensor x) -> Tensor")
        LIBRARY.impl("double", lambda x: x * 2, "CUDA")

        class Net(torch.nn.Linear):
            def forward(self, x):
                return torch.ops.graphmem_bad_input.double(super().forward(x))

        def build():
            return Net(4, 4), torch.zeros(2, 4)
    """)
    assert (
        str(error) == "operator graphmem_bad_input.double.default has no meta kernel at model.py:8"
    )
    assert "torch.library.register_fake" in str(error.hint)


def test_a_custom_operator_without_a_fake_kernel_is_named(refused: Refused) -> None:
    error = refused("""
        import torch

        @torch.library.custom_op("graphmem_bad_input::triple", mutates_args=())
        def triple(x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("an extension that finds no driver")

        def build():
            weight = torch.nn.Parameter(torch.zeros(4))
            net = torch.nn.Linear(4, 4)
            return net, torch.zeros(2, 4), lambda output: triple(output).sum()
    """)
    assert str(error) == "operator graphmem_bad_input::triple has no meta kernel at model.py:10"
    assert "register_fake" in str(error.hint)


def test_a_product_with_a_sparse_tensor_on_the_right(refused: Refused) -> None:
    """A CPU build has no kernel for it; a CUDA build would call the card's."""
    error = refused("""
        import torch

        def build():
            adjacency = torch.eye(4).to_sparse()
            net = torch.nn.Linear(4, 4)
            return net, torch.zeros(4, 4), lambda output: (output @ adjacency.to("cuda")).sum()
    """)
    assert (
        str(error) == "operator aten.mm.default of a sparse tensor is not supported at model.py:6"
    )


@pytest.mark.parametrize(
    "line",
    [
        "if super().forward(x).sum() > 0: x = x * 2",
        "while self.weight.norm() > 1: x = x - 1",
        "x = x if self.weight.max() != self.weight.min() else -x",
    ],
)
def test_a_branch_on_data_names_its_line(line: str, refused: Refused) -> None:
    error = refused(NET.format(line=line))
    assert f"the step branches on the value of a tensor at model.py:{THE_LINE}" in str(error)
    assert f"--assume model.py:{THE_LINE}=true" in str(error.hint)


def test_a_fully_frozen_model_has_nothing_to_train(refused: Refused) -> None:
    error = refused("""
        import torch

        def build():
            return torch.nn.Linear(4, 4).requires_grad_(False), torch.zeros(2, 4)
    """)

    assert "nothing trains" in str(error)
    assert "--inference" in (error.hint or "")


def test_a_loss_without_a_graph_is_reported_in_pytorchs_words(refused: Refused) -> None:
    error = refused("""
        import torch
        from graphmem import TrainingStep

        def build():
            return TrainingStep(step=lambda: torch.zeros((), device="cuda").backward())
    """)

    assert "element 0 of tensors does not require grad" in str(error)
    assert "model.py:5" in str(error)


# ---- lines of installed packages -----------------------------------------------------------------

PACKAGE = """
    import torch

    def raise_an_error(x):
        raise ValueError("no such mask")

    def branch(x):
        return x if x.sum() > 0 else -x

    def read(x):
        return x * x.sum().item()
"""
USES_THE_PACKAGE = """
    import pathlib, sys
    sys.path.insert(0, str(pathlib.Path(__file__).parent / "site-packages"))
    import torch, maskutils

    def build(what: str):
        model = torch.nn.Linear(4, 4)
        return model, torch.zeros(2, 4), lambda output: getattr(maskutils, what)(output).sum()
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A package in a site-packages folder."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    package = folder / "maskutils.py"
    package.write_text(dedent(PACKAGE).lstrip())
    return package


@pytest.mark.parametrize(
    ("what", "line", "message"),
    [
        ("raise_an_error", 4, "the step raised ValueError: no such mask ("),
        ("branch", 7, "the step branches on the value of a tensor at "),
    ],
)
def test_an_error_in_a_package_names_the_users_line_too(
    what: str, line: int, message: str, installed: Path, refused: Refused
) -> None:
    error = refused(USES_THE_PACKAGE, what=what)
    assert message in str(error)
    assert f"site-packages/maskutils.py:{line}, called from model.py:7" in str(error)


@pytest.mark.parametrize("what", ["raise_an_error", "branch"])
def test_an_error_in_a_packages_model_names_the_target(
    what: str, installed: Path, refused: Refused
) -> None:
    forward = f"lambda self, x: {what}(torch.nn.Linear.forward(self, x))"
    model = f"\nclass Model(torch.nn.Linear):\n    forward = {forward}\n"
    installed.with_name(f"{what}_models.py").write_text(installed.read_text() + model)
    error = refused(f"""
        import pathlib, sys
        sys.path.insert(0, str(pathlib.Path(__file__).parent / "site-packages"))
        import torch, {what}_models

        def build():
            return {what}_models.Model(4, 4), torch.zeros(2, 4)
    """)
    line = {"raise_an_error": 4, "branch": 7}[what]
    assert f"_models.py:{line}, in the model that model.py made" in str(error)


def test_an_assumption_in_a_package_names_the_users_line(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(dedent(USES_THE_PACKAGE).lstrip())
    report = graphmem.analyze("model.py", settings={"what": "read"}, steps=1)
    (assumption,) = report.assumptions
    assert str(assumption.source).endswith("maskutils.py:10")
    assert assumption.called_from == "model.py:7"


def test_the_dispatchers_table_of_kernels_is_not_shown(refused: Refused) -> None:
    error = refused("""
        import torch

        def build():
            model = torch.nn.Linear(4, 4)
            return model, torch.zeros(2, 4), fail

        def fail(output):  # c10/core/impl: `reportError` of the dispatcher
            raise NotImplementedError(
                "Could not run 'aten::quantile' with arguments from the 'CUDA' backend. This could "
                "be because the operator doesn't exist for this backend.\\n\\nCPU: registered at x"
            )
    """)
    assert str(error) == (
        "the step raised NotImplementedError: Could not run 'aten::quantile' with "
        "arguments from the 'CUDA' backend. (model.py:8)"
    )
    assert "registered at" not in str(error.user_traceback)


@pytest.mark.parametrize("where", ["build", "step"])
def test_a_base_exception_is_the_users_error_too(where: str, refused: Refused) -> None:
    error = refused(
        """
        from graphmem import TrainingStep

        class Stop(BaseException): pass

        def step():
            raise Stop("enough")

        def build(where: str):
            if where == "build":
                raise Stop("enough")
            return TrainingStep(step=step)
        """,
        where=where,
    )
    assert "raised Stop: enough (model.py:" in str(error)


def test_a_loss_that_takes_two_arguments_is_the_users_mistake(refused: Refused) -> None:
    error = refused("""
        import torch
        def build():
            return torch.nn.Linear(4, 4), torch.zeros(2, 4), lambda output, target: output
    """)
    assert "the step raised TypeError" in str(error)
    assert "missing 1 required positional argument: 'target'" in str(error)
