"""Free autograd's graph node after node, however long it is, in the order of a real run.

PyTorch frees a graph in a loop: a node that dies hands the nodes behind it to a stack if nobody
else holds them (`gatherFunctions` and `Node::release_resources`, torch/csrc/autograd/function.cpp).
A node that Python has seen has a second owner, its wrapper, which lives as long as the node
(`PyObjectSlot`, torch/csrc/autograd/node.h); so each wrapper frees the next one from within, and a
chain of 45,000 nodes ends the process. The walk in Python sees every node. Therefore each one
carries the wrappers of those behind it, in its `metadata`, and its death puts them on a stack.
"""

from __future__ import annotations

from typing import Any

_KEY = "graphmem following"


class _Freed:
    """Nodes whose predecessor has died, last one first."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._is_freeing = False

    def add(self, nodes: tuple[Any, ...]) -> None:
        self._stack.extend(nodes)
        if self._is_freeing:
            return
        self._is_freeing = True
        while self._stack:
            self._stack.pop()  # the death of this one adds to the stack
        self._is_freeing = False


_FREED = _Freed()


class _Following:
    """What stands behind a node; dies with it."""

    __slots__ = ("_nodes",)

    def __init__(self, nodes: tuple[Any, ...]) -> None:
        self._nodes = nodes

    def __del__(self) -> None:
        nodes, self._nodes = self._nodes, ()
        _FREED.add(nodes)


def free_in_a_loop(node: Any) -> None:
    """Let a node that Python has seen hand on the nodes behind it when it dies."""
    metadata = node.metadata
    if _KEY not in metadata:
        edges = reversed(node.next_functions)  # the last edge to a node is what lets go of it
        following = dict.fromkeys(edge[0] for edge in edges if edge[0] is not None)
        metadata[_KEY] = _Following(tuple(reversed(following)))
