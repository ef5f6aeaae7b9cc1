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

import torch

from graphmem.torch_releases import INTRUSIVE_NODES, installed_release

_POINTER = ctypes.sizeof(ctypes.c_void_p)
_NODE_IN_WRAPPER = 2 * _POINTER  # THPCppFunction: a Python object's head, then the node
_EDGES_AFTER_SEQUENCE_NR = 9 * _POINTER  # topological number, parent, thread and a mutex between
_EDGE = 2 * _POINTER


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
    address = _pointer_at(id(node) + _NODE_IN_WRAPPER)
    place = address + _sequence_nr_in_node()
    if ctypes.c_uint64.from_address(place).value != node._sequence_nr():
        raise _unknown_layout()
    begin = _pointer_at(place + _EDGES_AFTER_SEQUENCE_NR)
    end = _pointer_at(place + _EDGES_AFTER_SEQUENCE_NR + _POINTER)
    following = [edge[0] for edge in node.next_functions]
    if end - begin != len(following) * _EDGE:
        raise _unknown_layout()
    places = [ctypes.c_void_p.from_address(begin + i * _EDGE) for i in range(len(following))]
    if [place.value is None for place in places] != [node is None for node in following]:
        raise _unknown_layout()
    return places


def _sequence_nr_in_node() -> int:
    """Before it come the virtual table, and a reference count or a pointer pair to find one."""
    counts_itself = INTRUSIVE_NODES.holds_in(installed_release())
    return (2 if counts_itself else 3) * _POINTER


def _pointer_at(address: int) -> int:
    return ctypes.c_void_p.from_address(address).value or 0


def _unknown_layout() -> RuntimeError:
    return RuntimeError(f"torch {torch.__version__} lays out autograd nodes in an unknown way")
