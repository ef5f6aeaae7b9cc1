"""What the program is assumed to find where it would otherwise raise an error, or warn.

PYTEST_DONT_REWRITE: the `assert` and `print` below are the programs' own.
"""
# ruff: noqa: T201

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from graphmem.trace.messages import BranchOnValueError
from tests.support.card_programs import on_card

LOGGER = logging.getLogger(__name__)


def asserted(loss: torch.Tensor) -> None:
    assert loss < 1e3


def asserted_not(loss: torch.Tensor) -> None:
    assert not (loss > 1e3), f"a loss of {loss}"


def asserted_of_masks(loss: torch.Tensor) -> None:
    positive, negative = loss > 0, loss < 0
    assert not torch.any(positive & negative)


def raised(loss: torch.Tensor) -> None:
    if loss > 1e3:
        raise ValueError(f"a loss of {loss}, at step {1 + 1}")


def raised_of_an_item(loss: torch.Tensor) -> None:
    if not (loss < 1e3).item():
        raise FloatingPointError


def raised_in_a_with(loss: torch.Tensor) -> None:
    with torch.no_grad():
        if bool(loss > 1e3):
            raise ValueError("a loss") from None


def raised_in_the_other_branch(loss: torch.Tensor) -> None:
    if loss < 1e3:
        loss.add_(1)
    else:
        raise ValueError


def rank_zero_warn(message: str) -> None:
    raise AssertionError(message)


def warned(loss: torch.Tensor) -> None:
    if loss > 1e3:
        warnings.warn("a large loss", UserWarning, stacklevel=2)
        raise_later()


def warned_of_ranks(counts: torch.Tensor) -> None:
    """torchmetrics, of a curve without negative samples (functional/classification/roc.py)."""
    if counts.exp() <= 0:
        rank_zero_warn("no negative samples")


def logged(loss: torch.Tensor) -> None:
    if not (loss < 1e3):
        LOGGER.warning("a large loss")
        raise_later()


def printed(loss: torch.Tensor) -> None:
    """HiFi-GAN, of samples out of range (meldataset.py)."""
    if torch.min(loss) < -1.0:
        print("min value is ", torch.min(loss))
        print(f"at {1 + 1}")
    loss.exp()


def printed_at_last(loss: torch.Tensor) -> None:
    if loss > 1e3:
        print("a large loss")


def printed_in_a_loop(loss: torch.Tensor) -> None:
    for _ in "a":
        if loss > 1e3:
            print("a large loss")


def raise_later() -> None:
    raise AssertionError


CHECKS = [
    asserted,
    asserted_not,
    asserted_of_masks,
    raised,
    raised_of_an_item,
    raised_in_a_with,
    raised_in_the_other_branch,
    warned,
    warned_of_ranks,
    logged,
    printed,
    printed_at_last,
    printed_in_a_loop,
]


@pytest.mark.parametrize("check", CHECKS)
def test_a_check_passes_and_the_report_says_so(check: Callable[[torch.Tensor], None]) -> None:
    def program(device: torch.device) -> str:
        check(torch.randn(4, device=device).sum())
        return "went on"

    read, graph = on_card(program)
    assert read == "went on"
    assumed = [each for each in graph.assumptions if "check" in each.what]
    assert [each.value for each in assumed] == ["it passes"]
    assert assumed[0].source is not None
    assert assumed[0].source.function == check.__name__


def went_either_way(loss: torch.Tensor) -> str:
    if loss > 1e3:
        return "large"
    return "small"


def ended_an_iterator(loss: torch.Tensor) -> None:
    if loss > 1e3:
        raise StopIteration


def told(loss: torch.Tensor) -> None:
    if loss > 1e3:
        LOGGER.info("a large loss")


def warned_either_way(loss: torch.Tensor) -> None:
    if loss > 1e3:
        warnings.warn("large", stacklevel=2)
    else:
        warnings.warn("small", stacklevel=2)


def printed_either_way(loss: torch.Tensor) -> None:
    if loss > 1e3:
        print("large")
    else:
        print("small")


def printed_and_returned(loss: torch.Tensor) -> str:
    if loss > 1e3:
        print("large")
        return "large"
    return "small"


def raised_either_way(loss: torch.Tensor) -> None:
    if loss > 1e3:
        raise ValueError("large")
    raise ValueError("small")


def was_asserted_later(loss: torch.Tensor) -> None:
    is_small = loss < 1e3
    small = bool(is_small)
    assert small


@pytest.mark.parametrize(
    "choose",
    [
        went_either_way,
        ended_an_iterator,
        told,
        warned_either_way,
        printed_either_way,
        printed_and_returned,
        raised_either_way,
        was_asserted_later,
    ],
)
def test_a_branch_that_is_no_check_is_refused(choose: Callable[[torch.Tensor], Any]) -> None:
    with pytest.raises(BranchOnValueError):
        on_card(lambda device: choose(torch.randn(4, device=device).sum()))


def test_assume_decides_a_check() -> None:
    def program(device: torch.device) -> None:
        small = torch.randn(4, device=device).sum() < 1e3
        assert small

    with pytest.raises(AssertionError):
        on_card(program, assume=("small=false",))
