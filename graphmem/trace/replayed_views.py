"""Views whose autograd node changes because they were written into.

Writing into a view gives its base a new history, and the view gets a new node the next time it is
used. For ordinary tensors this is one `AsStridedBackward0` from the base to the view, however many
steps the view took (torch/csrc/autograd/variable.cpp, `VariableHooks::grad_fn`); its formula
allocates a whole base of zeros. For fake tensors, autograd instead repeats the operations that made
the view, and the graph holds their nodes, which allocate nothing. This module tracks these nodes,
so that the walk runs the formula of a real run.

A view in another type, as of the real parts of complex numbers, is repeated in a real run as well
(`ViewInfo::chain`, variable.cpp): the steps before it become one `AsStridedBackward0`, and each
after it one of its own.

A repeated view is recognised by its early death: only its node is needed, so the tensor is gone
before the next operation. A program's own view that reaches the loss is alive when the operation
that uses it runs.

The gradient of a write into a view also repeats the view, where a real run takes `as_strided`
(`CopySlices::apply`, torch/csrc/autograd/functions/tensor.cpp); second derivatives tell them apart.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from graphmem import constructors
from graphmem.trace.freed_graphs import looked_at

Geometry = tuple[tuple[int, ...], tuple[int, ...], int]
Edges = Sequence[tuple[Any, int]]
_FUNCTIONS: Any = torch._C._functions


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A view that was just made."""

    node: int
    tensor: weakref.ref[torch.Tensor]
    base: weakref.ref[torch.Tensor]
    geometry: Geometry
    is_of_slices: bool
    before: _Candidate | None
    """The view that it views, if not the base."""
    is_turn: bool
    """Whether it has another type than what it views."""
    is_chained: bool
    """Whether a view in another type is among those that it was made of."""


@dataclass(frozen=True, slots=True)
class _Replayed:
    """A view's place in its base, and the base's node when the view was repeated."""

    view: Geometry
    base: Geometry
    base_node: int


class ReplayedViews:
    """The nodes of repeated views, by sequence number."""

    def __init__(self) -> None:
        self._candidate: _Candidate | None = None
        self._newest: _Candidate | None = None
        self._replayed: dict[int, _Replayed] = {}

    def note(self, newest: int, args: tuple[Any, ...], result: Any, running: Any) -> None:
        """Look at an operation for which autograd made a node: it may view a written base.

        The `grad_fn` of any other base must not be read: nodes that Python has seen die in a
        different order (`freed_graphs`).

        Args:
            newest: that node.
            args: the operation's arguments.
            result: what it returned.
            running: the running node; None in a forward pass.
        """
        source: Any = args[0] if args else None
        if not isinstance(source, torch.Tensor) or not torch.is_grad_enabled():
            return
        base = source._base if source._is_view() else source
        if base is None or base.is_inference() or not base._version:
            return
        if _shares_storage(source, result):
            newest_view = self._newest
            is_next = newest_view is not None and newest_view.tensor() is source
            before = newest_view if is_next else None
            self._candidate = _Candidate(
                newest,
                weakref.ref(result),
                weakref.ref(base),
                _geometry(result),
                is_of_slices=isinstance(running, _FUNCTIONS.CopySlices),
                before=before,
                is_turn=result.dtype != source.dtype,
                is_chained=before is not None and (before.is_turn or before.is_chained),
            )

    def settle(self) -> None:
        """Decide what the newest view was, before anything else happens."""
        candidate, self._candidate = self._candidate, None
        self._newest = candidate
        if candidate is None or not (candidate.is_of_slices or candidate.tensor() is None):
            return
        base = candidate.base()
        if base is not None and base.grad_fn is not None:
            looked_at(base.grad_fn)
            self._replay(candidate, _geometry(base), base.grad_fn._sequence_nr())

    def _replay(self, view: _Candidate, base: Geometry, base_node: int) -> None:
        """Note the nodes of a repeated view, and of those that it was made of."""
        before = view.before
        if view.is_chained and before is not None and not view.is_turn:
            self._replayed[view.node] = _Replayed(view.geometry, before.geometry, before.node)
        elif not view.is_turn:
            self._replayed[view.node] = _Replayed(view.geometry, base, base_node)
        if before is not None and (view.is_turn or view.is_chained):
            self._replay(before, base, base_node)

    def edges_of(self, node: Any) -> Edges:
        """The edges of a node; those of a repeated view go straight to its base."""
        edges: Edges = node.next_functions
        replayed = self._replayed and self._replayed.get(node._sequence_nr())
        if replayed:
            while edges[0][0]._sequence_nr() != replayed.base_node:
                edges = edges[0][0].next_functions
        return edges

    def formula_of(self, node: Any) -> Any:
        """The function to call for a node: itself, or that of the node in a real run."""
        replayed = self._replayed and self._replayed.get(node._sequence_nr())
        if not replayed:
            return node
        dtype = node._input_metadata[0].dtype
        shape, strides, offset = replayed.base
        size = offset + 1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
        with torch._C._DisableTorchDispatch(), torch.enable_grad():
            memory = constructors.empty(size, dtype=dtype, device="meta")
            base = memory.as_strided(*replayed.base).requires_grad_()
            return base.as_strided(*replayed.view).grad_fn


def _geometry(tensor: torch.Tensor) -> Geometry:
    return tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())


def _shares_storage(source: torch.Tensor, result: Any) -> bool:
    return (
        isinstance(result, torch.Tensor)
        and result is not source
        and source.layout is result.layout is torch.strided
        and source.untyped_storage()._cdata == result.untyped_storage()._cdata
    )
