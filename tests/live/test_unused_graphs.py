"""A run names what autograd saves at the peak for backward passes that never run."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import graphmem

LAYERS, ROWS, WIDTH = 8, 4096, 256
ACTIVATION = ROWS * WIDTH * 4
STEPS = 3


def _unused_graphs(program: Callable[[nn.Module], object], gpu: str = "t4") -> str:
    with graphmem.virtual_gpu(gpu) as card:
        layers = (each for _ in range(LAYERS) for each in (nn.Linear(WIDTH, WIDTH), nn.Sigmoid()))
        program(nn.Sequential(*layers).cuda())
    sections = {each.found_by: each.lines for each in card.report().findings}
    return "\n".join(sections.get("unused graphs", ()))


def _train(
    model: nn.Module, rows: int = ROWS, forward: Callable[..., object] | None = None
) -> None:
    for _ in range(STEPS):
        model.zero_grad()
        output = (forward or model)(_batch(rows))
        assert isinstance(output, torch.Tensor)
        output.sum().backward()


def _batch(rows: int = ROWS) -> torch.Tensor:
    return torch.ones(rows, WIDTH, device="cuda")


def _evaluate(model: nn.Module) -> None:
    score = torch.zeros((), device="cuda")
    for _ in range(STEPS):
        score = model(_batch()).sum()
    del score


def test_an_evaluation_that_forgets_no_grad() -> None:
    """The batch and all sigmoids' results, twice: `score` holds a graph until the next is bound.

    The running call holds its batch and the result that it is making itself.
    """

    def program(model: nn.Module) -> None:
        _train(model, ROWS // 8)
        _evaluate(model)

    text = _unused_graphs(program)
    held = 2 * (1 + LAYERS) * ACTIVATION - 2 * ACTIVATION
    assert f"({held:,} bytes) of the peak is saved for a backward pass that never runs" in text
    assert "test_unused_graphs.py:" in text
    assert "under torch.no_grad() it is freed" in text


def test_an_evaluation_under_no_grad_has_none() -> None:
    def program(model: nn.Module) -> None:
        _train(model, ROWS // 8)
        with torch.no_grad():
            _evaluate(model)

    assert not _unused_graphs(program)


def test_inference_without_no_grad() -> None:
    assert f"({LAYERS * ACTIVATION:,} bytes)" not in _unused_graphs(_train)
    assert "never runs" in _unused_graphs(_evaluate)


def test_a_checkpoints_inputs_are_read_though_no_node_runs_for_them() -> None:
    def forward(model: nn.Sequential, x: torch.Tensor) -> torch.Tensor:
        for layer in model:
            x = checkpoint(layer, x, use_reentrant=False)
        return x

    def program(model: nn.Module) -> None:
        assert isinstance(model, nn.Sequential)
        _train(model, forward=lambda x: forward(model, x.requires_grad_()))

    assert not _unused_graphs(program)


def test_a_pass_that_runs_out_of_memory_may_have_been_a_training_pass() -> None:
    def program(model: nn.Module) -> None:
        rows = 4 << 20
        while rows > ROWS:
            try:
                _train(model, rows)
                return
            except torch.cuda.OutOfMemoryError:
                rows //= 2

    assert not _unused_graphs(program)


def test_a_program_that_ends_before_its_backward_pass() -> None:
    def program(model: nn.Module) -> list[torch.Tensor]:
        return [model(_batch())]

    kept = []
    assert not _unused_graphs(lambda model: kept.extend(program(model)))
