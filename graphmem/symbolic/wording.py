"""The wording shared by all formats of a closed form."""

from __future__ import annotations

from collections.abc import Iterator

from graphmem.report.categories import CATEGORY_NAMES
from graphmem.symbolic.closed_form import ClosedForm
from graphmem.symbolic.polynomial import Powers
from graphmem.symbolic.sizes import Listed, Nodes, Sizes
from graphmem.symbolic.terms import TermGroup

OUTSIDE = "(outside any module)"
_SUBJECTS = {
    "peak": "the peak of {target}",
    "saved": "what autograd saves in {target}",
    "steady": "the steady state of {target}",
    "parameters": "the parameters of {target}",
}


def conditions(form: ClosedForm) -> Iterator[str]:
    """The sizes for which the formula holds, unless it holds for all that run the same kernels."""
    for key, nodes in zip(form.symbols, form.nodes, strict=True):
        if found := _condition(key, nodes):
            yield found


def _condition(key: str, nodes: Nodes) -> str:
    """The sizes known to be covered; "" for all that run the same kernels."""
    if isinstance(nodes, Listed):
        return f"{key} {', '.join(map(str, sorted(nodes.sizes)))}"
    step = abs(nodes.step)
    if step == 1:
        return ""
    if nodes.own % step == 0:
        return f"{key} that is a multiple of {step}"
    return f"{key} = {nodes.own} plus or minus multiples of {step}"


def letters(form: ClosedForm) -> list[str]:
    """The letter of each symbol."""
    return list(form.symbols.values())


def subject(form: ClosedForm) -> str:
    """What the formula describes, in words."""
    return _SUBJECTS[form.subject].format(target=form.target)


def label(group: TermGroup) -> str:
    """The category and the place of a group."""
    return f"{CATEGORY_NAMES[group.category]}, {group.where or OUTSIDE}"


def named(form: ClosedForm, sizes: Sizes) -> dict[str, int]:
    """Sizes by keyword."""
    return dict(zip(form.symbols, sizes, strict=True))


def in_words(form: ClosedForm, sizes: Sizes) -> str:
    """Format sizes like `batch=13, seq=1024`."""
    return ", ".join(f"{key}={size}" for key, size in named(form, sizes).items())


def named_powers(form: ClosedForm, powers: Powers) -> dict[str, int]:
    """The exponents that are not 0, by keyword."""
    return {key: power for key, power in zip(form.symbols, powers, strict=True) if power}
