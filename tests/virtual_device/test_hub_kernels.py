"""Kernels that `kernels.get_kernel` would download, where a stand-in has them."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from pathlib import Path

import pytest

import graphmem
from tests.conftest import Outcome

HALF, FLOAT, STATE = 2, 4, 512
OFFLINE = (
    "def get_kernel(repo_id, **options):\n    raise ConnectionError(f'no network: {repo_id}')\n"
)
TRAIN = """
import torch
from kernels import get_kernel

q = torch.zeros(2, 256, 8, 64, device="cuda", dtype=torch.float16, requires_grad=True)
before = torch.cuda.memory_allocated()
out = get_kernel("{}", version=1).{}(q, q, q, causal=True)
print("took", torch.cuda.memory_allocated() - before)
"""


@pytest.fixture
def install(tmp_path: Path, make_module: Callable[[str, str], None]) -> Callable[[], None]:
    """Install the library, without a network."""

    def installing() -> None:
        make_module("kernels.utils", OFFLINE)
        (tmp_path / "kernels" / "__init__.py").write_text("from kernels.utils import get_kernel")

    return installing


@pytest.fixture(params=["installed", "absent"])
def library(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    install: Callable[[], None],
) -> str:
    """The library, installed without a network or not installed."""
    if request.param == "installed":
        install()
    monkeypatch.chdir(tmp_path)
    return str(request.param)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("stand_ins", "name", "function", "beside"),
    [
        (["flash_attn"], "kernels-community/flash-attn2", "flash_attn_func", STATE),
        (["flash_attn_3"], "kernels-community/flash-attn3", "flash_attn_func", 0),
        (
            ["flash_attn_3", "flash_attn"],
            "varunneal/flash-attention-3",
            "flash_attn_interface.flash_attn_func",
            0,
        ),
    ],
)
def test_a_kernel_of_the_hub_is_its_stand_in(
    stand_ins: list[str],
    name: str,
    function: str,
    beside: int,
    run_graphmem: Callable[..., Outcome],
) -> None:
    """The output and its row sums, and flash-attn 2's random state."""
    Path("train.py").write_text(TRAIN.format(name, function))
    asked = [word for each in stand_ins for word in ("--stand-in", each)]
    done = run_graphmem("run", "--gpu", "h100-80gb", *asked, "train.py")
    assert done.exit_code == 0, done.stderr
    took = 2 * 256 * 8 * 64 * HALF + 2 * 8 * 256 * FLOAT + beside
    assert f"took {took}\n" in done.stdout


def test_a_kernel_without_a_stand_in_is_fetched(
    library: str, run_graphmem: Callable[..., Outcome]
) -> None:
    Path("train.py").write_text(TRAIN.format("someone/rotary", "apply"))
    done = run_graphmem("run", "--stand-in", "flash_attn_3", "train.py")
    assert ("no network: someone/rotary" in done.stderr) == (library == "installed")
    assert ("stand-in for flash_attn_3 has no kernel someone/rotary" in done.stderr) == (
        library == "absent"
    )
    assert "stands in for it" not in done.stderr


def test_a_kernel_that_cannot_be_fetched_is_told_with_its_stand_in(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    install: Callable[[], None],
    run_graphmem: Callable[..., Outcome],
) -> None:
    install()
    (tmp_path / "train.py").write_text(TRAIN.format("kernels-community/flash-attn3", "x"))
    monkeypatch.chdir(tmp_path)
    done = run_graphmem("run", "train.py")
    assert "kernels-community/flash-attn3; --stand-in flash_attn_3 stands in for it" in done.stderr


@pytest.mark.parametrize(
    ("message", "stand_in"),
    [
        ("FlashAttention2 has been toggled on, but its package is not installed", "flash_attn"),
        ("the package for FlashAttention3 doesn't seem to be installed", "flash_attn_3"),
        ("Please install apex to use fused_adam", "apex"),
    ],
)
def test_a_package_that_a_library_misses_is_told_with_its_stand_in(
    message: str,
    stand_in: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run_graphmem: Callable[..., Outcome],
) -> None:
    """As transformers and fairseq do, without a failed import."""
    (tmp_path / "train.py").write_text(f"raise ImportError({message!r})")
    monkeypatch.chdir(tmp_path)
    assert f"; --stand-in {stand_in} stands in for it" in run_graphmem("run", "train.py").stderr


def test_a_stand_in_is_listed_among_the_packages_that_are_installed() -> None:
    """transformers 5 asks which distribution has a module, to tell flash-attn 2 from 4."""
    with graphmem.virtual_gpu("h100", stand_in=["flash_attn", "flash_attn_3"]):
        found = importlib.metadata.packages_distributions()
        assert found["flash_attn"] == ["flash_attn"]
        assert found["flash_attn_interface"] == ["flash_attn_3"]
    assert "flash_attn" not in importlib.metadata.packages_distributions()


def test_an_installed_library_that_does_not_import_is_the_programs_own_affair(
    run_graphmem: Callable[..., Outcome], tmp_path: Path, install: Callable[[], None]
) -> None:
    """As `kernels` 0.17 does beside an old huggingface_hub."""
    install()
    (tmp_path / "kernels" / "__init__.py").write_text("raise TypeError('two releases that differ')")
    script = tmp_path / "script.py"
    outcomes = []
    for text in ("print('unused')", "import kernels"):
        script.write_text(text)
        outcomes.append(run_graphmem("run", "--stand-in", "flash_attn_3", str(script)))

    assert outcomes[0].stdout == "unused\n"
    assert "ended by TypeError: two releases that differ" in outcomes[1].stderr
    assert [each.exit_code for each in outcomes] == [0, 1]
