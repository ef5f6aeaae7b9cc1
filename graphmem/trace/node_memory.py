"""Properties of an autograd node that Python does not expose, read from memory.

The layout is that of `Node` in torch/csrc/autograd/node.h (function.h up to torch 2.12). It is
verified every time by the sequence number, which Python does expose.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch

from graphmem.torch_releases import INTRUSIVE_NODES, installed_release

_POINTER = ctypes.sizeof(ctypes.c_void_p)
_NODE_IN_WRAPPER = 2 * _POINTER  # THPCppFunction: a Python object's head, then the node
_COUNTS = _POINTER  # after the virtual table of a node, or of the counts of a `std::shared_ptr`
_SHARED_COUNTS = 2 * _POINTER  # in `std::enable_shared_from_this`: the object, then its counts
_EDGES_AFTER_SEQUENCE_NR = 9 * _POINTER  # topological number, parent, thread and a mutex between
_MOST_EDGES = 1 << 24
_REFERENCES = (1 << 32) - 1  # of the counts (c10/util/intrusive_ptr.h)
_HAS_WRAPPER = 1 << 63


def is_implemented_in_cpp(node: Any) -> bool:
    """Whether C++ implements a node; a Python function's wrapper has a different layout."""
    return not isinstance(node, torch._C._FunctionBase)


def owners_of(node: Any) -> int:
    """How many owners a node has in C++, including its wrapper."""
    address = _sequence_nr_of(node) - _before_sequence_nr()
    if not _counts_itself():
        address = _pointer_at(address + _SHARED_COUNTS)
    return _counts_at(address) & _REFERENCES


def edges_of(node: Any) -> list[int]:
    """The addresses of the pointers in a node's edges [`next_edges_`, a `std::vector`]."""
    vector = _sequence_nr_of(node) + _EDGES_AFTER_SEQUENCE_NR
    begin, end = _pointer_at(vector), _pointer_at(vector + _POINTER)
    edge = (
        2 if _counts_itself() else 3
    ) * _POINTER  # an `intrusive_ptr` or a `shared_ptr`, a number
    if not 0 <= end - begin <= _MOST_EDGES * edge or (end - begin) % edge:
        raise unknown_layout()
    return list(range(begin, end, edge))


def seen_following(node: Any) -> list[bool]:
    """Whether the node behind each edge has a wrapper that lives as long [`kHasPyObject`]."""
    following = [_pointer_at(place) for place in edges_of(node)]
    return [
        wrappers_live_on() and bool(address) and bool(_counts_at(address) & _HAS_WRAPPER)
        for address in following
    ]


def wrappers_live_on() -> bool:
    """Whether a node's wrapper lives as long as the node, as its second owner."""
    return _counts_itself()


def unknown_layout() -> RuntimeError:
    """The error for a node that is not laid out as expected."""
    return RuntimeError(f"torch {torch.__version__} lays out autograd nodes in an unknown way")


def _sequence_nr_of(node: Any) -> int:
    """The address of the sequence number of a node that C++ implements.

    Raises:
        RuntimeError: this build of torch lays out its nodes differently.
    """
    place = _pointer_at(id(node) + _NODE_IN_WRAPPER) + _before_sequence_nr()
    if ctypes.c_uint64.from_address(place).value != node._sequence_nr():
        raise unknown_layout()
    return place


def _before_sequence_nr() -> int:
    """Bytes before the sequence number: virtual table, and counts or a pair of pointers to them."""
    return (2 if _counts_itself() else 3) * _POINTER


@cache
def _counts_itself() -> bool:
    return INTRUSIVE_NODES.holds_in(installed_release())


def _counts_at(address: int) -> int:
    return ctypes.c_uint64.from_address(address + _COUNTS).value


def _pointer_at(address: int) -> int:
    return ctypes.c_void_p.from_address(address).value or 0
