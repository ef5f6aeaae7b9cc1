"""`torch.cond` and its kin outside compiled code: each program also runs for real on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as each_row
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

from tests.values.test_known_values import on_card

Program = Callable[[torch.device], Any]


def of_a_branch(device: torch.device) -> Any:
    """The branch that the number asks for is taken, and closes over a weight."""
    weight = torch.ones(8, 8, device=device, requires_grad=True)
    numbers = torch.arange(4, device=device)
    shapes, read = [], []
    for i in range(2):
        is_even = torch.tensor(i % 2 == 0, device=device)
        x = torch.ones(3, 8, device=device)
        torch.cond(
            is_even, lambda x: (x @ weight).sin(), lambda x: x @ weight * 2, (x,)
        ).sum().backward()
        shapes.append(weight.grad.shape if weight.grad is not None else None)
        read.append(torch.cond(is_even, lambda n: n + 1, lambda n: n - 1, (numbers,)).tolist())
    return shapes, read


def of_rounds(device: torch.device) -> Any:
    """As many rounds as its condition says."""
    rounds = torch.tensor(0, device=device)
    return while_loop(lambda n, x: n < 3, lambda n, x: (n + 1, x * 2), (rounds, rounds + 1))[
        1
    ].item()


def of_scans(device: torch.device) -> Any:
    x = torch.ones(5, 4, device=device, requires_grad=True)
    last, steps = scan(lambda carry, row: (carry + row, carry * row), x[0], x)
    steps.sum().backward()
    scanned = associative_scan(lambda a, b: a * b, x, dim=0, combine_mode="generic")
    return last.shape, steps.shape, scanned.shape, x.grad is not None and x.grad.shape


def of_rows(device: torch.device) -> Any:
    weight = torch.ones(4, 2, device=device, requires_grad=True)
    rows = each_row(lambda row: (row @ weight).sin(), torch.ones(3, 4, device=device))
    rows.sum().backward()
    return rows.shape, weight.grad is not None and weight.grad.shape


@pytest.mark.parametrize("compiles", [True, False], ids=["", "nothing compiled"])
@pytest.mark.parametrize("program", [of_a_branch, of_rounds, of_scans, of_rows])
def test_a_higher_order_operator_runs_as_on_the_cpu(program: Program, *, compiles: bool) -> None:
    read, _ = on_card(program, compile=compiles)
    assert read == program(torch.device("cpu"))
