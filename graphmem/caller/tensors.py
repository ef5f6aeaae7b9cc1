"""The caller's tensors: their memory, and their autograd state.

A tensor that moves to the virtual card keeps its identity and changes everything else
(`graphmem.virtual_device.parameters`). Its former contents are kept in another Python object, its
`original`, and the two swap back at the end. A tensor that nobody holds by then is replaced by its
original: without a reference to it nobody can tell.
"""

from __future__ import annotations

import copyreg
import weakref
from collections.abc import Iterable
from typing import Any

import torch

ATTRIBUTES: Any = vars(torch.Tensor)["__dict__"]
"""Reads and writes all attributes of a tensor, whichever of them its class shows."""

_LEAF = "graphmem leaf"  # an attribute of a tensor's former contents: a reference to the tensor


class TensorNote:
    """The former state of a tensor.

    Attributes:
        held: the tensor, while it is real; this note may then be its only holder. A fake one is
            not held, because the program decides when to free the card's memory.
        original: the former contents of a tensor that was swapped, None while it was not.
        data: its memory before other data was assigned to it, None while it has its own.
        grad: its gradient.
    """

    __slots__ = (
        "_attributes",
        "_post_hooks",
        "_requires_grad",
        "_tensor_hooks",
        "_version",
        "data",
        "grad",
        "held",
        "original",
        "ref",
    )

    def __init__(self, tensor: torch.Tensor) -> None:
        self.ref = weakref.ref(tensor)
        self.held: torch.Tensor | None = None
        self.original: torch.Tensor | None = None
        self.data: torch.Tensor | None = None
        is_leaf = tensor.is_leaf
        self.grad = tensor.grad if is_leaf else None
        self._requires_grad = tensor.requires_grad if is_leaf else None
        self._tensor_hooks = _Hooks(tensor, "_backward_hooks")
        self._post_hooks = _Hooks(tensor, "_post_accumulate_grad_hooks")
        self._attributes = dict(tensor.__dict__)
        self._version = None if tensor.is_inference() else tensor._version

    def tensor(self) -> torch.Tensor | None:
        """The tensor, or its original; None if both are gone."""
        found = self.ref()
        return self.original if found is None else found

    def undo_moves(self) -> None:
        """Restore the tensor's memory."""
        tensor = self.ref()
        if tensor is not None and self.original is not None:
            become(tensor, self.original)
            ATTRIBUTES.__get__(tensor).pop(_LEAF, None)
        if self.data is not None:
            target = self.tensor()
            if target is not None:
                target.data = self.data

    def undo_changes(self) -> None:
        """Restore gradient, hooks, attributes and `requires_grad`."""
        tensor = self.tensor()
        if tensor is None:
            return
        if not _are_same(tensor.__dict__, self._attributes):
            tensor.__dict__.clear()
            tensor.__dict__.update(self._attributes)
        if self._requires_grad is not None:
            if tensor.requires_grad is not self._requires_grad:
                tensor.requires_grad_(self._requires_grad)
            if tensor.grad is not self.grad:
                tensor.grad = self.grad
        self._tensor_hooks.undo(tensor)
        self._post_hooks.undo(tensor)
        if self._version is not None and tensor._version != self._version:
            torch._C._autograd._unsafe_set_version_counter((tensor,), (self._version,))


def _are_same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return list(one) == list(other) and all(one[name] is other[name] for name in one)


class _Hooks:
    """The hooks of one kind on a tensor."""

    __slots__ = ("_before", "_hooks", "_name")

    def __init__(self, tensor: torch.Tensor, name: str) -> None:
        self._name = name
        self._hooks: dict[int, Any] | None = getattr(tensor, name)
        self._before = dict(self._hooks or {})

    def undo(self, tensor: torch.Tensor) -> None:
        """Remove hooks that were added, and restore those that were removed."""
        now = getattr(tensor, self._name)
        if now is None:
            return
        if self._hooks is None:
            setattr(tensor, self._name, None)
        elif self._hooks != self._before:
            self._hooks.clear()
            self._hooks.update(self._before)


def _is_defined(tensor: torch.Tensor) -> bool:
    """Whether a tensor is not an empty shell, which up to 2.12 the collector may leave in a cycle.

    `THPVariable_tp_clear`, torch/csrc/autograd/python_variable.cpp.
    """
    try:
        return isinstance(tensor.is_leaf, bool)
    except RuntimeError:
        return False


class Tensors:
    """Notes of tensors, by identity."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._notes = {id(tensor): TensorNote(tensor) for tensor in tensors if _is_defined(tensor)}

    def __iter__(self) -> Any:
        return iter(self._notes.values())

    def note_of(self, tensor: torch.Tensor) -> TensorNote | None:
        """The note of a tensor that existed before, or None."""
        note = self._notes.get(id(tensor))
        return note if note is not None and note.ref() is tensor else None

    def holds(self, tensor: torch.Tensor, former: torch.Tensor) -> bool:
        """Whether a tensor's former contents are to be restored."""
        note = self.note_of(tensor)
        return note is not None and note.original is former

    def before_data(self, tensor: torch.Tensor) -> None:
        """Note a tensor to which other data of the same kind is about to be assigned."""
        note = self.note_of(tensor)
        if note is not None and note.original is None and note.data is None:
            note.data = tensor.detach()

    def before_becoming(self, tensor: torch.Tensor, other: torch.Tensor) -> None:
        """Note a tensor that is about to swap its contents with `other`."""
        note = self.note_of(tensor)
        if note is not None and note.original is None:
            note.original, note.held = other, None


def _slots_of_both(tensor: torch.Tensor, other: torch.Tensor) -> list[str]:
    """The `__slots__` (as `DTensor` has some) that are set in both tensors."""
    if type(tensor) is not type(other):
        return []
    names: list[str] = copyreg._slotnames(type(tensor))  # type: ignore[attr-defined]
    return [name for name in names if hasattr(tensor, name) and hasattr(other, name)]


def become(tensor: torch.Tensor, other: torch.Tensor) -> None:
    """Swap everything but the identity of two tensors.

    This works even if autograd graphs hold them: a node keeps what it held
    (`THPModule_swap_tensor_impl`, torch/csrc/Module.cpp).
    """
    kind = type(tensor)
    held, held_by_other = ATTRIBUTES.__get__(tensor), ATTRIBUTES.__get__(other)
    attributes = dict(held)
    for slot in _slots_of_both(tensor, other):
        mine, others = getattr(tensor, slot), getattr(other, slot)
        setattr(tensor, slot, others)
        setattr(other, slot, mine)
    tensor.__class__ = type(other)
    other.__class__ = kind
    held.clear()
    held.update(held_by_other)
    held_by_other.clear()
    held_by_other.update(attributes)
    torch._C._swap_tensor_impl(tensor, other)


def assign_data(tensor: torch.Tensor, other: torch.Tensor) -> None:
    """Give a tensor the contents of `other`, as `tensor.data = other` does.

    An autograd graph made before holds what the tensor was; `leaf_of` leads from there to it.
    """
    become(tensor, other)
    ATTRIBUTES.__get__(other)[_LEAF] = weakref.ref(tensor)


def leaf_of(node: Any) -> torch.Tensor:
    """The leaf whose gradient an `AccumulateGrad` node adds to."""
    held: torch.Tensor = node.variable
    known = ATTRIBUTES.__get__(held).get(_LEAF, lambda: None)
    found: torch.Tensor | None = known()
    return held if found is None else found
