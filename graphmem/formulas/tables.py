"""What sources have besides single formulas: DeepSpeed's tables, and ranks under every layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from graphmem.errors import InputError
from graphmem.formulas import deepspeed, korthikanti
from graphmem.formulas import parallel_training as parallel
from graphmem.formulas.estimate import Moment
from graphmem.formulas.exact import Traced
from graphmem.formulas.terms import DEGREES
from graphmem.units import format_exact

GB = 10**9


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
class Printed:
    """What a source's own program prints, and the rows of its table where it has one."""

    text: str
    rows: tuple[deepspeed.Estimate, ...] = ()


@dataclass(frozen=True)
class Tabled:
    """What a source has besides single formulas.

    Attributes:
        name: what `--only` calls it.
        title: one line.
        source: who published it.
        needs: the terms without which it says nothing.
        fill: its text as the source prints it, or its figures; called with terms and the traced
            step, None without a target.
        of_degrees: whether it says nothing without a degree of parallelism.
    """

    name: str
    title: str
    source: str
    needs: tuple[str, ...]
    fill: Callable[[Mapping[str, int], Traced | None], Printed | Table]
    of_degrees: bool = False


def format_gigabytes(nbytes: Fraction, digits: int = 3) -> str:
    """Bytes in GB, 10^9 of them, as the articles on parallel training count."""
    return f"{float(nbytes / GB):,.{digits}f}"


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


def _zero2(numbers: Mapping[str, int], traced: Traced | None) -> Printed:
    return _zero2_of(deepspeed.Release.DOCUMENTED, numbers)


def _zero2_current(numbers: Mapping[str, int], traced: Traced | None) -> Printed:
    return _zero2_of(deepspeed.Release.CURRENT, numbers)


def _zero2_of(release: deepspeed.Release, numbers: Mapping[str, int]) -> Printed:
    asked = numbers["parameters"], hardware_of(numbers)
    return Printed(
        deepspeed.zero2_table(*asked, release=release),
        tuple(deepspeed.zero2(*asked, release=release)),
    )


def _zero3(numbers: Mapping[str, int], traced: Traced | None) -> Printed:
    asked = numbers["parameters"], numbers["largest_layer"], hardware_of(numbers)
    return Printed(deepspeed.zero3_table(*asked), tuple(deepspeed.zero3(*asked)))


def _zero3_cases(numbers: Mapping[str, int], traced: Traced | None) -> Printed:
    gpus = hardware_of(numbers).gpus
    return Printed(deepspeed.zero3_cases(numbers["parameters"], numbers["largest_layer"], gpus))


_BLOCKS = ("batch", "sequence", "hidden", "heads", "layers")


def _recomputation(numbers: Mapping[str, int], traced: Traced | None) -> Table:
    rows = korthikanti.per_rank(
        **{name: numbers[name] for name in _BLOCKS}, tp=numbers.get("tp", 1)
    )
    return Table(("activations",), {name: (nbytes,) for name, nbytes in rows.items()})


def _layouts(numbers: Mapping[str, int], traced: Traced | None) -> Table:
    memory = parallel.memory_of(parallel.MIXED.estimate(numbers))
    degrees = _degrees(numbers)
    rows = {layout.name: layout.per_rank(memory, degrees) for layout in parallel.LAYOUTS}
    return _rank_table(rows)


def _llama_3(numbers: Mapping[str, int], traced: Traced | None) -> Table:
    layout, degrees = parallel.LLAMA_3, _degrees(numbers)
    formula = parallel.memory_of(parallel.MIXED.estimate(numbers))
    printed = parallel.as_printed(formula, numbers)
    rows = {
        "the whole, as the example prints it": layout.per_rank(printed, {}),
        "a rank, as it approximates": layout.approximate(printed, degrees),
        "a rank, M_a2 not over TP": layout.per_rank(printed, degrees),
    }
    if "kv_heads" in numbers:
        shared = parallel.without_shared_heads(printed, numbers)
        rows["a rank, and KVH heads of keys"] = layout.per_rank(shared, degrees)
    rows["a rank, M_a with s²"] = layout.per_rank(formula, degrees)
    notes = list(_as_the_example_says(printed, degrees))
    if traced is not None:
        try:
            memory = _of_traced(traced, degrees["tp"])
            rows["the traced step, the whole"] = layout.per_rank(memory, {})
            rows["the traced step, a rank"] = layout.per_rank(memory, degrees)
        except InputError as error:
            notes.append(f"the traced step cannot be split so: {error}")
    return replace(_rank_table(rows), notes=tuple(notes))


def _of_traced(traced: Traced, tensor: int) -> parallel.Memory:
    """The article's summands as the traced step has them; without TP, as two ranks would."""
    moments = traced.moments
    divided, whole = traced.under_tensor_parallelism(max(tensor, 2))
    states, forward = moments[Moment.STATES].by_role, moments[Moment.FORWARD].by_role
    return parallel.memory_of_states(states, forward, inner=divided, outer=whole)


def _as_the_example_says(memory: parallel.Memory, degrees: Mapping[str, int]) -> Iterator[str]:
    """The example's last two lines; of the activations it cuts what is behind the point."""
    rank = parallel.LLAMA_3.approximate(memory, {**degrees, "micro_batches": 1})
    states = format_gigabytes(rank["optimizer"] + rank["gradients"], digits=1)
    model = format_gigabytes(rank["model"], digits=1)
    yield f"M_a as the example prints it: {format_exact(memory.activations)}"
    yield f"a rank in GB, as it approximates: {states} + {model} + {int(rank['inner'] / GB)}/MB"
    yield "its first stated error: M_a2, of norms and dropout, is not divided by TP"
    yield "its second: grouped-query attention has KVH heads of keys and values, not a"
    yield "one that it does not state: M_a is printed with s where its formula says s²"


def _degrees(numbers: Mapping[str, int]) -> dict[str, int]:
    """The degrees of parallelism; sequence parallelism runs over the ranks of the tensor's."""
    degrees = {name: numbers.get(name, 1) for name in DEGREES}
    return degrees | {"sp": numbers.get("sp", degrees["tp"])}


def _rank_table(rows: Mapping[str, Mapping[str, Fraction]]) -> Table:
    return Table(
        (*parallel.SUMMAND_LETTERS.values(), "sum"),
        {name: (*row.values(), sum(row.values(), Fraction())) for name, row in rows.items()},
    )


TABLES: Sequence[Tabled] = (
    Tabled(
        "deepspeed-zero2-table",
        f"ZeRO-2, as DeepSpeed {deepspeed.Release.DOCUMENTED} and its documentation print it",
        deepspeed.SOURCE,
        ("parameters",),
        _zero2,
    ),
    Tabled(
        "deepspeed-zero2-current",
        f"ZeRO-2, as DeepSpeed {deepspeed.Release.CURRENT} prints it",
        deepspeed.SOURCE,
        ("parameters",),
        _zero2_current,
    ),
    Tabled(
        "deepspeed-zero3-table",
        "ZeRO-3, as DeepSpeed prints it",
        deepspeed.SOURCE,
        ("parameters", "largest_layer"),
        _zero3,
    ),
    Tabled(
        "deepspeed-zero3-cases",
        "ZeRO-3, as the script of DeepSpeed's documentation prints it",
        deepspeed.SOURCE,
        ("parameters", "largest_layer"),
        _zero3_cases,
    ),
    Tabled(
        "korthikanti-recomputation",
        "Activations of all blocks on one of TP ranks",
        f"{korthikanti.SOURCE}, table 2",
        _BLOCKS,
        _recomputation,
    ),
    Tabled(
        "parallel-layouts",
        "One rank in mixed precision under every parallelism",
        parallel.SOURCE,
        ("parameters", *_BLOCKS),
        _layouts,
        of_degrees=True,
    ),
    Tabled(
        "parallel-llama-3",
        f"{parallel.LLAMA_3.name}, by steps from the article's example to the traced step",
        parallel.SOURCE,
        ("parameters", *_BLOCKS),
        _llama_3,
        of_degrees=True,
    ),
)
