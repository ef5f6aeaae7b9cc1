"""The effect of each operator on values, from its schema."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from graphmem.unmarked_writes import RUNNING_STATISTICS

aten = torch.ops.aten


class ValuePlan(NamedTuple):
    """The effect of an operator on values.

    Attributes:
        writes: the arguments that it writes into, by position or by name.
        overwrites: it overwrites the whole first argument without reading it.
        is_random: it draws random numbers.
        is_known: its results can be known at all.
    """

    writes: tuple[int | str, ...]
    overwrites: bool
    is_random: bool
    is_known: bool = True


_FILLING = frozenset(f"aten::{name}_" for name in "copy fill zero uniform random bernoulli".split())
_BOUNDED = frozenset(
    "rand rand_like uniform uniform_ bernoulli bernoulli_ randint randint_like randperm random "
    "random_ multinomial".split()
)
"""Operators that draw random numbers of a known range."""

EMPTY = frozenset({aten.empty.memory_format, aten.new_empty.default, aten.empty_like.default})
SHAPED = frozenset(
    {aten.ones_like.default, aten.zeros_like.default, aten.full_like.default}
    | {aten.new_ones.default, aten.new_zeros.default, aten.new_full.default}
)
"""Operators that read no values of their first operand."""
_UNCHANGED = frozenset({"aten::empty", "aten::empty_like", "aten::empty_strided"}) | frozenset(
    {"aten::new_empty", "aten::new_empty_strided", "aten::set_", "aten::resize_"}
)


def plan_of(func: Any) -> ValuePlan | None:
    """The effect of an operator on values; None if it has none (a view, another library's)."""
    schema = func._schema
    writes: list[int | str] = list(RUNNING_STATISTICS.get(func, ()))
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            writes.append(argument.name if argument.kwarg_only else position)
    is_view = bool(schema.returns) and all(each.alias_info is not None for each in schema.returns)
    if not writes and (is_view or func.namespace != "aten" or schema.name in _UNCHANGED):
        return None
    is_random = torch.Tag.nondeterministic_seeded in func.tags
    if is_random and schema.name.removeprefix("aten::") not in _BOUNDED:
        return ValuePlan(tuple(writes), overwrites=False, is_random=True, is_known=False)
    overwrites = schema.name in _FILLING and writes == [0]
    return ValuePlan(tuple(writes), overwrites, is_random)


class own_draws:  # noqa: N801 - a context, as `torch.no_grad` is
    """Draw random numbers without touching the program's own generator."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __enter__(self) -> None:
        self._state = torch.default_generator.get_state()
        torch.default_generator.manual_seed(self._seed)

    def __exit__(self, *error: object) -> None:
        torch.default_generator.set_state(self._state)
