"""The holders of a report for display: equal layers folded, reasons without formulas.

Holders fold into one line if they have the same size, dtype, shape, category and source line, and
their modules and reasons differ only in numbers: `h.[0-11].attn` for `h.0.attn` to `h.11.attn`,
`history[0-9]` for `history[0]` to `history[9]`. Numbers that do not fold into one range are
starred: `3.*.body.*` for `3.0.body.2`, `3.1.body.0` and `3.1.body.2`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from graphmem.graph import OwnerKind
from graphmem.layer_ranges import fold
from graphmem.report.schema import Holder
from graphmem.wording import fields_in_words

_NUMBER = re.compile(r"(?<![\w-])\d+(?=\.|$)|(?<=\.)\d+(?=\.|\b)|(?<=\w\[)\d+(?=\])")
_ITEM = re.compile(r"(?<=\w)\[(\d+)\]")
_FIRST = re.compile(r"(?<= )(?=\d+(?:\.|$))")
_FOLDED_FIRST = re.compile(r"(?<= )\.(?=[\d\[])")
_FOLDED_ITEM = re.compile(r"\[\.\[?([\d,-]+)\]?\.\]")
_SAVED = "saved for the backward pass by "
_VARIABLE = re.compile(r"; held by the variable .*$")
_MOST_NAMES = 3


@dataclass(frozen=True)
class HolderGroup:
    """Holders that differ only in the layer.

    Attributes:
        holders: at least one, in the order of the report.
        modules: their modules, folded; "" outside any.
        reason: why they are alive, folded.
    """

    holders: Sequence[Holder]
    modules: str
    reason: str

    @property
    def first(self) -> Holder:
        """The first holder."""
        return self.holders[0]

    @property
    def bytes(self) -> int:
        """The bytes of all holders together."""
        return sum(holder.bytes for holder in self.holders)


def groups_of(holders: Iterable[Holder], *, verbose: bool = False) -> list[HolderGroup]:
    """Group holders, largest group first.

    Args:
        holders: the holders of a report.
        verbose: keep the derivative formulas in the reasons.
    """
    alike: dict[tuple[object, ...], list[Holder]] = defaultdict(list)
    for holder in holders:
        alike[_key(holder, verbose=verbose)].append(holder)
    groups = [
        HolderGroup(
            found,
            _folded(holder.module for holder in found),
            _folded(reason_of(holder, verbose=verbose) for holder in found),
        )
        for found in alike.values()
    ]
    return sorted(groups, key=lambda group: -group.bytes)


def reason_of(holder: Holder, *, verbose: bool = False) -> str:
    """Why a holder is alive; for saved tensors, the nodes, with formulas if verbose."""
    before, saved, after = holder.reason.partition(_SAVED)
    if verbose or not saved:
        return holder.reason
    nodes = [each.name for each in holder.owners if each.kind == OwnerKind.SAVED_TENSOR]
    nodes = list(dict.fromkeys(name for name in nodes if name))
    if not nodes:
        return holder.reason
    more = f" and {len(nodes) - _MOST_NAMES} more" if len(nodes) > _MOST_NAMES else ""
    variable = _VARIABLE.search(after)
    shown = fields_in_words(nodes[:_MOST_NAMES])
    names = " and ".join(shown) if not more else ", ".join(shown)
    return f"{before}{saved}{names}{more}{variable[0] if variable else ''}"


def _key(holder: Holder, *, verbose: bool) -> tuple[object, ...]:
    return (
        holder.bytes,
        holder.dtype,
        tuple(holder.shape),
        holder.category,
        holder.source,
        _NUMBER.sub("*", holder.module),
        _NUMBER.sub("*", reason_of(holder, verbose=verbose)),
    )


def _folded(names: Iterable[str]) -> str:
    """Fold names that differ only in numbers; if they do not fold into one, star the numbers.

    `fold` looks for numbers between dots: those of items, `history[0]`, and those that begin a name
    within a reason or end it, "the parameter 0.weight", "gradient bucket 0", get some meanwhile.
    """
    different = list(dict.fromkeys(names))
    dotted = (_FIRST.sub(".", _ITEM.sub(r"[.\1.]", name)) for name in different)
    folded = list(fold(dict.fromkeys(dotted, 0)))
    if len(folded) > 1:
        return _starred(different)
    return _FOLDED_FIRST.sub("", _FOLDED_ITEM.sub(r"[\1]", folded[0]))


def _starred(names: Sequence[str]) -> str:
    """The first name, with an asterisk for each number in which the names differ."""
    columns = zip(*(_NUMBER.findall(name) for name in names), strict=True)
    numbers = iter([column[0] if len(set(column)) == 1 else "*" for column in columns])
    return _NUMBER.sub(lambda _: next(numbers), names[0])
