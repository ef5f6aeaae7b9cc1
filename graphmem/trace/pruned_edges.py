"""Tell an autograd node which of its results are not wanted.

`torch.autograd.grad` and `backward(inputs=...)` run only nodes that lead to the inputs, and a
node's formula computes only the gradients of edges that run (`Node::task_should_compute_output`,
torch/csrc/autograd/node.h). The C++ engine knows them from its task; a formula called from Python
only looks at the node's edges. These cannot be changed from Python, so while the node runs, its
other edges are set to null in memory: they are a `std::vector` of pairs of a pointer and an index.
The layout is verified every time before anything is written.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from graphmem.trace.node_memory import edges_of, unknown_layout


@contextmanager
def without_edges(node: Any, unwanted: Sequence[int]) -> Iterator[None]:
    """Null some edges of a node that C++ implements while the context is open.

    Raises:
        RuntimeError: this build of torch lays out its nodes differently.
    """
    places = _places_of_edges(node) if unwanted else []
    taken = [(places[i], places[i].value) for i in unwanted]
    for place, _ in taken:
        place.value = None
    try:
        yield
    finally:
        for place, address in taken:
            place.value = address


def _places_of_edges(node: Any) -> list[ctypes.c_void_p]:
    """The node's pointer for each edge."""
    places = [ctypes.c_void_p.from_address(place) for place in edges_of(node)]
    following = [edge[0] for edge in node.next_functions]
    if [place.value is None for place in places] != [node is None for node in following]:
        raise unknown_layout()
    return places
