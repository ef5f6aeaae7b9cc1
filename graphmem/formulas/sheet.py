"""All published formulas for a training step: the content of `graphmem published`.

Each *section* is one formula or one table from a source. A section whose terms are not all known
says which are missing and why, instead of figures.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from graphmem.errors import InputError
from graphmem.formulas import deepspeed, footprint, korthikanti, nanogpt
from graphmem.formulas import parallel_training as parallel
from graphmem.formulas.blocks import find_blocks
from graphmem.formulas.comparison import FormulaComparison, compare
from graphmem.formulas.estimate import MOMENTS, Formula
from graphmem.formulas.exact import Exact, Traced
from graphmem.formulas.find_terms import FoundTerms, find_terms
from graphmem.formulas.messages import MissingTermsError, UnknownFormulaError
from graphmem.formulas.tabled import Printed, Table, Tabled
from graphmem.formulas.tables import TABLES
from graphmem.formulas.terms import DEGREES, LETTERS, Term, values

if TYPE_CHECKING:
    from graphmem.analysis import Analysis
    from graphmem.report.schema import OnCard

SCHEMA = "graphmem.formulas/1"
FORMULAS: Sequence[Formula] = (
    nanogpt.STEADY_STATE,
    nanogpt.ACTIVATIONS,
    nanogpt.PEAK,
    korthikanti.ELEUTHERAI_ACTIVATIONS,
    korthikanti.ACTIVATIONS,
    parallel.REGULAR,
    parallel.MIXED,
    deepspeed.ZERO2,
    deepspeed.ZERO3,
    deepspeed.ACTIVATIONS,
    footprint.PEAK,
)


@dataclass(frozen=True)
class SheetSection:
    """One formula or table, or what it lacks.

    Attributes:
        name: its name for `--only`.
        title: one line.
        source: who published it.
        missing: required terms that are missing, with the reasons.
        comparison: a formula, compared with the exact result.
        printed: text as the source's own program prints it.
        table: bytes of one rank.
    """

    name: str
    title: str
    source: str
    missing: Mapping[str, str] = field(default_factory=dict)
    comparison: FormulaComparison | None = None
    printed: Printed | None = None
    table: Table | None = None


@dataclass(frozen=True)
class Sheet:
    """The results of published formulas.

    Attributes:
        target: the target of the step; None if only terms were given.
        terms: the known terms, by name.
        sections: one for each formula or table.
        on_card: the traced step's own verdict, if the formulas are compared with its card.
    """

    target: str | None
    terms: Mapping[str, Term]
    sections: Sequence[SheetSection]
    on_card: OnCard | None = None

    def left_beside(self, nbytes: int) -> int | None:
        """Free bytes on the card, negative if it is too small; None if no card is given."""
        card = self.terms.get("memory")
        return None if card is None else card.value - nbytes

    def to_json(self) -> str:
        """The sheet as JSON; bytes that are not a whole number are written as decimals."""
        found: dict[str, Any] = {
            "schema": SCHEMA,
            "target": self.target,
            "terms": {
                term.name: {"letter": term.letter, "value": term.value, "source": term.source}
                for term in self.terms.values()
            },
            "formulas": [_as_json(section, self) for section in self.sections],
        }
        if self.on_card is not None:
            found["step"] = {
                "reserved": self.on_card.capacity - self.on_card.margin,
                "fits": self.on_card.fits,
                "left": self.on_card.margin,
            }
        return json.dumps(found, indent=2, ensure_ascii=False) + "\n"


def formulas_of(
    analysis: Analysis, given: Mapping[str, Term] | None = None, only: Sequence[str] = ()
) -> Sheet:
    """Evaluate every published formula for a traced step, and compare it with the exact result.

    Args:
        analysis: the analysis of a training step.
        given: terms that override those found in the trace.
        only: names of sections; default: all.

    Raises:
        InputError: the step has no backward pass, or there is no such section.
    """
    blocks = find_blocks(analysis.graph)
    found = find_terms(analysis.graph, blocks)
    terms = found.terms | dict(given or {})
    memory = analysis.report.memory
    on_card = memory.on_card if memory is not None else None
    if on_card is not None and ("memory" not in terms or terms["memory"].value != on_card.capacity):
        on_card = None
    return Sheet(
        analysis.report.target,
        terms,
        _sections(FoundTerms(terms, found.unknown), Traced(analysis, blocks), only),
        on_card,
    )


def formulas_for(given: Mapping[str, Term], only: Sequence[str] = ()) -> Sheet:
    """Evaluate published formulas for terms alone.

    Raises:
        InputError: there is no such section, or none has all its terms.
    """
    sections = _sections(FoundTerms(dict(given), {}), None, only)
    if all(section.missing for section in sections):
        name, lacking = min(
            ((section.name, section.missing) for section in sections), key=lambda each: len(each[1])
        )
        needed = ", ".join(f"{LETTERS[term]} ({term})" for term in lacking)
        raise MissingTermsError(name, needed)
    return Sheet(None, dict(given), [section for section in sections if not section.missing])


def section_names() -> tuple[str, ...]:
    """The names allowed in `only`, in the order of the sheet."""
    return (*(formula.name for formula in FORMULAS), *(table.name for table in TABLES))


def _sections(
    found: FoundTerms, traced: Traced | None, only: Sequence[str]
) -> Sequence[SheetSection]:
    for name in only:
        if name not in section_names():
            raise UnknownFormulaError(name, ", ".join(section_names()))
    numbers = values(found.terms.values())
    wanted = set(only or section_names())
    return [
        *(_formula(each, numbers, found, traced) for each in FORMULAS if each.name in wanted),
        *(_table(each, numbers, found, traced) for each in TABLES if each.name in wanted),
    ]


def _formula(
    formula: Formula, numbers: Mapping[str, int], found: FoundTerms, traced: Traced | None
) -> SheetSection:
    missing = _missing(formula.needs, found)
    if missing:
        return SheetSection(formula.name, formula.title, formula.source, missing)
    parts = formula.estimate(numbers)
    exact, of = _exact(formula, numbers.get("gpus", 1), traced)
    comparison = compare(formula, parts, exact, of)
    return SheetSection(formula.name, formula.title, formula.source, comparison=comparison)


def _exact(formula: Formula, gpus: int, traced: Traced | None) -> tuple[Exact | None, str]:
    """What a formula estimates: the exact result, if a step was traced, and a description."""
    if formula.sharding is None or gpus == 1:
        of = MOMENTS[formula.moment]
        return (traced.moments[formula.moment] if traced else None), of
    of = f"the most that one of {gpus} GPUs holds of parameters, gradients, optimizer state"
    if traced is None:
        return None, of
    try:
        return traced.on_one_of(gpus, formula.sharding), of
    except InputError as error:
        return None, f"{of}; the traced step cannot be split this way: {error}"


def _missing(needs: Sequence[str], found: FoundTerms) -> dict[str, str]:
    return {name: found.unknown.get(name, "not given") for name in needs if name not in found.terms}


def _table(
    tabled: Tabled, numbers: Mapping[str, int], found: FoundTerms, traced: Traced | None
) -> SheetSection:
    missing = _missing(tabled.needs, found)
    if tabled.of_degrees and not any(name in found.terms for name in DEGREES):
        missing |= dict.fromkeys(DEGREES[:1], "no degree of parallelism is given")
    if missing:
        return SheetSection(tabled.name, tabled.title, tabled.source, missing)
    filled = tabled.fill(numbers, traced)
    if isinstance(filled, Printed):
        return SheetSection(tabled.name, tabled.title, tabled.source, printed=filled)
    return SheetSection(tabled.name, tabled.title, tabled.source, table=filled)


def _as_json(section: SheetSection, sheet: Sheet) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": section.name,
        "title": section.title,
        "source": section.source,
    }
    if section.missing:
        found["missing"] = dict(section.missing)
    if section.comparison is not None:
        found |= _comparison_as_json(section.comparison)
        left = sheet.left_beside(section.comparison.estimate)
        found |= {} if left is None else {"fits": left >= 0, "left": left}
    if section.printed is not None:
        found["printed"] = section.printed.text
        found["rows"] = [
            {"cpu": row.cpu, "gpu": row.gpu, "options": row.options} for row in section.printed.rows
        ]
        found |= _left_as_json(section.printed.left)
    if section.table is not None:
        found["notes"] = list(section.table.notes)
        found["columns"] = list(section.table.columns)
        found["rows"] = {
            name: [_number(figure) for figure in row] for name, row in section.table.rows.items()
        }
        found |= _left_as_json(section.table.left)
        found |= {"least_micro_batches": section.table.least} if section.table.least else {}
    return found


def _left_as_json(left: Mapping[str, Fraction]) -> dict[str, Any]:
    return {"left": {name: _number(nbytes) for name, nbytes in left.items()}} if left else {}


def _comparison_as_json(comparison: FormulaComparison) -> dict[str, Any]:
    formula = comparison.formula
    found: dict[str, Any] = {
        "expression": formula.expression,
        "estimates": comparison.of,
        "bytes": comparison.estimate,
        "parts": [
            {"name": part.name, "expression": part.expression, "bytes": part.bytes}
            for part in comparison.parts
        ],
    }
    if comparison.rows:
        found["exact"] = comparison.exact
        found["difference"] = comparison.difference
        found["rows"] = [
            {
                "name": row.name,
                "left_out": row.expression is None,
                "estimate": row.estimate,
                "exact": row.exact,
                "difference": row.difference,
            }
            for row in comparison.rows
        ]
    return found


def _number(figure: Fraction) -> int | float:
    return figure.numerator if figure.denominator == 1 else float(figure)
