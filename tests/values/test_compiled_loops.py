"""Sizes that compiled code computes: each program also runs eagerly on the CPU, and both agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from torch._higher_order_ops.while_loop import while_loop

from tests.conftest import Outcome
from tests.values.test_compiled_values import for_real, on_card

pytest.importorskip("triton")

COUNTS = [3, 1, 0, 2, 5, 1, 1, 2]


@pytest.fixture(autouse=True)
def _sizes_from_tensors() -> Iterator[None]:
    with torch._dynamo.config.patch(capture_scalar_outputs=True):  # type: ignore[no-untyped-call]
        yield


def routed(rows: torch.Tensor, chosen: torch.Tensor) -> Any:
    """Rows by the rank of their expert, of two experts a rank."""
    counts = torch.histc(chosen.float(), bins=8, min=0, max=8)
    sizes = counts.view(4, -1).sum(dim=1).long().to("cpu").tolist()
    return [part * 2 for part in torch.split(rows, sizes)]


def routed_in_two_graphs(rows: torch.Tensor, chosen: torch.Tensor) -> Any:
    torch._dynamo.graph_break()
    return routed(rows, chosen)


def by_expert(rows: torch.Tensor, counts: torch.Tensor) -> Any:
    """torchtitan's `AllToAllTokenDispatcher._permute`."""
    lengths = counts.view(2, 4).t().reshape(-1)
    experts = torch.arange(8, device=rows.device).repeat_interleave(lengths)
    starts = (counts.cumsum(0) - counts).view(2, 4).t().reshape(-1)[experts]
    places = torch.arange(counts.sum(), device=rows.device)  # type: ignore[call-overload]
    return starts + places - (lengths.cumsum(0) - lengths)[experts]


def in_parts(rows: torch.Tensor, counts: torch.Tensor) -> Any:
    """Offsets that begin with zero, and elements that are marked by index, all in one tensor."""
    offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    marked = torch.full_like(counts, -1).index_fill_(0, counts, 5)
    return torch.cat([offsets, marked, counts.sort().values, counts.argmax()[None]])


def by_index(rows: torch.Tensor, counts: torch.Tensor) -> Any:
    added = torch.zeros_like(counts).index_add_(0, counts, counts)
    below = torch.searchsorted(added.sort().values, counts)
    return below + torch.bucketize(counts, (added + 1).cumprod(0) - counts.prod())


def counted(rows: torch.Tensor, counts: torch.Tensor) -> Any:
    """A loop that goes on as long as a number is small, and a branch."""
    start = counts.new_zeros(())
    rounds, _ = while_loop(lambda i, y: i < 5, lambda i, y: (i + 1, y * 0.5), (start, rows))
    chosen = torch.cond(rounds > 3, lambda i: i * 2, lambda i: i - 1, (rounds,))
    return torch.stack([rounds, chosen])


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
@pytest.mark.parametrize(
    "function", [routed, routed_in_two_graphs, by_expert, in_parts, by_index, counted]
)
def test_sizes_computed_from_known_counts_are_known(
    backend: str, function: Callable[..., Any]
) -> None:
    def program(device: torch.device, compiler: Callable[..., Any]) -> Any:
        rows, counts = torch.randn(15, 16, device=device), torch.tensor(COUNTS, device=device)
        chosen = torch.arange(8, device=device).repeat_interleave(counts)
        given = chosen if function in (routed, routed_in_two_graphs) else counts
        made = compiler(function, backend=backend)(rows, given)
        return made.tolist() if isinstance(made, torch.Tensor) else [each.shape for each in made]

    def eagerly(device: torch.device, compiler: Callable[..., Any]) -> Any:
        return program(device, lambda function, backend: function)

    assert on_card(program) == for_real(eagerly)


def test_a_size_that_is_not_known_is_named_with_what_settles_it(
    tmp_path: Path, run_graphmem: Callable[..., Outcome]
) -> None:
    (tmp_path / "script.py").write_text(
        "import torch\n"
        "torch._dynamo.config.capture_scalar_outputs = True\n"
        "@torch.compile\n"
        "def first(x):\n"
        "    return x[: x.sum().long().item()].cos()\n"
        "print(first(torch.randn(8, device='cuda')).shape)\n"
    )

    outcome = run_graphmem("run", str(tmp_path / "script.py"))
    told = run_graphmem("run", "--assume", "script.py:5=3", str(tmp_path / "script.py"))

    assert "script.py:5: assuming 0 for a value (nothing is computed)" in outcome.stderr
    assert "script.py:5=VALUE" in outcome.stderr
    assert told.stdout == "torch.Size([3])\n"
