"""Autograd nodes that no walk reaches, but behind which are nodes that a walk has kept.

If such a node dies, and nothing else holds the walked nodes behind it, these have to die in the
order of `freed_graphs.py`, too; so it is treated as a walked one.

Clauses:
  (1) only where a walk keeps its graph (`retain_graph`, `create_graph`), and as long as some of it
      lives: a graph that is not kept has released what it saved;
  (2) when the walk begins, the nodes of all results that live are treated so;
  (3) after that, the node of every result, when the next operation begins.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch

from graphmem.trace.freed_graphs import (
    Release,
    following_of,
    free_in_a_loop,
    is_walked,
    looked_at,
)
from graphmem.trace.operands import tensors_of

_MOST = 1000
"""The most results to know of before those that are gone are left out."""


class LaterNodes:
    """Looks at the nodes of results."""

    def __init__(self, release: Release) -> None:
        """Look at nothing yet.

        Args:
            release: releases what a node saved.
        """
        self._release = release
        self._results: list[weakref.ref[torch.Tensor]] = []
        self._known = 0  # of the results: those of earlier operations
        self._most = _MOST
        self._kept: weakref.WeakSet[object] = weakref.WeakSet()

    def note(self, result: Any) -> None:
        """Know of an operation's results; they have no nodes yet."""
        if torch.is_grad_enabled():
            found = (result,) if isinstance(result, torch.Tensor) else tensors_of((result,))
            self._results += map(weakref.ref, found)

    def settle(self) -> None:
        """Clause (3)."""
        count = len(self._results)
        if count == self._known:
            return
        if self._kept:
            self._look_at(self._results[self._known :])
        if count > self._most:
            self._results = [each for each in self._results if each() is not None]
            self._most = max(_MOST, 2 * len(self._results))
        self._known = len(self._results)

    def kept(self, nodes: Iterable[Any]) -> None:
        """Clause (2): a walk keeps these nodes, with what they saved."""
        self._kept.update(map(following_of, nodes))
        self._look_at(self._results)

    def _look_at(self, results: Iterable[weakref.ref[torch.Tensor]]) -> None:
        stack = [node for result in results if (node := _node_of(result())) is not None]
        while stack:
            node = stack.pop()
            if not is_walked(node):
                free_in_a_loop(node, self._release)
                stack += [following for following, _ in node.next_functions if following]


def _node_of(tensor: torch.Tensor | None) -> Any:
    """A result's node, unless asking would make another: for a view whose base is written."""
    if tensor is None or not tensor.requires_grad:
        return None
    base = tensor._base if tensor._is_view() else None
    node = None if base is not None and base._version else tensor.grad_fn
    if node is not None:
        looked_at(node)  # before the nodes in front of it are asked who has seen it
    return node
