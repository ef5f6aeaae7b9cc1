"""Saved variables that keep more alive than their memory.

Autograd saves the variable itself, unless that is a result of the saving node (`SavedVariable`,
`data_` with `saved_original_`, torch/csrc/autograd/saved_variable.cpp). A saved variable keeps its
retained gradient and its history alive (its base's, if it is a view), as they are now and not as
they were when it was saved. A variable that was overwritten with a result computed from itself is a
cycle in C++, which PyTorch never frees.

A token holds only the memory. Once a variable gets a gradient or a new history, the token also
holds the variable. So does every token that saves it later, including those of a running node that
has unpacked it: the unpacked tensor is the variable. A retained gradient whose graph saves the
variable is a cycle as well.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from graphmem.virtual_device.notes import NOTHING, Note

_SAVED = "_graphmem_saved"


class Keeper(Protocol):
    """Stands for a saved variable.

    Attributes:
        variables: those it keeps, in addition to memory.
        savers: everything that saved the variable.
        is_released: whether it was released.
    """

    variables: list[torch.Tensor]
    savers: Savers | None
    is_released: bool


@dataclass(slots=True)
class Savers:
    """A variable's savers, the variable if it retains a gradient, and the savers of its base."""

    keepers: list[weakref.ref[Any]] = field(default_factory=list)
    with_gradient: weakref.ref[torch.Tensor] | None = None
    of_base: Savers | None = None

    def add(self, keeper: Keeper) -> None:
        """Add one more saver."""
        if self.of_base is not None:
            self.of_base.add(keeper)
        self.keepers.append(weakref.ref(keeper))
        variable = None if self.with_gradient is None else self.with_gradient()
        if variable is not None:
            keeper.variables.append(variable)

    def alive(self) -> list[Any]:
        """The savers that still exist."""
        return [keeper for known in self.keepers if (keeper := known()) is not None]


def note_saved(keeper: Keeper, variable: torch.Tensor) -> None:
    """Note that a non-leaf variable was saved, and with it the base that it is a view of."""
    base = variable._base if variable._is_view() else None
    of_base = None if base is None or base.is_leaf else _savers_of(base)
    if not variable.is_leaf:
        keeper.savers = _savers_of(variable)
        keeper.savers.of_base = of_base or keeper.savers.of_base
        keeper.savers.add(keeper)
    elif of_base is not None:
        of_base.add(keeper)


def note_unpacked(keeper: Keeper, variable: torch.Tensor) -> None:
    """Note that a node unpacked this variable."""
    if keeper.savers is not None:
        setattr(variable, _SAVED, Note(keeper.savers))


def note_gradient(variable: torch.Tensor) -> None:
    """Note that the variable is about to retain a gradient."""
    keep_where_saved(variable)
    _savers_of(variable).with_gradient = weakref.ref(variable)


def keep_where_saved(variable: torch.Tensor) -> None:
    """Have every saver keep a variable with a new history or a retained gradient."""
    savers: Savers | None = getattr(variable, _SAVED, NOTHING).value
    for keeper in () if savers is None else savers.alive():
        if not keeper.is_released:
            keeper.variables.append(variable)


def keepers_of(variable: torch.Tensor) -> list[Any]:
    """What saved a non-leaf variable, and not a view of it."""
    savers: Savers | None = getattr(variable, _SAVED, NOTHING).value
    return [] if savers is None else [each for each in savers.alive() if each.savers is savers]


def _savers_of(variable: torch.Tensor) -> Savers:
    savers: Savers | None = getattr(variable, _SAVED, NOTHING).value
    if savers is None:
        savers = Savers()
        setattr(variable, _SAVED, Note(savers))
    return savers


def note_history(args: tuple[Any, ...], result: Any) -> None:
    """Look at an operation that just ran: one that writes into a variable extends its history."""
    if not args or result is not args[0] or not torch.is_grad_enabled():
        return
    if isinstance(result, torch.Tensor) and not result.is_inference():
        base = result._base if result._is_view() else result
        keep_where_saved(result if base is None else base)


def mark_unpacked(tensor: torch.Tensor) -> None:
    """Note that only autograd has seen the tensor so far."""
    tensor._graphmem_unpacked = Note(True)  # type: ignore[attr-defined]


def is_just_unpacked(tensor: torch.Tensor) -> bool:
    """Whether only autograd has seen the tensor so far; True only once."""
    note = getattr(tensor, "_graphmem_unpacked", NOTHING)
    if note.value:
        del tensor._graphmem_unpacked  # type: ignore[attr-defined]
    return bool(note.value)
