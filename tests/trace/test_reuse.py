"""A second analysis takes what Inductor made from a cache, and says the same."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from graphmem.cli import main
from graphmem.private_cache import PrivateCache
from graphmem.trace.compiled.reuse import Reuse
from tests.conftest import Outcome

pytest.importorskip("triton")

MODEL = """
import torch
from torch.nn import functional as F

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(256, 512), torch.nn.Linear(512, 8)

    def forward(self, x):
        x = F.gelu(self.first(x)).sin()
        return self.last(x).square().sum()

def build(batch=64):
    return Net(), torch.randn(batch, 256)
"""

Analyse = Callable[..., str]


@pytest.fixture
def reused(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each graph that is looked up, whether it was found."""
    found: list[bool] = []
    look_up = Reuse._entry

    def note(reuse: Reuse, key: str) -> object:
        entry = look_up(reuse, key)
        found.append(entry is not None)
        return entry

    monkeypatch.setattr(Reuse, "_entry", note)
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRAPHMEM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.py"
    path.write_text(MODEL)
    return path


@pytest.fixture(scope="module")
def filled(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one analysis of the model leaves in the cache."""
    cache = tmp_path_factory.mktemp("filled") / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRAPHMEM_CACHE", str(cache))
        assert main(["analyze", f"{model}:build", "--compile"]) == 0
    return cache


@pytest.fixture
def analyse(
    model: Path,
    run_graphmem: Callable[..., Outcome],
    reused: list[bool],
    folder: Path,
    filled: Path,
) -> Analyse:
    """The report, in the format that shows most; the cache is filled."""
    shutil.copytree(filled, folder)

    def run(*options: str) -> str:
        command = ("analyze", f"{model}:build", "--compile", "--format", "json")
        outcome = run_graphmem(*command, *options)
        assert (outcome.exit_code, outcome.stderr) == (0, "")
        return outcome.stdout

    return run


@pytest.mark.parametrize(
    "options",
    [
        (),
        pytest.param(("--batch", "32"), marks=pytest.mark.slow),
        ("--gpu", "h100-80gb"),
        pytest.param(("--format", "text"), marks=pytest.mark.slow),
    ],
)
def test_a_report_is_the_same_without_the_cache_and_with_it(
    analyse: Analyse,
    reused: list[bool],
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
) -> None:
    is_other = bool({"--batch", "--gpu"} & {*options})
    cold = analyse(*options)
    assert reused == [not is_other] * 2  # forward and backward graph
    if is_other:
        assert analyse(*options) == cold
        assert reused[2:] == [True] * 2
    reused.clear()

    monkeypatch.setenv("GRAPHMEM_CACHE", "")
    assert analyse(*options) == cold
    assert reused == []


def test_an_edited_model_is_compiled_again(
    analyse: Analyse, reused: list[bool], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines are part of a report, even if what is compiled stays the same."""
    text = model.read_text()
    try:
        model.write_text("# a comment\n" + text)
        edited = analyse()
        monkeypatch.setenv("GRAPHMEM_CACHE", "")
        assert analyse() == edited
    finally:
        model.write_text(text)

    assert reused == [False, False]


@pytest.mark.slow
def test_an_entry_that_others_may_write_is_not_read(
    analyse: Analyse, reused: list[bool], folder: Path
) -> None:
    for entry in folder.iterdir():
        entry.chmod(0o664)

    for _ in range(2):
        analyse()

    assert reused == [False, False, True, True]  # compiled, and written again


@pytest.mark.slow
def test_a_damaged_entry_is_made_again(analyse: Analyse, reused: list[bool], folder: Path) -> None:
    before = analyse()
    for entry in folder.iterdir():
        os.truncate(entry, 1000)
    reused.clear()

    assert analyse() == analyse() == before
    assert reused == [False, False, True, True]


def test_what_only_a_card_decides_is_not_kept(
    run_graphmem: Callable[..., Outcome], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Comparing candidates for a product takes memory, each time."""
    kept: list[str] = []
    monkeypatch.setattr(PrivateCache, "write", lambda cache, name, content: kept.append(name))
    script = folder.parent / "tuned.py"
    script.write_text(
        "import torch\n"
        "class Net(torch.nn.Linear):\n"
        "    def forward(self, x):\n"
        "        return super().forward(x).sum()\n"
        "def build():\n"
        "    model = Net(512, 512)\n"
        "    model.compile(mode='max-autotune-no-cudagraphs')\n"
        "    return model, torch.randn(512, 512)\n"
    )

    outcome = run_graphmem("analyze", "--gpu", "h100-80gb", f"{script}:build")

    assert outcome.exit_code == 0
    assert "which kernels max-autotune chooses" in outcome.stdout + outcome.stderr
    assert kept == []


def test_a_run_reuses_nothing(
    run_graphmem: Callable[..., Outcome], folder: Path, reused: list[bool]
) -> None:
    """Python's collector is at work there, at moments that depend on how much is made."""
    script = folder.parent / "compiled.py"
    script.write_text(
        "import torch\n"
        "torch.compile(torch.nn.Linear(8, 8).cuda())(torch.ones(4, 8, device='cuda'))\n"
    )
    for _ in range(2):
        assert run_graphmem("run", str(script)).exit_code == 0

    assert reused == []
    assert not folder.exists()
