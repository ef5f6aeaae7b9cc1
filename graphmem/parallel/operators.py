"""How operators relate the axes of their results to those of their arguments.

One rule a family of operators, by the operator's name without its overload. The rules are those of
the operators' shapes; what a rule does not know it leaves unrelated, so an operator without a rule
makes new axes, save where a result has the shape of an argument (clause 2).

Clauses:
  (1) an operator with a rule is related by it;
  (2) of every other one, a result is related to the first tensor argument of the same shape, and
      tensor arguments that broadcast to it with it; this covers pointwise operators, casts, copies,
      softmax, dropout, norms' gradients and in-place forms.

Not covered: sizes that depend on data, and `index` beyond whole dimensions; their axes are new.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from graphmem.parallel.axes import Axis, cut_into_parts, take, unify

Axes = tuple[Axis, ...]


class Named(Protocol):
    """An operation's arguments, as rules see them."""

    @property
    def shapes(self) -> Sequence[tuple[int, ...]]:
        """The shapes of the results."""

    def value(self, name: str) -> Any:
        """An argument that is no tensor."""

    def axes(self, name: str) -> Axes | None:
        """The axes of a tensor argument, None where there is none."""

    def lists(self, name: str) -> list[Axes | None]:
        """The axes of a list of tensors."""

    def tensors(self) -> list[Axes]:
        """The axes of all tensor arguments, in order."""


@dataclass
class Learned:
    """What the operators say about axes besides equality.

    Attributes:
        whole: axes over which an operator normalises or reduces in the forward pass.
        batched: leading axes of batched products and of attention: heads, or experts.
        queries: the axes of attention's query positions.
    """

    whole: list[Axis] = field(default_factory=list)
    batched: list[Axis] = field(default_factory=list)
    queries: list[Axis] = field(default_factory=list)


Rule = Callable[[Named, Learned], list[Axes]]


def relate(name: str, call: Named, learned: Learned) -> list[Axes]:
    """The axes of an operation's results.

    Args:
        name: such as `aten.mm`.
        call: its arguments and the shapes of its results.
        learned: grows by what the operator tells.
    """
    rule = RULES.get(name, _alike)
    made = rule(call, learned)
    return [
        _fitting(made[i], shape) if i < len(made) else fresh(shape)
        for i, shape in enumerate(call.shapes)
    ]


def fresh(shape: Sequence[int]) -> Axes:
    """New axes."""
    return tuple(map(Axis, shape))


def equate(one: Sequence[Axis], other: Sequence[Axis]) -> None:
    """Learn that two tensors have the same axes, as far as sizes allow, from the last one on."""
    for mine, theirs in zip(reversed(one), reversed(other), strict=False):
        if mine.size == theirs.size:
            unify(mine, theirs)


def _fitting(axes: Axes, shape: Sequence[int]) -> Axes:
    """The axes where they have the sizes that the trace saw, else new ones."""
    if len(axes) != len(shape):
        return fresh(shape)
    return tuple(
        axis if axis.size == size else Axis(size) for axis, size in zip(axes, shape, strict=True)
    )


def _sizes(axes: Axes) -> tuple[int, ...]:
    return tuple(axis.size for axis in axes)


def _alike(call: Named, learned: Learned) -> list[Axes]:
    arguments = call.tensors()
    results = []
    for shape in call.shapes:
        result = next((axes for axes in arguments if _sizes(axes) == tuple(shape)), None)
        if result is None:
            result = _broadcast(arguments, shape)
        for axes in arguments:
            if _broadcasts(axes, shape):
                equate(axes, result)
        results.append(result)
    return results


def _broadcasts(axes: Axes, shape: Sequence[int]) -> bool:
    if len(axes) > len(shape):
        return False
    pairs = zip(reversed(_sizes(axes)), reversed(list(shape)), strict=False)
    return all(mine in (1, theirs) for mine, theirs in pairs)


def _broadcast(arguments: Sequence[Axes], shape: Sequence[int]) -> Axes:
    """For each dimension the first argument's axis that has its size."""
    result = list(fresh(shape))
    for axes in reversed(arguments):
        if not _broadcasts(axes, shape):
            continue
        for back in range(1, len(axes) + 1):
            if axes[-back].size == shape[-back]:
                result[-back] = axes[-back]
    return tuple(result)


def _first(call: Named) -> Axes:
    return call.tensors()[0]


def _view(call: Named, learned: Learned) -> list[Axes]:
    (shape,) = call.shapes
    made = take(_first(call), shape)
    return [fresh(shape) if made is None else tuple(made)]


def _transpose(call: Named, learned: Learned) -> list[Axes]:
    axes = list(_first(call))
    if len(axes) >= 2:
        one, other = call.value("dim0"), call.value("dim1")
        axes[one], axes[other] = axes[other], axes[one]
    return [tuple(axes)]


def _t(call: Named, learned: Learned) -> list[Axes]:
    return [_first(call)[::-1]]


def _permute(call: Named, learned: Learned) -> list[Axes]:
    axes = _first(call)
    return [tuple(axes[dim] for dim in call.value("dims"))]


def _squeeze(call: Named, learned: Learned) -> list[Axes]:
    """What has a size of 1 carries no information, so the others match in order."""
    left = [axis for axis in _first(call) if axis.size != 1]
    (shape,) = call.shapes
    return [tuple(Axis(1) if size == 1 or not left else left.pop(0) for size in shape)]


def _expand(call: Named, learned: Learned) -> list[Axes]:
    return [_broadcast([_first(call)], call.shapes[0])]


def _without(axes: Axes, dim: int) -> Axes:
    dim %= len(axes)
    return axes[:dim] + axes[dim + 1 :]


def _select(call: Named, learned: Learned) -> list[Axes]:
    axes, dim = _first(call), call.value("dim")
    cut_into_parts(axes[dim], axes[dim].size)
    return [_without(axes, dim)]


def _unbind(call: Named, learned: Learned) -> list[Axes]:
    axes, dim = _first(call), call.value("dim")
    axis = axes[dim]
    if not axis.atoms():
        return [_without(axes, dim)] * len(call.shapes)
    for atom in axis.atoms():
        atom.counts_parts = True
    return [_without(axes, dim)] * len(call.shapes)


def _slice(call: Named, learned: Learned) -> list[Axes]:
    axes, dim = list(_first(call)), call.value("dim") or 0
    size = call.shapes[0][dim]
    if size != axes[dim].size:
        axes[dim] = Axis(size, cut_from=axes[dim])
    return [tuple(axes)]


def _split(call: Named, learned: Learned) -> list[Axes]:
    axes, dim = _first(call), call.value("dim") or 0
    dim %= len(axes)
    sizes = [shape[dim] for shape in call.shapes]
    return [(*axes[:dim], piece, *axes[dim + 1 :]) for piece in _pieces(axes[dim], sizes)]


def _pieces(axis: Axis, sizes: Sequence[int]) -> list[Axis]:
    if len(sizes) == 1:
        return [axis]
    if len(set(sizes)) == 1:
        return [cut_into_parts(axis, len(sizes))] * len(sizes)
    pieces = list(map(Axis, sizes))
    unify(axis, Axis(axis.size, parts=pieces))
    return list(axis.root.parts) if len(axis.root.parts) == len(sizes) else pieces


def _cat(call: Named, learned: Learned) -> list[Axes]:
    given = [axes for axes in call.lists("tensors") if axes]
    dim = (call.value("dim") or 0) % len(given[0])
    for axes in given[1:]:
        equate(axes[:dim], given[0][:dim])
        equate(axes[dim + 1 :], given[0][dim + 1 :])
    pieces = [axes[dim] for axes in given]
    size = sum(piece.size for piece in pieces)
    if len(pieces) == 1:
        joined = pieces[0]
    elif len({piece.size for piece in pieces}) == 1:
        for piece in pieces[1:]:
            unify(piece, pieces[0])
        joined = Axis(size, (Axis(len(pieces), counts_parts=True), pieces[0]))
    else:
        joined = Axis(size, parts=pieces)
    return [(*given[0][:dim], joined, *given[0][dim + 1 :])]


def _stack(call: Named, learned: Learned) -> list[Axes]:
    given = [axes for axes in call.lists("tensors") if axes is not None]
    dim = (call.value("dim") or 0) % (len(given[0]) + 1)
    for axes in given[1:]:
        equate(axes, given[0])
    counter = Axis(len(given), counts_parts=True)
    return [(*given[0][:dim], counter, *given[0][dim:])]


def _product(one: Axes, other: Axes, learned: Learned) -> Axes:
    unify(one[-1], other[-2])
    for mine, theirs in zip(one[:-2], other[:-2], strict=True):
        unify(mine, theirs)
        learned.batched.append(mine)
    return (*one[:-1], other[-1])


def _mm(call: Named, learned: Learned) -> list[Axes]:
    one, other, *_ = call.tensors()
    return [_product(one, other, learned)]


def _addmm(call: Named, learned: Learned) -> list[Axes]:
    bias, one, other, *_ = call.tensors()
    result = _product(one, other, learned)
    equate(bias, result)
    return [result]


def _mv(call: Named, learned: Learned) -> list[Axes]:
    matrix, vector, *_ = call.tensors()
    unify(matrix[1], vector[0])
    return [(matrix[0],)]


def _linear(call: Named, learned: Learned) -> list[Axes]:
    one, weight, *bias = call.tensors()
    unify(one[-1], weight[-1])
    for axes in bias:
        unify(axes[0], weight[0])
    return [(*one[:-1], weight[0])]


def _embedding(call: Named, learned: Learned) -> list[Axes]:
    weight, indices, *_ = call.tensors()
    return [(*indices, weight[1])]


def _embedding_backward(call: Named, learned: Learned) -> list[Axes]:
    gradient, *_ = call.tensors()
    rows, _ = call.shapes[0]
    return [(Axis(rows), gradient[-1])]


def _reduce(call: Named, learned: Learned) -> list[Axes]:
    axes = _first(call)
    dims = call.value("dim")
    dims = range(len(axes)) if dims is None or dims == [] else dims
    dims = {dim % len(axes) for dim in ([dims] if isinstance(dims, int) else dims)} if axes else ()
    learned.whole += [axes[dim] for dim in dims]
    if call.shapes and len(call.shapes[0]) == len(axes):
        kept = tuple(Axis(1) if dim in dims else axis for dim, axis in enumerate(axes))
    else:
        kept = tuple(axis for dim, axis in enumerate(axes) if dim not in dims)
    return [kept] * len(call.shapes)


def _softmax(call: Named, learned: Learned) -> list[Axes]:
    axes = _first(call)
    if axes:
        learned.whole.append(axes[call.value("dim")])
    return [axes]


def _norm(call: Named, learned: Learned) -> list[Axes]:
    axes, *others = call.tensors()
    count = len(call.value("normalized_shape"))
    learned.whole += axes[len(axes) - count :]
    for other in others:
        equate(other, axes)
    leading = axes[: len(axes) - count] + tuple(Axis(1) for _ in range(count))
    return [axes, *([leading] * (len(call.shapes) - 1))]


def _attention(call: Named, learned: Learned) -> list[Axes]:
    query, key, value = (call.axes(name) or () for name in ("query", "key", "value"))
    unify(key[2], value[2])
    unify(query[3], key[3])
    for tensor in (key, value):
        for dim in (0, 1):
            unify(tensor[dim], query[dim])
    learned.batched += [query[1], key[1]]
    learned.queries.append(query[2])
    per_row = (*query[:3], Axis(1))
    others = (per_row[: len(s)] if len(s) >= 3 else fresh(s) for s in call.shapes[1:])
    return [(*query[:3], value[3]), *others]


def _attention_backward(call: Named, learned: Learned) -> list[Axes]:
    return [call.axes(name) or () for name in ("query", "key", "value")]


def _convolution(call: Named, learned: Learned) -> list[Axes]:
    one, weight, *_ = call.tensors()
    if call.value("groups") == 1 and not call.value("transposed"):
        unify(one[1], weight[1])
    return [(one[0], weight[0], *fresh(call.shapes[0][2:]))]


def _class_loss(call: Named, learned: Learned) -> list[Axes]:
    """Scores of shape (rows, classes), and a target for each row."""
    *_, scores = sorted(call.tensors(), key=len)
    for axes in call.tensors():
        if len(axes) == 1 and axes[0].size == scores[0].size:
            unify(axes[0], scores[0])
    return [scores if len(shape) == len(scores) else fresh(shape) for shape in call.shapes]


def _loss(call: Named, learned: Learned) -> list[Axes]:
    """What is compared has one shape."""
    first, *others = call.tensors()
    for axes in others:
        equate(axes, first)
    return [first if len(shape) == len(first) else fresh(shape) for shape in call.shapes]


def _pool(call: Named, learned: Learned) -> list[Axes]:
    """Only the last two dimensions change."""
    axes = _first(call)
    return [axes[:-2] + fresh(shape[-2:]) for shape in call.shapes]


def _index(call: Named, learned: Learned) -> list[Axes]:
    """`x[rows]`: what the index does not touch stays."""
    axes = _first(call)
    (shape,) = call.shapes
    kept = axes[len(call.value("indices")) :]
    return [fresh(shape[: len(shape) - len(kept)]) + kept]


def _last_changes(call: Named, learned: Learned) -> list[Axes]:
    axes = _first(call)
    dim = call.value("dim")
    dim = (-1 if dim is None else dim) % len(axes)
    learned.whole.append(axes[dim])
    return [(*axes[:dim], Axis(shape[dim]), *axes[dim + 1 :]) for shape in call.shapes]


_ATTENTION = ("flash", "efficient", "cudnn", "fused")
RULES: Mapping[str, Rule] = {
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
    **dict.fromkeys(("aten.topk", "aten.sort"), _last_changes),
}
