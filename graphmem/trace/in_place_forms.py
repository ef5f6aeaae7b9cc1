"""Operations that a real run does in place, and does out of place where it is observed.

PyTorch's composite operations and derivative formulas write into their own temporaries, unless a
tensor is a subclass or a dispatch mode is on (`isTensorSubclassLike`,
aten/src/ATen/TensorSubclassLikeUtils.h): then they take another tensor for each result. A trace
observes, a run on a GPU does not, so the trace goes back to the form in place.

An operation belongs to a composite one when it and the operation that made its first argument are
called by one and the same instruction of Python: between the two, there was only C++.
"""

from __future__ import annotations

from types import FrameType
from typing import Any

import torch

aten = torch.ops.aten

_ZEROS = frozenset({aten.new_zeros.default, aten.zeros.default, aten.zeros_like.default})
Forms = dict[Any, tuple[Any, frozenset[Any]]]
"""What runs in place, by which form, where its first argument was made by one of these."""

_IN_PLACE: Forms = {
    # linear and the written-out attention: the product, then the bias or the mask
    aten.add.Tensor: (aten.add_.Tensor, frozenset({aten._unsafe_view.default})),
    # the gradients of indexing, gathering and selecting: zeros, then what goes where
    aten.index_put.default: (aten.index_put_.default, _ZEROS),
    aten.scatter.src: (aten.scatter_.src, _ZEROS),
    aten.scatter_add.default: (aten.scatter_add_.default, _ZEROS),
    aten.index_add.default: (aten.index_add_.default, _ZEROS),
    aten.index_fill.int_Tensor: (aten.index_fill_.int_Tensor, _ZEROS),
    aten.masked_scatter.default: (aten.masked_scatter_.default, _ZEROS),
    aten.put.default: (aten.put_.default, _ZEROS),
    # the gradient of `max()`, `min()` and `median()`
    aten.logical_and.default: (aten.logical_and_.default, frozenset({aten.isnan.default})),
}
_IN_FORMULA: dict[str, Forms] = {
    "BinaryCrossEntropyBackward0": {
        aten.mul.Tensor: (aten.mul_.Tensor, frozenset({aten.logit.default, aten.mul.Tensor})),
    },
    "BinaryCrossEntropyWithLogitsBackward0": {
        aten.sub.Tensor: (
            aten.sub_.Tensor,
            frozenset({aten.sigmoid.default, aten.add.Scalar, aten.mul.Tensor}),
        ),
        aten.mul.Tensor: (aten.mul_.Tensor, frozenset({aten.sub.Tensor, aten.mul.Tensor})),
    },
}
"""The same for single nodes of autograd, which write in place unless they make a graph."""

_ALL = [_IN_PLACE, *_IN_FORMULA.values()]
_MAKERS = frozenset().union(*(makers for forms in _ALL for _, makers in forms.values()))
WATCHED = _MAKERS.union(*_ALL)
"""The operations that `InPlaceForms` wants to know of."""

_CALL = "_graphmem_call"


class InPlaceForms:
    """Chooses the form of each operation.

    Args:
        observed: choose as an observed run does.
    """

    def __init__(self, *, observed: bool) -> None:
        self._observed = observed

    def choose(self, func: Any, args: tuple[Any, ...], node: Any, caller: FrameType | None) -> Any:
        """The operation to run in place of `func`, which `caller` has called.

        Args:
            func: the operation that was dispatched.
            args: its arguments.
            node: the node of autograd that runs, None in a forward pass.
            caller: the innermost frame of Python.
        """
        form = _IN_PLACE.get(func)
        if node is not None and not torch.is_grad_enabled():
            form = _IN_FORMULA.get(node.name(), _IN_PLACE).get(func)
        if form is None or self._observed:
            return func
        in_place, makers = form
        made = getattr(args[0], _CALL, None)
        return in_place if made in [(maker, *_call_of(caller)) for maker in makers] else func

    def note(self, func: Any, result: Any, caller: FrameType | None) -> None:
        """`func` has made `result`."""
        if func in _MAKERS:
            setattr(result, _CALL, (func, *_call_of(caller)))


def _call_of(frame: FrameType | None) -> tuple[int, int]:
    return (id(frame), -1 if frame is None else frame.f_lasti)
