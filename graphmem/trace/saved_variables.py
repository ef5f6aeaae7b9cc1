"""What autograd saves is the variable itself, where that is no result of the node that saves it.

So a saved variable keeps more alive than its memory (`SavedVariable`, `data_` with
`saved_original_`, torch/csrc/autograd/saved_variable.cpp): the gradient that it retains, and its
history, that of its base where it is a view, as it is then and not as it was when it was saved. A
variable that was written into with what was computed from itself is a cycle in C++, which PyTorch
never frees.

A token has the memory alone. From the moment that a variable gets a gradient or another history it
has the variable as well. So has what saves the variable later, also in a node that runs and has
unpacked it: what is unpacked is the variable. Where a retained gradient has a graph that saves
the variable, that is a cycle as well.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from graphmem.virtual_gpu.notes import NOTHING, Note

_SAVED = "_graphmem_saved"


class Keeper(Protocol):
    """Stands for a saved variable.

    Attributes:
        variables: what it keeps besides memory.
        savers: all that have saved the variable.
        is_released: whether it has let go.
    """

    variables: list[torch.Tensor]
    savers: Savers | None
    is_released: bool


@dataclass(slots=True)
class Savers:
    """Who has saved a variable, the variable where it retains a gradient, and those of its base."""

    keepers: list[weakref.ref[Any]] = field(default_factory=list)
    with_gradient: weakref.ref[torch.Tensor] | None = None
    of_base: Savers | None = None

    def add(self, keeper: Keeper) -> None:
        """One more has saved it."""
        if self.of_base is not None:
            self.of_base.add(keeper)
        self.keepers.append(weakref.ref(keeper))
        variable = None if self.with_gradient is None else self.with_gradient()
        if variable is not None:
            keeper.variables.append(variable)


def note_saved(keeper: Keeper, variable: torch.Tensor) -> None:
    """A variable that is no leaf was saved, and with it the base that it is a view of."""
    base = variable._base if variable._is_view() else None
    of_base = None if base is None or base.is_leaf else _savers_of(base)
    if not variable.is_leaf:
        keeper.savers = _savers_of(variable)
        keeper.savers.of_base = of_base or keeper.savers.of_base
        keeper.savers.add(keeper)
    elif of_base is not None:
        of_base.add(keeper)


def note_unpacked(keeper: Keeper, variable: torch.Tensor) -> None:
    """This is the variable that was saved, which a node wants back."""
    if keeper.savers is not None:
        setattr(variable, _SAVED, Note(keeper.savers))


def note_gradient(variable: torch.Tensor) -> None:
    """The variable is about to retain a gradient."""
    keep_where_saved(variable)
    _savers_of(variable).with_gradient = weakref.ref(variable)


def keep_where_saved(variable: torch.Tensor) -> None:
    """The variable has a new history, or a gradient that it retains."""
    savers: Savers | None = getattr(variable, _SAVED, NOTHING).value
    for known in () if savers is None else savers.keepers:
        keeper: Keeper | None = known()
        if keeper is not None and not keeper.is_released:
            keeper.variables.append(variable)


def _savers_of(variable: torch.Tensor) -> Savers:
    savers: Savers | None = getattr(variable, _SAVED, NOTHING).value
    if savers is None:
        savers = Savers()
        setattr(variable, _SAVED, Note(savers))
    return savers


def note_history(args: tuple[Any, ...], result: Any) -> None:
    """An operation has run; one that writes into a variable or a view of it adds to its history."""
    if not args or result is not args[0] or not torch.is_grad_enabled():
        return
    if isinstance(result, torch.Tensor) and not result.is_inference():
        base = result._base if result._is_view() else result
        keep_where_saved(result if base is None else base)
