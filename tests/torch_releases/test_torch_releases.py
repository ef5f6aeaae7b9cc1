"""Which PyTorch releases graphmem runs on, and what it needs from them."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import graphmem
from graphmem.errors import InternalError
from graphmem.torch_releases import installed_release
from graphmem.torch_releases.manifest import MANIFEST
from graphmem.virtual_device.patching import replaced
from tests.support.places import ROOT


def a_linear_layer() -> Any:
    return nn.Linear(8, 8), torch.randn(2, 8)


@pytest.fixture
def pretending(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Called with a version, it makes the installed torch report that version."""

    def pretend(version: str) -> None:
        monkeypatch.setattr(torch, "__version__", version)
        installed_release.cache_clear()

    yield pretend
    monkeypatch.undo()
    installed_release.cache_clear()


def assumptions(**options: Any) -> list[str]:
    report = graphmem.analyze(a_linear_layer, steps=1, **options)
    return [f"{each.what}: {each.value} ({each.why})" for each in report.assumptions]


# ---- the list of names ---------------------------------------------------------------------------


def test_the_installed_torch_has_every_name_that_is_listed() -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "graphmem.torch_releases"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert checked.returncode == 0, checked.stdout
    assert checked.stdout.startswith(f"torch {torch.__version__}: 0 of ")


def test_replacing_a_name_that_is_not_listed_is_an_error() -> None:
    before = torch.numel

    with (
        pytest.raises(InternalError, match=r"torch\.numel is replaced but not in"),
        replaced([(torch, "numel", None)]),
    ):
        pytest.fail("it was replaced")

    assert torch.numel is before


def test_replacing_a_listed_name_that_torch_lacks_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As if a newer release had dropped it; earlier replacements are undone."""
    make_grads, apply = torch.autograd._make_grads, nn.Module._apply
    monkeypatch.delattr(torch.autograd, "_make_grads")
    wanted = [(nn.Module, "_apply", None), (torch.autograd, "_make_grads", make_grads)]

    with (
        pytest.raises(graphmem.InputError, match=r"has no torch\.autograd\._make_grads, which"),
        replaced(wanted),
    ):
        pytest.fail("it was replaced")

    assert nn.Module._apply is apply


def test_every_private_name_of_torch_in_the_sources_is_listed() -> None:
    listed = {name for row in MANIFEST for name in (*row.owner.split("."), *row.names.split())}
    files = [*(ROOT / "graphmem").rglob("*.py"), *(ROOT / "passes").rglob("*.py")]
    found = {(name, file.name) for file in files for name in private_names(file)}

    assert sorted(each for each in found if each[0] not in listed) == []


def private_names(file: Path) -> Iterator[str]:
    """The parts of dotted names below `torch` that begin with an underscore, except operators."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            parts = [*str(node.module).split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Attribute):
            parts = ast.unparse(node).split(".")
        else:
            continue
        if parts[0] == "torch" and parts[1] != "ops":
            yield from (part for part in parts if part.startswith("_") and part[:2] != "__")


# ---- untested releases ---------------------------------------------------------------------------


def test_an_older_torch_is_rejected_in_one_line_before_anything_is_patched(
    pretending: Any, run_graphmem: Any, tmp_path: Path
) -> None:
    model = tmp_path / "model.py"
    model.write_text(
        "import torch\ndef build():\n    return torch.nn.Linear(8, 8), torch.ones(8)\n"
    )
    before = {name: getattr(torch.Tensor, name) for name in ("to", "cuda", "data_ptr")}
    pretending("2.4.1")

    done = run_graphmem("analyze", f"{model}:build")

    assert done.exit_code == 2
    first, hint = done.stderr.splitlines()
    assert first == (
        "error: torch 2.4.1 is too old: graphmem runs on 2.5 to 2.15, and on newer ones"
    )
    assert hint.startswith("hint: ")
    assert before == {name: getattr(torch.Tensor, name) for name in before}


@pytest.mark.skipif(installed_release() < (2, 13), reason="lacks names of later releases")
def test_a_newer_torch_runs_and_the_report_says_so(pretending: Any) -> None:
    pretending("3.0.0")

    assert assumptions() == [
        "rules of torch 3.0.0: those of 2.15 (it is newer than what graphmem was tested on)"
    ]


def test_the_report_says_what_comes_of_the_installed_torch() -> None:
    installed = torch.__version__.partition("+")[0]
    other = "2.9" if installed_release() != (2, 9) else "2.10"

    assert assumptions() == []
    report = graphmem.analyze(a_linear_layer, steps=1, torch=other)
    (assumed,) = report.assumptions
    composites = f"composites, derivative formulas and optimizers of {installed}"
    assert (assumed.what, assumed.value) == (
        f"what torch {other} runs above the card's kernels",
        composites,
    )
    assert "--torch chooses the CUDA rules" in assumed.why
    peak = report.to_text().split("\n\n")[1].splitlines()
    assert f"  with the {composites}, not of {other}" in peak


@pytest.mark.skipif(installed_release() < (2, 14), reason="splits no ties")
def test_it_says_what_is_known_to_differ() -> None:
    """tools/autograd/derivatives.yaml, `masked_fill_inplace_if_safe`, since 2.14."""
    (assumed,) = assumptions(torch="2.13")

    assert "Known to differ: since 2.14, the gradient of a tie is split" in assumed


def test_it_says_that_stages_of_a_pipeline_kept_more() -> None:
    """torch/distributed/pipelining/stage.py, `forward_one_chunk`, of 2.6.0 and of 2.8.0."""
    kept = "since 2.8, only a pipeline's last stage keeps the outputs of all microbatches"

    assert kept in assumptions(torch="2.7")[0]
    assert kept not in "".join(assumptions(torch="2.8"))


# ---- what differs between releases ---------------------------------------------------------------


@pytest.mark.skipif(installed_release() < (2, 9), reason="until 2.8 rms_norm is no operation")
@pytest.mark.parametrize(
    ("release", "saved"),
    [
        # Autocast casts rms_norm to float32 since 2.12 (ATen/autocast_mode.h): one kernel keeps its
        # input, rows of 64 in float32, and a root for each of the 8 rows. Before, its input is
        # bfloat16 and the weight float32, which has no kernel, and the decomposition keeps more.
        ("2.11", 14_368),
        ("2.12", 12_320),
    ],
)
def test_autocast_casts_rms_norm_as_the_chosen_release_does(release: str, saved: int) -> None:
    """Figures measured on the releases 2.10.0 and 2.15.0, which have these policies."""

    def build() -> Any:
        layers = nn.Linear(64, 64), nn.RMSNorm(64), nn.Linear(64, 64)
        return nn.Sequential(*layers), torch.randn(8, 64)

    report = graphmem.analyze(build, autocast="bf16", steps=1, torch=release)

    assert report.saved_for_backward == saved
