"""The protocol of a live run, which the recorder and the device's memory call."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, Protocol

import torch

from graphmem.allocator import Block
from graphmem.graph import Op, Storage

GiveBack = Callable[[], None]


class LiveRun(Protocol):
    """Follows a program operation by operation, and keeps the device's allocator up to date."""

    def note_change(self, storage: Storage) -> None:
        """Note a storage that was born or lost an owner.

        The call may come from deep inside Python's memory management, so it must do nothing but
        note the storage.
        """

    def advance(self, op: Op) -> None:
        """Handle an operation that has been recorded."""

    def note_communicator(self) -> None:
        """Note that ranks have joined for their first collective on the device."""

    def settle(self) -> None:
        """Apply what the program did so far to the allocator."""

    def highest_between(self, start: int, end: int) -> int | None:
        """The most bytes allocated from one tick to another; None for a trace."""

    def block_of(self, tensor: torch.Tensor) -> Block | None:
        """The block that holds a tensor; None for one that is empty or elsewhere."""

    def take_blas_workspace(self) -> None:
        """Allocate a workspace for this thread's cuBLAS handle, if it has none.

        `getCurrentCUDABlasHandle` (aten/src/ATen/cuda/CublasHandlePool.cpp).
        """

    def clear_blas_workspaces(self) -> None:
        """Free every workspace (`clearCublasWorkspaces`)."""

    def keep(self, what: str, nbytes: int) -> GiveBack:
        """Allocate memory for a library; returns the function that frees it."""

    def hold(self, nbytes: int, stream: int) -> tuple[Block, GiveBack]:
        """Allocate memory that the program asks for by address, with the function that frees it."""


class NoLiveRun:
    """The live run of a trace, which does nothing: a trace is simulated afterwards."""

    def note_change(self, storage: Storage) -> None:
        """Do nothing: births and deaths are read from the finished graph."""

    def advance(self, op: Op) -> None:
        """Do nothing: operations are read from the finished graph."""

    def note_communicator(self) -> None:
        """Do nothing: nobody asks how much of the card is free."""

    def settle(self) -> None:
        """Do nothing: there is no allocator to update."""

    def highest_between(self, start: int, end: int) -> int | None:
        """Return None: nothing is allocated yet."""
        return None

    def block_of(self, tensor: torch.Tensor) -> Block | None:
        """Return None: no tensor has a block."""
        return None

    def take_blas_workspace(self) -> None:
        """Do nothing: a pass counts workspaces."""

    def clear_blas_workspaces(self) -> None:
        """Do nothing: no workspace was allocated."""

    def keep(self, what: str, nbytes: int) -> GiveBack:
        """Allocate nothing."""
        return _give_nothing_back

    def hold(self, nbytes: int, stream: int) -> NoReturn:
        """Fail: a trace has refused to hand out addresses (`unanswered_bindings`)."""
        raise NotImplementedError


def _give_nothing_back() -> None:
    return None
