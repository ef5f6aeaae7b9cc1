"""The names of autograd nodes."""

from __future__ import annotations

from typing import Any


def name_of(node: Any) -> str:
    """A node's name, also of a program's `Function` that keeps a `name` of its own in its context.

    The context is the node (torch/autograd/function.py, `BackwardCFunction`), so `ctx.name = "wq"`
    hides the method; Lingua's probe does so.
    """
    name: str = type(node).name(node)
    return name
