"""Arguments and results of an operation whose values are followed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from graphmem.values.held import Operand, UnknownError


def constant(arg: Any) -> Any:
    """An argument that stays as it is; a tensor on the host may change unseen."""
    if isinstance(arg, (torch.Tensor, list, tuple)):
        raise UnknownError
    return arg


def read(operand: Any) -> Any:
    """An argument with its values computed."""
    return operand.read() if isinstance(operand, Operand) else operand


ON_HOST: dict[str, Any] = {
    "device": torch.device("cpu"),
    "pin_memory": False,
    "generator": None,
    "layout": torch.strided,
    "non_blocking": False,
}
"""Arguments that are replaced when the CPU computes values."""


def argument(args: tuple[Any, ...], kwargs: dict[str, Any], place: int | str) -> Any:
    """An argument by position or by name; None if it is not given."""
    if isinstance(place, str):
        return kwargs.get(place)
    return args[place] if place < len(args) else None


def tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """The tensors among arguments, also in lists."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors(value)


def pairs(result: Any, real: Any) -> Iterator[tuple[Any, Any]]:
    """Pair each output with its values."""
    if isinstance(result, torch.Tensor):
        yield result, real
    elif isinstance(result, (list, tuple)) and isinstance(real, (list, tuple)):
        yield from zip(result, real, strict=False)


def requires_grad(tensor: torch.Tensor) -> bool:
    """Whether training determines the values of a tensor without data."""
    return tensor.requires_grad and isinstance(tensor, FakeTensor)
