"""Free autograd's graph node by node, however long it is, in the order of a real run.

PyTorch frees a graph in a loop (`gatherFunctions`, `Node::release_resources` and `~Node`,
torch/csrc/autograd/function.cpp). A dying node visits the nodes behind it, first to last:

  (1) one that nothing else holds goes on a stack; when popped, it releases what it saved, first to
      last, visits those behind it, and dies;
  (2) one that Python has seen has a second owner, its wrapper, which lives as long as the node
      (`PyObjectSlot`, torch/csrc/autograd/node.h). It dies at once: what it saved is freed last to
      first, like the members of an object, then everything behind it, before the next node is
      visited. Functions in Python are such nodes;
  (3) one that something else holds stays.

The walk in Python sees every node, so each would die by (2), one nested in the other, and a chain
of 45,000 nodes would overflow the stack. Therefore each node carries the wrappers of those behind
it in its `metadata`, and its death does what PyTorch would do: by (2) if the program had seen the
node before the walk did.

Up to torch 2.12 nodes have no second owner, and every dying node frees first to last.

A node that no walk reaches is treated as a walked one if walked nodes are behind it
(`later_nodes.py`).

Not covered: a node that the program looks at only after a walk, but for registering a hook.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from graphmem.trace.node_memory import (
    is_implemented_in_cpp,
    owners_of,
    seen_following,
    wrappers_live_on,
)

_FOLLOWING = "graphmem following"
_SEEN = "graphmem seen"
_DEEPEST = 50  # nested deaths

Release = Callable[[Any], None]


class _Freed(threading.local):
    """Nodes whose predecessor has died in this thread, last one first."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._is_freeing = False
        self._depth = 0

    def add(self, nodes: list[Any], release: Release) -> None:
        """Free these nodes, unless they are held elsewhere: the node before them has died."""
        nodes.reverse()
        while nodes:
            node = nodes.pop()
            if _is_seen(node) and self._depth < _DEEPEST:
                held, node = [node], None
                self._free_at_once(held)
            elif not is_implemented_in_cpp(node) or _is_dying(node):
                self._stack.append(node)
            del node
        if not self._is_freeing:
            self._free_stack(release)

    def _free_stack(self, release: Release) -> None:
        self._is_freeing = True
        try:
            while self._stack:
                node = self._stack.pop()
                if is_implemented_in_cpp(node) and _is_dying(node):
                    release(node)
                del node  # its death adds to the stack
        finally:
            self._is_freeing = False

    def _free_at_once(self, node: list[Any]) -> None:
        """Let a node die with everything behind it, on a separate stack."""
        outer = self._stack, self._is_freeing
        self._stack, self._is_freeing = [], False
        self._depth += 1
        try:
            node.clear()
        finally:
            self._depth -= 1
            self._stack, self._is_freeing = outer


def _references_to(argument: Any) -> int:
    return sys.getrefcount(argument)


def _references_of_a_variable() -> int:
    """What a function counts for an argument that only its caller's variable holds.

    The variable, the argument and `getrefcount`'s each count, until Python 3.14: its calls borrow.
    """
    variable = object()
    return _references_to(variable)


_ASKING = _references_of_a_variable()


def _is_dying(node: Any) -> bool:
    """Whether only the caller holds a node."""
    return sys.getrefcount(node) == _ASKING and owners_of(node) == 1


def _is_seen(node: Any) -> bool:
    return not is_implemented_in_cpp(node) or node.metadata.get(_SEEN, False)


_FREED = _Freed()


class _Following:
    """The nodes behind a node; dies with it."""

    __slots__ = ("__weakref__", "_nodes", "_release")

    def __init__(self, nodes: list[Any], release: Release) -> None:
        self._nodes = nodes
        self._release = release

    def __del__(self) -> None:
        _FREED.add(self._nodes, self._release)


def following_of(node: Any) -> object:
    """An object that lives as long as a walked node."""
    following: _Following = node.metadata[_FOLLOWING]
    return following


def is_walked(node: Any) -> bool:
    """Whether a node already frees those behind it in a loop."""
    looked_at(node)
    return _FOLLOWING in node.metadata


def looked_at(node: Any) -> None:
    """Mark a node that only the trace looks at; a real run would not."""
    node.metadata.setdefault(_SEEN, False)


def seen(node: Any) -> None:
    """Mark a node that the program has in its hands."""
    if wrappers_live_on():
        node.metadata[_SEEN] = True


def free_in_a_loop(node: Any, release: Release) -> None:
    """Let a walked node free the nodes behind it in a loop when it dies.

    To be called before the walk looks at those.

    Args:
        node: the node.
        release: releases what a node saved.
    """
    looked_at(node)
    metadata = node.metadata
    if _FOLLOWING in metadata:
        return
    edges = _looked_behind(node)
    # The last edge to a node releases it.
    behind = dict.fromkeys(following for following in reversed(edges) if following is not None)
    metadata[_FOLLOWING] = _Following(list(reversed(behind)), release)


def _looked_behind(node: Any) -> list[Any]:
    """The node behind each edge; they are marked if the program has not seen them."""
    seen = seen_following(node) if is_implemented_in_cpp(node) else []
    edges = [edge[0] for edge in node.next_functions]
    for following, is_seen in zip(edges, seen, strict=bool(seen)):
        if following is not None:
            following.metadata.setdefault(_SEEN, is_seen)
    return edges
