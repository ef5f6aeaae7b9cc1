"""Operators of a package that is absent, registered as its Python part registers them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def register_operator(
    name: str,
    kernel: Callable[..., Any],
    schema: str,
    shapes: Callable[..., Any],
    mutated: Sequence[str] = (),
) -> None:
    """Register an operator; PyTorch keeps it for the life of the process.

    Args:
        name: with its library, as "flash_attn::forward".
        kernel: runs on the card.
        schema: its arguments and results; white space does not matter.
        shapes: the same without a card (`register_fake`).
        mutated: the arguments that it writes to.
    """
    operator = torch.library.custom_op(
        name,
        kernel,
        mutates_args=mutated,
        device_types="cuda",
        schema=" ".join(schema.split()),
    )
    operator.register_fake(shapes)
