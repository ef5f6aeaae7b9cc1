"""Everything that published formulas say about a training step: what `graphmem formulas` prints.

Each *section* is one formula or one table of a source. A section whose terms are not all known says
which are missing and why, in place of figures.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from graphmem.errors import InputError
from graphmem.formulas import deepspeed, korthikanti, nanogpt
from graphmem.formulas import parallel_training as parallel
from graphmem.formulas.blocks import find_blocks
from graphmem.formulas.comparison import Comparison, compare
from graphmem.formulas.estimate import MOMENTS, Formula, Moment
from graphmem.formulas.exact import Exact, exact_at
from graphmem.formulas.find_terms import Found, find_terms
from graphmem.formulas.terms import DEGREES, LETTERS, Term, values
from graphmem.units import format_exact

if TYPE_CHECKING:
    from graphmem.analysis import Analysis

SCHEMA = "graphmem.formulas/1"
GB = 10**9
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
)


@dataclass(frozen=True)
class Table:
    """Figures that a source has for several ways to train.

    Attributes:
        columns: what they are of.
        rows: bytes by what they are under.
        notes: sentences beside them.
    """

    columns: tuple[str, ...]
    rows: Mapping[str, tuple[Fraction, ...]]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Section:
    """One formula or table, or what it lacks.

    Attributes:
        name: what `--only` calls it.
        title: one line.
        source: who published it.
        missing: terms without which it says nothing, with the reasons.
        comparison: a formula, held against the exact result.
        printed: text as the source's own program prints it.
        table: bytes of one rank.
    """

    name: str
    title: str
    source: str
    missing: Mapping[str, str] = field(default_factory=dict)
    comparison: Comparison | None = None
    printed: str | None = None
    table: Table | None = None


@dataclass(frozen=True)
class Sheet:
    """What formulas say.

    Attributes:
        target: whose step it is; None where only terms were given.
        terms: the terms that are known, by name.
        sections: one for each formula or table.
    """

    target: str | None
    terms: Mapping[str, Term]
    sections: Sequence[Section]

    def to_json(self) -> str:
        """The sheet as JSON; bytes that are no whole number are given as a fraction's decimals."""
        found = {
            "schema": SCHEMA,
            "target": self.target,
            "terms": {
                term.name: {"letter": term.letter, "value": term.value, "source": term.source}
                for term in self.terms.values()
            },
            "formulas": [_as_json(section) for section in self.sections],
        }
        return json.dumps(found, indent=2, ensure_ascii=False) + "\n"


def formulas_of(
    analysis: Analysis, given: Mapping[str, Term] | None = None, only: Sequence[str] = ()
) -> Sheet:
    """Every published formula for a traced step, beside the exact result.

    Args:
        analysis: of a training step.
        given: terms in place of those that the trace shows.
        only: names of sections; default: all.

    Raises:
        InputError: the step has no backward pass, or no section has that name.
    """
    blocks = find_blocks(analysis.graph)
    found = find_terms(analysis.graph, blocks)
    exact = exact_at(analysis, blocks)
    terms = found.terms | dict(given or {})
    return Sheet(analysis.report.target, terms, _sections(Found(terms, found.unknown), exact, only))


def formulas_for(given: Mapping[str, Term], only: Sequence[str] = ()) -> Sheet:
    """What published formulas say for terms alone.

    Raises:
        InputError: no section has that name, or none has all its terms.
    """
    sections = _sections(Found(dict(given), {}), {}, only)
    if all(section.missing for section in sections):
        name, lacking = min(
            ((section.name, section.missing) for section in sections), key=lambda each: len(each[1])
        )
        needed = ", ".join(f"{LETTERS[term]} ({term})" for term in lacking)
        raise InputError(
            f"no formula has all its terms: {name} lacks {needed}",
            hint="give a target, `--term h=768` for each, or `--example llama-3-405b`",
        )
    return Sheet(None, dict(given), [section for section in sections if not section.missing])


def section_names() -> tuple[str, ...]:
    """The names that `only` may have, in the order of the sheet."""
    return (*(formula.name for formula in FORMULAS), *(table.name for table in _TABLES))


def _sections(
    found: Found, exact: Mapping[Moment, Exact], only: Sequence[str]
) -> Sequence[Section]:
    for name in only:
        if name not in section_names():
            raise InputError(
                f"no formula is called {name!r}", hint=f"there are {', '.join(section_names())}"
            )
    numbers = values(found.terms.values())
    filled = [
        *(_formula(formula, numbers, found, exact) for formula in FORMULAS),
        *(_table(table, numbers, found, exact) for table in _TABLES),
    ]
    return [section for section in filled if not only or section.name in only]


def _formula(
    formula: Formula, numbers: Mapping[str, int], found: Found, exact: Mapping[Moment, Exact]
) -> Section:
    missing = _missing(formula.needs, found)
    if missing:
        return Section(formula.name, formula.title, formula.source, missing)
    parts = formula.estimate(numbers)
    at = exact.get(formula.moment)
    comparison = Comparison(formula, parts) if at is None else compare(formula, parts, at)
    return Section(formula.name, formula.title, formula.source, comparison=comparison)


def _missing(needs: Sequence[str], found: Found) -> dict[str, str]:
    return {name: found.unknown.get(name, "not given") for name in needs if name not in found.terms}


@dataclass(frozen=True)
class _Tabled:
    """A section that is no single formula: `fill` gives its text or table."""

    name: str
    title: str
    source: str
    needs: tuple[str, ...]
    fill: Callable[[Mapping[str, int], Mapping[Moment, Exact]], str | Table]


def _table(
    tabled: _Tabled, numbers: Mapping[str, int], found: Found, exact: Mapping[Moment, Exact]
) -> Section:
    missing = _missing(tabled.needs, found)
    if missing:
        return Section(tabled.name, tabled.title, tabled.source, missing)
    filled = tabled.fill(numbers, exact)
    if isinstance(filled, str):
        return Section(tabled.name, tabled.title, tabled.source, printed=filled)
    return Section(tabled.name, tabled.title, tabled.source, table=filled)


def hardware_of(numbers: Mapping[str, int]) -> deepspeed.Hardware:
    """The GPUs of each machine, from how many there are in all.

    Raises:
        InputError: they cannot be spread evenly.
    """
    gpus, nodes = numbers.get("gpus", 1), numbers.get("nodes", 1)
    if gpus % nodes:
        nearest = max(nodes, round(gpus / nodes) * nodes)
        raise InputError(
            f"{gpus} GPUs cannot be spread evenly over {nodes} machines",
            hint=f"the nearest number that can is {nearest}",
        )
    return deepspeed.Hardware(gpus // nodes, nodes)


def _zero2(numbers: Mapping[str, int], exact: Mapping[Moment, Exact]) -> str:
    hardware = hardware_of(numbers)
    return deepspeed.zero2_table(numbers["parameters"], hardware)


def _zero2_current(numbers: Mapping[str, int], exact: Mapping[Moment, Exact]) -> str:
    release = deepspeed.Release.CURRENT
    return deepspeed.zero2_table(numbers["parameters"], hardware_of(numbers), release=release)


def _zero3(numbers: Mapping[str, int], exact: Mapping[Moment, Exact]) -> str:
    hardware = hardware_of(numbers)
    return deepspeed.zero3_table(numbers["parameters"], numbers["largest_layer"], hardware)


def _zero3_cases(numbers: Mapping[str, int], exact: Mapping[Moment, Exact]) -> str:
    gpus = hardware_of(numbers).gpus
    return deepspeed.zero3_cases(numbers["parameters"], numbers["largest_layer"], gpus)


_BLOCKS = ("batch", "sequence", "hidden", "heads", "layers")


def _recomputation(numbers: Mapping[str, int], exact: Mapping[Moment, Exact]) -> Table:
    rows = korthikanti.per_rank(
        **{name: numbers[name] for name in _BLOCKS}, tp=numbers.get("tp", 1)
    )
    return Table(("activations",), {name: (nbytes,) for name, nbytes in rows.items()})


def _layouts(numbers: Mapping[str, int], exact: Mapping[Moment, Exact]) -> Table:
    memory = parallel.memory_of(parallel.MIXED.estimate(numbers))
    degrees = _degrees(numbers)
    rows = {layout.name: layout.per_rank(memory, degrees) for layout in parallel.LAYOUTS}
    return _rank_table(rows)


def _llama_3(numbers: Mapping[str, int], exact: Mapping[Moment, Exact]) -> Table:
    layout, degrees = parallel.LLAMA_3, _degrees(numbers)
    formula = parallel.memory_of(parallel.MIXED.estimate(numbers))
    printed = parallel.as_printed(formula, numbers)
    rows = {
        "the whole, M_a with s for s² as the example prints it": layout.per_rank(printed, {}),
        "a rank, as the example approximates it": layout.approximate(printed, degrees),
        "M_a2 not over TP, its first stated error": layout.per_rank(printed, degrees),
    }
    if "kv_heads" in numbers:
        shared = parallel.without_shared_heads(printed, numbers)
        rows["and keys and values of KVH heads, its second"] = layout.per_rank(shared, degrees)
    rows["its formula, with s²"] = layout.per_rank(formula, degrees)
    if exact:
        traced = parallel.traced(exact[Moment.STATES].by_role, exact[Moment.FORWARD].by_role)
        rows["the traced step's own bytes, the whole"] = layout.per_rank(traced, {})
        rows["the traced step's own bytes, a rank"] = layout.per_rank(traced, degrees)
    return replace(_rank_table(rows), notes=tuple(_as_the_example_says(printed, degrees)))


def _as_the_example_says(memory: parallel.Memory, degrees: Mapping[str, int]) -> Iterator[str]:
    """The example's last two lines; of the activations it cuts what is behind the point."""
    rank = parallel.LLAMA_3.approximate(memory, {**degrees, "micro_batches": 1})
    states = format_gigabytes(rank["optimizer"] + rank["gradients"], digits=1)
    model = format_gigabytes(rank["model"], digits=1)
    yield f"M_a as the example prints it: {format_exact(memory.activations)}"
    yield f"a rank in GB, as it approximates: {states} + {model} + {int(rank['inner'] / GB)}/MB"


def _degrees(numbers: Mapping[str, int]) -> dict[str, int]:
    """The degrees of parallelism; sequence parallelism runs over the ranks of the tensor's."""
    degrees = {name: numbers.get(name, 1) for name in DEGREES}
    return degrees | {"sp": numbers.get("sp", degrees["tp"])}


def _rank_table(rows: Mapping[str, Mapping[str, Fraction]]) -> Table:
    return Table(
        (*parallel.SUMMAND_LETTERS.values(), "sum"),
        {name: (*row.values(), sum(row.values(), Fraction())) for name, row in rows.items()},
    )


_TABLES: Sequence[_Tabled] = (
    _Tabled(
        "deepspeed-zero2-table",
        f"ZeRO-2, as DeepSpeed {deepspeed.Release.DOCUMENTED} and its documentation print it",
        deepspeed.SOURCE,
        ("parameters",),
        _zero2,
    ),
    _Tabled(
        "deepspeed-zero2-current",
        f"ZeRO-2, as DeepSpeed {deepspeed.Release.CURRENT} prints it",
        deepspeed.SOURCE,
        ("parameters",),
        _zero2_current,
    ),
    _Tabled(
        "deepspeed-zero3-table",
        "ZeRO-3, as DeepSpeed prints it",
        deepspeed.SOURCE,
        ("parameters", "largest_layer"),
        _zero3,
    ),
    _Tabled(
        "deepspeed-zero3-cases",
        "ZeRO-3, as the script of DeepSpeed's documentation prints it",
        deepspeed.SOURCE,
        ("parameters", "largest_layer"),
        _zero3_cases,
    ),
    _Tabled(
        "korthikanti-recomputation",
        "Activations of all blocks on one of TP ranks",
        f"{korthikanti.SOURCE}, table 2",
        _BLOCKS,
        _recomputation,
    ),
    _Tabled(
        "parallel-layouts",
        "One rank in mixed precision under every parallelism",
        parallel.SOURCE,
        ("parameters", *_BLOCKS),
        _layouts,
    ),
    _Tabled(
        "parallel-llama-3",
        f"{parallel.LLAMA_3.name}, by steps from the article's example to the traced step",
        parallel.SOURCE,
        ("parameters", *_BLOCKS),
        _llama_3,
    ),
)


def _as_json(section: Section) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": section.name,
        "title": section.title,
        "source": section.source,
    }
    if section.missing:
        found["missing"] = dict(section.missing)
    if section.comparison is not None:
        found |= _comparison_as_json(section.comparison)
    if section.printed is not None:
        found["printed"] = section.printed
    if section.table is not None:
        found["notes"] = list(section.table.notes)
        found["columns"] = list(section.table.columns)
        found["rows"] = {
            name: [_number(nbytes) for nbytes in row] for name, row in section.table.rows.items()
        }
    return found


def _comparison_as_json(comparison: Comparison) -> dict[str, Any]:
    formula = comparison.formula
    found: dict[str, Any] = {
        "expression": formula.expression,
        "estimates": MOMENTS[formula.moment],
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


def format_gigabytes(nbytes: Fraction, digits: int = 3) -> str:
    """Bytes in GB, 10^9 of them, as the articles on parallel training count."""
    return f"{float(nbytes / GB):,.{digits}f}"


def _number(nbytes: Fraction) -> int | float:
    return nbytes.numerator if nbytes.denominator == 1 else float(nbytes)
