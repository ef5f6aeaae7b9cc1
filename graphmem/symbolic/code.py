"""A closed form in LaTeX and in Python."""

from __future__ import annotations

from collections.abc import Iterator

from graphmem.report.categories import CATEGORY_NAMES
from graphmem.symbolic import wording
from graphmem.symbolic.closed_form import ClosedForm
from graphmem.symbolic.notation import Latex, Python
from graphmem.version import __version__


def as_latex(form: ClosedForm) -> str:
    """Format for a paper: an `align*` of amsmath, one line per group."""
    notation = Latex(wording.letters(form), form.names)
    lines = [f"% requested bytes of {wording.subject(form)}, {form.moment}", r"\begin{align*}"]
    name = "M_1" if form.others else "M"
    for number, group in enumerate(form.groups):
        place = f", {group.where}" if group.where else ""
        label = _in_latex(f"{CATEGORY_NAMES[group.category]}{place}")
        sign = (
            f"+{{}}& {notation.group(group)}"
            if number
            else f"{name} ={{}}& {notation.group(group)}"
        )
        lines.append(rf"  {sign} && \text{{{label}}} \\")
    if form.irregular:
        nbytes = sum(line.nbytes for line in form.irregular)
        label = "not polynomials; at the model's own size"
        lines.append(rf"  +{{}}& {nbytes} && \text{{{label}}} \\")
    for number, (moment, polynomial) in enumerate(form.others, 2):
        written = notation.polynomial(polynomial)
        lines.append(rf"  M_{{{number}}} ={{}}& {written} && \text{{{_in_latex(moment)}}} \\")
    if form.others:
        names = ", ".join(f"M_{{{number}}}" for number in range(1, len(form.others) + 2))
        lines.append(rf"  M ={{}}& \max({names})")
    return "\n".join([*lines, r"\end{align*}"]) + "\n"


def as_python(form: ClosedForm) -> str:
    """Format for a program: a module with one function, which needs only Python."""
    body = list(_body(form))
    lines = [f'"""Requested bytes of {wording.subject(form)}, by graphmem {__version__}."""']
    if any("Fraction(" in line for line in body):
        lines += ["", "from fractions import Fraction"]
    arguments = ", ".join(f"{letter}: int" for letter in form.symbols.values())
    lines += ["", "", f"def {form.subject}_bytes({arguments}) -> int:"]
    lines += [f"    {line}".rstrip() for line in (*_docstring(form), *body)]
    return "\n".join(lines) + "\n"


def _docstring(form: ClosedForm) -> Iterator[str]:
    meaning = ", ".join(f"{letter} is {key}" for key, letter in form.symbols.items())
    yield '"""Requested bytes.'
    yield ""
    yield f"{meaning}."
    yield f"At {wording.in_words(form, form.sizes)}: {form.moment}."
    yield from (f"Holds for {each}." for each in wording.conditions(form))
    if form.irregular:
        yield "Parts that are not polynomials keep their bytes at that size."
    yield '"""'


def _body(form: ClosedForm) -> Iterator[str]:
    notation = Python(wording.letters(form), form.names)
    yield from (f"{name} = {value}" for value, name in form.names.items())
    yield "here = (" if form.others else "return int("
    for number, group in enumerate(form.groups):
        yield f"    {'+ ' if number else ''}{notation.group(group)}  # {wording.label(group)}"
    for line in form.irregular:
        yield f"    + {line.nbytes}  # not a polynomial: {line.what}"
    yield ")"
    if form.others:
        yield "elsewhere = ("
        for moment, polynomial in form.others:
            yield f"    {notation.polynomial(polynomial)},  # {moment}"
        yield ")"
        yield "return int(max(here, *elsewhere))"


def _in_latex(text: str) -> str:
    return text.replace("_", r"\_").replace("…", "to")
