"""Values that compiled code computes: each program also runs for real, eagerly, and both agree."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from graphmem import TrainingStep
from graphmem.gpus import find_gpu
from graphmem.trace import TraceOptions, trace
from graphmem.trace.messages import BranchOnValueError
from tests.conftest import Outcome

Program = Callable[[torch.device, Callable[..., Any]], Any]

pytest.importorskip("triton")


def on_card(program: Program) -> Any:
    """A program's result on the virtual card, where it compiles."""
    returned: list[Any] = []
    device = torch.device("cuda")
    step = TrainingStep(step=lambda: returned.append(program(device, torch.compile)))
    trace(lambda: step, gpu=find_gpu("a100-80gb"), options=TraceOptions(steps=1))
    return returned[0]


def for_real(program: Program) -> Any:
    return program(torch.device("cpu"), lambda function: function)


def counted(rows: torch.Tensor, count: torch.Tensor, weight: torch.Tensor) -> Any:
    count += 1
    made = [weight - 1, weight.neg().expand(3).cumsum(0), rows.new_zeros(2), rows.new_ones(2).sum()]
    return rows * weight, count > 2, made


def of_counts(device: torch.device, compiler: Callable[..., Any]) -> Any:
    count, weight = torch.zeros((), dtype=torch.long, device=device), torch.tensor(0.5).to(device)
    step, rows, found = compiler(counted), torch.randn(512, 256, device=device), []
    for _ in range(3):
        rows, is_over, made = step(rows, count, weight)
        found.append([count.item(), bool(is_over), *(each.tolist() for each in made)])
    return found


def of_branches(device: torch.device, compiler: Callable[..., Any]) -> Any:
    weight, rows = torch.zeros((), device=device), torch.randn(512, 256, device=device)

    def loss(rows: torch.Tensor) -> torch.Tensor:
        return rows.cos() if weight > 0.25 else rows[:1].sin()

    step, found = compiler(loss), []
    for each in (0.0, 0.5):
        weight.fill_(each)
        found.append(step(rows).shape)
    return found


def of_tables(device: torch.device, compiler: Callable[..., Any]) -> Any:
    """A table that is read at one place, and a mask that is compared, both of 4,096 elements."""
    table, mask = torch.arange(4096.0, device=device) + 1, torch.ones(8, 512, device=device)

    def scaled(rows: torch.Tensor) -> torch.Tensor:
        rows = rows[:7] if table[0] == 0 else rows[:5]
        rows = rows[:4] if torch.all(mask == 1) else rows[:3]
        return rows.cos() * table

    return compiler(scaled)(torch.randn(8, 4096, device=device)).shape


@pytest.mark.parametrize("program", [of_counts, of_branches, of_tables])
def test_known_values_are_followed_through_compiled_code(program: Program) -> None:
    assert on_card(program) == for_real(program)


def test_what_compiled_code_writes_and_is_not_known_is_forgotten() -> None:
    def program(device: torch.device, compiler: Callable[..., Any]) -> Any:
        total = torch.zeros((), device=device)
        compiler(lambda rows: total.add_(rows.sum()))(torch.randn(512, 256, device=device))
        return bool(total > 0)

    with pytest.raises(BranchOnValueError):
        on_card(program)


def test_what_a_timed_kernel_changes_is_not_read_by_the_program(
    tmp_path: Path, run_graphmem: Callable[..., Outcome]
) -> None:
    """At the peak Inductor copies it to the host and back (`copy_args_to_cpu_if_needed`)."""
    (tmp_path / "script.py").write_text(
        "import torch\n"
        "x, y = (torch.randn(4096, 4096, device='cuda') for _ in range(2))\n"
        "torch.compile(lambda x, y: x.add_(y.softmax(1)))(x, y)\n"
    )

    outcome = run_graphmem("run", "--gpu", "h100-80gb", str(tmp_path / "script.py"))

    assert outcome.exit_code == 0
    assert "every element of" not in outcome.stderr


@pytest.mark.slow
def test_they_are_followed_through_code_of_an_earlier_analysis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAPHMEM_CACHE", str(tmp_path))

    first, kept = on_card(of_counts), [*tmp_path.rglob("*")]

    assert kept
    assert on_card(of_counts) == first == for_real(of_counts)
    assert [*tmp_path.rglob("*")] == kept
