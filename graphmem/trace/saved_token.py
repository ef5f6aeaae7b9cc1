"""The token that autograd holds in place of a saved tensor."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from graphmem.frames import acts_for_the_program
from graphmem.graph import Owner, Storage, TensorOut
from graphmem.trace.descriptions import DTYPE_NAMES, sizes
from graphmem.trace.node_writer import MadeBy
from graphmem.trace.saved_variables import Savers
from graphmem.trace.saved_versions import SavedVersion
from graphmem.trace.wrapper_tensors import Together

Hook = Callable[[Any], Any]
PENDING: tuple[tuple[Callable[[torch.Tensor], bool], Hook], ...] = (
    (torch.Tensor.is_conj, torch.Tensor.conj),
    (torch.Tensor.is_neg, torch._neg_view),
)
"""Operations that a view defers to its readers (aten/src/ATen/ConjugateFallback.cpp)."""


class SavedToken:
    """An object that autograd holds in place of a saved tensor; its release ends `owner`.

    The token of a sparse tensor has no storage, but parts: indices and values. So does that of a
    tensor that holds others.

    Args:
        number: its number in the order of packing.
        let_go: called when `owner` ends.
        hooks: the user's hooks, if any: they live as long as what they packed.
    """

    __slots__ = (
        "__weakref__",
        "_let_go",
        "field",
        "geometry",
        "hooks",
        "is_of_base",
        "is_released",
        "leaf",
        "made_by",
        "number",
        "offset",
        "owner",
        "parts",
        "pending",
        "payload",
        "savers",
        "storage",
        "together",
        "values",
        "variables",
        "version",
    )

    def __init__(
        self, number: int, let_go: Callable[[Storage, Owner], None], hooks: list[Hook]
    ) -> None:
        self.number = number
        self._let_go = let_go
        self.hooks = hooks
        self.field = ""
        self.is_of_base = False
        self.is_released = False
        self.leaf: weakref.ref[torch.Tensor] | None = None
        self.storage: Storage | None = None
        self.owner: Owner | None = None
        self.geometry: tuple[Any, ...] | None = None
        self.made_by: MadeBy | None = None
        self.offset = 0
        self.payload: Any = None
        self.values: Any = None
        self.parts: tuple[SavedToken, ...] = ()
        self.together: Together | None = None
        self.pending: tuple[Hook, ...] = ()
        self.version: SavedVersion | None = None
        self.variables: list[torch.Tensor] = []
        self.savers: Savers | None = None

    def name_after(self, field: str) -> None:
        """Name the token's owner: a field of a node."""
        for saved in (self, *self.parts):
            if saved.owner is not None:
                saved.owner.name = field

    @acts_for_the_program
    def check(self) -> None:
        """Check that a node may unpack what it saved [`SavedVariable::unpack`].

        Raises:
            RuntimeError: it was released, for example by an earlier backward pass, or written into.
        """
        if self.is_released:
            raise RuntimeError(_RELEASED)
        if self.version is not None:
            self.version.check("" if self.owner is None else self.owner.name)

    def release(self) -> None:
        """Release everything, as `Node::release_variables` does."""
        self.is_released = True
        self.payload = self.values = self.version = self.together = None
        self.hooks = []
        self.variables.clear()
        for part in reversed(self.parts):  # as `~SparseTensorImpl` does
            part.release()
        self.let_go()

    def let_go(self) -> None:
        """End what the token owns."""
        if self.owner is not None and self.owner.end is None:
            assert self.storage is not None
            self._let_go(self.storage, self.owner)

    def described(self) -> TensorOut | None:
        """The step graph's description of the tensor; None if only the user's hooks know it."""
        if self.geometry is not None:
            shape, stride, dtype, _ = self.geometry
        elif isinstance(self.payload, torch.Tensor) and not self.hooks:
            shape, stride, dtype = self.payload.shape, self.payload.stride(), self.payload.dtype
        else:
            return None
        storage = None if self.storage is None else self.storage.id
        return TensorOut(sizes(shape), DTYPE_NAMES[dtype], storage, sizes(stride))

    def __del__(self) -> None:
        self.release()


_RELEASED = (
    "Trying to backward through the graph a second time (or directly access saved tensors after "
    "they have already been freed). Saved intermediate values of the graph are freed when you call "
    ".backward() or autograd.grad(). Specify retain_graph=True if you need to backward through the "
    "graph a second time or if you need to access saved tensors after calling backward."
)
