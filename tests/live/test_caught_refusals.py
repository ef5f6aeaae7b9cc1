"""A script that catches graphmem's refusal has not gone on as on a card."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import graphmem
from graphmem.errors import InputError
from graphmem.live.messages import CaughtRefusalError
from tests.conftest import Outcome

LOSS = "import sys, torch\nloss = torch.rand(1 << 20, device='cuda').sum()\n"
BRANCH = "    if loss > 1:\n        torch.ones(1 << 20, device='cuda')\n"


@pytest.fixture
def run(run_graphmem: Callable[..., Outcome], tmp_path: Path) -> Callable[..., Outcome]:
    """Runs a script of this text."""

    def of(text: str) -> Outcome:
        script = tmp_path / "script.py"
        script.write_text(text)
        return run_graphmem("run", str(script))

    return of


@pytest.mark.parametrize(
    "then",
    ["print(error)", "sys.exit(0)", "sys.exit(1)", "raise RuntimeError('training failed')"],
    ids=["goes on", "ends", "fails", "wraps it"],
)
def test_the_refusal_is_told_and_nothing_fits(run: Callable[..., Outcome], then: str) -> None:
    """As loguru's `logger.catch` around YOLOX's training goes on to the end of the script."""
    outcome = run(f"{LOSS}try:\n{BRANCH}except Exception as error:\n    {then}\n")

    assert outcome.exit_code == 2
    assert "fits on" not in outcome.stderr
    assert "script.py:4: only a real run knows which way" in outcome.stderr
    assert "hint: say which way with --assume" in outcome.stderr


GRAPH = """graph = torch.cuda.CUDAGraph(keep_graph=True)
with torch.cuda.graph(graph):
    loss + 1"""
SETTINGS = "from torch.cuda.memory import _set_allocator_settings"
OTHERS = {
    "sends a tensor of the card": (
        "from multiprocessing.reduction import ForkingPickler",
        "ForkingPickler.dumps(loss)",
        "the script sends a CUDA tensor to another process",
    ),
    "sends an event": (
        "event = torch.cuda.Event(interprocess=True)",
        "event.ipc_handle()",
        "shared between processes",
    ),
    "asks for the driver's graph": (GRAPH, "graph.raw_cuda_graph()", "CUDA graph"),
    "chooses another allocator": (
        SETTINGS,
        "_set_allocator_settings('backend:cudaMallocAsync')",
        "Allocator backend 'cudaMallocAsync' is not modelled",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_so_is_one_outside_of_operations(run: Callable[..., Outcome], name: str) -> None:
    before, refused, why = OTHERS[name]
    outcome = run(f"{LOSS}{before}\ntry:\n    {refused}\nexcept Exception:\n    loss = loss + 1\n")

    assert outcome.exit_code == 2
    assert "fits on" not in outcome.stderr
    assert "the script caught graphmem's error, and did not go on as on a card: " in outcome.stderr
    assert why in outcome.stderr
    line = 5 + before.count("\n")
    assert f"script.py:{line}" in outcome.stderr


def test_a_setting_that_pytorch_refuses_is_pytorchs_error(run: Callable[..., Outcome]) -> None:
    outcome = run(
        f"{LOSS}{SETTINGS}\n"
        "try:\n    _set_allocator_settings('max_split_size_mb:many')\n"
        "except RuntimeError:\n    print('caught')\n"
    )

    assert (outcome.exit_code, outcome.stdout) == (0, "caught\n")


def test_a_virtual_gpu_has_no_figures_then() -> None:
    with graphmem.virtual_gpu("a100") as gpu, suppress(InputError):
        bool(torch.rand(1 << 20, device="cuda").sum() > 1)

    for ask in (gpu.report, gpu.step, lambda: gpu.peak):
        with pytest.raises(CaughtRefusalError, match="did not go on as on a card"):
            ask()


def test_a_refusal_that_is_not_caught_is_told_as_it_is(run: Callable[..., Outcome]) -> None:
    outcome = run(f"{LOSS}try:\n{BRANCH}finally:\n    print('end')\n")

    assert (outcome.exit_code, outcome.stdout) == (2, "end\n")
    assert "caught" not in outcome.stderr


def test_an_error_of_the_script_leaves_it_as_it_is(run: Callable[..., Outcome]) -> None:
    outcome = run(f"{LOSS}try:\n    loss @ loss\nexcept Exception as error:\n    print('caught')\n")

    assert (outcome.exit_code, outcome.stdout) == (0, "caught\n")
    assert "fits on" in outcome.stderr


def test_an_operators_kernel_may_do_without_what_was_refused(run: Callable[..., Outcome]) -> None:
    """As `varlen_attn` of torch 2.15 on Hopper, whose kernel calls cuDNN's, which has no shapes."""
    heads = "torch.zeros(1, 2, 64, 64, device='cuda')"
    outcome = run(
        "import torch\n"
        "@torch.library.custom_op('kept::attended', mutates_args=())\n"
        "def attended(q: torch.Tensor) -> torch.Tensor:\n"
        "    return torch.ops.aten._cudnn_attention_forward(\n"
        "        q, q, q, None, None, None, 64, 64, True)[0]\n"
        "@attended.register_fake\n"
        "def _(q: torch.Tensor) -> torch.Tensor:\n"
        "    return torch.empty_like(q)\n"
        f"attended({heads})\n"
    )

    assert outcome.exit_code == 0, outcome.stderr
    assert "peak 64.0 KiB allocated (65,536 bytes)" in outcome.stderr  # what goes in and comes out
    assert "scratch memory of kept.attended: none" in outcome.stderr
