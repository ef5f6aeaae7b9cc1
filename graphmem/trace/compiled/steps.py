"""Optimizers' steps that are compiled as one graph, in which no hook may run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.optim import optimizer as optimizers

from graphmem.trace.compiled.dynamo import is_own_hook


def between_hooks(function: Any, compiled: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled code that also calls graphmem's hooks, if it is an optimizer's step."""
    optimizer = getattr(function, "__self__", None)
    if not isinstance(optimizer, torch.optim.Optimizer):
        return compiled

    @functools.wraps(compiled)
    def step(*args: Any, **kwargs: Any) -> Any:
        _call(optimizers._global_optimizer_pre_hooks, optimizer)
        result = compiled(*args, **kwargs)
        _call(optimizers._global_optimizer_post_hooks, optimizer)
        return result

    return step


def _call(hooks: Mapping[int, Callable[..., Any]], optimizer: torch.optim.Optimizer) -> None:
    for hook in filter(is_own_hook, hooks.values()):
        hook(optimizer, (), {})
