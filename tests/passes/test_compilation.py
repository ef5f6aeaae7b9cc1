"""What compiled code fuses and recomputes, and what graph breaks pass on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import graphmem
from graphmem.compiled_code import CompiledCode
from graphmem.training_step import TrainingStep
from tests.conftest import Outcome
from tests.support.traced_step import traced

pytest.importorskip("triton")
FLOATS = 4096
NBYTES = FLOATS * 4


def on_card(*, grad: bool = False) -> torch.Tensor:
    return torch.randn(FLOATS, device="cuda", requires_grad=grad)


def compiled(step: Callable[[], object]) -> CompiledCode:
    found = traced(step).compiled
    assert found is not None
    return found


def test_of_three_operations_in_one_kernel_two_results_are_fused() -> None:
    code = compiled(lambda: torch.compile(lambda x: (x.sin() + 1).cos())(on_card()))

    (graph,) = code.graphs
    assert (graph.results, graph.fused, graph.fused_bytes) == (3, 2, 2 * NBYTES)
    assert (graph.is_backward, graph.recomputed, code.breaks) == (False, 0, [])


def test_a_view_is_no_result() -> None:
    (graph,) = compiled(lambda: torch.compile(lambda x: x.view(64, 64).t().exp())(on_card())).graphs

    assert (graph.results, graph.fused) == (1, 0)


def test_the_sine_is_computed_again_for_the_derivative_of_its_cosine() -> None:
    """Of `cos(sin(x))`: `-sin(sin(x)) * cos(x)`; the partitioner keeps `x` alone."""

    def step() -> None:
        torch.compile(lambda x: x.sin().cos())(on_card(grad=True)).backward(on_card())

    forward, backward = compiled(step).graphs

    assert (forward.is_backward, forward.recomputed) == (False, 0)
    assert (backward.is_backward, backward.recomputed) == (True, 1)
    assert backward.recomputed_bytes == NBYTES


def test_a_graph_break_passes_on_what_the_code_after_it_uses() -> None:
    def step() -> None:
        @torch.compile
        def broken(x: torch.Tensor) -> torch.Tensor:
            y = x.exp()
            z = x.sin() + y
            torch._dynamo.graph_break()  # HERE
            return y * z

        broken(on_card())

    (found,) = compiled(step).breaks

    line = next(n for n, text in enumerate(_own_lines(), 1) if text.endswith("# HERE"))
    assert found.source is not None
    assert (Path(found.source.file).name, found.source.line) == (Path(__file__).name, line)
    assert (found.results, found.nbytes) == (2, 2 * NBYTES)


def test_the_report_says_what_was_fused_and_what_a_break_costs(
    tmp_path: Path, run_graphmem: Callable[..., Outcome]
) -> None:
    script, saved = tmp_path / "script.py", tmp_path / "step.graphmem"
    script.write_text(
        "import torch\n"
        "@torch.compile\n"
        "def f(x):\n"
        "    y = x.exp().sin()\n"
        "    torch._dynamo.graph_break()\n"
        "    return y.cos()\n"
        "f(torch.randn(1 << 20, device='cuda'))\n"
    )
    shown = run_graphmem("run", "--verbose", "--save", str(saved), str(script))
    again = run_graphmem("analyze", str(saved))

    for text in (shown.stderr, again.stdout):
        words = " ".join(text.split())
        assert "of 3 results in 2 compiled graphs, 1 (4.0 MiB) exist only inside" in words
        assert "script.py:5" in words
        assert "; 1 result of the graph before it (4.0 MiB), allocated for the code" in words


def test_a_compiled_optimizer_breaks_where_pytorch_does(
    tmp_path: Path, run_graphmem: Callable[..., Outcome]
) -> None:
    """`_use_grad_for_differentiable` breaks the graph itself (torch/optim/optimizer.py)."""
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "weight = torch.nn.Parameter(torch.zeros(64, 64, device='cuda'))\n"
        "adam = torch.optim.Adam([weight], capturable=True)\n"
        "weight.square().sum().backward()\n"
        "torch.compile(lambda: adam.step())()\n"
    )

    words = " ".join(run_graphmem("run", str(script)).stderr.split())

    assert "the graph breaks at" in words
    assert "script.py:5: Call to `torch._dynamo.graph_break()`" in words
    assert "whether compiled code goes on" not in words


def test_a_program_that_compiles_nothing_has_no_such_finding() -> None:
    def build() -> Any:
        return TrainingStep(step=lambda: on_card().sin())

    report = graphmem.analyze(build, steps=1)

    assert "compilation" not in {each.annotation for each in report.findings}


def _own_lines() -> list[str]:
    return Path(__file__).read_text(encoding="utf-8").splitlines()
