"""The tables of "Training memory formulas": ranks, all GPUs, its example, and checkpointing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction

from graphmem.errors import InputError
from graphmem.formulas import parallel_training as parallel
from graphmem.formulas.estimate import FormulaMoment
from graphmem.formulas.exact import Traced
from graphmem.formulas.tabled import Table, format_in, left_of_card
from graphmem.formulas.terms import DEGREES
from graphmem.units import format_exact

_WHOLE, _WHOLE_STEP = "the whole, as the example prints it", "the traced step, the whole"
_WHOLES = (_WHOLE, _WHOLE_STEP)


def layouts(numbers: Mapping[str, int], traced: Traced | None) -> Table:
    """One rank under every layout."""
    memory = parallel.memory_of(parallel.MIXED.estimate(numbers))
    degrees = _degrees(numbers)
    return _ranks(
        {layout.name: layout.per_rank(memory, degrees) for layout in parallel.LAYOUTS}, numbers
    )


def all_gpus(numbers: Mapping[str, int], traced: Traced | None) -> Table:
    """All GPUs together under every layout; under plain DP one of them may have the optimizer."""
    memory = parallel.memory_of(parallel.MIXED.estimate(numbers))
    degrees = _degrees(numbers)
    data = degrees["dp"]
    found = {"DP, the optimizer on one": (data, parallel.with_one_optimizer(memory, data))}
    for layout in parallel.LAYOUTS:
        gpus, rank = layout.gpus(degrees), layout.per_rank(memory, degrees)
        found[layout.name] = gpus, {name: gpus * nbytes for name, nbytes in rank.items()}
    rows = {
        name: (Fraction(gpus), *row.values(), sum(row.values(), Fraction()))
        for name, (gpus, row) in found.items()
    }
    columns = ("GPUs", *parallel.SUMMAND_LETTERS.values(), "sum")
    return Table(columns, rows, unit="TB", counts=frozenset({"GPUs"}))


def llama_3(numbers: Mapping[str, int], traced: Traced | None) -> Table:
    """The article's example, step by step from what it prints to the traced step."""
    layout, degrees = parallel.LLAMA_3, _degrees(numbers)
    formula = parallel.memory_of(parallel.MIXED.estimate(numbers))
    printed = parallel.as_printed(formula, numbers)
    rows = {
        _WHOLE: layout.per_rank(printed, {}),
        "a rank, as it approximates": layout.approximate(printed, degrees),
        "a rank, M_a2 not over TP": layout.per_rank(printed, degrees),
    }
    if "kv_heads" in numbers:
        shared = parallel.without_shared_heads(printed, numbers)
        rows["a rank, and KVH heads of keys"] = layout.per_rank(shared, degrees)
    rows["a rank, M_a with s²"] = layout.per_rank(formula, degrees)
    notes = list(_as_the_example_says(printed, degrees, numbers.get("memory")))
    if traced is not None:
        try:
            memory = _of_traced(traced, degrees["tp"])
            rows[_WHOLE_STEP] = layout.per_rank(memory, {})
            rows["the traced step, a rank"] = layout.per_rank(memory, degrees)
        except InputError as error:
            notes.append(f"the traced step cannot be split this way: {error}")
    table = _ranks(rows, numbers)
    ranks = {name: row for name, row in rows.items() if name not in _WHOLES}
    return replace(
        table,
        notes=tuple(notes),
        left={name: left for name, left in table.left.items() if name in ranks},
        least=_least(ranks, numbers),
    )


def checkpointing(numbers: Mapping[str, int], traced: Traced | None) -> Table:
    """The article's factor AC by what a block keeps, and the example's rank with it."""
    memory = parallel.memory_of(parallel.MIXED.estimate(numbers))
    printed = parallel.as_printed(memory, numbers)
    rank = parallel.LLAMA_3.approximate(printed, _degrees(numbers))
    ranks, rows = {}, {}
    for name, (without, kept) in parallel.checkpoints(printed, numbers).items():
        factor = Fraction(without, kept)
        ranks[name] = {**rank, "inner": rank["inner"] / factor}
        total = sum(ranks[name].values(), Fraction())
        rows[name] = (Fraction(without), Fraction(kept), factor, ranks[name]["inner"], total)
    return Table(
        ("saved without", "saved with", "AC", "M_a a rank", "a rank"),
        rows,
        counts=frozenset({"AC"}),
        left=left_of_card(numbers, {name: row[-1] for name, row in rows.items()}),
        least=_least(ranks, numbers),
    )


def _degrees(numbers: Mapping[str, int]) -> dict[str, int]:
    """The degrees of parallelism; sequence parallelism uses the ranks of tensor parallelism."""
    degrees = {name: numbers.get(name, 1) for name in DEGREES}
    return degrees | {"sp": numbers.get("sp", degrees["tp"])}


def _ranks(rows: Mapping[str, Mapping[str, Fraction]], numbers: Mapping[str, int]) -> Table:
    sums = {name: sum(row.values(), Fraction()) for name, row in rows.items()}
    return Table(
        (*parallel.SUMMAND_LETTERS.values(), "sum"),
        {name: (*row.values(), sums[name]) for name, row in rows.items()},
        left=left_of_card(numbers, sums),
    )


def _least(
    rows: Mapping[str, Mapping[str, Fraction]], numbers: Mapping[str, int]
) -> dict[str, int | None]:
    """The fewest micro-batches with which each rank fits on the card, if one is given."""
    if "memory" not in numbers:
        return {}
    times = numbers.get("micro_batches", 1)
    return {
        name: parallel.least_micro_batches(row, numbers["memory"], times)
        for name, row in rows.items()
    }


def _of_traced(traced: Traced, tensor: int) -> parallel.ModelMemory:
    """The article's summands in the traced step; without TP, divided as for two ranks."""
    moments = traced.moments
    divided, whole = traced.under_tensor_parallelism(max(tensor, 2))
    states, forward = moments[FormulaMoment.STATES].by_role, moments[FormulaMoment.FORWARD].by_role
    return parallel.memory_of_states(states, forward, inner=divided, outer=whole)


def _as_the_example_says(
    memory: parallel.ModelMemory, degrees: Mapping[str, int], room: int | None
) -> Iterator[str]:
    """The example's last lines; it truncates the activations to whole GB."""
    rank = parallel.LLAMA_3.approximate(memory, {**degrees, "micro_batches": 1})
    states = round(float((rank["optimizer"] + rank["gradients"]) / 10**9), 1)
    model = round(float(rank["model"] / 10**9), 1)
    yield f"M_a as the example prints it: {format_exact(memory.activations)}"
    yield f"a rank in GB, as it approximates: {states} + {model} + {int(rank['inner'] / 10**9)}/MB"
    if room is not None:
        least = parallel.least_micro_batches(rank, room, 1)
        card = format_in("GB", Fraction(room), digits=1)
        rest = room / 10**9 - states - model
        yield (
            f"of {card} GB {rest:,.1f} GB are left for activations: "
            + (f"it fits if MB >= {least}" if least else "it fits with no MB")
        )
    yield "its first stated error: M_a2, of norms and dropout, is not divided by TP"
    yield "its second: grouped-query attention has KVH heads of keys and values, not a"
    yield "one that it does not state: M_a is printed with s where its formula says s²"
