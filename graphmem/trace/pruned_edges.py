"""Tell an autograd node which of its results nobody wants.

`torch.autograd.grad` and `backward(inputs=...)` run only what leads to the inputs, and the formula
of a node computes only the gradients for edges that are run (`Node::task_should_compute_output`,
torch/csrc/autograd/node.h). The C++ engine knows them by its own task; a formula that is called
from Python looks at the node's edges only. Nothing in Python changes these, so for as long as the
node runs, its other edges are set to null in memory: a `std::vector` of pairs of a pointer and an
index. Whether the memory looks as expected is checked every time before anything is written.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from graphmem.trace.node_memory import edges_of, unknown_layout


@contextmanager
def without_edges(node: Any, unwanted: Sequence[int]) -> Iterator[None]:
    """Take the edges at some positions from a node that C++ implements; put them back at the end.

    Raises:
        RuntimeError: this build of torch lays its nodes out in another way.
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
    """Where the node keeps the pointer of each edge."""
    places = [ctypes.c_void_p.from_address(place) for place in edges_of(node)]
    following = [edge[0] for edge in node.next_functions]
    if [place.value is None for place in places] != [node is None for node in following]:
        raise unknown_layout()
    return places
