"""What a live run answers and is told: one protocol, passed to the recorder and the memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from graphmem.allocator import Block
from graphmem.graph import Op, Storage

GiveBack = Callable[[], None]


class LiveRun(Protocol):
    """Follows a program operation by operation, and keeps the device's allocator up to date."""

    def note_change(self, storage: Storage) -> None:
        """A storage was born or lost an owner.

        The call may come from the depths of Python's memory management: it may do no more than
        note the storage.
        """

    def advance(self, op: Op) -> None:
        """An operation has been recorded."""

    def note_communicator(self) -> None:
        """Ranks have joined for their first collective on the device."""

    def settle(self) -> None:
        """Apply what the program did so far to the allocator."""

    def block_of(self, tensor: torch.Tensor) -> Block | None:
        """The block that holds a tensor; None for one that is empty or elsewhere."""

    def take_blas_workspace(self) -> None:
        """The program asks for this thread's cuBLAS handle, which takes a workspace if it has none.

        `getCurrentCUDABlasHandle` (aten/src/ATen/cuda/CublasHandlePool.cpp).
        """

    def clear_blas_workspaces(self) -> None:
        """Give back every workspace (`clearCublasWorkspaces`)."""

    def keep(self, what: str, nbytes: int) -> GiveBack:
        """Take memory for a library; the function that is returned gives it back."""


class NoLiveRun:
    """A trace: its memory is simulated when it is over."""

    def note_change(self, storage: Storage) -> None:
        """Births and deaths are read from the finished graph."""

    def advance(self, op: Op) -> None:
        """Operations, too."""

    def note_communicator(self) -> None:
        """Nobody asks how much of the card is free."""

    def settle(self) -> None:
        """Nothing waits to be applied."""

    def block_of(self, tensor: torch.Tensor) -> Block | None:
        """No tensor has a block."""
        return None

    def take_blas_workspace(self) -> None:
        """The pass that knows workspaces counts them."""

    def clear_blas_workspaces(self) -> None:
        """None were taken."""

    def keep(self, what: str, nbytes: int) -> GiveBack:
        """Take nothing."""
        return _give_nothing_back


def _give_nothing_back() -> None:
    return None
