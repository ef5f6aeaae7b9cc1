"""A closed form as text and as JSON; `code` has the formats for a paper and for a program."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from graphmem.report.categories import CATEGORY_NAMES
from graphmem.symbolic import wording
from graphmem.symbolic.closed_form import ClosedForm
from graphmem.symbolic.code import as_latex, as_python
from graphmem.symbolic.notation import Notation
from graphmem.symbolic.terms import MatchedStorages, TermGroup
from graphmem.units import format_bytes, format_exact
from graphmem.version import __version__

SCHEMA = "graphmem.formula/1"


def as_text(form: ClosedForm) -> str:
    """Format for people."""
    return "\n".join(_lines(form)) + "\n"


def as_json(form: ClosedForm) -> str:
    """Format for machines: every term and every storage."""
    notation = Notation(wording.letters(form), form.names)
    found = {
        "schema": SCHEMA,
        "graphmem": __version__,
        "target": form.target,
        "of": form.subject,
        "moment": form.moment,
        "symbols": dict(form.symbols),
        "formula": notation.polynomial(form.polynomial),
        "terms": [
            {"coefficient": str(each), "powers": wording.named_powers(form, powers)}
            for powers, each in sorted(form.polynomial.terms.items(), reverse=True)
        ],
        "groups": [_group_as_json(form, group, notation) for group in form.groups],
        "storages": [_line_as_json(line, notation) for line in form.lines],
        "not_polynomial": sum(line.nbytes for line in form.irregular),
        "other_moments": [
            {"moment": moment, "formula": notation.polynomial(polynomial)}
            for moment, polynomial in form.others
        ],
        "moments_left_out": form.left_out,
        **_evidence_as_json(form),
    }
    return json.dumps(found, indent=2, ensure_ascii=False) + "\n"


FORMATS: Mapping[str, Callable[[ClosedForm], str]] = {
    "text": as_text,
    "json": as_json,
    "latex": as_latex,
    "python": as_python,
}


def _lines(form: ClosedForm) -> Iterator[str]:
    meaning = ", ".join(f"{letter} = {key}" for key, letter in form.symbols.items())
    yield f"{wording.subject(form)} in requested bytes, with {meaning}"
    yield form.moment
    yield from _group_lines(form)
    yield ""
    notation = Notation(wording.letters(form), form.names)
    yield f"in all  {notation.polynomial(form.polynomial)}"
    yield from _irregular_lines(form)
    yield ""
    yield from _own_lines(form)
    yield from _evidence_lines(form)
    yield from _constant_lines(form)


def _group_lines(form: ClosedForm) -> Iterator[str]:
    notation = Notation(wording.letters(form), form.names)
    written = [notation.group(group) for group in form.groups]
    width = max((len(each) for each in written), default=0)
    category = None
    for group, formula in zip(form.groups, written, strict=True):
        if group.category != category:
            category = group.category
            yield ""
            yield CATEGORY_NAMES[category]
        where = group.where or wording.OUTSIDE
        yield f"{format_bytes(group.nbytes):>11}   {formula:<{width}}   {where}"


def _irregular_lines(form: ClosedForm) -> Iterator[str]:
    if not form.irregular:
        return
    nbytes = sum(line.nbytes for line in form.irregular)
    yield f"        + {format_exact(nbytes)} at the model's own size that are not polynomials:"
    for line in form.irregular:
        place = f" in {line.module}" if line.module else ""
        yield f"          {line.nbytes:,}  {line.what}{place}"


def _own_lines(form: ClosedForm) -> Iterator[str]:
    yield (
        f"at {wording.in_words(form, form.sizes)}: {format_exact(form.requested)} requested, "
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
    where = f"at {wording.in_words(form, check.sizes)}, which was not used"
    storages = "kinds of storages" if any(form.counting) else "storages"
    if form.is_checked:
        yield (
            f"checked {where}: {format_exact(check.found)} predicted and found, "
            f"all {check.compared:,} {storages} equal"
        )
    else:
        yield (
            f"NOT confirmed {where}: {len(check.differing):,} of {check.compared:,} {storages} "
            f"differ, {check.predicted:,} bytes predicted, {check.found:,} found"
        )
    yield from (f"holds for {each}" for each in wording.conditions(form))
    if form.subject == "peak":
        yield from _peak_lines(form)


def _peak_lines(form: ClosedForm) -> Iterator[str]:
    notation = Notation(wording.letters(form), form.names)
    if form.others:
        yield (
            "the peak moves: from 1/64 to 64 times the model's own size it is the largest of this "
            "formula and, at other moments,"
        )
    for moment, polynomial in form.others:
        yield f"   {notation.polynomial(polynomial)}   {moment}"
    if form.left_out:
        yield f"   not among these: {form.left_out:,} moments whose bytes are not a polynomial"
    if any(form.counting):
        yield "   nor the middle ones of repeated modules, only their first and last moments"
    sizes = len({*form.traced, form.check.sizes})
    if not form.elsewhere:
        which = "that is the peak" if form.others else "the peak is at this moment"
        yield f"at all {sizes} sizes traced {which}"
        return
    yield f"at {len(form.elsewhere)} of {sizes} sizes traced the peak is higher:"
    for sizes_above, more in form.elsewhere.items():
        yield f"   {wording.in_words(form, sizes_above)}: {format_exact(more)} more"


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


def _seen(form: ClosedForm, axis: int) -> str:
    return " ".join(map(str, sorted({sizes[axis] for sizes in form.traced})))


def _evidence_as_json(form: ClosedForm) -> dict[str, Any]:
    check = form.check
    return {
        "own": {
            "sizes": wording.named(form, form.sizes),
            "requested": form.requested,
            "allocated": form.allocated,
        },
        "traced": [wording.named(form, sizes) for sizes in form.traced],
        "holds_for": list(wording.conditions(form)),
        "check": {
            "sizes": wording.named(form, check.sizes),
            "predicted": check.predicted,
            "found": check.found,
            "compared": check.compared,
            "differing": len(check.differing),
        },
        "elsewhere": [
            {"sizes": wording.named(form, sizes), "more": more}
            for sizes, more in form.elsewhere.items()
        ],
    }


def _group_as_json(form: ClosedForm, group: TermGroup, notation: Notation) -> dict[str, Any]:
    return {
        "category": str(group.category),
        "where": group.where,
        "modules": group.modules,
        "common": wording.named_powers(form, group.common),
        "terms": [
            {
                "coefficient": str(term.coefficient),
                "powers": wording.named_powers(form, term.powers),
                "constant": term.constant,
            }
            for term in group.terms
        ],
        "formula": notation.group(group),
        "bytes": group.nbytes,
    }


def _line_as_json(line: MatchedStorages, notation: Notation) -> dict[str, Any]:
    return {
        "category": str(line.category),
        "module": line.module,
        "what": line.what,
        "formula": None if line.polynomial is None else notation.polynomial(line.polynomial),
        "bytes": line.nbytes,
    }
