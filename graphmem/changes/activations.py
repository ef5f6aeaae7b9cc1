"""Replace activation functions wherever a program calls them: as modules, functions or methods.

A torch-function mode sees every such call, of `torch.nn.functional.gelu` as well as of
`torch.Tensor.relu`, and `nn.GELU` calls the former.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from graphmem.changes.messages import UnknownActivationError
from graphmem.training_step import TrainingStep

Activation = Callable[[torch.Tensor], torch.Tensor]


def _relu_squared(tensor: torch.Tensor) -> torch.Tensor:
    return functional.relu(tensor).square()


REPLACEMENTS: dict[str, Activation] = {
    "relu": functional.relu,
    "relu-inplace": partial(functional.relu, inplace=True),
    "relu2": _relu_squared,
    "gelu": functional.gelu,
    "gelu-tanh": partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "leaky_relu": functional.leaky_relu,
    "leaky_relu-inplace": partial(functional.leaky_relu, inplace=True),
    "elu": functional.elu,
    "mish": functional.mish,
    "hardswish": functional.hardswish,
    "softplus": functional.softplus,
}
"""The possible replacements of an activation."""


def _functions_named(name: str) -> set[Any]:
    """Every PyTorch function for that activation: in `torch`, `functional`, `Tensor`."""
    homes = (functional, torch, torch.Tensor, torch._C._nn)
    names = (name, f"{name}_")
    return {getattr(home, each) for home in homes for each in names if hasattr(home, each)}


class _Exchange(TorchFunctionMode):
    """Calls the replacement instead of each function, with its tensor but without its options."""

    def __init__(self, replacements: Mapping[Any, Activation]) -> None:
        super().__init__()
        self._replacements = replacements

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        replacement = self._replacements.get(func)
        if replacement is None:
            return func(*args, **(kwargs or {}))
        tensor = args[0] if args else (kwargs or {})["input"]
        return replacement(tensor)


def exchange_activations(step: TrainingStep, exchanges: Mapping[str, str]) -> TrainingStep:
    """A training step with activations replaced, such as by `{"gelu": "relu"}`.

    Raises:
        InputError: one of the names is unknown.
    """
    replacements: dict[Any, Activation] = {}
    for old, new in exchanges.items():
        functions = _functions_named(old)
        if old not in REPLACEMENTS or new not in REPLACEMENTS or not functions:
            raise UnknownActivationError(old, new, ", ".join(REPLACEMENTS))
        replacements.update(dict.fromkeys(functions, REPLACEMENTS[new]))
    if step.step is not None:
        return replace(step, step=partial(_exchanging, replacements, step.step))
    assert step.model is not None
    step.model.forward = partial(_exchanging, replacements, step.model.forward)
    return step


def _exchanging(
    replacements: Mapping[Any, Activation], call: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    with _Exchange(replacements):
        return call(*args, **kwargs)
