"""What autograd saves is the variable itself, where that is no result of the node that saves it.

So a saved variable keeps more alive than its memory (`SavedVariable`, `data_` with
`saved_original_`, torch/csrc/autograd/saved_variable.cpp): the gradient that it retains, and its
history, that of its base where it is a view, as it is then and not as it was when it was saved. A
variable that was written into with what was computed from itself is a cycle in C++, which PyTorch
never frees.

A token has the memory alone. From the moment that a variable gets a gradient or another history it
has the variable as well.
"""

from __future__ import annotations

import weakref
from typing import Any, Protocol

import torch

from graphmem.virtual_gpu.notes import NOTHING, Note

_SAVED = "_graphmem_saved"


class Keeper(Protocol):
    """Stands for a saved variable.

    Attributes:
        variables: what it keeps besides memory.
        is_released: whether it has let go.
    """

    variables: list[torch.Tensor]
    is_released: bool


def note_saved(keeper: Any, variable: torch.Tensor) -> None:
    """A variable that is no leaf was saved, and with it the base that it is a view of."""
    base = variable._base if variable._is_view() else None
    for tensor in (variable, base):
        if tensor is not None and not tensor.is_leaf:
            keepers = getattr(tensor, _SAVED, NOTHING).value or []
            keepers.append(weakref.ref(keeper))
            setattr(tensor, _SAVED, Note(keepers))


def keep_where_saved(variable: torch.Tensor) -> None:
    """The variable has a new history, or a gradient that it retains."""
    for known in getattr(variable, _SAVED, NOTHING).value or ():
        keeper: Keeper | None = known()
        if keeper is not None and not keeper.is_released:
            keeper.variables.append(variable)


def note_history(args: tuple[Any, ...], result: Any) -> None:
    """An operation has run; one that writes into a variable or a view of it adds to its history."""
    if not args or result is not args[0] or not torch.is_grad_enabled():
        return
    if isinstance(result, torch.Tensor) and not result.is_inference():
        base = result._base if result._is_view() else result
        keep_where_saved(result if base is None else base)
