"""How operators relate the axes of their results to those of their arguments.

One rule for a family of operators, by the operator's name without its overload; operators that only
rearrange elements are in `view_rules`. The rules follow from the operators' shapes. A rule leaves
unrelated what it does not know, so an operator without a rule makes new axes, unless a result has
the shape of an argument (clause 2).

Clauses:
  (1) if the operator has a rule, the rule relates its axes;
  (2) otherwise, a result is related to the first tensor argument of the same shape, and to tensor
      arguments that broadcast to it; this covers pointwise operators, casts, copies, softmax,
      dropout, norms' gradients and in-place forms.

Not covered: `index` on dimensions other than the leading ones; its axes are new.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphmem.parallel.axes.axis import Axis, unify
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
from graphmem.parallel.axes.view_rules import REARRANGED, broadcast, broadcasts


def relate(name: str, call: OpView, facts: AxisFacts) -> list[Axes]:
    """Find the axes of an operation's results.

    Args:
        name: such as `aten.mm`.
        call: its arguments and the shapes of its results.
        facts: receives the facts that the operator reports.
    """
    rule = RULES.get(name, _alike)
    made = rule(call, facts)
    return [
        _fitting(made[i], shape) if i < len(made) else new_axes(shape)
        for i, shape in enumerate(call.shapes)
    ]


def _fitting(axes: Axes, shape: Sequence[int]) -> Axes:
    """The axes, with new ones in place of those whose sizes differ from the trace."""
    if len(axes) != len(shape):
        return new_axes(shape)
    return tuple(
        axis if axis.size == size else Axis(size) for axis, size in zip(axes, shape, strict=True)
    )


def _alike(call: OpView, facts: AxisFacts) -> list[Axes]:
    arguments = call.tensors()
    results = []
    for shape in call.shapes:
        result = next((axes for axes in arguments if sizes(axes) == tuple(shape)), None)
        if result is None:
            result = broadcast(arguments, shape)
        for axes in arguments:
            if broadcasts(axes, shape):
                equate(axes, result)
        results.append(result)
    return results


def _product(one: Axes, other: Axes, facts: AxisFacts) -> Axes:
    unify(one[-1], other[-2])
    for mine, theirs in zip(one[:-2], other[:-2], strict=True):
        unify(mine, theirs)
        facts.batched.append(mine)
    return (*one[:-1], other[-1])


def _mm(call: OpView, facts: AxisFacts) -> list[Axes]:
    one, other, *_ = call.tensors()
    return [_product(one, other, facts)]


def _addmm(call: OpView, facts: AxisFacts) -> list[Axes]:
    bias, one, other, *_ = call.tensors()
    result = _product(one, other, facts)
    equate(bias, result)
    return [result]


def _mv(call: OpView, facts: AxisFacts) -> list[Axes]:
    matrix, vector, *_ = call.tensors()
    unify(matrix[1], vector[0])
    return [(matrix[0],)]


def _linear(call: OpView, facts: AxisFacts) -> list[Axes]:
    one, weight, *bias = call.tensors()
    unify(one[-1], weight[-1])
    for axes in bias:
        unify(axes[0], weight[0])
    return [(*one[:-1], weight[0])]


def _embedding(call: OpView, facts: AxisFacts) -> list[Axes]:
    weight, indices, *_ = call.tensors()
    return [(*indices, weight[1])]


def _embedding_backward(call: OpView, facts: AxisFacts) -> list[Axes]:
    gradient, *_ = call.tensors()
    rows, _ = call.shapes[0]
    return [(Axis(rows), gradient[-1])]


def _reduce(call: OpView, facts: AxisFacts) -> list[Axes]:
    axes = first(call)
    dims = call.value("dim")
    dims = range(len(axes)) if dims is None or dims == [] else dims
    dims = {dim % len(axes) for dim in ([dims] if isinstance(dims, int) else dims)} if axes else ()
    facts.whole += [axes[dim] for dim in dims]
    if call.shapes and len(call.shapes[0]) == len(axes):
        kept = tuple(Axis(1) if dim in dims else axis for dim, axis in enumerate(axes))
    else:
        kept = tuple(axis for dim, axis in enumerate(axes) if dim not in dims)
    return [kept] * len(call.shapes)


def _softmax(call: OpView, facts: AxisFacts) -> list[Axes]:
    axes = first(call)
    if axes:
        facts.whole.append(axes[call.value("dim")])
    return [axes]


def _norm(call: OpView, facts: AxisFacts) -> list[Axes]:
    axes, *others = call.tensors()
    count = len(call.value("normalized_shape"))
    facts.whole += axes[len(axes) - count :]
    for other in others:
        equate(other, axes)
    leading = axes[: len(axes) - count] + tuple(Axis(1) for _ in range(count))
    return [axes, *([leading] * (len(call.shapes) - 1))]


def _attention(call: OpView, facts: AxisFacts) -> list[Axes]:
    query, key, value = (call.axes(name) or () for name in ("query", "key", "value"))
    unify(key[2], value[2])
    unify(query[3], key[3])
    for tensor in (key, value):
        for dim in (0, 1):
            unify(tensor[dim], query[dim])
    facts.batched += [query[1], key[1]]
    facts.queries.append(query[2])
    per_row = (*query[:3], Axis(1))
    others = (per_row[: len(s)] if len(s) >= 3 else new_axes(s) for s in call.shapes[1:])
    return [(*query[:3], value[3]), *others]


def _attention_backward(call: OpView, facts: AxisFacts) -> list[Axes]:
    return [call.axes(name) or () for name in ("query", "key", "value")]


def _convolution(call: OpView, facts: AxisFacts) -> list[Axes]:
    one, weight, *_ = call.tensors()
    if call.value("groups") == 1 and not call.value("transposed"):
        unify(one[1], weight[1])
    return [(one[0], weight[0], *new_axes(call.shapes[0][2:]))]


def _class_loss(call: OpView, facts: AxisFacts) -> list[Axes]:
    """Scores of shape (rows, classes), and a target for each row."""
    *_, scores = sorted(call.tensors(), key=len)
    for axes in call.tensors():
        if len(axes) == 1 and axes[0].size == scores[0].size:
            unify(axes[0], scores[0])
    return [scores if len(shape) == len(scores) else new_axes(shape) for shape in call.shapes]


def _loss(call: OpView, facts: AxisFacts) -> list[Axes]:
    """The compared tensors have the same shape."""
    first, *others = call.tensors()
    for axes in others:
        equate(axes, first)
    return [first if len(shape) == len(first) else new_axes(shape) for shape in call.shapes]


def _pool(call: OpView, facts: AxisFacts) -> list[Axes]:
    """Only the last two dimensions change."""
    axes = first(call)
    return [axes[:-2] + new_axes(shape[-2:]) for shape in call.shapes]


def _index(call: OpView, facts: AxisFacts) -> list[Axes]:
    """`x[rows]`: the rows' own axes, and what the index does not touch."""
    axes, rows = first(call), call.lists("indices")
    (shape,) = call.shapes
    kept = axes[len(rows) :]
    leading = shape[: len(shape) - len(kept)]
    picked = [each for each in rows if each is not None]
    return [(broadcast(picked, leading) if len(picked) == len(rows) else new_axes(leading)) + kept]


def _index_select(call: OpView, facts: AxisFacts) -> list[Axes]:
    axes, rows = call.tensors()
    dim = call.value("dim") % len(axes)
    return [(*axes[:dim], *rows, *axes[dim + 1 :])]


def _index_add(call: OpView, facts: AxisFacts) -> list[Axes]:
    axes, source, dim = first(call), call.axes("source") or (), call.value("dim")
    for other in range(len(source)):
        if other != dim % len(axes):
            unify(source[other], axes[other])
    return [axes]


def _index_put(call: OpView, facts: AxisFacts) -> list[Axes]:
    """A lone index may be a mask of several dimensions, which then stand for one of the values."""
    axes, values, indices = first(call), call.axes("values") or (), call.lists("indices")
    index = indices[0] or () if len(indices) == 1 else ()
    is_mask = len(index) > 1 and len(values) - len(axes) == 1 - len(index)
    kept = axes[len(index) if is_mask else len(indices) :]
    equate(values[len(values) - len(kept) :], kept)
    return [axes]


def _nonzero(call: OpView, facts: AxisFacts) -> list[Axes]:
    """The number of results is proportional to the input: experts with balanced routing."""
    axes, (shape,) = first(call), call.shapes
    return [(Axis(shape[0], drawn_from=axes[0]), Axis(shape[1]))] if axes else [new_axes(shape)]


def _last_changes(call: OpView, facts: AxisFacts) -> list[Axes]:
    axes = first(call)
    dim = call.value("dim")
    dim = (-1 if dim is None else dim) % len(axes)
    facts.whole.append(axes[dim])
    return [(*axes[:dim], Axis(shape[dim]), *axes[dim + 1 :]) for shape in call.shapes]


_ATTENTION = ("flash", "efficient", "cudnn", "fused")
RULES: Mapping[str, Rule] = {
    **REARRANGED,
    **dict.fromkeys(("aten.mm", "aten.bmm"), _mm),
    **dict.fromkeys(("aten.addmm", "aten.baddbmm"), _addmm),
    "aten.mv": _mv,
    "aten.linear": _linear,
    "aten.embedding": _embedding,
    "aten.embedding_dense_backward": _embedding_backward,
    **dict.fromkeys(
        (
            "aten.sum",
            "aten.mean",
            "aten.amax",
            "aten.var",
            "aten.std",
            "aten.var_mean",
            "aten.logsumexp",
            "aten.linalg_vector_norm",
            "aten.argmax",
            "aten.prod",
        ),
        _reduce,
    ),
    **dict.fromkeys(("aten._softmax", "aten._log_softmax", "aten.cumsum"), _softmax),
    **dict.fromkeys(("aten.native_layer_norm", "aten._fused_rms_norm"), _norm),
    **{f"aten._scaled_dot_product_{kind}_attention": _attention for kind in _ATTENTION},
    **{
        f"aten._scaled_dot_product_{kind}_attention_backward": _attention_backward
        for kind in _ATTENTION
    },
    "aten.convolution": _convolution,
    **dict.fromkeys(
        (
            "aten.max_pool2d_with_indices",
            "aten.avg_pool2d",
            "aten._adaptive_avg_pool2d",
            "aten.upsample_nearest2d",
            "aten.upsample_bilinear2d",
        ),
        _pool,
    ),
    **dict.fromkeys(("aten.nll_loss_forward", "aten.nll_loss_backward"), _class_loss),
    **dict.fromkeys(
        (
            "aten.mse_loss",
            "aten.l1_loss",
            "aten.smooth_l1_loss",
            "aten.huber_loss",
            "aten.binary_cross_entropy",
            "aten.binary_cross_entropy_with_logits",
        ),
        _loss,
    ),
    "aten.index": _index,
    "aten.index_select": _index_select,
    **dict.fromkeys(("aten.index_add", "aten.index_add_"), _index_add),
    **dict.fromkeys(("aten.index_put", "aten.index_put_"), _index_put),
    "aten.nonzero": _nonzero,
    **dict.fromkeys(("aten.topk", "aten.sort"), _last_changes),
}
