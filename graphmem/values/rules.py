"""Assumptions about values that only a real run would know: every rule, in one place.

(1) *Choices*. The indices that `topk`, `argmax`, `sort`, `multinomial`, `bucketize` and the like
    return are spread evenly over everything they choose from: tokens over experts, in turn. A few
    choices among many lie in the middle of equal parts, so that a token chosen from a vocabulary is
    not a special one. `routing` skews choices that outnumber their candidates: it is the share of
    rows that choose the first candidate. With 1, the worst case, all rows choose the same, except
    that each other candidate is chosen once, so that it trains as well. What is chosen among
    numbers that the card draws from the program's seed is found from these (`drawn_scores.py`).
(2) *Numbers are finite*: `isnan` and `isinf` are False, `isfinite` is True, and no gradient
    overflows. Numbers are small compared to stand-ins for infinity, such as an initial score of
    -1e9.
(3) *Checks pass*: `all` of many unknown bools is True, `any` of them False. For numbers both are
    True: an unknown number is not zero, as in a cache that has been filled. A bool whose other
    value would make the program raise an error is not that value (`checks`), and one that Python's
    `max` or `min` asks for lets them take a tensor (`extremes`).
(4) *Random numbers* of a known range are drawn once (by `known`), from the program's seed as the
    card draws them if there is one (`card_draws.py`). Those of a normal distribution
    are not known: rule (3) ends a loop that rejects values out of bounds.
(5) *Masks* select all elements, or the fraction given by `nonzero`, spread evenly
    (`SizesByDataMode`); the sum of a mask agrees.
(6) *Numbers that are read* and not covered by a rule are 1.0, or the integer 0 (`reads`); a bool
    that no rule covers is an error, because the program's control flow depends on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from graphmem import constructors

aten = torch.ops.aten

_MOST = 1 << 24
"""The most elements for which a rule makes values."""

_FEW = 1 << 16

MOST_SELECTED = 1 << 20
"""The most positions that are noted for what a mask selects."""

_INFINITE = 1e9
"""The smallest number that stands for infinity; in fp16, its largest number does."""


class Rule(NamedTuple):
    """What is assumed, its value, and why it is not known."""

    what: str
    value: str
    why: str


Outputs = list[tuple[torch.Tensor, torch.Tensor]]
"""Tensors without data, each with the values assumed for it."""

_MASKS = "masks depend on data"
_SCORES = "scores depend on data"
_FINITE = Rule("whether numbers are finite", "they are", "the card does no arithmetic")
_SMALL = Rule("numbers beside one that stands for infinity", "small", "the card does no arithmetic")
_NOT_ZERO = Rule("whether numbers are zero", "they are not", "the card does no arithmetic")
_PASSES = Rule("a check of many values", "it passes", "the card does no arithmetic")


class Rules:
    """The rules, with the user's settings.

    Attributes:
        routing: the share of rows that choose the first candidate; None: spread evenly.
        selected: the share of its elements that a mask selects.
        has_routed: choices outnumbered their candidates, so that routing mattered.
        finite: the rule that numbers are finite.
    """

    finite = _FINITE

    def __init__(self) -> None:
        self.routing: float | None = None
        self.selected = 1.0
        self.has_routed = False

    def results(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> tuple[Rule, Outputs] | None:
        """The values assumed for an operation's results, if a rule covers it."""
        find = _CHOICES.get(func)
        if find is not None:
            return self._choice(find(func, args, kwargs, result))
        if func in _COUNTS and args[0].dtype == torch.bool:
            return self._counted(args[0].numel(), result)
        answer = _ANSWERS.get(func)
        if answer is None or not isinstance(result, torch.Tensor) or result.numel() > _MOST:
            return None
        rule, value = answer
        if rule is _PASSES and args[0].is_floating_point():
            rule, value = _NOT_ZERO, True
        elif rule is _PASSES and result.numel() != 1:
            return None
        return rule, [(result, constructors.full(result.shape, value, device="cpu"))]

    def chooses(self, func: Any) -> bool:
        """Whether an operation chooses by its first operand, and the user says nothing of it."""
        return func in _BY_SCORES and self.routing is None

    def compared(
        self, func: Any, args: tuple[Any, ...], result: Any, of: Callable[[torch.Tensor], Any]
    ) -> tuple[Rule, Outputs] | None:
        """The results of comparing unknown numbers with known stand-ins for infinity."""
        if _is_of_isfinite(func, args) and result.numel() <= _FEW:
            return _FINITE, [
                (result, constructors.ones(result.shape, dtype=torch.bool, device="cpu"))
            ]
        if func in _WITH_ZERO and _is_number_with_zero(args, result):
            answer = constructors.full(result.shape, _WITH_ZERO[func], device="cpu")
            return _NOT_ZERO, [(result, answer)]
        if func not in _COMPARISONS or result.numel() > _FEW:
            return None
        sides = [_infinite(each, of) for each in args[:2]]
        if sides[0] is None and sides[1] is None:
            return None
        left, right = (
            constructors.zeros((), device="cpu") if side is None else side for side in sides
        )
        return _SMALL, [(result, func(left, right).expand(result.shape))]

    def leaves_untouched(self, func: Any) -> bool:
        """Whether an operation leaves its output unchanged: GradScaler's `found_inf`."""
        return func is aten._amp_foreach_non_finite_check_and_unscale_.default

    def _counted(self, numel: int, result: torch.Tensor) -> tuple[Rule, Outputs]:
        count = round(self.selected * numel)
        rule = Rule("how many elements of a mask are true", f"{count:,} of {numel:,}", _MASKS)
        return rule, [(result, constructors.full((), count, dtype=result.dtype, device="cpu"))]

    def _choice(self, choice: _Choice) -> tuple[Rule, Outputs] | None:
        indices = choice.indices
        if not isinstance(indices, torch.Tensor) or not 0 < indices.numel() <= _MOST:
            return None
        many = choice.among
        if not many:
            return None
        picks = 1 if choice.dim is None or not indices.dim() else indices.shape[choice.dim]
        rows = indices.numel() // picks
        chosen = self._spread(rows, picks, many)
        if choice.dim is None or not indices.dim():
            values = chosen.reshape(indices.shape)
        else:
            values = _along(chosen, indices.shape, choice.dim)
        value = "spread evenly"
        if self.routing is not None and rows * picks >= many:
            value = f"{self.routing:g} of them the first, the rest spread evenly"
        what = f"which of {many:,} {choice.name} chooses"
        return Rule(what, value, _SCORES), [(indices, values.to(indices.dtype))]

    def _spread(self, rows: int, picks: int, many: int) -> torch.Tensor:
        """Choose `picks` different candidates among `many` for each row."""
        total = rows * picks
        if total < many:
            places = constructors.arange(total, device="cpu")
            return ((2 * places + 1) * many // (2 * total)).reshape(rows, picks)
        if picks < many:
            self.has_routed = True
        if self.routing is None or picks >= many:
            rounds = math.ceil(total / many)
            return (
                constructors.arange(many, device="cpu").repeat(rounds)[:total].reshape(rows, picks)
            )
        return self._skewed(rows, picks, many)

    def _skewed(self, rows: int, picks: int, many: int) -> torch.Tensor:
        """Let a share of rows choose the first of `many`, and spread the rest evenly."""
        assert self.routing is not None
        if self.routing >= 1:
            return _worst(rows, picks, many)
        others = constructors.arange(rows * picks, device="cpu") % (many - 1) + 1
        chosen = others.reshape(rows, picks)
        chosen[: round(self.routing * rows), 0] = 0
        return chosen


def selected_of(shape: Sequence[int], count: int) -> tuple[torch.Tensor, Rule]:
    """The positions that a mask selects: `count`, spread evenly over its elements."""
    numel = math.prod(shape)
    value = "all of them" if count == numel else "spread evenly"
    rule = Rule("which elements a mask selects", value, _MASKS)
    with torch._C._DisableTorchDispatch():
        places = constructors.arange(count, device="cpu") * numel // max(count, 1)
        return torch.stack(torch.unravel_index(places, tuple(shape)), 1), rule


def _worst(rows: int, picks: int, many: int) -> torch.Tensor:
    """Let all rows choose the same, but each other candidate once, from the last pick on."""
    chosen = constructors.arange(picks, device="cpu").expand(rows, picks).contiguous()
    others = constructors.arange(many - picks, device="cpu")
    chosen[others % rows, picks - 1 - others // rows] = others + picks
    return chosen


class _Choice(NamedTuple):
    """The output of an operation that has the indices it chose.

    Attributes:
        name: the operation's name.
        indices: the output.
        dim: the dimension along which one row's choices differ; None: one choice per element.
        among: the number of candidates.
    """

    name: str
    indices: Any
    dim: int | None
    among: int


def _infinite(side: Any, of: Callable[[torch.Tensor], Any]) -> Any:
    """An operand of a comparison if all its numbers stand for infinity, else None."""
    if not isinstance(side, torch.Tensor):
        return side if abs(side) >= _INFINITE else None
    known = of(side) if side.is_floating_point() else None
    if known is None or not known.tensor.numel():
        return None
    bound = min(_INFINITE, torch.finfo(side.dtype).max)
    return known.tensor if bool((known.tensor.abs() >= bound).all()) else None


def _is_of_isfinite(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether numbers are compared as `isfinite` does it, `x == x` and `x.abs() != inf`.

    aten/src/ATen/native/TensorCompare.cpp; that takes it apart before an operation is seen.
    """
    if func is aten.eq.Tensor:
        return args[0] is args[1] and args[0].is_floating_point()
    return func is aten.ne.Scalar and args[1] == math.inf


def _is_number_with_zero(args: tuple[Any, ...], result: torch.Tensor) -> bool:
    """Whether one number is compared with zero; an integer reads as 0 itself."""
    return result.numel() == 1 and args[0].is_floating_point() and args[1] == 0


def _along(chosen: torch.Tensor, shape: torch.Size, dim: int) -> torch.Tensor:
    dim %= len(shape)
    rest = [size for place, size in enumerate(shape) if place != dim]
    return chosen.reshape(*rest, shape[dim]).movedim(-1, dim)


def _given(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> Any:
    """An argument, or its default."""
    for position, argument in enumerate(func._schema.arguments):
        if argument.name == name:
            given = args[position] if position < len(args) else argument.default_value
            return kwargs.get(name, given)
    return None


def _several(position: int) -> Callable[..., _Choice]:
    """Several choices along a dimension of the first operand: its size in the result."""

    def find(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> _Choice:
        dim = _given(func, args, kwargs, "dim")
        indices = result[position] if isinstance(result, (tuple, list)) else result
        among = args[0].shape[dim] if args[0].dim() else 1
        return _Choice(_name(func), indices, dim, among)

    return find


def _one(position: int) -> Callable[..., _Choice]:
    """One choice along a dimension for each of the other elements, or one among all elements."""

    def find(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> _Choice:
        dim = _given(func, args, kwargs, "dim")
        scores = args[0]
        indices = result[position] if isinstance(result, (tuple, list)) else result
        among = scores.numel() if dim is None or not scores.dim() else scores.shape[dim]
        return _Choice(_name(func), indices, None, among)

    return find


def _sampled(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> _Choice:
    return _Choice(_name(func), result, -1, args[0].shape[-1])


def _bucket(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> _Choice:
    name = "boundaries" if "bucketize" in func._schema.name else "sorted_sequence"
    return _Choice(_name(func), result, None, _given(func, args, kwargs, name).shape[-1] + 1)


def _name(func: Any) -> str:
    return str(func._schema.name).removeprefix("aten::")


_CHOICES: dict[Any, Callable[..., _Choice]] = {
    aten.topk.default: _several(1),
    aten.sort.default: _several(1),
    aten.sort.stable: _several(1),
    aten.argsort.default: _several(0),
    aten.argsort.stable: _several(0),
    aten.argmax.default: _one(0),
    aten.argmin.default: _one(0),
    aten.max.dim: _one(1),
    aten.min.dim: _one(1),
    aten.mode.default: _one(1),
    aten.median.dim: _one(1),
    aten.kthvalue.default: _one(1),
    aten.multinomial.default: _sampled,
    aten.bucketize.Tensor: _bucket,
    aten.searchsorted.Tensor: _bucket,
}
_BY_SCORES = frozenset(_CHOICES) - {
    aten.multinomial.default,
    aten.bucketize.Tensor,
    aten.searchsorted.Tensor,
}
_COUNTS = frozenset({aten.sum.default, aten.count_nonzero.default})
_ANSWERS: dict[Any, tuple[Rule, bool]] = {
    aten.isnan.default: (_FINITE, False),
    aten.isinf.default: (_FINITE, False),
    aten.isfinite.default: (_FINITE, True),
    aten.all.default: (_PASSES, True),
    aten.all.dim: (_PASSES, True),
    aten.all.dims: (_PASSES, True),
    aten._is_all_true.default: (_PASSES, True),
    aten.any.default: (_PASSES, False),
    aten.any.dim: (_PASSES, False),
    aten.any.dims: (_PASSES, False),
    aten._is_any_true.default: (_PASSES, False),
}
_COMPARISONS = frozenset(
    getattr(getattr(aten, name), overload)
    for name in ("gt", "ge", "lt", "le")
    for overload in ("Tensor", "Scalar")
)
_WITH_ZERO = {aten.eq.Scalar: False, aten.ne.Scalar: True}
RULED = frozenset({*_CHOICES, *_COUNTS, *_ANSWERS, *_COMPARISONS, *_WITH_ZERO, aten.eq.Tensor})
"""The operations that a rule may cover."""
