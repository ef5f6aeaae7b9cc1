"""What `max` and `min` take of values on the card."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from graphmem.trace.messages import BranchOnValueError
from tests.support.card_programs import on_card

Taking = Callable[[torch.Tensor, torch.Tensor], Any]


def larger(x: torch.Tensor, y: torch.Tensor) -> Any:
    return x / max(y, 1)


def larger_of_a_number(x: torch.Tensor, y: torch.Tensor) -> Any:
    return x / max(1.0, y)


def smaller(x: torch.Tensor, y: torch.Tensor) -> Any:
    return x / min(y, 1)


def smaller_of_a_number(x: torch.Tensor, y: torch.Tensor) -> Any:
    return x / min(1.0, y * 2)


def largest_of_a_list(x: torch.Tensor, y: torch.Tensor) -> Any:
    return x / max([x.detach(), y], key=lambda each: each + 1, default=None)


def largest_behind_other_calls(x: torch.Tensor, y: torch.Tensor) -> Any:
    return x / float(2) + min(3, 4) * (x / max(abs(y), len("a"), min(1, 2)))


@pytest.mark.parametrize(
    "take",
    [
        larger,
        larger_of_a_number,
        smaller,
        smaller_of_a_number,
        largest_of_a_list,
        largest_behind_other_calls,
    ],
)
def test_a_tensor_is_taken(take: Taking) -> None:
    """The divisor is then saved for the gradient of `x`; a number would not be."""

    def program(device: torch.device) -> bool:
        x = torch.randn((), device=device, requires_grad=True)
        quotient = take(x, torch.randn(4, device=device).sum())
        return any(
            isinstance(node._saved_other, torch.Tensor)
            for node in _nodes(quotient.grad_fn)
            if hasattr(node, "_saved_other")
        )

    took, graph = on_card(program)
    assert took
    (assumed,) = [each for each in graph.assumptions if "takes" in each.what]
    assert assumed.what.split("`")[1] in ("max", "min")
    assert assumed.value == "a tensor, the last of several"


def _nodes(node: Any) -> list[Any]:
    return (
        []
        if node is None
        else [node, *(n for each, _ in node.next_functions for n in _nodes(each))]
    )


def test_assume_decides_what_is_taken() -> None:
    def program(device: torch.device) -> Any:
        return max(torch.randn(4, device=device).sum(), 1)

    line = program.__code__.co_firstlineno + 1
    took, _ = on_card(program, assume=(f"test_extremes.py:{line}=true",))
    assert took == 1


def test_a_function_of_the_program_called_max_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def larger_of(one: Any, other: Any) -> Any:
        return one if one > other else other

    monkeypatch.setitem(globals(), "max", larger_of)
    with pytest.raises(BranchOnValueError):
        on_card(lambda device: max(torch.randn(4, device=device).sum(), 1))
