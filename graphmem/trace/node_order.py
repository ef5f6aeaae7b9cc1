"""The order of autograd's nodes, as the threads of a process with a card number them.

A node takes its sequence number from a counter of the thread that makes it
(aten/src/ATen/SequenceNumber.cpp, `thread_local`), and among ready nodes the engine runs the one
with the highest number first. Nodes of the forward pass are made in the program's thread. Nodes
made while another node runs (gradients of gradients, hooks, a checkpoint's second forward pass) are
made in the thread that runs it: for a CUDA node the thread of its device, whose counter begins at 0
and continues from one backward pass to the next; for a CPU node the thread that called the engine
(`Engine::ready_queue` in torch/csrc/autograd/engine.cpp; a node's device is its first that is not
the CPU, `Node::device`). A trace runs all of them in one thread, so their numbers are told apart by
when they were assigned.

Not covered: backward passes running in several threads at once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_OF_LEAVES = (1 << 64) - 1  # `AccumulateGrad` comes before any other node


class NodeOrder:
    """Ranks nodes by the numbers that they would have on a card."""

    def __init__(self) -> None:
        """Start before the program has made any node."""
        self._begins = [0]
        self._shifts = [-_newest()]
        self._of_device = 0
        self._is_on_device = False

    def rank_of(self, node: Any) -> int:
        """The number by which the engine orders nodes."""
        number: int = node._sequence_nr()
        if number == _OF_LEAVES:
            return number
        return number + self._shifts[bisect_right(self._begins, number) - 1]

    @contextmanager
    def running(self, node: Any) -> Iterator[None]:
        """Number the nodes made while the context is open as in the thread that runs this node."""
        if self._is_on_device or not _is_on_card(node):
            yield
            return
        begin, shift = _newest(), self._shifts[-1]
        self._is_on_device = True
        self._count_from(begin, self._of_device - begin)
        try:
            yield
        finally:
            self._is_on_device = False
            newest = _newest()
            self._of_device = newest + self._shifts[-1]
            self._count_from(newest, shift - (newest - begin))

    def pass_over(self) -> None:
        """Give the number of the newest node, which only a trace makes, to the next one."""
        self._count_from(_newest(), self._shifts[-1] - 1)

    def _count_from(self, number: int, shift: int) -> None:
        """Shift nodes from this number on; replaces a shift that no node has used."""
        if self._begins[-1] == number:
            self._shifts[-1] = shift
            return
        self._begins.append(number)
        self._shifts.append(shift)


def number_root() -> None:
    """Use up the number that a walk from several roots takes for their node (`Engine::execute`)."""
    torch._C._functions.UndefinedGrad()  # any node takes one


def _newest() -> int:
    """The number that the next node of this thread gets."""
    return torch._C._autograd._get_sequence_nr()


def _is_on_card(node: Any) -> bool:
    return any(result.device.type != "cpu" for result in node._input_metadata)
