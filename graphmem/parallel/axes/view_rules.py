"""Axis rules of operators that only rearrange elements: views, slices, joins and broadcasts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphmem.parallel.axes.axis import Axis, cut_into_parts, regroup, unify
from graphmem.parallel.axes.rule_interface import (
    Axes,
    AxisFacts,
    OpView,
    Rule,
    equate,
    first,
    new_axes,
    sizes,
)


def broadcasts(axes: Axes, shape: Sequence[int]) -> bool:
    """Whether a tensor can be broadcast to a shape."""
    if len(axes) > len(shape):
        return False
    pairs = zip(reversed(sizes(axes)), reversed(list(shape)), strict=False)
    return all(mine in (1, theirs) for mine, theirs in pairs)


def broadcast(arguments: Sequence[Axes], shape: Sequence[int]) -> Axes:
    """For each dimension, the axis of the first argument that has its size."""
    result = list(new_axes(shape))
    for axes in reversed(arguments):
        if not broadcasts(axes, shape):
            continue
        for back in range(1, len(axes) + 1):
            if axes[-back].size == shape[-back]:
                result[-back] = axes[-back]
    return tuple(result)


def _view(call: OpView, facts: AxisFacts) -> list[Axes]:
    (shape,) = call.shapes
    made = regroup(first(call), shape)
    return [new_axes(shape) if made is None else tuple(made)]


def _transpose(call: OpView, facts: AxisFacts) -> list[Axes]:
    axes = list(first(call))
    if len(axes) >= 2:
        one, other = call.value("dim0"), call.value("dim1")
        axes[one], axes[other] = axes[other], axes[one]
    return [tuple(axes)]


def _t(call: OpView, facts: AxisFacts) -> list[Axes]:
    return [first(call)[::-1]]


def _permute(call: OpView, facts: AxisFacts) -> list[Axes]:
    axes = first(call)
    return [tuple(axes[dim] for dim in call.value("dims"))]


def _squeeze(call: OpView, facts: AxisFacts) -> list[Axes]:
    """Match the axes in order; those of size 1 carry no information."""
    left = [axis for axis in first(call) if axis.size != 1]
    (shape,) = call.shapes
    return [tuple(Axis(1) if size == 1 or not left else left.pop(0) for size in shape)]


def _expand(call: OpView, facts: AxisFacts) -> list[Axes]:
    return [broadcast([first(call)], call.shapes[0])]


def _without(axes: Axes, dim: int) -> Axes:
    dim %= len(axes)
    return axes[:dim] + axes[dim + 1 :]


def _select(call: OpView, facts: AxisFacts) -> list[Axes]:
    axes, dim = first(call), call.value("dim")
    cut_into_parts(axes[dim], axes[dim].size)
    return [_without(axes, dim)]


def _unbind(call: OpView, facts: AxisFacts) -> list[Axes]:
    axes, dim = first(call), call.value("dim")
    axis = axes[dim]
    if not axis.atoms():
        return [_without(axes, dim)] * len(call.shapes)
    for atom in axis.atoms():
        atom.counts_parts = True
    return [_without(axes, dim)] * len(call.shapes)


def _slice(call: OpView, facts: AxisFacts) -> list[Axes]:
    axes, dim = list(first(call)), call.value("dim") or 0
    size = call.shapes[0][dim]
    if size != axes[dim].size:
        axes[dim] = Axis(size, cut_from=axes[dim])
    return [tuple(axes)]


def _split(call: OpView, facts: AxisFacts) -> list[Axes]:
    axes, dim = first(call), call.value("dim") or 0
    dim %= len(axes)
    lengths = [shape[dim] for shape in call.shapes]
    return [(*axes[:dim], part, *axes[dim + 1 :]) for part in _pieces(axes[dim], lengths)]


def _pieces(axis: Axis, lengths: Sequence[int]) -> list[Axis]:
    if len(lengths) == 1:
        return [axis]
    if len(set(lengths)) == 1:
        return [cut_into_parts(axis, len(lengths))] * len(lengths)
    allocations = list(map(Axis, lengths))
    unify(axis, Axis(axis.size, parts=allocations))
    return list(axis.root.parts) if len(axis.root.parts) == len(lengths) else allocations


def _cat(call: OpView, facts: AxisFacts) -> list[Axes]:
    given = [axes for axes in call.lists("tensors") if axes]
    dim = (call.value("dim") or 0) % len(given[0])
    for axes in given[1:]:
        equate(axes[:dim], given[0][:dim])
        equate(axes[dim + 1 :], given[0][dim + 1 :])
    allocations = [axes[dim] for axes in given]
    size = sum(allocation.size for allocation in allocations)
    if len(allocations) == 1:
        joined = allocations[0]
    elif len({allocation.size for allocation in allocations}) == 1:
        for allocation in allocations[1:]:
            unify(allocation, allocations[0])
        joined = Axis(size, (Axis(len(allocations), counts_parts=True), allocations[0]))
    else:
        joined = Axis(size, parts=allocations)
    return [(*given[0][:dim], joined, *given[0][dim + 1 :])]


def _stack(call: OpView, facts: AxisFacts) -> list[Axes]:
    given = [axes for axes in call.lists("tensors") if axes is not None]
    dim = (call.value("dim") or 0) % (len(given[0]) + 1)
    for axes in given[1:]:
        equate(axes, given[0])
    counter = Axis(len(given), counts_parts=True)
    return [(*given[0][:dim], counter, *given[0][dim:])]


REARRANGED: Mapping[str, Rule] = {
    **dict.fromkeys(("aten.view", "aten._unsafe_view", "aten.reshape"), _view),
    "aten.transpose": _transpose,
    "aten.t": _t,
    "aten.permute": _permute,
    **dict.fromkeys(("aten.squeeze", "aten.unsqueeze"), _squeeze),
    "aten.expand": _expand,
    "aten.select": _select,
    "aten.unbind": _unbind,
    "aten.slice": _slice,
    **dict.fromkeys(("aten.split", "aten.split_with_sizes", "aten.chunk"), _split),
    "aten.cat": _cat,
    "aten.stack": _stack,
}
