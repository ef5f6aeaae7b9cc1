"""Operations that a real run does in place, but an observed run out of place.

PyTorch's composite operations and derivative formulas write into their own temporaries, unless a
tensor is a subclass or a dispatch mode is on (`isTensorSubclassLike`,
aten/src/ATen/TensorSubclassLikeUtils.h): then they allocate a new tensor for each result. A trace
observes and a run on a GPU does not, so the trace restores the in-place form.

An operation is part of a composite if it and the operation that made its first argument were called
by the same Python instruction, for the same autograd node: only C++ ran between the two. An
instruction is identified by the whole stack, since a finished frame leaves its address to the next,
and all calls may go through one line, as under `set_default_device`.

docs/kernel_memory.md lists every caller of `isTensorSubclassLike` in torch 2.13, including those
that are not corrected here.
"""

from __future__ import annotations

from types import FrameType
from typing import Any, NamedTuple

import torch

from graphmem.torch_releases import TIES_ARE_SPLIT, installed_release
from graphmem.trace.python_functions import name_of
from graphmem.trace.transform_levels import TransformLevels
from graphmem.virtual_device.notes import NOTHING, Note

aten = torch.ops.aten


class Form(NamedTuple):
    """The in-place form of an operation whose first argument was made by one of `makers`.

    Attributes:
        makers: operations, in their in-place forms where they run so.
        without_graph: more of them, for formulas that check `GradMode` and make no graph.
    """

    in_place: Any
    makers: frozenset[Any]
    without_graph: frozenset[Any] = frozenset()


Forms = dict[Any, Form]

_ZEROS = frozenset({aten.new_zeros.default, aten.zeros.default, aten.zeros_like.default})
_IN_PLACE: Forms = {
    # linear and the math backend of attention: the product, then the bias or the mask
    aten.add.Tensor: Form(aten.add_.Tensor, frozenset({aten._unsafe_view.default})),
    # the gradients of indexing, gathering and selecting: zeros, then the writes into them
    aten.index_put.default: Form(aten.index_put_.default, _ZEROS),
    aten.scatter.src: Form(aten.scatter_.src, _ZEROS),
    aten.scatter_add.default: Form(aten.scatter_add_.default, _ZEROS),
    aten.index_add.default: Form(aten.index_add_.default, _ZEROS),
    aten.index_fill.int_Tensor: Form(aten.index_fill_.int_Tensor, _ZEROS),
    aten.masked_scatter.default: Form(aten.masked_scatter_.default, _ZEROS),
    aten.put.default: Form(aten.put_.default, _ZEROS),
    # the gradient of `max()`, `min()` and `median()`
    aten.logical_and.default: Form(aten.logical_and_.default, frozenset({aten.isnan.default})),
    # isclose with `equal_nan`
    aten.bitwise_and.Tensor: Form(aten.bitwise_and_.Tensor, frozenset({aten.isnan.default})),
}
_IN_FORMULA: dict[str, Forms] = {
    "AminmaxBackward0": {
        aten.add.Tensor: Form(aten.add_.Tensor, frozenset({aten.mul.Tensor})),
    },
    "Atan2Backward0": {
        aten.masked_fill.Scalar: Form(
            aten.masked_fill_.Scalar,
            makers=frozenset(),
            without_graph=frozenset({aten.reciprocal.default}),
        ),
    },
    "BinaryCrossEntropyBackward0": {  # of the target
        aten.mul.Tensor: Form(aten.mul_.Tensor, frozenset({aten.logit.default, aten.mul_.Tensor})),
    },
    "BinaryCrossEntropyBackwardBackward0": {
        aten.mul.Tensor: Form(
            aten.mul_.Tensor,
            frozenset({aten.div.Tensor, aten.mul.Tensor, aten.mul_.Tensor, aten.sub_.Tensor}),
        ),
        aten.div.Tensor: Form(aten.div_.Tensor, frozenset({aten.mul.Tensor, aten.mul_.Tensor})),
    },
    "BinaryCrossEntropyWithLogitsBackward0": {
        aten.sub.Tensor: Form(
            aten.sub_.Tensor,
            frozenset({aten.log_sigmoid_forward.default, aten.mul_.Tensor}),
            without_graph=frozenset({aten.sigmoid.default, aten.add.Scalar}),
        ),
        aten.mul.Tensor: Form(
            aten.mul_.Tensor,
            frozenset({aten.log_sigmoid_forward.default, aten.sub_.Tensor, aten.mul_.Tensor}),
            without_graph=frozenset({aten.mul.Tensor}),
        ),
    },
    "ClampBackward0": {
        aten.logical_and.default: Form(
            aten.logical_and_.default, frozenset({aten.ge.Tensor, aten.lt.Tensor})
        ),
        aten.logical_or.default: Form(aten.logical_or_.default, frozenset({aten.gt.Tensor})),
    },
    # these write into their zeros out of place (`scatter_reduce_backward`, `index_reduce_backward`,
    # `grid_sampler_*d_double_backward`; `masked_scatter_backward` in derivatives.yaml)
    "GridSampler2DBackwardBackward0": {},
    "GridSampler3DBackwardBackward0": {},
    "IndexReduceBackward0": {},
    "MaskedScatterBackwardBackward0": {},
    "ScatterReduceBackward0": {},
}
"""The same for individual autograd nodes, for sequences that occur in their formulas only."""
if TIES_ARE_SPLIT.holds_in(installed_release()):
    _SPLIT = {aten.masked_fill.Scalar: Form(aten.masked_fill_.Scalar, frozenset({aten.where.self}))}
    _CLAMPING = "Clamp0 ClampMin1 ClampMax1 Maximum0 Minimum0 Fmax0 Fmin0".split()
    _IN_FORMULA |= {f"{name[:-1]}Backward{name[-1]}": _SPLIT for name in _CLAMPING}

_ALL = [_IN_PLACE, *_IN_FORMULA.values()]
_FORMS = [form for forms in _ALL for form in forms.values()]
_MAKERS = frozenset().union(*(form.makers | form.without_graph for form in _FORMS))
WATCHED = _MAKERS.union(*_ALL)
"""The operations that `InPlaceForms` needs to see."""

_PRODUCTS = (aten.mul.Tensor, aten.div.Tensor)
_CALL = "_graphmem_call"


class InPlaceForms:
    """Chooses the form of each operation.

    Args:
        observed: choose like an observed run.
        levels: those of `torch.func`, whose wrappers are subclass-like in every run.
    """

    def __init__(self, *, observed: bool, levels: TransformLevels) -> None:
        self._observed = observed
        self._levels = levels

    def choose(self, func: Any, args: tuple[Any, ...], node: Any, caller: FrameType | None) -> Any:
        """The operation to run instead of `func`, which `caller` called.

        Args:
            func: the operation that was dispatched.
            args: its arguments.
            node: the running autograd node; None in a forward pass.
            caller: the innermost Python frame.
        """
        form = _IN_PLACE.get(func)
        if node is not None:
            form = _IN_FORMULA.get(name_of(node), _IN_PLACE).get(func)
        if form is None or self._observed or self._levels or _saves_first(func, args):
            return func
        makers = form.makers
        if not torch.is_grad_enabled():
            makers |= form.without_graph
        maker, call = getattr(args[0], _CALL, NOTHING).value or (None, None)
        return form.in_place if maker in makers and call == _call(node, caller) else func

    def note(self, func: Any, result: Any, node: Any, caller: FrameType | None) -> None:
        """Note that `func` ran, in the chosen form, and returned `result`."""
        if func in _MAKERS:
            first = result[0] if isinstance(result, tuple) else result
            setattr(first, _CALL, Note((func, _call(node, caller))))


def _saves_first(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether autograd saves the first argument, for the derivative by the second.

    In place, it saves a clone made before (`original_self`, gen_variable_type.py): a separate
    result takes as many bytes at the same times, the two blocks exchanged.
    """
    if func not in _PRODUCTS or not torch.is_grad_enabled():
        return False
    return getattr(args[1], "requires_grad", False)  # it may be a number


def _call(node: Any, frame: FrameType | None) -> tuple[int | None, list[tuple[int, int]]]:
    """The running instruction, and the node that it runs for.

    The node is needed because the walk calls all nodes by one instruction.
    """
    stack = []
    while frame is not None:
        stack.append((id(frame), frame.f_lasti))
        frame = frame.f_back
    return None if node is None else node._sequence_nr(), stack
