"""A closed form for people, for machines, for a paper and for a program."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import graphmem
from graphmem.report.categories import CATEGORY_NAMES
from graphmem.symbolic.closed_form import ClosedForm
from graphmem.symbolic.notation import Latex, Notation, Python
from graphmem.symbolic.sizes import Listed, Nodes, Sizes
from graphmem.symbolic.terms import Group, Line
from graphmem.units import format_bytes, format_exact

SCHEMA = "graphmem.formula/1"

_OUTSIDE = "(outside any module)"
_SUBJECTS = {
    "peak": "the peak of {target}",
    "saved": "what autograd saves in {target}",
    "steady": "the steady state of {target}",
    "parameters": "the parameters of {target}",
}


def as_text(form: ClosedForm) -> str:
    """For people."""
    return "\n".join(_lines(form)) + "\n"


def as_json(form: ClosedForm) -> str:
    """For machines: every term and every storage."""
    notation = Notation(_letters(form), form.names)
    found = {
        "schema": SCHEMA,
        "graphmem": graphmem.__version__,
        "target": form.target,
        "of": form.subject,
        "moment": form.moment,
        "symbols": dict(form.symbols),
        "formula": notation.polynomial(form.polynomial),
        "terms": [
            {"coefficient": str(each), "powers": _powers(form, powers)}
            for powers, each in sorted(form.polynomial.terms.items(), reverse=True)
        ],
        "groups": [_group_as_json(form, group, notation) for group in form.groups],
        "storages": [_line_as_json(line, notation) for line in form.lines],
        "not_polynomial": sum(line.nbytes for line in form.irregular),
        "own": {
            "sizes": _named(form, form.sizes),
            "requested": form.requested,
            "allocated": form.allocated,
        },
        "traced": [_named(form, sizes) for sizes in form.traced],
        "holds_for": {
            key: _condition(key, nodes) for key, nodes in zip(form.symbols, form.nodes, strict=True)
        },
        "check": {
            "sizes": _named(form, form.check.sizes),
            "predicted": form.check.predicted,
            "found": form.check.found,
            "compared": form.check.compared,
            "differing": len(form.check.differing),
        },
        "other_moments": [
            {"moment": moment, "formula": notation.polynomial(polynomial)}
            for moment, polynomial in form.others
        ],
        "elsewhere": [
            {"sizes": _named(form, sizes), "more": more} for sizes, more in form.elsewhere.items()
        ],
    }
    return json.dumps(found, indent=2, ensure_ascii=False) + "\n"


def as_latex(form: ClosedForm) -> str:
    """For a paper: an `align*` of amsmath, one line a group."""
    notation = Latex(_letters(form), form.names)
    lines = [f"% requested bytes of {_subject(form)}, {form.moment}", r"\begin{align*}"]
    signs = ["M ={}& ", *["+{}& "] * len(form.groups)]
    for sign, group in zip(signs, form.groups, strict=False):
        place = f", {group.where}" if group.where else ""
        label = f"{CATEGORY_NAMES[group.category]}{place}".replace("_", r"\_").replace("…", "to")
        lines.append(rf"  {sign}{notation.group(group)} && \text{{{label}}} \\")
    if form.irregular:
        nbytes = sum(line.nbytes for line in form.irregular)
        lines.append(rf"  +{{}}& {nbytes} && \text{{no polynomial; at the own size}} \\")
    return "\n".join([*lines, r"\end{align*}"]) + "\n"


def as_python(form: ClosedForm) -> str:
    """For a program: a module with one function, which needs nothing but Python."""
    notation = Python(_letters(form), form.names)
    body = [f"{name} = {value}" for value, name in form.names.items()]
    body += ["return int("]
    body += [
        f"    {'+ ' if number else ''}{notation.group(group)}  # {_label(group)}"
        for number, group in enumerate(form.groups)
    ]
    body += [f"    + {line.nbytes}  # no polynomial: {line.what}" for line in form.irregular]
    body += [")"]
    head = [f'"""Requested bytes of {_subject(form)}, by graphmem {graphmem.__version__}."""', ""]
    if any("Fraction(" in line for line in body):
        head += ["from fractions import Fraction", ""]
    arguments = ", ".join(f"{letter}: int" for letter in form.symbols.values())
    meaning = ", ".join(f"{letter} is {key}" for key, letter in form.symbols.items())
    conditions = [f"    Holds for {each}." for each in _conditions(form)]
    head += [
        "",
        f"def {form.subject}_bytes({arguments}) -> int:",
        f'    """Bytes {form.moment}.',
        "",
        f"    {meaning}.",
        *conditions,
        '    """',
    ]
    return "\n".join([*head, *(f"    {line}" for line in body)]) + "\n"


FORMATS: Mapping[str, Callable[[ClosedForm], str]] = {
    "text": as_text,
    "json": as_json,
    "latex": as_latex,
    "python": as_python,
}


def _lines(form: ClosedForm) -> Iterator[str]:
    meaning = ", ".join(f"{letter} = {key}" for key, letter in form.symbols.items())
    yield f"{_subject(form)} in requested bytes, with {meaning}"
    yield form.moment
    yield from _group_lines(form)
    yield ""
    notation = Notation(_letters(form), form.names)
    yield f"in all  {notation.polynomial(form.polynomial)}"
    yield from _irregular_lines(form)
    yield ""
    yield from _own_lines(form)
    yield from _evidence_lines(form)
    yield from _constant_lines(form)


def _group_lines(form: ClosedForm) -> Iterator[str]:
    notation = Notation(_letters(form), form.names)
    written = [notation.group(group) for group in form.groups]
    width = max((len(each) for each in written), default=0)
    category = None
    for group, formula in zip(form.groups, written, strict=True):
        if group.category != category:
            category = group.category
            yield ""
            yield CATEGORY_NAMES[category]
        where = group.where or _OUTSIDE
        yield f"{format_bytes(group.nbytes):>11}   {formula:<{width}}   {where}"


def _irregular_lines(form: ClosedForm) -> Iterator[str]:
    if not form.irregular:
        return
    nbytes = sum(line.nbytes for line in form.irregular)
    yield f"        + {format_exact(nbytes)} at the own size that are no polynomial:"
    for line in form.irregular:
        place = f" in {line.module}" if line.module else ""
        yield f"          {line.nbytes:,}  {line.what}{place}"


def _own_lines(form: ClosedForm) -> Iterator[str]:
    yield (
        f"at {_in_words(form, form.sizes)}: {format_exact(form.requested)} requested, "
        f"{format_bytes(form.requested)}"
    )
    if form.allocated is not None:
        more = form.allocated - form.requested
        yield (
            f"   + {more:,} for rounding and gaps of the allocator: "
            f"{format_exact(form.allocated)} allocated, {format_bytes(form.allocated)}"
        )


def _evidence_lines(form: ClosedForm) -> Iterator[str]:
    yield (
        f"found from {len(form.traced)} sizes: "
        + "; ".join(f"{key} {_seen(form, axis)}" for axis, key in enumerate(form.symbols))
        + f". At {len(form.confirmed)} of them every storage was as the others predicted"
    )
    check = form.check
    where = f"at {_in_words(form, check.sizes)}, which was not used"
    if form.is_checked:
        yield (
            f"checked {where}: {format_exact(check.found)} predicted and found, "
            f"all {check.compared:,} of {check.compared:,} storages equal"
        )
    else:
        yield (
            f"NOT confirmed {where}: {len(check.differing):,} of {check.compared:,} storages "
            f"differ, {check.predicted:,} bytes predicted, {check.found:,} found"
        )
    yield from (f"holds for {each}" for each in _conditions(form))
    if form.subject == "peak":
        yield from _peak_lines(form)


def _peak_lines(form: ClosedForm) -> Iterator[str]:
    notation = Notation(_letters(form), form.names)
    if form.others:
        yield (
            "the peak moves: from 1/64 to 64 times the own size it is the greatest of this formula "
            "and, at other moments,"
        )
    for moment, polynomial in form.others:
        yield f"   {notation.polynomial(polynomial)}   {moment}"
    sizes = len({*form.traced, form.check.sizes})
    if not form.elsewhere:
        which = "that is the peak" if form.others else "the peak is at this moment"
        yield f"at all {sizes} sizes traced {which}"
        return
    yield f"at {len(form.elsewhere)} of {sizes} sizes traced the peak is higher:"
    for sizes_above, more in form.elsewhere.items():
        yield f"   {_in_words(form, sizes_above)}: {format_exact(more)} more"


def _constant_lines(form: ClosedForm) -> Iterator[str]:
    used = {term.constant for group in form.groups for term in group.terms}
    named = [f"{name} = {value}" for value, name in form.names.items() if value in used]
    known = [
        f"{value} is {' or '.join(keys)}"
        for value, keys in form.constants.items()
        if value in used and value not in form.names
    ]
    if named or known:
        yield ", ".join([*named, *known])


def _conditions(form: ClosedForm) -> Iterator[str]:
    for key, nodes in zip(form.symbols, form.nodes, strict=True):
        condition = _condition(key, nodes)
        if condition:
            yield condition


def _condition(key: str, nodes: Nodes) -> str:
    """The sizes that are known to be covered; "" for all that run the same kernels."""
    if isinstance(nodes, Listed):
        return f"{key} {', '.join(map(str, sorted(nodes.sizes)))}"
    step = abs(nodes.step)
    if step == 1:
        return ""
    if nodes.own % step == 0:
        return f"{key} that is a multiple of {step}"
    return f"{key} = {nodes.own} plus or minus multiples of {step}"


def _seen(form: ClosedForm, axis: int) -> str:
    return " ".join(map(str, sorted({sizes[axis] for sizes in form.traced})))


def _letters(form: ClosedForm) -> list[str]:
    return list(form.symbols.values())


def _subject(form: ClosedForm) -> str:
    return _SUBJECTS[form.subject].format(target=form.target)


def _label(group: Group) -> str:
    return f"{CATEGORY_NAMES[group.category]}, {group.where or _OUTSIDE}"


def _named(form: ClosedForm, sizes: Sizes) -> dict[str, int]:
    return dict(zip(form.symbols, sizes, strict=True))


def _in_words(form: ClosedForm, sizes: Sizes) -> str:
    return ", ".join(f"{key}={size}" for key, size in _named(form, sizes).items())


def _powers(form: ClosedForm, powers: tuple[int, ...]) -> dict[str, int]:
    return {key: power for key, power in zip(form.symbols, powers, strict=True) if power}


def _group_as_json(form: ClosedForm, group: Group, notation: Notation) -> dict[str, Any]:
    return {
        "category": str(group.category),
        "where": group.where,
        "modules": group.modules,
        "common": _powers(form, group.common),
        "terms": [
            {
                "coefficient": str(term.coefficient),
                "powers": _powers(form, term.powers),
                "constant": term.constant,
            }
            for term in group.terms
        ],
        "formula": notation.group(group),
        "bytes": group.nbytes,
    }


def _line_as_json(line: Line, notation: Notation) -> dict[str, Any]:
    return {
        "category": str(line.category),
        "module": line.module,
        "what": line.what,
        "formula": None if line.polynomial is None else notation.polynomial(line.polynomial),
        "bytes": line.nbytes,
    }
