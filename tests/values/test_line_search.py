"""Programs whose control flow reads values from the card: LBFGS, `torch.tensor` of scalars."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from graphmem import TrainingStep, analyze
from graphmem.trace.messages import ClosureNeededError
from tests.support.traced_step import traced


class Search:
    """LBFGS on a function it cannot minimise in ten iterations."""

    def __init__(self, line_search: str | None) -> None:
        self.line_search = line_search
        self.evaluations = 0

    def run(self, device: str) -> int:
        """Run one step; return the number of stored directions."""
        weight = nn.Parameter(torch.tensor([-1.5, 2.0]).to(device))
        optimizer = torch.optim.LBFGS(
            [weight], lr=1e-3, max_iter=10, line_search_fn=self.line_search
        )

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            self.evaluations += 1
            loss = (1 - weight[0]) ** 2 + 100 * (weight[1] - weight[0] ** 2) ** 2
            loss.backward()
            return loss

        optimizer.step(closure)
        return len(optimizer.state[weight]["old_dirs"])


@pytest.mark.parametrize("line_search", [None, "strong_wolfe"])
def test_lbfgs_runs_all_its_iterations(line_search: str | None) -> None:
    real, virtual = Search(line_search), Search(line_search)
    remembered: list[int] = []
    graph = traced(lambda: remembered.append(virtual.run("cuda")))

    in_real_run = real.run("cpu")
    assert remembered == [10 - 1]  # the first iteration has none to store
    assert in_real_run == 10 - 1 if line_search is None else in_real_run <= 10 - 1
    assert virtual.evaluations == (10 if line_search is None else 1 + 10)
    assert real.evaluations == 10 or line_search
    assert any(each.what == "how LBFGS converges" for each in graph.assumptions)


def first_step(device: str) -> tuple[int, type]:
    """Evaluations of a step of two iterations without tolerances; the kind of its first length."""
    weight = nn.Parameter(torch.ones(8).to(device))
    optimizer = torch.optim.LBFGS([weight], lr=0.1, tolerance_grad=0, tolerance_change=0)
    lengths: list[type] = []
    evaluations = 0

    def closure() -> torch.Tensor:
        nonlocal evaluations
        evaluations += 1
        optimizer.zero_grad()
        loss = weight.square().sum()
        loss.backward()
        return loss

    for max_iter in (1, 4):
        optimizer.param_groups[0]["max_iter"] = max_iter
        optimizer.step(closure)
        lengths.append(type(optimizer.state[weight]["t"]))
    return evaluations, lengths[0]


def test_lbfgs_without_tolerances_goes_on_as_in_a_real_run() -> None:
    seen: list[tuple[int, type]] = []
    traced(lambda: seen.append(first_step("cuda")))

    evaluations, length = first_step("cpu")
    assert evaluations == 1 + 4
    assert length is torch.Tensor  # `min(1.0, 1.0 / sum) * lr`: 4 bytes in a recording of an H200
    assert seen[0][0] == evaluations
    assert issubclass(seen[0][1], torch.Tensor)


def test_graphmems_own_loop_has_no_closure_for_lbfgs() -> None:
    step = TrainingStep(nn.Linear(2, 1), torch.ones(3, 2), optimizer=torch.optim.LBFGS)

    with pytest.raises(ClosureNeededError) as refused:
        analyze(lambda: step, gpu="t4", steps=1)
    assert "optimizer.step(closure)" in (refused.value.hint or "")


@pytest.mark.parametrize("make", [torch.tensor, torch.as_tensor], ids=["tensor", "as_tensor"])
def test_a_tensor_of_scalars_reads_its_known_values(make: Any) -> None:
    made: list[torch.Tensor] = []

    def step() -> None:
        of = getattr(torch, make.__name__)
        known = torch.full((3,), 2, device="cuda", dtype=torch.int32)
        made.append(of([known.sum(), known[0]]))
        made.append(of([[each] for each in known], device="cuda").cpu())

    graph = traced(step)

    assert made[0].tolist() == [6, 2]
    assert made[0].dtype == torch.tensor([torch.tensor(6), torch.tensor(2).int()]).dtype
    assert made[1].tolist() == [[2], [2], [2]]
    assert made[1].dtype == torch.int32
    assert not graph.assumptions


@pytest.mark.parametrize("make", [torch.tensor, torch.as_tensor], ids=["tensor", "as_tensor"])
def test_tensors_of_one_element_are_numbers_in_a_list(make: Any) -> None:
    """Whatever their shape, as on the CPU; two elements fit only where the list has a dimension."""

    def values(device: str) -> list[object]:
        of = getattr(torch, make.__name__)
        one, flat, two = (torch.ones(size, device=device) for size in ((1,), (1, 1), (2,)))
        made = [
            of(each).tolist() for each in ([one, 2.0], [flat, flat], [[one], [2]], [[3, 4], two])
        ]
        with pytest.raises(ValueError, match="only one element tensors") as refused:
            of([two, two])
        return [*made, str(refused.value)]

    found: list[list[object]] = []
    traced(lambda: found.append(values("cuda")))

    assert found == [values("cpu")]
